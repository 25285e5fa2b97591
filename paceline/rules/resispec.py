"""The rule as ResiSpec prints it (Chen et al. 2026, arXiv 2608.24411, algorithm 1). LOSSY: its output is not the target's.

After a rejection of x it keeps, for the children to come, a residual shaped like q:

    R' = r / Z,   Z = q(x) - R(x),   r = min(Z q, R) off x, and what that lacks of Z spread over the capacity R - r off x

The proof of its losslessness treats r, which is built anew for each rejected x, as one and the same for all of them. `ramp` and
`ramp_wor` are the exact rules with this idea. The paper does not say how the lacking mass is spread; here: in one step, in proportion
to the capacity.

Axes: V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from ..draft import Siblings
from .multi import Decision, Rest, Trial
from .walk import Rule

_TOLERANCE = 1e-3  # of float32 sums over a large vocabulary, relative to Z


def _printed(p: torch.Tensor, q: torch.Tensor, tokens: Sequence[int]) -> Iterator[Trial | Rest]:
    residual, mass = p, 1.0
    for i, token in enumerate(tokens):
        chance, held = float(q[token]), float(residual[token])
        yield Trial(i, min(held / chance, 1.0) if chance > 0 else 0.0, mass)
        if chance > held:
            residual, mass = _reserved(residual, q, token), chance - held
    yield Rest(residual, mass)


def _reserved(residual: torch.Tensor, q: torch.Tensor, rejected: int) -> torch.Tensor:
    """(V,) the law after the rejection of a token with q > R: r / Z, with r <= R, r = 0 at that token and |r| = Z."""
    z = float(q[rejected]) - float(residual[rejected])
    r = torch.minimum(q * z, residual)
    r[rejected] = 0
    capacity = residual - r
    capacity[rejected] = 0
    room, lacking = float(capacity.sum(dtype=torch.float64)), z - float(r.sum(dtype=torch.float64))
    if lacking > 0 and room > 0:
        r += capacity * min(lacking / room, 1.0)
    reserved = float(r.sum(dtype=torch.float64))
    assert abs(reserved - z) <= _TOLERANCE * z + 1e-6, f"the reserved mass is {reserved}, not Z = {z}"
    return r / reserved


resispec_printed = Rule("resispec_printed", Decision(_printed), needs=frozenset({Siblings.IID}), lossless=False)
