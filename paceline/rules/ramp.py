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

import numpy as np
import torch

MOST_EXACT = 4096  # more tokens than this are not sorted: their ratios are rounded, and counted
_SHIFT, _CELLS = 15, 1 << 16  # a positive float32 rounded to exponent and 8 bits of mantissa: 256 cells per octave
_LARGEST = 1e30  # ratio; where q underflows there are infinite ones
_ROUNDING = 1e-14


@dataclass(frozen=True)
class Stage:
    """One stage accepts `min(q, share (R - late q)_+)` of the residual R: at most q, and, as late >= 0 and 0 <= share <= 1, at most R."""

    late: float = 0.0
    share: float = 1.0

    def accepted(self, residual: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
        """The accepted sub-measure, in the shape of the two laws: (V,), or () for one token."""
        over = torch.sub(residual, drawn, alpha=self.late).clamp_(min=0).mul_(self.share)
        return torch.minimum(drawn, over, out=over)


class Overlap:
    """G and h of two laws of mass 1, from ascending ratios `t` (M,) and the mass of q at each, `weight` (M,)."""

    def __init__(self, t: np.ndarray, weight: np.ndarray) -> None:
        self.t, self.weight = t, weight / weight.sum()
        self._q = np.cumsum(self.weight)  # (M,) mass at and below a ratio
        self._p = np.cumsum(self.t * self.weight)
        self._h = np.maximum.accumulate(t * self._q - self._p)  # h at the ratios

    @classmethod
    def of(cls, p: torch.Tensor, q: torch.Tensor) -> Overlap | None:
        """Of laws (V,) of equal mass; None if q has none. Exact for up to MOST_EXACT tokens with q > 0; else each ratio is rounded to
        9 significant bits."""
        many = len(q) > MOST_EXACT and int(q.count_nonzero()) > MOST_EXACT
        t, weight = _rounded_ratios(p, q) if many else _ratios(p, q)
        return cls(t, weight) if len(t) else None

    def after(self, stage: Stage, ratio: float, chance: float, mass: float) -> Overlap | None:
        """Of what is left of both laws once `stage` rejected a token that cannot come again, drawn with probability `chance`, where
        t is `ratio`. The residual has mass `mass` then. The order of the ratios stays, so nothing is sorted again."""
        t = self.t - np.clip((self.t - stage.late) * stage.share, 0, 1)
        weight = self.weight.copy()
        own = np.where(weight > chance * (1 - 1e-5), np.abs(self.t - ratio), np.inf)  # a neighbour may be as near, once rounded
        weight[own.argmin()] -= chance
        kept = weight > _ROUNDING
        return Overlap(t[kept] * (1 - chance) / mass, weight[kept]) if kept.any() and mass > 0 else None

    def value(self, s: float) -> tuple[float, float]:
        """G(s) and its slope to the right of s."""
        j = bisect_right(self.t, s) - 1
        return (float(self._p[j] + s * (1 - self._q[j])), float(1 - self._q[j])) if j >= 0 else (s, 1.0)

    def inverse(self, y: float) -> tuple[float, float]:
        """The largest s with h(s) = y, for y >= 0, and the slope of the inverse to the right of y."""
        j = max(bisect_right(self._h, y) - 1, 0)
        return float((y + self._p[j]) / self._q[j]), float(1 / self._q[j])


def _ratios(p: torch.Tensor, q: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    drawn = q > 0
    weight = q[drawn].double()
    t, order = (p[drawn].double() / weight).sort()
    return t.cpu().numpy(), weight[order].cpu().numpy()


def _rounded_ratios(p: torch.Tensor, q: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """The leading bits of a positive float order as it does, and so number a logarithmic grid without a logarithm."""
    bits = (p / q).float().view(torch.int32)  # where q is 0: of infinity or of no number, without weight
    cells = ((bits + (1 << (_SHIFT - 1))) >> _SHIFT) & (_CELLS - 1)
    weight = torch.bincount(cells, q.double(), _CELLS).cpu().numpy()
    used = weight.nonzero()[0].astype(np.int32)
    return (used << _SHIFT).view(np.float32).astype(np.float64).clip(max=_LARGEST), weight[used]


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
    return steps[::-1] if f > 0 else _earliest(overlap, min(steps[-1], float(overlap.t[-1])), k)


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
