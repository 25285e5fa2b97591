"""What bounded self-drafting costs and brings: the model by which the bounds are chosen (SpecBound, arXiv 2604.12247).

A round with m drafts that exited at depths e_1 to e_m runs L + e_1 + ... + e_m layers, however it ended: a difficult token takes all
others along to its depth, and after the last draft that the width allows the deep pass begins at layer 0 with that draft alone. Heads
come on top. A round keeps the leading right drafts and one more token.

Axes: K exit layers, G thresholds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

from ..errors import InvalidRequest

WIDEST = 16


@dataclass(frozen=True)
class Profile:
    """What exits did on held-out text: shares of all positions, for each of G thresholds and K exit layers.

    `exits[g][k]` exit at layer k and no earlier; `right[g][k]` of them with the target's own token.
    """

    layers: tuple[int, ...]  # (K,)
    thresholds: tuple[float, ...]  # (G,) ascending
    exits: tuple[tuple[float, ...], ...]  # (G, K)
    right: tuple[tuple[float, ...], ...]  # (G, K)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Profile:
        tables = (tuple(map(tuple, values[name])) for name in ("exits", "right"))
        return cls(tuple(values["layers"]), tuple(values["thresholds"]), *tables)

    def at(self, threshold: float, depth: int) -> list[tuple[int, float, float]]:
        """(layer, share that exits there, share that is right there) down to a depth, by the nearest lower threshold."""
        row = max((g for g, t in enumerate(self.thresholds) if t <= threshold + 1e-9), default=0)
        every = zip(self.layers, self.exits[row], self.right[row], strict=True)
        return [each for each in every if each[0] <= depth]

    def only(self, layers: Sequence[int]) -> Profile:
        """With exits at some of the layers: what would exit at another one does so at the next that is there, if there is one."""
        ends = [self.layers.index(layer) + 1 for layer in layers]
        parts = [slice(a, b) for a, b in pairwise([0, *ends])]
        exits, right = (tuple(tuple(sum(row[part]) for part in parts) for row in table) for table in (self.exits, self.right))
        return Profile(tuple(layers), self.thresholds, exits, right)


@dataclass(frozen=True)
class Costs:
    """In seconds, or all in any other unit: a decoder layer on one token, an exit head, and a whole forward by its number of tokens."""

    layer: float
    head: float
    verify: Callable[[int], float]

    @classmethod
    def in_layers(cls, layers: int, head: float, output: float) -> Costs:
        """With the layer as the unit and further tokens for free, where the output layer costs as much as `output` layers."""
        return cls(1.0, head, lambda nodes: layers + output)


@dataclass(frozen=True)
class Bounds:
    """When a token exits, and where drafting ends: `depth` layers for a token, `width` tokens. `speedup` over plain decoding is what the
    cost model expects, if it was asked."""

    threshold: float
    depth: int
    width: int
    speedup: float = math.nan


def expected(shares: Sequence[tuple[int, float, float]], width: int, costs: Costs) -> tuple[float, float]:
    """Tokens and cost of a round, if positions do not depend on each other. `shares` as of `Profile.at`, up to the depth bound."""
    leaves = sum(share for _, share, _ in shares)
    right = sum(hit for _, _, hit in shares)
    climb = sum(depth * share for depth, share, _ in shares) / max(leaves, 1e-12)  # layers of a draft
    heads = sum((k + 1) * share for k, (_, share, _) in enumerate(shares)) + len(shares) * (1 - leaves)
    drafts = sum(leaves**j for j in range(1, width + 1))
    asked = sum(leaves**j for j in range(width))  # positions at which heads were tried
    tokens = 1 + sum(right**j for j in range(1, width + 1))
    ends = [leaves**m * (1 - leaves if m < width else 1) for m in range(width + 1)]  # P(m drafts)
    deep = sum(share * costs.verify(m + 1) for m, share in enumerate(ends))
    return tokens, drafts * climb * costs.layer + asked * heads * costs.head + deep


def speedup(shares: Sequence[tuple[int, float, float]], width: int, costs: Costs) -> float:
    """Over plain decoding, which spends a whole forward on each token."""
    tokens, cost = expected(shares, width, costs)
    return tokens * costs.verify(1) / cost


def best_bounds(
    profile: Profile, costs: Costs, *, threshold: float | None = None, depth: int | None = None, width: int | None = None
) -> Bounds:
    """The quickest bounds, among those that are not given. Raises InvalidRequest if a given depth leaves no exit layer."""
    if depth is not None and depth < profile.layers[0]:
        raise InvalidRequest(f"the exit depth is {depth}, and the first exit is after {profile.layers[0]} layers; raise it")
    tried = product(
        profile.thresholds if threshold is None else (threshold,),
        profile.layers if depth is None else (depth,),
        range(1, WIDEST + 1) if width is None else (width,),
    )
    return max((Bounds(t, d, w, speedup(profile.at(t, d), w, costs)) for t, d, w in tried), key=lambda bounds: bounds.speedup)
