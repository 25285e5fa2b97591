"""One budget for a whole batch: nodes go where they are likeliest to be accepted, as long as one more is worth its time.

Axes: B sequences, N nodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ..draft import Draft
from ..tree import Tree
from .grow import Pace, worthwhile


def share(drafts: Sequence[Draft], cost: Callable[[int], float], pace: Pace) -> list[Draft]:
    """Trim the scored drafts of a batch to the nodes that one forward over all of them is worth, the likeliest ones first.

    A node scores no better than its parent, which comes first, so what is left of each draft is a tree. `cost(n)` is the time of a
    round of n nodes in all; `pace` remembers the rate of the rounds so far (see `worthwhile`).
    """
    order = sorted((-_score(d)[n], n, i) for i, d in enumerate(drafts) for n in range(1, len(d.tree)))
    kept: list[list[int]] = [[0] for _ in drafts]
    for _, node, i in order[: worthwhile([math.exp(-s) for s, _, _ in order], cost, pace, sequences=len(drafts)) - len(drafts)]:
        kept[i].append(node)
    return [_part(draft, sorted(nodes)) for draft, nodes in zip(drafts, kept, strict=True)]


def _score(draft: Draft) -> tuple[float, ...]:
    assert draft.scores is not None, "only scored drafts can share a budget"
    return draft.scores


def _part(draft: Draft, nodes: Sequence[int]) -> Draft:
    """The draft with these nodes only, which must include every parent."""
    if len(nodes) == len(draft.tree):
        return draft
    place = {-1: -1} | {node: i for i, node in enumerate(nodes)}
    tree = Tree(tuple(draft.tree.tokens[n] for n in nodes), tuple(place[draft.tree.parents[n]] for n in nodes))
    return Draft(tree, draft.siblings, scores=tuple(_score(draft)[n] for n in nodes))
