"""The correction memory of a pair: the true rejections of plain speculative decoding. With rescues on, they would bias what follows."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..lossy import check_fits
from ..rules.csd_config import SAFE
from ..rules.memory import Memory, both_ways, pack
from ..rules.memory_file import save
from ..sequence import Sequence as Request
from ..train.prompts import Row
from .run import Pair, Plan, Rows, Say, decode, fingerprint

Report = dict[str, Any]
_THRESHOLDS = (0, 1, 2, 3, 6, 12)  # for csd.min_count
_LITTLE = 0.1  # of the rejections


def calibrate_csd(
    pair: Pair, plan: Plan, prompts: Sequence[Row], out: Path, *, domain: str = "", start: Memory | None = None, say: Say
) -> Report:
    """Count the divergences, write the memory to `out`, and say what is in it. Resumes from OUT.rows.jsonl.

    The counts of `start`, an earlier calibration with other prompts, are added. Raises CheckpointMismatch if that is of other models.
    """
    origin, start = pair.origin(plan.drafter), start or Memory()
    check_fits("the memory", start.origin, origin)
    rows = Rows(out, fingerprint("csd", origin, plan, prompts))
    found = decode(pair, "csd", {"csd.preset": "published"}, plan, prompts, rows=rows, take=_divergences, say=say)
    each = [Counter(pack(drafted, target) for drafted, target in row["pairs"]) for row in found]
    memory = Memory.calibration(sum(each, Counter(start.counts)), origin, domain or start.domain)
    save(memory, out, {"prompts": len(prompts), **dataclasses.asdict(plan)})
    rows.close()
    return {"prompts": len(found), "tokens": sum(row["tokens"] for row in found), **_report(memory, each)}


def _divergences(seq: Request) -> dict[str, Any]:
    """The pairs of a finished request, those that were kept from."""
    book = seq.ledgers.get("csd")
    events = [e for e in book.events if e.position < len(seq.tokens)] if book else []
    return {"pairs": [[e.drafted, e.target] for e in events], "tokens": len(seq.output)}


def _report(memory: Memory, each: Sequence[Counter[int]]) -> Report:
    """Pairs that a threshold would nominate, reverses counted, and the share of the rejections that are theirs: of each prompt's, by what
    all others saw, since a threshold passes what it was set by more often than what is new."""
    seen, covered = sum(own.total() for own in each), dict.fromkeys(_THRESHOLDS, 0)
    for own in each:
        for key, count in own.items():
            elsewhere = sum(memory.counts.get(k, 0) - own[k] for k in both_ways(key))
            for n in covered:
                covered[n] += count if elsewhere > n else 0
    share = {str(n): found / seen if seen else 0.0 for n, found in covered.items()}
    return {
        "rejections": memory.calibrated,
        "pairs": len(memory.counts),
        "nominated": {str(n): sum(memory.nominates(both_ways(key), n) for key in memory.counts) for n in _THRESHOLDS},
        "share_of_rejections": share,
        "remarks": _remarks(share[str(SAFE.min_count)]),
    }


def _remarks(share: float) -> list[str]:
    if share >= _LITTLE:
        return []
    return [
        f"Pairs seen more than {SAFE.min_count} times either way (csd.min_count) are {share:.1%} of the rejections in other prompts, so "
        "this memory rescues next to nothing. Give more prompts of the same kind (the paper counts over thousands), or set it lower."
    ]
