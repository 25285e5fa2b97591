"""Target match: draw from the target, then look for that token among the children.

Lossless for every kind of candidate, since the children never touch the draw. Greedy decoding is the case of a point mass. For a
deterministic set of children it accepts as much as any lossless rule can: the target's mass on them.
"""

from __future__ import annotations

from ..draft import Siblings
from .walk import Rule, look_up

match = Rule("match", look_up, needs=frozenset(Siblings), lossless=True)
