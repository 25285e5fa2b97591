"""What a target's forward costs by its number of nodes: the curve that decides how large a draft may be.

Axes: N nodes.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

from .tree import Tree

if TYPE_CHECKING:
    import torch

    from .targets.base import Target

SIZES = (1, 2, 4, 6, 8, 12, 16, 24, 32)
TELLING = (1, 8, 24, 4, 16, 12, 6, 2, 32)  # where there is time for a few only, the most telling first
ROWS = (*range(1, 25), 32, 48, 64)  # how many rows one layer is timed with
_CONTEXT, _SHORT = 128, 16  # tokens before the nodes
_REPEATS, _ENOUGH = 5, 1.0  # how often; seconds after which no further repeat begins


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


def measure_cost_curve(target: Target, sizes: Sequence[int] = SIZES, *, batch: int = 1) -> CostCurve:
    """Time forwards of these many nodes for each of `batch` sequences behind a short context; the least of a few each, taken in turns,
    since machines are noisy. Single layers tell what is between (see `_filled`). The curve is over the nodes of all sequences."""
    began, best, layer = time.perf_counter(), dict.fromkeys(sizes, math.inf), dict[int, float]()
    with _bench(target, max(sizes), batch=batch, context=_CONTEXT) as timed:
        for turn in range(_REPEATS):
            for size in sizes:
                best[size] = min(best[size], timed(size))
            layer = _layer_seconds(target, layer, turn)
            if turn and time.perf_counter() - began > _ENOUGH:  # the first turn warms up
                break
    return _filled({batch * size: took for size, took in best.items()}, layer)


def quick_cost_curve(target: Target, *, seconds: float = 1.0, clock: Callable[[], float] = time.perf_counter) -> CostCurve:
    """The same for one sequence, in about so many seconds: one node is always timed, then single layers, and of TELLING as many as there is
    time for. What a device of this kind typically does stands for larger sizes."""
    began, best, layer = clock(), dict.fromkeys(TELLING, math.inf), dict[int, float]()
    typical = TYPICAL.get(target.device.type, TYPICAL["cpu"])
    with _bench(target, max(TELLING), batch=1, context=_SHORT) as timed:
        timed(1)  # warms up
        for turn in range(2):
            for size in TELLING:
                if (turn or size > 1) and clock() - began + best[1] * typical(size) > seconds:
                    break
                best[size] = min(best[size], timed(size))
                if size == 1 and clock() - began < seconds:
                    layer = _layer_seconds(target, layer, turn)
    known = {size: took for size, took in best.items() if took < math.inf}
    if not layer:
        last = max(known)
        known |= {size: known[last] * typical(size) / typical(last) for size in (*TELLING, ROWS[-1]) if size > last}
    return _filled(known, layer)


def _layer_seconds(target: Target, before: Mapping[int, float], turn: int) -> dict[int, float]:
    """The least seconds yet that the products of a decoder layer take with so many rows; empty for a target without such products. It is
    another layer each time, as in a forward, so that its weights are not in the cache."""
    if not target.multiply(1, 0).numel():
        return {}
    took = {n: seconds_of(partial(target.multiply, n, place)) for place, n in enumerate(ROWS, turn * len(ROWS))}
    return {n: min(seconds, before.get(n, math.inf)) for n, seconds in took.items()}


def _filled(known: Mapping[int, float], layer: Mapping[int, float]) -> CostCurve:
    """The curve of a target from its forwards of some sizes and the products of one layer at more of them.

    Kernels multiply rows in blocks, so curves have steps: in float32 on AVX2 six rows cost a quarter more than one, and the seventh as much
    as those five three times over. Products show the steps at a small part of a forward's time. A forward is thought to take so many times
    what they take as it does at the known sizes, in between by interpolation, and beyond as at the last.
    """
    sizes = sorted(known)
    if layer:
        factors = [known[s] / np.interp(s, list(layer), list(layer.values())) for s in sizes]
        known = {**{s: took * float(np.interp(s, sizes, factors)) for s, took in layer.items()}, **known}
        sizes = sorted(known)
    return CostCurve(tuple(sizes), tuple(known[s] for s in sizes))


@contextmanager
def _bench(target: Target, largest: int, *, batch: int, context: int) -> Iterator[Callable[[int], float]]:
    """The seconds of one forward over a chain of so many nodes in each of some slots, behind a short context."""
    slots = [target.cache.open(context + largest) for _ in range(batch)]

    def seconds(nodes: int) -> float:
        tree = Tree.chain([i % target.vocab_size for i in range(nodes)])
        took = seconds_of(lambda: target.verify([tree] * batch, slots).logits)
        for slot in slots:
            target.cache.truncate(slot, context)
        return took

    try:
        target.prefill(slots, [[i % target.vocab_size for i in range(context)]] * batch)
        yield seconds
    finally:
        for slot in slots:
            target.cache.free(slot)


def seconds_of(run: Callable[[], torch.Tensor], times: int = 1) -> float:
    """The least time of some runs, each waited for by looking at its result."""
    least = math.inf
    for _ in range(times):
        began = time.perf_counter()
        float(run().flatten()[0])  # a GPU is done only then
        least = min(least, time.perf_counter() - began)
    return least


_measured: WeakKeyDictionary[Target, CostCurve] = WeakKeyDictionary()
_quickly: WeakKeyDictionary[Target, CostCurve] = WeakKeyDictionary()


def cost_curve(target: Target) -> CostCurve:
    """The curve of this target on this machine, measured once."""
    if target not in _measured:
        _measured[target] = measure_cost_curve(target)
    return _measured[target]


def first_cost_curve(target: Target) -> CostCurve:
    """A curve to begin with: the measured one where there is one, else a quick one, once."""
    if target in _measured:
        return _measured[target]
    if target not in _quickly:
        _quickly[target] = quick_cost_curve(target)
    return _quickly[target]
