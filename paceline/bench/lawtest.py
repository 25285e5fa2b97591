"""Tests of "these tokens come from that law", each with the total variation that it would find.

`detects` is the total variation between emitted and target law that the test finds with probability POWER at its sample size, at its
level after correction. p-values are of the tests before correction.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import optimize, stats

from .laws import Vector

ALPHA, POWER = 1e-3, 0.95  # of the whole audit; each of its tests has ALPHA / number of tests
MIN_EXPECTED, MIN_VARIANCE = 10, 20  # tokens per cell of a chi-square test; of a share, where its normal law is good enough
_POWER_Z = float(stats.norm.isf(1 - POWER))


@dataclass(frozen=True)
class Finding:
    """One test: `n` observations, the p-value and what it `detects`; both None where the sample is too small to test at all."""

    name: str
    n: int
    p_value: float | None
    detects: float | None

    def fails(self, level: float) -> bool:
        return self.p_value is not None and self.p_value < level


def untested(name: str, n: int) -> Finding:
    return Finding(name, n, None, None)


def uniform(name: str, places: Sequence[float], level: float) -> Finding:
    """Kolmogorov-Smirnov on places that should be uniform on [0, 1]. A negative place is a token that cannot come: p is 0.

    It detects a distribution function F that is anywhere off by d: there the number of places below is binomial, with a standard
    deviation of at most 1/2 / sqrt(n), and P(D_n > critical) >= POWER for d = critical + z(POWER) / 2 / sqrt(n).
    """
    n = len(places)
    if n < 2:
        return untested(name, n)
    found = 0.0 if min(places) < 0 else float(stats.kstest(places, "uniform").pvalue)
    return Finding(name, n, found, min(1.0, float(stats.kstwo.isf(level, n)) + _POWER_Z / 2 / math.sqrt(n)))


def share(name: str, hits: int, expected: Vector, level: float, *, each: int = 1) -> Finding:
    """Do as many tokens lie in a set as the laws say? `expected` (R,) is each row's probability, decided `each` times.

    z = (hits - sum p) / sqrt(sum p (1 - p)). A shift of s per token makes the variance at most sum p (1 - p) + n s, so s is found if
    n s >= z(level / 2) sd + z(POWER) sqrt(sd^2 + n s).
    """
    n, variance = each * len(expected), each * float((expected * (1 - expected)).sum())
    if variance < MIN_VARIANCE:
        return untested(name, n)
    z = (hits - each * float(expected.sum())) / math.sqrt(variance)
    a, b, sd = float(stats.norm.isf(level / 2)), _POWER_Z, math.sqrt(variance)
    half = a * sd + b * b / 2
    shift = half + math.sqrt(half * half - (a * a - b * b) * variance)
    return Finding(name, n, float(2 * stats.norm.sf(abs(z))), min(1.0, shift / n))


def cells(name: str, counts: Sequence[npt.NDArray[np.int64]], laws: Sequence[Vector], keys: Sequence[Vector], level: float) -> Finding:
    """Pearson's chi-square of the counts (V,) of each row against its law, summed over rows; neighbours by key share small cells.

    The noncentrality of a shift is at least 4 n d^2 where d is its mean total variation over rows (Cauchy-Schwarz within a row,
    Jensen over rows), so d is found if the noncentral chi-square with 4 n d^2 exceeds the critical value with probability POWER.
    """
    statistic, degrees, n = 0.0, 0, 0
    for seen, law, key in zip(counts, laws, keys, strict=True):
        total = int(seen.sum())
        if seen[law == 0].any():
            return Finding(name, total, 0.0, None)
        observed, expected = pooled(seen, total * law, key)
        statistic += float(((observed - expected) ** 2 / expected).sum())
        degrees, n = degrees + len(expected) - 1, n + total
    if degrees == 0:
        return untested(name, n)
    return Finding(name, n, float(stats.chi2.sf(statistic, degrees)), min(1.0, math.sqrt(_noncentrality(degrees, level) / 4 / n)))


def pooled(seen: npt.NDArray[np.int64], expected: Vector, key: Vector) -> tuple[Vector, Vector]:
    """Counts and expectations of cells that expect MIN_EXPECTED each, taken together in the order of `key`."""
    order = np.argsort(key, kind="stable")
    sums = np.cumsum(expected[order])
    ends = []
    start = 0.0
    for at, total in enumerate(sums):
        if total - start >= MIN_EXPECTED and sums[-1] - total >= MIN_EXPECTED:
            ends.append(at + 1)
            start = total
    groups = np.split(order, ends)
    return np.array([seen[g].sum() for g in groups], dtype=float), np.array([expected[g].sum() for g in groups])


def _noncentrality(degrees: int, level: float) -> float:
    critical = stats.chi2.isf(level, degrees)

    def missed(noncentrality: float) -> float:
        return float(stats.ncx2.cdf(critical, degrees, noncentrality)) - (1 - POWER)

    return float(optimize.brentq(missed, 1e-9, 10 * (critical + 10)))
