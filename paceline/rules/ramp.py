"""How late to accept: plans for several candidates at one node.

A plan gives every stage two numbers, from which `Stage.accepted` makes the sub-measure that the stage accepts. All that the
planners below need of the laws p and q is how their ratio t = p / q is distributed under q:

    G(s) = sum over q > 0 of min(p, s q)        the overlap of p with s times q
    h(s) = s - G(s)                             nondecreasing, convex, piecewise linear, with its knots at the ratios

Axes: V vocabulary, M distinct ratios, k candidates.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Vector = npt.NDArray[np.floating[Any]]

MOST_EXACT = 4096  # a larger vocabulary is not sorted: tokens of like ratio are merged, and of the light ones some stand for all
_LIGHT, _EVERY = 2e-5, 8
_SHIFT, _ONE, _CELLS = 17, 0x3F800000, 1024  # of a float32, exponent and 6 bits of mantissa: 64 cells for each octave around 1
_ROUNDING = 1e-14
_CERTAIN = 1e-6  # what float32 laws cannot tell from 0


@dataclass(frozen=True)
class Stage:
    """One stage accepts `min(q, share (R - late q)_+)` of the residual R: at most q, and, as late >= 0 and 0 <= share <= 1, at most R."""

    late: float = 0.0
    share: float = 1.0

    def accepted(self, residual: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
        """The accepted sub-measure, in the shape of the two laws: (V,), or () for one token."""
        over = torch.sub(residual, drawn, alpha=self.late).clamp_(min=0)
        return torch.minimum(drawn, over if self.share == 1 else over.mul_(self.share), out=over)


class Overlap:
    """G and h of two laws of mass 1, from their ratios `t` (M,) and the mass of q at each, `weight` (M,)."""

    def __init__(self, t: Vector, weight: Vector) -> None:
        order = t.argsort()
        self.t, self.weight = t[order], weight[order] / weight.sum()
        q, p = self.weight.cumsum(), (self.t * self.weight).cumsum()  # mass at and below a ratio
        h = np.maximum.accumulate(self.t * q - p)  # at the ratios
        self._t, self._q, self._p, self._h = self.t.tolist(), q.tolist(), p.tolist(), h.tolist()  # lists are read quicker

    @classmethod
    def of(cls, p: torch.Tensor, q: torch.Tensor) -> Overlap | None:
        """Of laws (V,) of equal mass; None if q has none. Exact up to a vocabulary of MOST_EXACT."""
        t, weight = (_ratios if len(q) <= MOST_EXACT else _merged_ratios)(p.cpu().numpy(), q.cpu().numpy())
        return cls(t, weight) if len(t) else None

    def after(self, stage: Stage, ratio: float, chance: float, mass: float) -> Overlap | None:
        """Of what is left of both laws once `stage` rejected a token that cannot come again, drawn with probability `chance`, where
        t is `ratio`. The residual has mass `mass` then."""
        t = self.t - np.clip((self.t - stage.late) * stage.share, 0, 1)
        weight = self.weight.copy()
        own = np.where(weight > chance * (1 - 1e-5), np.abs(self.t - ratio), np.inf)  # a neighbour may be as near, where merged
        weight[own.argmin()] -= chance
        kept = weight > _ROUNDING
        return Overlap(t[kept] * (1 - chance) / mass, weight[kept]) if kept.any() and mass > 0 else None

    def value(self, s: float) -> tuple[float, float]:
        """G(s) and its slope to the right of s."""
        j = bisect_right(self._t, s) - 1
        return (self._p[j] + s * (1 - self._q[j]), 1 - self._q[j]) if j >= 0 else (s, 1.0)

    def inverse(self, y: float) -> tuple[float, float]:
        """The largest s with h(s) = y, for y >= 0, and the slope of the inverse to the right of y."""
        j = max(bisect_right(self._h, y) - 1, 0)
        return (y + self._p[j]) / self._q[j], 1 / self._q[j]


def _ratios(p: Vector, q: Vector) -> tuple[Vector, Vector]:
    drawn = q > 0
    weight = q[drawn].astype(np.float64)
    return (p[drawn] / weight).astype(np.float64), weight


def _merged_ratios(p: Vector, q: Vector) -> tuple[Vector, Vector]:
    """Ratios and weights of cells of a logarithmic grid, which the leading bits of a positive float number without a logarithm.

    Every light token of a few is counted for the others, so that both laws keep their mass.
    """
    light = (p <= _LIGHT) & (q <= _LIGHT)
    heavy, some = np.flatnonzero(~light), np.flatnonzero(light[::_EVERY]) * _EVERY
    kept, mass = np.concatenate([heavy, some]), float(q.sum(dtype=np.float64))
    p, q = p[kept], q[kept]
    cells = _cells(p, q)
    mass_p, mass_q = (np.bincount(cells, _stretched(law, len(heavy), mass), _CELLS).astype(np.float64) for law in (p, q))
    used = mass_q > 0
    return mass_p[used] / mass_q[used], mass_q[used]


def _cells(p: Vector, q: Vector) -> npt.NDArray[np.int64]:
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        bits = (p / q).astype(np.float32).view(np.int32)  # where q is 0: of infinity or of no number, without weight in q
    return (((bits - _ONE) >> _SHIFT) + _CELLS // 2).clip(0, _CELLS - 1).astype(np.int64)


def _stretched(law: Vector, heavy: int, mass: float) -> Vector:
    """The first `heavy` entries of a law and some of the others, these stretched so that all sum to `mass`."""
    law = law.astype(np.float64)
    some = law[heavy:].sum()
    law[heavy:] *= max(mass - law[:heavy].sum(), 0) / some if some > 0 else 0
    return law


def thresholds(overlap: Overlap, k: int) -> list[float]:
    """RAMP's S_1 > ... > S_k and S_(k+1) = 0: stage i ramps from S_(i+1) up to S_i in t, and is reached with probability
    S_i - S_(i+1).

    They solve S_i = h^-1(S_(i+1) + f) and f + G(S_1) = 1, f the chance that all are rejected. The left side rises concavely and
    piecewise linearly in f, so Newton's method comes from below and is exact after finitely many steps.
    """
    f = 0.0
    for _ in range(100):
        steps, slope = [0.0], 0.0
        for _ in range(k):
            s, steepness = overlap.inverse(steps[-1] + f)
            slope = (slope + 1) * steepness
            steps.append(s)
        overlapping, rise = overlap.value(steps[-1])
        gap = 1 - f - overlapping
        if gap <= _ROUNDING:
            break
        f = min(f + gap / (1 + rise * slope), 1.0)
    return steps[::-1] if f > _CERTAIN else _earliest(overlap, min(steps[-1], float(overlap.t[-1])), k)


def _earliest(overlap: Overlap, highest: float, k: int) -> list[float]:
    """The smallest thresholds that still accept everything: where nothing can be gained by waiting, p = q say, nothing waits."""
    steps = [highest]
    for _ in range(k):
        steps.append(max(steps[-1] - overlap.value(steps[-1])[0], 0.0))
    return steps


def ramp(overlap: Overlap, k: int) -> list[Stage]:
    """Accept as late as possible: among k independent draws, this keeps the residual like q while candidates remain."""
    s = thresholds(overlap, k)
    return [Stage(low / (high - low)) if high - low > _ROUNDING else Stage() for high, low in pairwise(s)]


def divisor(overlap: Overlap, k: int) -> float:
    """SpecTr's rho in [1, k]: (1 - (1 - beta)^k) / beta = rho, with beta the sum of min(q, p / rho), which is G(rho) / rho."""
    low, high = 1.0, float(k)
    for _ in range(40):
        rho = (low + high) / 2
        low, high = (rho, high) if _tries(overlap.value(rho)[0] / rho, k) > rho else (low, rho)
    return (low + high) / 2


def _tries(beta: float, k: int) -> float:
    """(1 - (1 - beta)^k) / beta: how many of k candidates are tried on average, if each is accepted with probability beta."""
    return (1 - (1 - beta) ** k) / beta if beta > _ROUNDING else k


def k_seq(overlap: Overlap, k: int) -> list[Stage]:
    """SpecTr's K-SEQ (Sun et al. 2023, algorithm 2): every stage accepts min(q, p / rho). In terms of the residual R of the stage that
    is min(q, R / rho_i), with rho_i the rho of the candidates that remain."""
    rho = divisor(overlap, k)
    beta = overlap.value(rho)[0] / rho
    return [Stage(share=1 / _tries(beta, left)) for left in range(k, 0, -1)]
