"""What bounded self-drafting costs and brings: the model by which the bounds are chosen (SpecBound, arXiv 2604.12247).

A round with m drafts that exited at depths e_1 to e_m runs L + e_1 + ... + e_m layers, however it ended: a difficult token takes all
others along to its depth, and after the last draft that the width allows the deep pass begins at layer 0 with that draft alone. Beside
the layers there are heads, a fixed cost for each set of rows that goes through layers together for the first time (embedding, masks,
positions), and what several rows cost more than one. A round keeps the leading right drafts and one more token.

Axes: K exit layers, G thresholds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

from ..errors import InvalidRequest

WIDEST = 8
WORTH = 1.2  # expected speed from which on to draft; where 1.13 was expected, 0.99 was measured on prompts unlike those of the profile


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
    """In seconds, or all in any other unit.

    `plain`: a round without drafts. `layer`: one of the `layers` decoder layers, by its rows. `call`: what rows cost that go through layers
    together for the first time. `head`: an exit head on one row. `tail`: the final norm and the output layer, by rows.
    """

    layers: int
    plain: float
    call: float
    layer: Callable[[int], float]
    head: float
    tail: Callable[[int], float]

    @classmethod
    def in_layers(cls, layers: int, head: float, output: float) -> Costs:
        """With the layer as the unit and further rows for free, where the output layer costs as much as `output` layers (spec 8)."""
        return cls(layers, layers + output, 0.0, lambda rows: 1.0, head, lambda rows: output)


@dataclass(frozen=True)
class Bounds:
    """When a token exits, and where drafting ends: `depth` layers for a token, `width` tokens; width 0 never drafts. `speedup` over plain
    decoding is what the cost model expects, if it was asked."""

    threshold: float
    depth: int
    width: int
    speedup: float = math.nan


def expected(shares: Sequence[tuple[int, float, float]], width: int, costs: Costs) -> tuple[float, float]:
    """Tokens and cost of a round, if positions do not depend on each other. `shares` as of `Profile.at`, up to the depth bound."""
    if width == 0:
        return 1.0, costs.plain
    leaves = sum(share for _, share, _ in shares)
    right = sum(hit for _, _, hit in shares)
    climb = sum(depth * share for depth, share, _ in shares) / max(leaves, 1e-12)  # layers of a draft
    heads = sum((k + 1) * share for k, (_, share, _) in enumerate(shares)) + len(shares) * (1 - leaves)
    asked = sum(leaves**j for j in range(width))  # positions at which heads were tried
    tokens = 1 + sum(right**j for j in range(1, width + 1))
    cost = asked * heads * costs.head + _calls(shares, width) * costs.call
    for drafts in range(width + 1):
        chance = leaves**drafts * (1 - leaves if drafts < width else 1)
        cost += chance * (_all_layers(drafts, climb, costs) + costs.tail(drafts + 1))
    return tokens, cost


def _all_layers(drafts: int, climb: float, costs: Costs) -> float:
    """The layers of a round. Rows that go alone while drafting share fewer calls afterwards."""
    one = costs.layer(1)
    more = costs.layer(drafts + 1) - one  # for that many rows in one call
    return one * (costs.layers + drafts * climb) + more * (costs.layers - climb)


def _calls(shares: Sequence[tuple[int, float, float]], width: int) -> float:
    """How often rows go through layers together for the first time: a token that enters, and one that comes to where others wait."""
    difficult = 1 - sum(share for _, share, _ in shares)
    total, states = 0.0, {frozenset[int](): 1.0}  # chances of the depths at which tokens wait
    for _ in range(width):
        after: dict[frozenset[int], float] = {}
        for waiting, chance in states.items():
            total += chance * (1 + difficult * len(waiting))
            for depth, share, _ in shares:
                total += chance * share * sum(d < depth for d in waiting)
                left = frozenset({depth, *(d for d in waiting if d > depth)})
                after[left] = after.get(left, 0.0) + chance * share
        states = after
    return total + sum(chance * (1 + len(waiting)) for waiting, chance in states.items())


def speedup(shares: Sequence[tuple[int, float, float]], width: int, costs: Costs) -> float:
    """Over plain decoding, which spends a whole forward on each token."""
    tokens, cost = expected(shares, width, costs)
    return tokens * costs.plain / cost


def best_bounds(
    profile: Profile, costs: Costs, *, threshold: float | None = None, depth: int | None = None, width: int | None = None
) -> Bounds:
    """The quickest bounds that draft, among those that are not given. Raises InvalidRequest if a given depth leaves no exit layer."""
    if depth is not None and depth < profile.layers[0]:
        raise InvalidRequest(f"the exit depth is {depth}, and the first exit is after {profile.layers[0]} layers; raise it")
    tried = product(
        profile.thresholds if threshold is None else (threshold,),
        profile.layers if depth is None else (depth,),
        range(1, WIDEST + 1) if width is None else (width,),
    )
    return max((Bounds(t, d, w, speedup(profile.at(t, d), w, costs)) for t, d, w in tried), key=lambda bounds: bounds.speedup)
