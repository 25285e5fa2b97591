"""EASD's thresholds for a pair: entropies and overlap of every position that plain greedy speculative decoding looks at.

The published 2 nats do not carry over from one pair to another. So tau is where the flips make up a given share of these positions; the
overlap begins at the published 0.8 and is lowered, down to one half, only if even all such positions are too few.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import InvalidRequest
from ..rules.easd_config import SAFE
from ..rules.thresholds import Thresholds, save
from ..sequence import Sequence as Request
from ..train.prompts import Row
from .run import Pair, Plan, Rows, Say, decode, fingerprint

N = SAFE.n
LEAST, AIM, MOST = 0.005, 0.0075, 0.02  # flips per drafted position
Report = dict[str, Any]


class Reading(NamedTuple):
    """One position: entropies, how many of the n ids are shared, p1, p2 / p1, and whether the target's token was drafted."""

    target: float
    draft: float
    shared: int
    top: float
    ratio: float
    agrees: bool

    @property
    def flips(self) -> bool:
        """Whether a trigger here would flip the text, as far as the safe guards on the target's law go."""
        return self.agrees and self.top <= SAFE.max_top and self.ratio >= SAFE.min_ratio


def calibrate_easd(pair: Pair, plan: Plan, prompts: Sequence[Row], out: Path, *, domain: str = "", aim: float = AIM, say: Say) -> Report:
    """Choose the thresholds, write them to `out`, and say which rates they have. Resumes from OUT.rows.jsonl."""
    if not 0 < aim <= MOST:
        raise InvalidRequest(f"aim is {aim}; it must be above 0 and at most {MOST} flips per drafted position")
    origin = pair.origin(plan.drafter)
    rows = Rows(out, fingerprint("easd", origin, plan, prompts))
    recorded = {"easd.record": True, "easd.n": N}
    found = decode(pair, "easd", recorded, plan, prompts, rows=rows, take=_readings, say=say)
    by_task: dict[str, list[Reading]] = {}
    for row in found:
        by_task.setdefault(row["task"], []).extend(Reading(*r) for r in row["readings"])
    everything = [r for readings in by_task.values() for r in readings]
    if not everything:
        raise InvalidRequest("nothing was drafted for these prompts, so there is nothing to calibrate; give more or longer ones")
    tau, shared = choose(everything, aim)
    rates = {"all": rate(everything, tau, shared), **{task: rate(r, tau, shared) for task, r in by_task.items()}}
    settings = {"tau_target": tau, "tau_draft": tau, "n": N, "tau_overlap": shared / N}
    told = {"flips_per_position": rates, "positions": len(everything), "prompts": len(prompts), **dataclasses.asdict(plan)}
    save(Thresholds(settings, origin, domain, told), out)
    rows.close()
    return {**settings, "positions": len(everything), "flips_per_position": rates, "warnings": warnings(rates)}


def _readings(seq: Request) -> dict[str, Any]:
    watch = seq.ledgers.get("easd")
    return {
        "readings": [[*(round(x, 4) for x in r[:2]), r[2], *(round(x, 4) for x in r[3:5]), r[5]] for r in watch.readings] if watch else []
    }


def choose(readings: Sequence[Reading], aim: float) -> tuple[float, int]:
    """tau for both entropies, in nats, and how many of the N ids must be shared, so that about `aim` of the positions flip."""
    wanted = max(1, round(aim * len(readings)))
    for shared in range(math.ceil(SAFE.tau_overlap * N - 1e-9), N // 2 - 1, -1):
        heights = sorted((min(r.target, r.draft) for r in readings if r.flips and r.shared >= shared), reverse=True)
        if len(heights) > wanted:
            return heights[wanted], shared  # strictly above it lie at most as many as wanted
        if len(heights) >= LEAST * len(readings):
            break
    return 0.0 if not heights else math.nextafter(heights[-1], 0.0), shared


def rate(readings: Sequence[Reading], tau: float, shared: int) -> float:
    """Flips per position under these thresholds."""
    return sum(r.flips and r.shared >= shared and min(r.target, r.draft) > tau for r in readings) / max(1, len(readings))


def warnings(rates: dict[str, float]) -> list[str]:
    """What speaks against using the thresholds as they are."""
    found = []
    if not LEAST <= rates["all"] <= MOST:
        found.append(f"{rates['all']:.2%} of the positions would flip; {LEAST:.1%} to {MOST:.0%} were wanted")
    tasks = {task: share for task, share in rates.items() if task != "all"}
    if len(tasks) > 1 and max(tasks.values()) > 2 * min(tasks.values()):
        low, high = min(tasks, key=lambda t: tasks[t]), max(tasks, key=lambda t: tasks[t])
        found.append(f"the rate is {tasks[low]:.2%} in {low} and {tasks[high]:.2%} in {high}: calibrate each domain by itself")
    return found
