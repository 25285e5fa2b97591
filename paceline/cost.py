"""What a target's forward costs by its number of nodes: the curve that decides how large a draft may be.

Axes: N nodes.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from .tree import Tree

if TYPE_CHECKING:
    import torch

    from .targets.base import Target

SIZES = (1, 2, 4, 6, 8, 12, 16, 24, 32)
_CONTEXT, _REPEATS, _ENOUGH = 128, 5, 1.0  # tokens before the nodes; how often; seconds after which no further repeat begins


@dataclass(frozen=True)
class CostCurve:
    """Seconds of a forward at some numbers of nodes, straight between them and beyond the last two.

    A smaller forward never costs more than a larger one: noise only adds time, so the lesser figure is the truer.
    """

    sizes: tuple[int, ...]  # ascending
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        assert len(self.sizes) == len(self.seconds) >= 2, f"a curve needs two points, got {self.sizes} and {self.seconds}"
        object.__setattr__(self, "seconds", tuple(accumulate(self.seconds[::-1], min))[::-1])

    def __call__(self, nodes: int) -> float:
        right = min(max(bisect_left(self.sizes, nodes), 1), len(self.sizes) - 1)
        (a, b), (x, y) = self.sizes[right - 1 : right + 1], self.seconds[right - 1 : right + 1]
        return x + (y - x) * (max(nodes, a) - a) / (b - a)

    def plus(self, seconds: float) -> CostCurve:
        """The same with something added to every round, such as the time of drafting."""
        return CostCurve(self.sizes, tuple(s + seconds for s in self.seconds))


TYPICAL = {  # relative to one node: what to assume of a device until it has been measured; the second one is a guess
    "cpu": CostCurve((1, 6, 64), (1.0, 1.0, 4.2)),
    "cuda": CostCurve((1, 64, 256), (1.0, 1.1, 2.0)),
}


def measure_cost_curve(target: Target, sizes: Sequence[int] = SIZES) -> CostCurve:
    """Time forwards of these many nodes behind a short context; the least of a few each, taken in turns, since machines are noisy."""
    slot = target.cache.open(_CONTEXT + max(sizes))
    best = dict.fromkeys(sizes, math.inf)
    try:
        target.prefill([slot], [[i % target.vocab_size for i in range(_CONTEXT)]])
        length, began = target.cache.length(slot), time.perf_counter()
        for turn in range(_REPEATS):
            for size in sizes:
                tree = Tree.chain([i % target.vocab_size for i in range(size)])
                best[size] = min(best[size], seconds_of(lambda tree=tree: target.verify([tree], [slot]).logits))  # type: ignore[misc]
                target.cache.truncate(slot, length)
            if turn and time.perf_counter() - began > _ENOUGH:  # the first turn warms up
                break
    finally:
        target.cache.free(slot)
    return CostCurve(tuple(sizes), tuple(best.values()))


def seconds_of(run: Callable[[], torch.Tensor], times: int = 1) -> float:
    """The least time of some runs, each waited for by looking at its result."""
    least = math.inf
    for _ in range(times):
        began = time.perf_counter()
        float(run().flatten()[0])  # a GPU is done only then
        least = min(least, time.perf_counter() - began)
    return least


_measured: WeakKeyDictionary[Target, CostCurve] = WeakKeyDictionary()


def cost_curve(target: Target) -> CostCurve:
    """The curve of this target on this machine, measured once."""
    if target not in _measured:
        _measured[target] = measure_cost_curve(target)
    return _measured[target]
