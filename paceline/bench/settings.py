"""What a bench was asked for, checked before any model is loaded."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import InvalidRequest
from ..heads.shipped import exits_folder, head_folder
from ..lossy import of_method
from ..methods import DRAFTERS, Options, check, parse, reads
from ..sampling import SamplingParams
from ..targets.load import WEIGHTS
from .peers.names import WITH_DRAFT, check_peer
from .suites import Prompt

_TOLD = (
    "budget", "num_speculative_tokens", "shape", "head", "rule_mode", "memory", "thresholds", "rule_settings", "exits", "exit_settings",
    "profile",
)  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """One bench. None leaves a method's own default."""

    model: str = "smollm2"
    draft_model: str | None = None
    draft_weights: str = "auto"  # for our own methods; peers draft with plain weights
    methods: tuple[str, ...] = ("none", "lookup")
    peers: tuple[str, ...] = ("transformers",)
    prompts: str | None = None
    limit: int | None = None
    max_new_tokens: int = 128
    budget: int | None = None
    num_speculative_tokens: int | None = None
    dtype: str = "auto"
    batch_size: int = 1
    batch_by_task: bool = False
    lockstep: bool = False
    temperature: float = 0.0
    seed: int | None = None
    repeat: int = 1
    shape: str | None = None  # for the methods that can draft in it
    head: str | None = None  # for method jetspec
    rule_mode: str | None = None  # of the rules csd and easd, as the next three
    memory: str | None = None
    thresholds: str | None = None
    rule_settings: Mapping[str, str] | None = None
    exits: str | None = None  # for method specbound, as the next one
    exit_settings: Mapping[str, str] | None = None
    profile: str | None = None  # for method auto

    def __post_init__(self) -> None:
        for field in ("batch_size", "repeat"):
            if getattr(self, field) < 1:
                raise InvalidRequest(f"{field} is {getattr(self, field)}; it must be at least 1")
        if self.limit is not None and self.limit < 1:
            raise InvalidRequest(f"limit is {self.limit}; it must be at least 1")
        if self.batch_by_task and self.batch_size == 1:
            raise InvalidRequest("batch_by_task has no effect at batch size 1; leave it out or give --batch-size")
        if self.lockstep and len(self.methods) == 1:
            raise InvalidRequest(f"lockstep has no effect on a single method, {self.methods[0]}; leave it out or name more methods")
        self.params(self.max_new_tokens)
        if self.temperature == 0 and self.seed is not None:
            raise InvalidRequest("seed has no effect at temperature 0 (greedy decoding); set --temperature or leave it out")
        _check_names(self.methods, self.peers)
        for peer in self.peers:
            check_peer(peer)
        self._check_options()
        if self.draft_weights not in WEIGHTS:
            raise InvalidRequest(f"draft_weights is {self.draft_weights!r}; it must be one of {', '.join(WEIGHTS)}")
        if self.draft_weights != "auto" and self.draft_model is None:
            raise InvalidRequest("draft_weights has no effect without a draft model; leave it out or give --draft-model")

    def _check_options(self) -> None:
        read = {m: reads(m, self.shape) for m in self.methods}
        for name in self.rule_settings or {}:
            if not any(of_method(m, {name: ""}) for m in self.methods):
                raise InvalidRequest(f"rule setting {name!r} is of no rule of {', '.join(self.methods)}; leave it out or add a method")
        for field in _TOLD:
            value = getattr(self, field)
            if isinstance(value, int) and value < 1:
                raise InvalidRequest(f"{field} is {value}; it must be at least 1")
            if value is not None and not any(field in names for names in read.values()):
                raise InvalidRequest(f"none of the methods {', '.join(self.methods)} uses {field}; leave it out or add a method that does")
        needs = [m for m in self.methods if "draft_model" in parse(m)[0]]
        if needs and self.draft_model is None:
            raise InvalidRequest(f"method {needs[0]} needs a draft model; give one with --draft-model")
        drafting = any(peer in WITH_DRAFT for peer in self.peers) or any("draft_model" in names for names in read.values())
        if self.draft_model is not None and not drafting:
            raise InvalidRequest(
                f"nothing here uses a draft model; leave --draft-model out, or add method draft_model or peer {WITH_DRAFT[0]}"
            )
        if self.head is not None or any("jetspec" in parse(m)[0] for m in self.methods):
            head_folder(self.head, self.model)  # raises where there is none
        if self.exits is not None:
            exits_folder(self.exits, self.model)
        for method in self.methods:
            check(method, self.options(method, self.draft_model))

    def params(self, max_new_tokens: int) -> SamplingParams:
        """How each request is decoded. Raises InvalidRequest."""
        return SamplingParams(
            max_new_tokens=max_new_tokens, temperature=self.temperature, seed=(self.seed or 0) if self.temperature else None
        )

    def options(self, method: str, draft_model: Any) -> Options:
        """What this method is told: of the settings, those that it reads."""
        lossy = self.rule_mode, self.memory, self.thresholds, of_method(method, self.rule_settings)
        told = self.num_speculative_tokens, self.budget, draft_model, self.shape, self.head
        given = Options(*told, *lossy, exits=self.exits, exit_settings=self.exit_settings, profile=self.profile)
        return Options(**{name: getattr(given, name) for name in reads(method, self.shape)})

    def fingerprint(self, prompts: Sequence[Prompt], **more: Any) -> str:
        """Equal for two benches whose rows may stand in one report."""
        text = json.dumps([dataclasses.asdict(self), [(p.id, p.asked) for p in prompts], more], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _check_names(methods: tuple[str, ...], peers: tuple[str, ...]) -> None:
    for kind, names in (("methods", methods), ("peers", peers)):
        if twice := [n for i, n in enumerate(names) if n in names[:i]]:
            raise InvalidRequest(f"{kind} names {twice[0]!r} twice; name each once (--repeat decodes again)")
    if not methods:
        raise InvalidRequest(f"methods is empty; name at least one of {', '.join(DRAFTERS)}")
