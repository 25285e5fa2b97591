"""Speculative sampling with one sampled candidate per position (Leviathan et al. 2023; Chen et al. 2023, algorithm 2).

Accept x drawn from q with probability min(1, p(x) / q(x)); after a rejection draw from max(p - q, 0), normalised. A greedy request
has a point mass as p, so the rule then compares tokens.
"""

from __future__ import annotations

from ..draft import Siblings
from ..sampling import Rng, residual
from .walk import Node, Rule, Step


def _decide(node: Node, rng: Rng) -> Step:
    if not node.children:
        return Step(None, node.target_probs.draw(node.index, rng))
    (child,) = node.children
    token = node.token(child)
    p, q = node.target_probs.row(node.index), node.draft.probs(node.index)
    if rng.coin(float(p[token]) / float(q[token])):
        return Step(child, token)
    return Step(None, rng.pick(residual(p, q)))


rejection = Rule("rejection", _decide, needs=frozenset({Siblings.IID, Siblings.WITHOUT_REPLACEMENT}), lossless=True, chain_only=True)
