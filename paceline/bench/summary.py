"""From raw rows to one line per run: pure arithmetic.

A unit is what ratios pair: one prompt in one repeat, or the group of prompts that were decoded at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from .journal import Row

FORMULAS = {
    "tokens_per_second": "tokens / wall seconds of the whole decode, prompt included, pooled over prompts",
    "decode_tokens_per_second": "tokens / wall seconds less those of the forwards that read prompts",
    "target_forwards": "forwards of the target that gave tokens; Transformers' first one also reads the prompt",
    "tokens_per_forward": "tokens / target_forwards, prefill_forwards left out",
    "mean_acceptance_length": "1 + accepted draft tokens / rounds, pooled; for peers tokens / target_forwards",
    "mean_acceptance_length_of_requests": "mean over prompts of 1 + accepted / rounds",
    "acceptance_rate": "accepted draft tokens / depth offered, where a tree offers its depth",
    "acceptance_by_depth": "rounds that kept at least i draft tokens / rounds, for i = 1, 2, ...",
    "speedup_vs_x": "tokens_per_second / that of x, over the prompts that both ran",
    "speedup_vs_x_median": "median over prompts of the same ratio, with its bootstrap 95% interval over prompts",
    "time_share": "seconds inside forwards of target and draft model or head (its Markov term included) / wall seconds; other is the rest",
    "cores_used_by_others": "processor seconds of all other processes / wall seconds, while the run was timed",
    "peak_rss_mb": "largest resident memory of the process while it decoded, with all models that are loaded in it; peers have their own",
    "logit_margin": "logit(reference token) - logit(token) of the reference model after the common prefix",
}
_RESAMPLES = 2000

Unit = tuple[int, Any]  # repeat, and prompt or group
Speed = tuple[int, float]  # tokens, seconds


def of_run(rows: Iterable[Row], name: str) -> list[Row]:
    return [r for r in rows if r["run"] == name]


def tokens_of(rows: Iterable[Row]) -> int:
    return sum(len(o["tokens"]) for r in rows for o in r["outputs"])


def counts(rows: Sequence[Row]) -> dict[str, Any]:
    """What one run did: tokens, forwards, acceptance and where its time went."""
    tokens, forwards = tokens_of(rows), sum(r["target_forwards"] for r in rows)
    seconds = sum(r["seconds"] for r in rows)
    return {
        "tokens": tokens,
        "seconds": seconds,
        "tokens_per_second": tokens / seconds,
        "decode_tokens_per_second": _decode_speed(rows),
        "target_forwards": forwards,
        "prefill_forwards": sum(r["prefill_forwards"] for r in rows),
        "draft_forwards": sum(r["draft_forwards"] for r in rows),
        "tokens_per_forward": tokens / forwards,
        **(_acceptance(rows) if "rounds" in rows[0]["outputs"][0] else _peer_acceptance(rows)),
        "time_share": _time_share(rows, seconds),
        "cores_used_by_others": _others(rows, seconds),
        "peak_rss_mb": max(r["peak_rss_mb"] for r in rows),
    }


def _decode_speed(rows: Sequence[Row]) -> float | None:
    reading = [r["prefill_seconds"] for r in rows if r.get("prefill_seconds") is not None]
    if len(reading) < len(rows):
        return None
    seconds: float = sum(r["seconds"] for r in rows) - sum(reading)
    return tokens_of(rows) / seconds


def _acceptance(rows: Sequence[Row]) -> dict[str, Any]:
    outputs = [o for r in rows for o in r["outputs"]]
    rounds, accepted, offered = (sum(o[field] for o in outputs) for field in ("rounds", "accepted", "depth_offered"))
    kept: Counter[int] = Counter()
    for output in outputs:
        kept.update({int(k): n for k, n in output["histogram"].items()})
    return {
        "rounds": rounds,
        "mean_acceptance_length": 1 + accepted / rounds,
        "mean_acceptance_length_of_requests": float(np.mean([1 + o["accepted"] / o["rounds"] for o in outputs])),
        "acceptance_rate": accepted / offered if offered else None,
        "nodes_per_round": sum(o["nodes"] for o in outputs) / rounds,
        "acceptance_by_depth": [sum(n for k, n in kept.items() if k >= depth) / rounds for depth in range(1, max(kept) + 1)],
        "acceptance_histogram": {str(k): kept[k] for k in sorted(kept)},
    }


def _peer_acceptance(rows: Sequence[Row]) -> dict[str, Any]:
    return {
        "mean_acceptance_length": tokens_of(rows) / sum(r["target_forwards"] for r in rows),
        "mean_acceptance_length_of_requests": float(np.mean([tokens_of([r]) / r["target_forwards"] for r in rows])),
    }


def _time_share(rows: Sequence[Row], seconds: float) -> dict[str, float]:
    target, draft = (sum(r[field] for r in rows) / seconds for field in ("target_seconds", "draft_seconds"))
    return {"target": target, "draft": draft, "other": 1 - target - draft}


def _others(rows: Sequence[Row], seconds: float) -> float | None:
    known = [r["cores_used_by_others"] * r["seconds"] for r in rows if r["cores_used_by_others"] is not None]
    return sum(known) / seconds if len(known) == len(rows) else None


def units(rows: Iterable[Row], by_prompt: bool = False) -> dict[Unit, Speed]:
    """Tokens and seconds of each group, or of each prompt of rows that have one."""
    found: dict[Unit, Speed] = {}
    for row in rows:
        unit = row["repeat"], row["outputs"][0]["prompt"] if by_prompt else row["group"]
        tokens, seconds = found.get(unit, (0, 0.0))
        found[unit] = tokens + tokens_of([row]), seconds + row["seconds"]
    return found


def speedup(rows: Sequence[Row], base: Sequence[Row]) -> dict[str, Any]:
    """Pooled ratio, median ratio over prompts or groups and its interval, over the units that both ran; all None if there are none."""
    single = all(len(row["outputs"]) == 1 for row in (*rows, *base))
    ours, theirs = units(rows, single), units(base, single)
    shared = sorted(ours.keys() & theirs.keys())
    if not shared:
        return {"pooled": None, "median": None, "interval": None}
    groups = sorted({group for _, group in shared})
    ratios = [_ratio(ours, theirs, [u for u in shared if u[1] == group]) for group in groups]
    return {"pooled": _ratio(ours, theirs, shared), "median": float(np.median(ratios)), "interval": interval(ratios)}


def _ratio(ours: dict[Unit, Speed], theirs: dict[Unit, Speed], over: Sequence[Unit]) -> float:
    def speed(of: dict[Unit, Speed]) -> float:
        return sum(of[u][0] for u in over) / sum(of[u][1] for u in over)

    return speed(ours) / speed(theirs)


def interval(ratios: Sequence[float]) -> list[float] | None:
    """Bootstrap 95% interval of the median; None for a single value, which says nothing about its spread."""
    if len(ratios) < 2:
        return None
    picks = np.random.default_rng(0).integers(len(ratios), size=(_RESAMPLES, len(ratios)))
    medians = np.median(np.asarray(ratios)[picks], axis=1)
    low, high = np.quantile(medians, [0.025, 0.975])
    return [float(low), float(high)]


def by_task(rows: Sequence[Row], bases: dict[str, list[Row]]) -> dict[str, dict[str, Any]]:
    """Tokens per second and pooled speed-ups per task; rows that decode several tasks at once belong to none."""
    tasks: dict[str, list[Row]] = {}
    for row in rows:
        names = {o["task"] for o in row["outputs"]}
        if len(names) == 1:
            tasks.setdefault(names.pop(), []).append(row)
    found: dict[str, dict[str, Any]] = {}
    for task, own in sorted(tasks.items()):
        found[task] = {"tokens_per_second": tokens_of(own) / sum(r["seconds"] for r in own)}
        for name, base in bases.items():
            alike = [r for r in base if {o["task"] for o in r["outputs"]} == {task}]
            found[task][f"speedup_vs_{name}"] = speedup(own, alike)["pooled"] if alike else None
    return found
