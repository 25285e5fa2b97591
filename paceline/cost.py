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
FAR = 2.0  # a round that took so many times what was expected says no more than that it was slow
_ANCHOR, _FOLLOW = 0.25, 0.1  # how fast a live curve follows plain rounds, and others
_DRIFT, _ADRIFT = 0.3, 1.3  # how fast a mean of how far off they are follows, and beyond which factor plain rounds have changed too
_NEAR = 2.0  # doublings of a size beyond which a round with drafts says little
_EXACT, _STEP = 64, 8  # nodes up to which a live curve has a point for each number, and for how many one beyond


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


class LiveCost:
    """A curve that follows what rounds of so many sequences really take.

    A plain round, one node each, says how quick the machine is at the moment, and moves all of the curve. A round with drafts says what
    drafts cost beside that: its own size, and others by how near they are, since what a tree costs beyond a plain round (a mask, rows
    that are padded) is much the same for all. The plain point moves hardly, but at first, when the whole curve may be off.
    """

    def __init__(self, curve: CostCurve, plain: int = 1) -> None:
        self.curve, self._plain, self._seen, self._drafted = curve, plain, 0, 0
        self.plain_rounds = 0  # that the curve has followed
        self.since_plain = math.inf  # rounds since one was plain; infinite too where rounds with drafts say that the machine has changed
        self._off = 0.0  # how far recent ones were off, as a logarithm

    def __call__(self, nodes: int) -> float:
        return self.curve(nodes)

    def begin(self, nodes: int) -> None:
        """A round of this many nodes begins."""
        self.since_plain = 0 if nodes == self._plain else self.since_plain + 1

    def add(self, nodes: int, seconds: float) -> None:
        """A round of this many nodes took so long. One that seems far off counts as off by FAR: noise, or a pause."""
        self._seen += 1
        off = math.log(max(seconds, 1e-9) / self.curve(nodes))
        off = min(max(off, -math.log(FAR)), math.log(FAR))
        anchor = nodes == self._plain
        self._off = 0.0 if anchor else self._off + _DRIFT * (off - self._off)
        if abs(self._off) > math.log(_ADRIFT):
            self.since_plain = math.inf
        self.plain_rounds += anchor
        self._drafted += not anchor
        follow = max(_ANCHOR if anchor else _FOLLOW, 1 / (1 + self._seen))
        drafted = max(_FOLLOW, 1 / (1 + self._drafted))
        seen = nodes if nodes <= _EXACT else nodes // _STEP * _STEP
        sizes = tuple(sorted({*self.curve.sizes, seen}))

        def part(size: int) -> float:
            """Of what this round was off, how much a size moves."""
            if anchor:
                return follow
            if size <= self._plain:
                return follow**2
            return max(drafted * max(0.0, 1 - abs(math.log2(size / seen)) / _NEAR), follow**2)

        moved = [self.curve(s) * math.exp(off * part(s)) for s in sizes]
        own = moved[sizes.index(seen)]  # what has been seen beats what was thought of larger and smaller ones
        self.curve = CostCurve(sizes, tuple(max(m, own) if s > seen else min(m, own) for s, m in zip(sizes, moved, strict=True)))


class LiveCosts:
    """Live curves by batch size; one that is new begins as the measured curve of the nearest size."""

    def __init__(self, curves: Mapping[int, CostCurve]) -> None:
        self._curves, self._live = dict(curves), dict[int, LiveCost]()

    @property
    def plain_rounds(self) -> int:
        """That any of them has followed."""
        return sum(cost.plain_rounds for cost in self._live.values())

    def of(self, batch: int) -> LiveCost:
        if batch not in self._live:
            nearest = min(self._curves, key=lambda b: (abs(b - batch), b))
            self._live[batch] = LiveCost(self._curves[nearest], batch)
        return self._live[batch]


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
