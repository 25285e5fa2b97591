"""How far a run is, and what learning rate that means."""

from __future__ import annotations

import math


def progress(step: float, steps: int, elapsed: float, seconds: float | None) -> float:
    """From 0 to 1: the share of the steps that are done, or of the time that is spent if that is more."""
    done = step / steps
    return min(1.0, max(done, elapsed / seconds) if seconds is not None else done)


def learning_rate(base: float, progress: float, *, warmup: float, floor: float) -> float:
    """Linear from 0 over a share `warmup` of the run, then half a cosine down to `floor * base`."""
    if progress < warmup:
        return base * progress / warmup
    along = (progress - warmup) / (1 - warmup) if warmup < 1 else 1.0
    return base * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * along)))
