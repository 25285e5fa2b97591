"""Cost curves that follow what rounds really take.

Axes: N numbers of nodes, from 1 on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import accumulate

from .cost import CostCurve

FAR = 2.0  # a round that took so many times what was expected says no more than that it was slow
_ANCHOR, _FOLLOW = 0.25, 0.1  # how fast a curve follows plain rounds, and others
_DRIFT, _ADRIFT = 0.3, 1.3  # how fast a mean of how far off they are follows, and beyond which factor plain rounds have changed too
_COMMON, _KNOWN = 0.1, 30  # how fast plain rounds follow others in the long run; rounds with drafts after which it is half of that
_SHORT, _OTHER = 256, 2.0  # tokens up to which the length of texts does not matter; how many times longer or shorter ones matter
_NEAR = 2.0  # doublings of a size beyond which a round with drafts says little
_MORE = 32  # numbers of nodes for which a curve is told at once


class LiveCost:
    """A curve that follows what rounds of so many sequences really take.

    A plain round, one node each, says how quick the machine is at the moment, and moves all of the curve. A round with drafts says what
    drafts cost beside that: its own size, and others by how near they are, since what a tree costs beyond a plain round (a mask, rows
    that are padded) is much the same for all. The plain point moves hardly, but at first, when the whole curve may be off, and later,
    when it is known what drafts cost: then it is the machine that has changed.
    """

    def __init__(self, curve: CostCurve, plain: int = 1) -> None:
        self._measured, self._plain, self._seen, self._drafted = curve, plain, 0, 0
        self.seconds: list[float] = []  # (N,) of a round
        self._doublings: list[float] = []  # (N,) log2 of its nodes
        self.plain_rounds = 0  # that the curve has followed
        self.since_plain = math.inf  # rounds since one was plain; infinite too where rounds with drafts say that the machine has changed
        self._tokens = 0  # of all texts in the last plain round
        self._off = 0.0  # how far recent ones were off, as a logarithm

    def __call__(self, nodes: int) -> float:
        if nodes > len(self.seconds):
            self._reach(nodes)
        return self.seconds[nodes - 1]

    def _reach(self, nodes: int) -> None:
        """Go on to at least so many nodes, as far from the measured curve as the last point is."""
        known = len(self.seconds)
        factor = self.seconds[-1] / self._measured(known) if known else 1.0
        new = range(known + 1, (nodes // _MORE + 1) * _MORE + 1)
        self.seconds = self.seconds + [factor * self._measured(n) for n in new]
        self._doublings += map(math.log2, new)

    def begin(self, nodes: int, tokens: int) -> None:
        """A round of this many nodes begins, on texts of this many tokens together."""
        self.since_plain = 0 if nodes == self._plain else self.since_plain + 1
        if nodes == self._plain:
            self._tokens = tokens

    def is_of(self, tokens: int) -> bool:
        """Whether the last plain round was on texts of about so many tokens: on longer ones all rounds are slower."""
        now, then = max(tokens, _SHORT), max(self._tokens, _SHORT)
        return then / _OTHER <= now <= then * _OTHER

    def add(self, nodes: int, seconds: float) -> None:
        """A round of this many nodes took so long. One that seems far off counts as off by FAR: noise, or a pause."""
        self._seen += 1
        off = math.log(max(seconds, 1e-9) / self(nodes))
        off = min(max(off, -math.log(FAR)), math.log(FAR))
        anchor = nodes == self._plain
        self._off = 0.0 if anchor else self._off + _DRIFT * (off - self._off)
        if abs(self._off) > math.log(_ADRIFT):
            self.since_plain = math.inf
        self.plain_rounds += anchor
        self._drafted += not anchor
        follow = max(_ANCHOR if anchor else _FOLLOW, 1 / (1 + self._seen))
        if anchor:
            factor = math.exp(off * follow)
            self.seconds = [s * factor for s in self.seconds]
        else:
            self.seconds = self._bent(nodes, off, least=max(follow**2, _COMMON * self._drafted / (self._drafted + _KNOWN)))

    def _bent(self, nodes: int, off: float, least: float) -> list[float]:
        """(N,) seconds after a round with drafts, which was off by so much: other sizes move the less the further they are from its own,
        but by some `least` part of that. What has been seen beats what was thought of larger and smaller ones."""
        drafted, here = max(_FOLLOW, 1 / (1 + self._drafted)), self._doublings[nodes - 1]
        slope = drafted / _NEAR
        parts = [max(drafted - slope * abs(doublings - here), least) for doublings in self._doublings]
        parts[: self._plain] = [least] * self._plain
        moved = [s * math.exp(off * part) for s, part in zip(self.seconds, parts, strict=True)]
        own = moved[nodes - 1]
        larger = [max(s, own) for s in moved[nodes - 1 :]]
        return list(accumulate(reversed(moved[: nodes - 1] + larger), min))[::-1]


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
