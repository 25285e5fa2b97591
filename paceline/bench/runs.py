"""One thing to measure: a method of ours at some batch size. `peers` has the others."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from .. import engine
from ..clock import Clock, Stopwatch
from ..methods import build
from ..record.recorder import recorder_for
from ..rules import ledger
from ..rules.walk import check_pairing
from ..sequence import Sequence as Request
from ..stats import Stats
from ..targets.hf import HFTarget

if TYPE_CHECKING:
    from ..record.recorder import Recorder
    from ..rules.walk import Rule
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
        self.forget()
        decoding = self.begin(prompts, limits)
        decoding.go_on(to_the_end=True)
        return decoding.result

    def forget(self) -> None:
        """Begin with empty caches. What is being decoded on these models is lost."""
        for model in (self._target, self._draft):
            if model is not None:
                model.cache = type(model.cache)()

    def begin(self, prompts: Sequence[list[int]], limits: Sequence[int]) -> Decoding:
        """A decode that has not begun yet."""
        seqs = [self._request(tokens, limit) for tokens, limit in zip(prompts, limits, strict=True)]
        drafter, rule = self._build()
        recorder = None if self.records is None else recorder_for(self.records, self._target, drafter, rule)
        return Decoding(self._target, self._draft, drafter, rule, seqs, self.batch_size, recorder)

    def _request(self, tokens: list[int], limit: int) -> Request:
        params = self._settings.params(limit)
        return Request(tokens, params, eos_token_ids=self._target.eos_token_ids, max_length=self._target.max_length)


class Decoding:
    """A decode that can be left and gone on with. Its clocks stand still while others decode, that of its drafter too."""

    def __init__(
        self,
        target: HFTarget,
        draft: HFTarget | None,
        drafter: Any,
        rule: Rule,
        seqs: Sequence[Request],
        batch_size: int,
        recorder: Recorder | None = None,
    ) -> None:
        self._target, self._draft, self._drafter, self._seqs, self._batch_size = target, draft, drafter, seqs, batch_size
        self._rounds, self._recorder = engine.stream(target, drafter, rule, seqs, batch_size), recorder
        self._stats = {id(s): Stats() for s in seqs}
        self._watch, self._of_target, self._of_draft = Stopwatch(), Clock(), Clock()
        if hasattr(drafter, "clock"):
            drafter.clock = self._watch

    @property
    def done(self) -> bool:
        return all(s.finish_reason for s in self._seqs)

    @property
    def tokens(self) -> int:
        """So far."""
        return sum(len(s.output) for s in self._seqs)

    def go_on(self, *, to_the_end: bool = False) -> None:
        """Decode another round of all live sequences, or all there is."""
        live = min(self._batch_size, sum(s.finish_reason is None for s in self._seqs))
        with ExitStack() as watched:
            watched.enter_context(self._of_target.watching(self._target))
            watched.enter_context(self._of_draft.watching(self._draft))
            watched.enter_context(self._of_draft.watching_heads(self._drafter))
            watched.enter_context(self._watch.running())
            for round_ in self._rounds if to_the_end else islice(self._rounds, live):
                self._stats[id(round_.sequence)].add(round_)
                if self._recorder is not None:
                    self._recorder.add(round_, "bench")

    @property
    def result(self) -> Decoded:
        return Decoded(
            [s.output for s in self._seqs],
            self._watch(),
            self._of_target.forwards,
            self._of_target.prefills,
            self._of_draft.forwards + self._of_draft.prefills,
            self._of_target.seconds,
            self._of_draft.seconds,
            [self._stats[id(s)] for s in self._seqs],
            self._of_target.prefill_seconds,
            [ledger.summaries(s) for s in self._seqs],
        )


def decode_in_step(runs: Sequence[MethodRun], prompts: Sequence[list[int]], limits: Sequence[int]) -> list[Decoded]:
    """Decode the same prompts with several methods of the same models, a round at a time: it is always the turn of the one that is furthest
    behind in the text. So whatever slows the machine for a second slows all of them alike."""
    runs[0].forget()
    decodings = [run.begin(prompts, limits) for run in runs]
    while behind := [d for d in decodings if not d.done]:
        min(behind, key=lambda d: d.tokens).go_on()
    return [d.result for d in decodings]
