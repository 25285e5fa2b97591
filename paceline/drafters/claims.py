"""What a drafter claims of its nodes, and how often that comes true.

A claim is the probability that the path down to a node is accepted. Under target match the text does not depend on the draft, so the
tokens that came later say of every node that was ever proposed whether it would have been accepted, verified or not.

Axes: N nodes.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace

from ..draft import Draft
from ..tree import Tree

EDGES = (0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9)  # claims between two of these are counted together
FIRST, NEXT = 0.7, 0.3  # what is assumed of a drafter that claims nothing: of the first child of a node, and of each sibling after it
_PRIOR = 4.0  # how many accepted nodes the first belief counts as
LASTING, BRIEF = 100.0, 12.0  # expected nodes beyond which old counts fade: of what holds for all texts, and for one


class Claims:
    """Corrects claims by what came of earlier ones. `prior` is believed where little has been seen, or the claims themselves are."""

    def __init__(self, prior: Claims | None = None, counts: Sequence[tuple[float, float]] = (), *, most: float = LASTING) -> None:
        self.prior, self.most = prior, most
        self.claimed = [0.0] * (len(EDGES) + 1)
        self.accepted = [0.0] * (len(EDGES) + 1)
        for place, (claimed, accepted) in enumerate(counts):
            self.claimed[place], self.accepted[place] = claimed, accepted

    @property
    def counts(self) -> list[tuple[float, float]]:
        """For each stretch of claims: how many nodes should have been accepted, and how many were."""
        return list(zip(self.claimed, self.accepted, strict=True))

    def ratio(self, place: int) -> float:
        """Accepted over claimed in one stretch."""
        before = 1.0 if self.prior is None else self.prior.ratio(place)
        return (self.accepted[place] + _PRIOR * before) / (self.claimed[place] + _PRIOR)

    @property
    def held(self) -> float:
        """Accepted over claimed of all nodes together."""
        before = 1.0 if self.prior is None else self.prior.held
        return (sum(self.accepted) + _PRIOR * before) / (sum(self.claimed) + _PRIOR)

    def add(self, judged: Sequence[tuple[float, bool]]) -> None:
        """Count what became of some nodes (see `judged`)."""
        for claim, came_true in judged:
            place = bisect_right(EDGES, claim)
            self.claimed[place] += claim
            self.accepted[place] += came_true
            if self.claimed[place] > self.most:
                self.claimed[place] /= 2
                self.accepted[place] /= 2

    def correct(self, draft: Draft) -> Draft:
        """The draft with scores that are to be believed; no node scores above its parent."""
        assert draft.scores is not None, "only claims can be corrected"
        if len(draft.tree) == 1:
            return draft
        ratios = [self.ratio(place) for place in range(len(EDGES) + 1)]
        corrected = [0.0]
        for parent, score in zip(draft.tree.parents[1:], draft.scores[1:], strict=True):
            prob = math.exp(score)
            prob *= ratios[bisect_right(EDGES, prob)]
            corrected.append(min(corrected[parent], math.log(max(prob, 1e-12))))
        return replace(draft, scores=tuple(corrected))


def judged(draft: Draft, known: Sequence[int]) -> list[tuple[float, bool]]:
    """Claim and outcome of the nodes of a draft whose fate the tokens after its root decide."""
    assert draft.scores is not None, "a draft is judged by its claims"
    found = zip(draft.scores[1:], outcomes(draft.tree, known)[1:], strict=True)
    return [(math.exp(score), came_true) for score, came_true in found if came_true is not None]


def outcomes(tree: Tree, known: Sequence[int]) -> list[bool | None]:
    """(N,) whether each node's path spells the tokens that came after the root; None where too few have come."""
    found: list[bool | None] = [True]
    for node in range(1, len(tree)):
        above, depth = found[tree.parents[node]], tree.depth[node]
        if above and depth <= len(known):
            found.append(tree.tokens[node] == known[depth - 1])
        else:
            found.append(None if above else above)
    return found


def with_claims(draft: Draft) -> Draft:
    """The draft, and claims by place in the tree if it comes without any."""
    if draft.scores is not None:
        return draft
    scores, siblings = [0.0], [0] * len(draft.tree)
    for parent in draft.tree.parents[1:]:
        scores.append(scores[parent] + math.log(FIRST) + siblings[parent] * math.log(NEXT))
        siblings[parent] += 1
    return replace(draft, scores=tuple(scores))
