"""One answer with its times, as a record for JSON or for the table."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .. import api, engine
from ..clock import Clock
from ..lossy import rules_around
from ..methods import build
from ..sequence import Sequence as Request
from ..stats import Stats
from .common import Session
from .console import Progress, write

Show = Callable[[str, int], None]  # new text, tokens so far
Reader = Callable[[engine.Round], object]  # of rounds, such as `record.recorder.Recorder.add`
_WARM_UP = 32  # tokens of the prompt


@dataclass(frozen=True)
class Run:
    """One decoded answer; `seconds` include the prompt."""

    completion: api.Completion
    seconds: float
    target: Clock
    draft: Clock

    @property
    def tokens_per_second(self) -> float:
        return len(self.completion.tokens) / self.seconds

    @property
    def time_share(self) -> dict[str, float]:
        """Parts of the time in forwards of the target, in those of a draft model or a head, and elsewhere."""
        target, draft = self.target.seconds / self.seconds, self.draft.seconds / self.seconds
        return {"target": target, "draft": draft, "other": max(0.0, 1 - target - draft)}


def decode(
    session: Session, seq: Request, show: Show, stopped: Callable[[], bool] = lambda: False, *, reader: Reader = lambda round_: None
) -> Run:
    """Decode one sequence to its end, or to the end of the round in which `stopped` became true. Its slot stays open."""
    stats, ours, theirs = Stats(), Clock(), Clock()
    shown = 0
    began = time.perf_counter()
    with ours.watching(session.target), theirs.watching(session.draft), theirs.watching_heads(session.drafter):
        for piece, round_ in api.stream(session.target, seq, session.drafter, session.rule):
            stats.add(round_)
            reader(round_)
            show(piece, stats.tokens)
            shown += len(piece)
            if stopped():
                break
    seconds = time.perf_counter() - began
    completion = api.completion(seq, stats)
    if rest := completion.text[shown:]:  # held back when it was stopped
        show(rest, stats.tokens)
    return Run(completion, seconds, ours, theirs)


def decode_once(session: Session, tokens: Sequence[int], show: Show, *, reader: Reader = lambda round_: None) -> Run:
    """Decode one prompt and give its memory back."""
    seq = api.request(session.target, tokens, session.params)
    try:
        return decode(session, seq, show, reader=reader)
    finally:
        engine.release(session.target, seq)


def plain(session: Session) -> Session:
    """The same without a draft: the baseline."""
    drafter, rule = build("none", session.target)
    return dataclasses.replace(session, draft=None, drafter=drafter, rule=rule, method="none")


def warm_up(session: Session, tokens: Sequence[int]) -> None:
    """Decode a few tokens, with and without a draft, so that the first use of the weights is not timed."""
    few = dataclasses.replace(session.params, max_new_tokens=4)
    for each in (session, plain(session)):
        decode_once(dataclasses.replace(each, params=few), tokens[-_WARM_UP:], lambda text, count: None)


def shower(progress: Progress, live: bool, doing: str = "decoding") -> Show:
    """Print text as it comes if `live`; else count the tokens."""

    def show(piece: str, tokens: int) -> None:
        if not live:
            progress(f"{doing}, {tokens} tokens")
        elif piece:
            progress.stop()
            write(piece)

    progress(doing)
    return show


def record(session: Session, run: Run) -> dict[str, Any]:
    """What `--json` prints."""
    done, stats = run.completion, run.completion.stats
    special = {"altered": done.altered, "rules": done.rules} if rules_around(session.method) else {}
    if found := getattr(session.drafter, "report", None):
        special["auto"] = found
    return special | {
        "text": done.text,
        "tokens": done.tokens,
        "finish_reason": done.finish_reason,
        "prompt_tokens": done.prompt_tokens,
        "method": session.method,
        "rule": session.rule.name,
        "lossless": session.rule.lossless,
        "model": session.target.name,
        "seed": session.params.seed,
        "statistics": {
            "rounds": stats.rounds,
            "target_forwards": run.target.forwards,
            "mean_acceptance_length": stats.mean_acceptance_length,
            "acceptance_rate": stats.acceptance_rate,
            "acceptance_histogram": [stats.histogram[kept] for kept in range(max(stats.histogram, default=0) + 1)],
            "seconds": run.seconds,
            "tokens_per_second": run.tokens_per_second,
            "time_share": run.time_share,
        },
    }
