"""Target match: draw from the target, then look for that token among the children.

Lossless for every kind of candidate, since the children never touch the draw. Greedy decoding is the case of a point mass. For a
deterministic set of children it accepts as much as any lossless rule can: the target's mass on them.
"""

from __future__ import annotations

from ..draft import Siblings
from ..sampling import Rng
from .walk import Node, Rule, Step


def _decide(node: Node, rng: Rng) -> Step:
    token = node.target_probs.draw(node.index, rng)
    return Step(next((c for c in node.children if node.token(c) == token), None), token)


match = Rule("match", _decide, needs=frozenset(Siblings), lossless=True)
