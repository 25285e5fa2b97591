"""The correction memory of a pair: the true rejections of plain speculative decoding. With rescues on, they would bias what follows."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..rules.memory import Memory, pack
from ..rules.memory_file import save
from ..sequence import Sequence as Request
from ..train.prompts import Row
from .run import Pair, Plan, Rows, Say, decode, fingerprint

Report = dict[str, Any]


def calibrate_csd(pair: Pair, plan: Plan, prompts: Sequence[Row], out: Path, *, domain: str = "", say: Say) -> Report:
    """Count the divergences, write the memory to `out`, and say what is in it. Resumes from OUT.rows.jsonl."""
    origin = pair.origin(plan.drafter)
    rows = Rows(out, fingerprint("csd", origin, plan, prompts))
    found = decode(pair, "csd", {"csd.preset": "published"}, plan, prompts, rows=rows, take=_divergences, say=say)
    counts: Counter[int] = Counter()
    for row in found:
        counts.update(pack(drafted, target) for drafted, target in row["pairs"])
    memory = Memory.calibration(counts, origin, domain)
    save(memory, out, {"prompts": len(prompts), **dataclasses.asdict(plan)})
    rows.close()
    return _report(memory, sum(row["tokens"] for row in found), len(found))


def _divergences(seq: Request) -> dict[str, Any]:
    """The pairs of a finished request, those that were kept from."""
    book = seq.ledgers.get("csd")
    events = [e for e in book.events if e.position < len(seq.tokens)] if book else []
    return {"pairs": [[e.drafted, e.target] for e in events], "tokens": len(seq.output)}


def _report(memory: Memory, tokens: int, prompts: int) -> Report:
    """Pairs that a threshold would nominate, and the share of the rejections that are theirs."""
    nominated = {str(n): sorted((c for k, c in memory.counts.items() if memory.nominates(k, n)), reverse=True) for n in (3, 6, 12)}
    return {
        "prompts": prompts,
        "tokens": tokens,
        "rejections": memory.calibrated,
        "pairs": len(memory.counts),
        "nominated": {n: len(c) for n, c in nominated.items()},
        "share_of_rejections": {n: sum(c) / memory.calibrated if memory.calibrated else 0.0 for n, c in nominated.items()},
    }
