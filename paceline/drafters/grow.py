"""From a head's scores to a draft tree, and how many of its nodes are worth verifying.

A head scores each depth once, for all paths; with a Markov term the score of a token also depends on the token before it. So a tree
is grown from `Scores`: a shortlist of tokens per depth, and for each parent the log-probabilities of its children, best first.

Axes: D depths, M shortlisted tokens, C children, N nodes.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, count

from ..draft import Draft
from ..tree import Tree


@dataclass(frozen=True)
class Scores:
    """`tokens[d]` (M,) may come at depth d + 1. `logps[d][p]` (C,) are the log-probabilities of the children of parent p, descending,
    and `picks[d][p]` (C,) says which of the M tokens each is. Parent p is the p-th token of the depth before; where a depth has one row,
    all parents share it."""

    tokens: list[list[int]]
    logps: list[list[list[float]]]
    picks: list[list[list[int]]]

    def cut(self, depth: int) -> Scores:
        """The first depths only."""
        return Scores(self.tokens[:depth], self.logps[:depth], self.picks[:depth])

    def row(self, depth: int, parent: int) -> int:
        return parent if len(self.logps[depth]) > 1 else 0


@dataclass
class Growth:
    """A tree under construction; `scores` (N,) are path log-probabilities, the root's 0."""

    tokens: list[int]
    parents: list[int] = field(default_factory=lambda: [-1])
    scores: list[float] = field(default_factory=lambda: [0.0])

    def add(self, parent: int, token: int, score: float) -> int:
        self.tokens.append(token)
        self.parents.append(parent)
        self.scores.append(score)
        return len(self.tokens) - 1

    def tree(self, nodes: int | None = None) -> Tree:
        """The tree of the first nodes."""
        return Tree(tuple(self.tokens[:nodes]), tuple(self.parents[:nodes]))


_AHEAD = 0.9  # of the probability of the best path: what one more forward below it is thought to add, at that depth and later
Builder = Callable[[int, Scores, int], Growth]  # root, scores, budget with the root


def best_first(root: int, scores: Scores, budget: int) -> Growth:
    """The likeliest `budget` nodes under the head's scores, likeliest first (one node at a time, as in DDTree).

    A node taken offers its next sibling and its own best child, so the next likeliest prefix is always on the heap: every beginning of
    the result is the best tree of its size.
    """
    growth, order = Growth([root]), count()
    heap: list[tuple[float, int, int, int, int, int]] = []  # -score, tie, parent node, depth, row, child

    def offer(parent: int, depth: int, row: int, child: int) -> None:
        row_logps = scores.logps[depth][row]
        if child < len(row_logps):
            heapq.heappush(heap, (-growth.scores[parent] - row_logps[child], next(order), parent, depth, row, child))

    if scores.tokens:
        offer(0, 0, 0, 0)
    while heap and len(growth.tokens) < budget:
        negative, _, parent, depth, row, child = heapq.heappop(heap)
        pick = scores.picks[depth][row][child]
        node = growth.add(parent, scores.tokens[depth][pick], -negative)
        offer(parent, depth, row, child + 1)
        if depth + 1 < len(scores.tokens):
            offer(node, depth + 1, scores.row(depth + 1, pick), 0)
    return growth


def all_children(root: int, scores: Scores, budget: int, width: int = 7) -> Growth:
    """The published builder (JetSpec, algorithm 1): the likeliest open node gets all of its `width` children at once."""
    growth, order = Growth([root]), count()
    heap = [(0.0, next(order), 0, 0, 0)]  # -score, tie, node, its depth, its row
    while heap and len(growth.tokens) < budget:
        negative, _, node, depth, row = heapq.heappop(heap)
        if depth == len(scores.tokens):
            continue
        children = zip(scores.picks[depth][row], scores.logps[depth][row], strict=True)
        for pick, logp in list(children)[: min(width, budget - len(growth.tokens))]:
            child = growth.add(node, scores.tokens[depth][pick], logp - negative)
            below = scores.row(depth + 1, pick) if depth + 1 < len(scores.tokens) else 0
            heapq.heappush(heap, (negative - logp, next(order), child, depth + 1, below))
    return growth


def chain(root: int, scores: Scores, budget: int) -> Growth:
    """The likeliest child of the likeliest child, and so on."""
    growth, row = Growth([root]), 0
    for depth in range(min(len(scores.tokens), budget - 1)):
        row = scores.row(depth, row) if depth else 0
        pick, logp = scores.picks[depth][row][0], scores.logps[depth][row][0]
        growth.add(depth, scores.tokens[depth][pick], growth.scores[-1] + logp)
        row = pick
    return growth


BUILDERS: dict[str, Builder] = {"best_first": best_first, "all_children": all_children, "chain": chain}


@dataclass
class Pace:
    """Expected tokens and seconds of the rounds so far. It starts with nothing and the first draft's own best rate."""

    tokens: float = 0.0
    seconds: float = 0.0


def worthwhile(probs: Sequence[float], cost: Callable[[int], float], pace: Pace, *, sequences: int = 1) -> int:
    """How many nodes, the roots included, to keep of drafts whose further nodes are accepted with these probabilities, descending.

    `cost(n)` is the time of a round of n nodes. A round brings sequences + sum(probs) tokens in expectation, and over many rounds the
    rate is the sum of tokens over the sum of times (renewal reward). It is largest if each round keeps the n that maximises
    tokens(n) - rate * cost(n), with the rate of all rounds together: a round that promises little then ends early, where maximising its
    own ratio would make it pay for nodes that other rounds use better. The rate is that of the rounds so far, kept in `pace`.
    """
    tokens = list(accumulate(probs, initial=float(sequences)))  # [i]: of i nodes besides the roots
    costs = [cost(sequences + i) for i in range(len(tokens))]
    if pace.seconds:
        rate = pace.tokens / pace.seconds
        best = max(range(len(tokens)), key=lambda i: tokens[i] - rate * costs[i])
    else:
        best = max(range(len(tokens)), key=lambda i: tokens[i] / costs[i])
    pace.tokens += tokens[best]
    pace.seconds += costs[best]
    return sequences + best


def net_tokens(probs: Sequence[float], cost: Callable[[int], float], rate: float, sequences: int = 1) -> float:
    """Tokens that the best number of further nodes promises, less what verifying them costs at `rate` tokens a second. They are accepted
    with these probabilities, descending."""
    base, tokens, best = cost(sequences), 0.0, 0.0
    for nodes, prob in enumerate(probs, sequences + 1):
        tokens += prob
        best = max(best, tokens - rate * (cost(nodes) - base))
    return best


@dataclass(frozen=True)
class GoesOn:
    """Whether a draft model is to run once more for a draft: if the tokens that may come of it are worth its time and theirs.

    Args:
        cost: seconds of a round by its nodes.
        rate: tokens per second at which rounds come.
        step: seconds of a forward of the draft model.
        sequences: of the round; the other ones are taken to have one node each.
    """

    cost: Callable[[int], float]
    rate: float
    step: float
    sequences: int = 1

    def __call__(self, scores: Sequence[float], best: float) -> bool:
        """`scores` (N,) are path log-probabilities, the root's first; the children of the node with score `best` would be next."""
        probs = sorted(map(math.exp, scores[1:]), reverse=True)
        more = sorted([*probs, _AHEAD * math.exp(best)], reverse=True)
        return self._net(more) - self._net(probs) > self.rate * self.step

    def _net(self, probs: Sequence[float]) -> float:
        return net_tokens(probs, self.cost, self.rate, self.sequences)


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
