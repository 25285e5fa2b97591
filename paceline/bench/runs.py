"""One thing to measure: a method of ours at some batch size. `peers` has the others."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from .. import engine
from ..clock import Clock
from ..methods import build
from ..record.recorder import recorder_for
from ..rules import ledger
from ..rules.walk import check_pairing
from ..sequence import Sequence as Request
from ..stats import Stats
from ..targets.hf import HFTarget

if TYPE_CHECKING:
    from .settings import Settings


@dataclass
class Decoded:
    """What one decode of one or more prompts gave and cost. `stats` is there for our own methods only, one per prompt.

    `target_forwards` are those that gave tokens; `prefill_forwards` read the prompt and nothing else.
    """

    outputs: list[list[int]]
    seconds: float
    target_forwards: int
    prefill_forwards: int = 0
    draft_forwards: int = 0
    target_seconds: float = 0.0
    draft_seconds: float = 0.0
    stats: list[Stats] = field(default_factory=list)
    prefill_seconds: float | None = None  # of target_seconds; None where it is not known
    rules: list[dict[str, Any]] = field(default_factory=list)  # what lossy rules did, one per prompt
    cores_used_by_others: float | None = None  # this one and the next where another process decoded and measured
    peak_rss_mb: float | None = None


class Run(Protocol):
    """One line of the report."""

    name: str
    method: str
    rule: str | None
    lossless: bool
    budget: int | None
    temperature: float
    batch_size: int

    def decode(self, prompts: Sequence[list[int]], limits: Sequence[int]) -> Decoded:
        """Decode prompts, each up to its own limit of new tokens."""
        ...


class MethodRun:
    """A method of ours. Every decode begins with empty caches and a new drafter, so that no prompt profits from another."""

    def __init__(self, method: str, target: HFTarget, draft: HFTarget | None, settings: Settings, batch_size: int, name: str = "") -> None:
        self.method, self.name, self.batch_size = method, name or method, batch_size
        self.budget, self.temperature = settings.options(method, draft).budget, settings.temperature
        self._target, self._draft, self._settings = target, draft, settings
        self.records: Path | None = None  # where rounds are kept
        drafter, rule = self._build()
        check_pairing(drafter, rule)
        self.rule: str | None = rule.name
        self.lossless: bool = rule.lossless

    def _build(self) -> tuple[Any, Any]:
        return build(self.method, self._target, self._settings.options(self.method, self._draft))

    def decode(self, prompts: Sequence[list[int]], limits: Sequence[int]) -> Decoded:
        for model in (self._target, self._draft):
            if model is not None:
                model.cache = type(model.cache)()
        drafter, rule = self._build()
        seqs = [self._request(tokens, limit) for tokens, limit in zip(prompts, limits, strict=True)]
        stats = {id(s): Stats() for s in seqs}
        recorder = None if self.records is None else recorder_for(self.records, self._target, drafter, rule)
        target, draft = Clock(), Clock()
        with target.watching(self._target), draft.watching(self._draft), draft.watching_heads(drafter):
            began = time.perf_counter()
            for round_ in engine.stream(self._target, drafter, rule, seqs, self.batch_size):
                stats[id(round_.sequence)].add(round_)
                if recorder is not None:
                    recorder.add(round_, "bench")
            seconds = time.perf_counter() - began
        return Decoded(
            [s.output for s in seqs],
            seconds,
            target.forwards,
            target.prefills,
            draft.forwards + draft.prefills,
            target.seconds,
            draft.seconds,
            [stats[id(s)] for s in seqs],
            target.prefill_seconds,
            [ledger.summaries(s) for s in seqs],
        )

    def _request(self, tokens: list[int], limit: int) -> Request:
        params = self._settings.params(limit)
        return Request(tokens, params, eos_token_ids=self._target.eos_token_ids, max_length=self._target.max_length)
