"""Several drafters under one budget: their trees become one, likeliest nodes first."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ..draft import Draft, Drafter, Siblings
from ..errors import IncompatibleRule
from ..sequence import Sequence as Request
from ..tree import Tree, TreeBuilder
from .grow import Pace, share
from .union import Union

LIKELY = 0.3  # accepted tokens that a draft expects, for each of its depth


class MergedDrafter:
    """Merges the proposals of deterministic drafters. Those with `Draft.scores` give one tree of the nodes that are likeliest to be
    accepted, whoever proposed them; if one comes without, nodes are taken in turns, so that each drafter has its share.

    The first drafter that fills the budget alone with what is likely to be accepted spares the others their work.

    Args:
        drafters: they draw nothing. Raises IncompatibleRule for those that sample: a merged tree is no draw from either of them.
        budget: nodes of the merged tree, the root included.
        cost: the time of a round by its number of nodes, by which a batch shares the nodes of scored trees (see `share`).
    """

    siblings = Siblings.FIXED

    def __init__(self, drafters: Sequence[Drafter], budget: int, cost: Callable[[int], float] | None = None) -> None:
        if sampling := [type(d).__name__ for d in drafters if d.siblings is not Siblings.FIXED]:
            raise IncompatibleRule(f"{sampling[0]} samples its candidates and cannot be merged; use rule match")
        self.drafters, self.budget = tuple(drafters), budget
        self.cost, self._pace = cost, Pace()
        self.target_layer_ids = tuple(sorted({i for d in drafters for i in d.target_layer_ids}))

    def propose(self, seqs: Sequence[Request]) -> list[Draft]:
        drafts: list[list[Draft]] = [[] for _ in seqs]
        for drafter in self.drafters:
            asked = [i for i, own in enumerate(drafts) if not any(self._suffices(d) for d in own)]
            for i, draft in zip(asked, drafter.propose([seqs[i] for i in asked]) if asked else [], strict=True):
                drafts[i].append(draft)
        merged = [self._merged(own) for own in drafts]
        scored = self.cost is not None and all(d.scores is not None for d in merged)
        return share(merged, self.cost, self._pace) if scored else merged  # type: ignore[arg-type]

    def _suffices(self, draft: Draft) -> bool:
        """Whether it fills the budget, and not only with guesses: a head always has enough of those."""
        if len(draft.tree) < self.budget:
            return False
        return draft.scores is None or sum(map(math.exp, draft.scores[1:])) >= LIKELY * max(draft.tree.depth)

    def _merged(self, drafts: Sequence[Draft]) -> Draft:
        if any(d.scores is None for d in drafts):
            return Draft(_in_turns([d.tree for d in drafts], self.budget))
        union = Union(drafts[0].tree.tokens[0])
        for draft in drafts:
            union.add(draft)
        return union.likeliest(self.budget)


def _in_turns(trees: Sequence[Tree], budget: int) -> Tree:
    """One tree with nodes taken from each tree in turn, in their own order."""
    builder = TreeBuilder(trees[0].tokens[0], budget)
    places: list[dict[int, int | None]] = [{0: 0} for _ in trees]
    for node in range(1, max(map(len, trees))):
        for tree, place in zip(trees, places, strict=True):
            if node < len(tree):
                parent = place[tree.parents[node]]
                place[node] = None if parent is None else builder.add(parent, tree.tokens[node])
    return builder.build()
