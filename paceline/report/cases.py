"""Where a run lost: by task, and by prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import InvalidRequest

BASE = "none"
Bench = Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """A run on some prompts against plain decoding of the same."""

    run: str
    what: str
    speedup: float


def runs(bench: Bench) -> list[dict[str, Any]]:
    """Those that ran. Raises InvalidRequest if there are none."""
    found = [r for r in bench["runs"] if not r.get("skipped")]
    if not found:
        raise InvalidRequest("this bench has no run that was not skipped; run it again")
    return found


def ours(bench: Bench) -> list[dict[str, Any]]:
    """Those of our methods that draft: peers have no rule."""
    return [r for r in runs(bench) if r.get("rule") is not None and not is_base(r)]


def is_base(run: Mapping[str, Any]) -> bool:
    """Whether this is plain decoding, at whatever temperature and batch size."""
    return str(run.get("method", run["run"])) == BASE


def losing_tasks(bench: Bench) -> list[Case]:
    """Tasks on which a method of ours is slower than plain decoding, the worst first."""
    found = [
        Case(r["run"], task, values["speedup_vs_none"])
        for r in ours(bench)
        for task, values in r.get("by_task", {}).items()
        if (values.get("speedup_vs_none") or 1) < 1
    ]
    return sorted(found, key=lambda c: c.speedup)


def losing_prompts(bench: Bench) -> list[Case]:
    """The same by prompt, where each was decoded by itself; repeats are pooled."""
    found = []
    for run in ours(bench):
        base = _speeds(bench["rows"], run.get("baseline") or BASE)
        own = _speeds(bench["rows"], run["run"])
        found += [Case(run["run"], prompt, own[prompt] / base[prompt]) for prompt in own if own[prompt] < base.get(prompt, 0)]
    return sorted(found, key=lambda c: c.speedup)


def _speeds(rows: Sequence[Mapping[str, Any]], run: str) -> dict[str, float]:
    """Tokens per second of each prompt that had a decode of its own."""
    tokens: dict[str, int] = {}
    seconds: dict[str, float] = {}
    for row in rows:
        if row["run"] == run and len(row["outputs"]) == 1:
            (output,) = row["outputs"]
            tokens[output["prompt"]] = tokens.get(output["prompt"], 0) + len(output["tokens"])
            seconds[output["prompt"]] = seconds.get(output["prompt"], 0.0) + row["seconds"]
    return {prompt: count / seconds[prompt] for prompt, count in tokens.items()}
