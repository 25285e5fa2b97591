"""The most that any lossless rule can accept at one node: bounds from optimal transport.

A rule sees a random set S of candidates and must emit p. By max-flow min-cut the largest chance that it emits a candidate is

    the minimum over sets H of tokens of   p(outside H) + Pr(S meets H)

(Sun et al. 2023; Hu et al. 2025). Here `outside` runs through the first tokens in the order of rising p / q, O(V log V). For independent
draws that is exact. For draws without replacement such a set attained the minimum in every case that was enumerated; were another
set smaller, the bound here would be too large, and still a bound.

Axes: V vocabulary, k candidates.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch

from ..draft import Siblings
from ..errors import InvalidRequest
from .multi import without

MOST_CANDIDATES = 8
_STEP, _START, _DECAY = 0.25, -3.3, 42.0  # of the quadrature in u; e^-42 is where the integrand is left
_MOST_RUNG = 60.0  # q(x) t beyond which the odds stop growing; what they multiply is below e^-60 there


def bound(siblings: Siblings, p: torch.Tensor, q: torch.Tensor, k: int) -> float:
    """For k children of this kind; target and draft laws p and q (V,). FIXED children are taken to be the likeliest of q."""
    if siblings is Siblings.FIXED:
        return bound_fixed(p, q.topk(min(k, len(q))).indices.tolist())
    kinds = {Siblings.IID: bound_iid, Siblings.WITHOUT_REPLACEMENT: bound_without_replacement, Siblings.TOP_AND_DRAW: bound_top_and_draw}
    return kinds[siblings](p, q, k)


def bound_fixed(p: torch.Tensor, children: Sequence[int]) -> float:
    """The target's mass on the children, which `match` accepts."""
    return float(p[list(set(children))].sum(dtype=torch.float64))


def bound_top_and_draw(p: torch.Tensor, q: torch.Tensor, k: int) -> float:
    """p(top) + sum over the rest of min(p, q'), q' the law of the draw from the rest. `greedy_draft` attains it."""
    top = q.topk(min(k, int(q.count_nonzero())) - 1).indices.tolist()
    rest = without(q, top).double()
    return bound_fixed(p, top) + float(torch.minimum(without(p, top), rest / rest.sum()).sum())


def bound_iid(p: torch.Tensor, q: torch.Tensor, k: int) -> float:
    """k independent draws: Pr(S meets H) = 1 - (1 - q(H))^k."""
    outside, q = _in_order(p, q)
    return _minimum(outside, 1 - q.cumsum(0).clamp(max=1) ** k)


def bound_without_replacement(p: torch.Tensor, q: torch.Tensor, k: int) -> float:
    """k draws, each from q without the tokens before it. Raises InvalidRequest for more than MOST_CANDIDATES."""
    if k > MOST_CANDIDATES:
        raise InvalidRequest(f"the bound for draws without replacement takes at most {MOST_CANDIDATES} candidates, got {k}")
    outside, q = _in_order(p, q)
    return _minimum(outside, meets(q, k))


def _in_order(p: torch.Tensor, q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """In the order of rising p / q, in float64: cumulated p, and q, (V,) each and normalised."""
    p, q = p.double() / p.sum(dtype=torch.float64), q.double() / q.sum(dtype=torch.float64)
    order = torch.where(p > 0, p / q, 0).argsort()
    return p[order].cumsum(0), q[order]


def _minimum(outside: torch.Tensor, met: torch.Tensor) -> float:
    return min(1.0, float((outside + met).min()))


def meets(q: torch.Tensor, k: int) -> torch.Tensor:
    """(V,) float64; entry i is the probability that k draws without replacement from q (V,) reach a token after the i-th.

    Let token x ring at an exponential time of rate q(x); the first k to ring are the draws. The set H of the later tokens is met if one
    of them rings while fewer than k of the others have:

        integral over t > 0 of   q(H) e^(-q(H) t)  Pr(N(t) < k),     N(t) how many outside H have rung

    N(t) is a sum of coins. With the odds o(x) = e^(q(x) t) - 1 of the tokens outside H, Pr(N = j) is e_j(o) times the product of all
    e^(-q(x) t), where e_j is the elementary symmetric polynomial. Newton's identities give it from power sums, cumulated for all H at
    once. The k - 1 largest tokens, whose odds may be huge, are kept out of the polynomials and added coin by coin: what is left loses
    no digits where it counts.
    """
    q = q.double()
    if int(q.count_nonzero()) <= k:  # all of them are drawn
        return (_after(q) > 0).double()
    largest = sorted(q.topk(k - 1).indices.tolist())
    small = q.index_fill(0, torch.tensor(largest, dtype=torch.long, device=q.device), 0)
    met, rates, rest = torch.zeros_like(q), [float(q[x]) for x in largest], float(small.sum())
    for t, weight in _nodes(_DECAY / rest):
        polynomials = _symmetric(torch.expm1((small * t).clamp_(max=_MOST_RUNG)), k)
        rung = [1.0] + [0.0] * (k - 1)  # the law of how many of the largest tokens outside H have rung
        for i, (start, end) in enumerate(zip([0, *largest], [*largest, len(q)], strict=True)):
            if i:
                rung = _coin(rung, math.exp(-rates[i - 1] * t))
            scale = weight * math.exp(-t * (rest + sum(rates[i:])))
            for j, polynomial in enumerate(polynomials):
                met[start:end].add_(polynomial[start:end], alpha=scale * sum(rung[: k - j]))
    return (met * _after(q)).clamp_(max=1)


def _symmetric(odds: torch.Tensor, k: int) -> list[torch.Tensor]:
    """e_0 ... e_(k-1) of the first tokens, (V,) each, by Newton's identities: n e_n = sum over i of (-1)^(i-1) e_(n-i) (sum of o^i)."""
    power, sums, polynomials = torch.ones_like(odds), list[torch.Tensor](), [torch.ones_like(odds)]
    for n in range(1, k):
        power = power * odds
        sums.append(power.cumsum(0))
        total = polynomials[n - 1] * sums[0]
        for i in range(2, n + 1):
            total.addcmul_(polynomials[n - i], sums[i - 1], value=(-1) ** (i - 1))
        polynomials.append(total.div_(n))
    return polynomials


def _coin(counts: list[float], silent: float) -> list[float]:
    """The law of a count, one more token taken into account that has not rung with probability `silent`."""
    return [here * silent + before * (1 - silent) for here, before in zip(counts, [0.0, *counts], strict=False)]


def _nodes(end: float) -> Iterator[tuple[float, float]]:
    """Nodes and weights for an integral over 0 < t < end, end > 1: the trapezoidal rule in u, t = exp(u - e^-u), dt = t (1 + e^-u) du."""
    u = _START
    while u < math.log(end) + _STEP:
        t = math.exp(u - math.exp(-u))
        yield t, _STEP * t * (1 + math.exp(-u))
        u += _STEP


def _after(law: torch.Tensor) -> torch.Tensor:
    """(V,) the mass after each token."""
    return torch.nn.functional.pad(law.flip(0).cumsum(0).flip(0)[1:], (0, 1))
