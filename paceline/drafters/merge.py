"""Several drafters under one budget: their trees are merged at the root."""

from __future__ import annotations

from collections.abc import Sequence

from ..draft import Draft, Drafter, Siblings
from ..errors import IncompatibleRule
from ..sequence import Sequence as Request
from ..tree import Tree, TreeBuilder


class MergedDrafter:
    """Merges the proposals of deterministic drafters. The first one that fills the budget alone spares the others their work;
    else nodes are taken in turns, so that each drafter has its share.

    Raises IncompatibleRule for drafters that sample: a merged tree is no draw from either of them.
    """

    siblings = Siblings.FIXED

    def __init__(self, drafters: Sequence[Drafter], budget: int) -> None:
        if sampling := [type(d).__name__ for d in drafters if d.siblings is not Siblings.FIXED]:
            raise IncompatibleRule(f"{sampling[0]} samples its candidates and cannot be merged; use rule match")
        self.drafters, self.budget = tuple(drafters), budget
        self.target_layer_ids = tuple(sorted({i for d in drafters for i in d.target_layer_ids}))

    def propose(self, seqs: Sequence[Request]) -> list[Draft]:
        trees: list[list[Tree]] = [[] for _ in seqs]
        for drafter in self.drafters:
            asked = [i for i, own in enumerate(trees) if not any(len(t) >= self.budget for t in own)]
            for i, draft in zip(asked, drafter.propose([seqs[i] for i in asked]) if asked else [], strict=True):
                trees[i].append(draft.tree)
        return [Draft(_merged(own, self.budget)) for own in trees]


def _merged(trees: Sequence[Tree], budget: int) -> Tree:
    """One tree with nodes taken from each tree in turn, in their own order."""
    builder = TreeBuilder(trees[0].tokens[0], budget)
    places: list[dict[int, int | None]] = [{0: 0} for _ in trees]
    for node in range(1, max(map(len, trees))):
        for tree, place in zip(trees, places, strict=True):
            if node < len(tree):
                parent = place[tree.parents[node]]
                place[node] = None if parent is None else builder.add(parent, tree.tokens[node])
    return builder.build()
