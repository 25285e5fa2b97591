"""The drafts of one round as they come from several drafters, and what they are worth.

Axes: N nodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

from ..draft import Draft
from ..sequence import Sequence as Request
from ..tree import Tree
from .grow import Pace, net_tokens, share
from .union import Union


class Pool:
    """The drafts of one round as they come, and what they are worth."""

    def __init__(self, seqs: Sequence[Request], budget: int, cost: Callable[[int], float], rate: float) -> None:
        self.cost, self.rate, self._budget = cost, rate, budget
        self._merged = [root_only(seq) for seq in seqs]
        self._whole: dict[int, Draft] = {}  # drafts that the target has begun to work on: nothing can be added or cut

    def add(self, drafts: dict[int, Draft]) -> None:
        for i, draft in drafts.items():
            if draft.head_start is not None:
                self._whole[i] = draft
            elif len(draft.tree) > 1:
                self._merged[i] = shared_out(self._united(self._merged[i], draft))

    def _united(self, before: Draft, draft: Draft) -> Draft:
        """The likeliest nodes of both, best first. The first draft mostly is that already."""
        scores = _scores(draft)
        if len(before.tree) == 1 and len(scores) <= self._budget and all(a >= b for a, b in pairwise(scores)):
            return draft
        union = Union(draft.tree.tokens[0])
        union.add(before)
        union.add(draft)
        return union.likeliest(self._budget)

    def _drafts(self) -> list[Draft]:
        return [self._whole.get(i, d) for i, d in enumerate(self._merged)]

    def promised(self) -> list[float]:
        """Accepted tokens that each sequence's draft promises."""
        return list(map(promised_by, self._drafts()))

    def value(self) -> float:
        """Tokens that the best part of all drafts promises, less what its nodes cost."""
        probs = sorted((math.exp(s) for d in self._drafts() for s in _scores(d)[1:]), reverse=True)
        return net_tokens(probs, self.cost, self.rate, len(self._merged))

    def best(self) -> list[Draft]:
        """One draft per sequence, all of them cut to what one forward is worth."""
        whole = sum(len(d.tree) for d in self._whole.values())
        free = [i for i in range(len(self._merged)) if i not in self._whole]
        made = dict(self._whole)
        if free:
            cut = share([self._merged[i] for i in free], lambda n: self.cost(n + whole), Pace(self.rate, 1.0))
            made |= dict(zip(free, cut, strict=True))
        return [made[i] for i in range(len(self._merged))]


def shared_out(draft: Draft) -> Draft:
    """The draft with siblings that together claim no more than their parent: where drafters disagree, at most one of them is right. The
    nodes come best first."""
    scores, probs, left = _scores(draft), [1.0], [1.0]
    for node, parent in enumerate(draft.tree.parents[1:], 1):
        prob = min(probs[parent] * math.exp(scores[node] - scores[parent]), max(left[parent], 1e-12))
        left[parent] -= prob
        probs.append(prob)
        left.append(prob)
    return replace(draft, scores=tuple(math.log(p) for p in probs))


def promised_by(draft: Draft) -> float:
    """Accepted tokens that a draft promises."""
    return sum(map(math.exp, _scores(draft)[1:]))


def root_only(seq: Request) -> Draft:
    """No draft."""
    return Draft(Tree.chain([seq.root]), scores=(0.0,))


def _scores(draft: Draft) -> tuple[float, ...]:
    assert draft.scores is not None, "every draft here carries claims"
    return draft.scores
