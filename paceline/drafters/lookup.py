"""Prompt lookup: find the longest recent n-gram again and copy what followed it (Saxena 2023; also "n-gram" in vLLM).

Where earlier occurrences disagree, their continuations are merged into one tree, longest match and latest occurrence first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ..draft import Draft, Siblings
from ..errors import InvalidRequest
from ..sequence import Sequence as Request
from ..tree import Tree, TreeBuilder
from .grow import Pace, share

CONFIDENT, WEAK_BUDGET = 3, 6
HIT = (0.24, 0.53, 0.64, 0.86)  # how often the token after a match of 1, 2, 3, 4 or more is right
THEN = (0.65, 0.75, 0.78, 0.92)  # and each one after a right one; measured on SmolLM2's answers to training prompts


class LookupDrafter:
    """Looks through prompt and output; keeps no state.

    Args:
        prompt_lookup_max, prompt_lookup_min: longest and shortest n-gram that counts as a match.
        num_speculative_tokens: depth of the tree.
        budget: nodes of the tree, the root included, when a match of at least CONFIDENT tokens is found. Shorter matches, whose
            guesses are worth less, get at most WEAK_BUDGET nodes: on a CPU a forward over six tokens costs what one over one costs.
        cost: the time of a round by its number of nodes, in any unit. A batch shares its nodes by it: likely ones first, as long as
            one more is worth its time. None: each sequence gets its budget.
    """

    siblings = Siblings.FIXED
    target_layer_ids: tuple[int, ...] = ()

    def __init__(
        self,
        num_speculative_tokens: int = 8,
        budget: int = 8,
        *,
        prompt_lookup_max: int = 4,
        prompt_lookup_min: int = 1,
        cost: Callable[[int], float] | None = None,
    ) -> None:
        if not 1 <= prompt_lookup_min <= prompt_lookup_max:
            raise InvalidRequest(
                f"prompt_lookup_min is {prompt_lookup_min} and prompt_lookup_max {prompt_lookup_max}; need 1 <= min <= max"
            )
        self.depth, self.budget = num_speculative_tokens, budget
        self.longest, self.shortest = prompt_lookup_max, prompt_lookup_min
        self.cost, self._pace = cost, Pace()

    def propose(self, seqs: Sequence[Request]) -> list[Draft]:
        drafts = [self._draft(seq) for seq in seqs]
        return drafts if self.cost is None else share(drafts, self.cost, self._pace)

    def _draft(self, seq: Request) -> Draft:
        depth = min(self.depth, seq.room - 1)
        builder = TreeBuilder(seq.root, min(self.budget, WEAK_BUDGET))
        claims = _Claims(builder)
        if depth > 0 and self.budget > 1:
            for start, length in _continuations(np.asarray(seq.tokens), self.longest, self.shortest):
                if length >= CONFIDENT:
                    builder.budget = self.budget
                if builder.full:
                    break
                claims.add_chain(_copy(seq.tokens, start, depth), min(length, len(HIT)))
        tree = builder.build()
        return Draft(tree, scores=claims.scores(tree))


class _Claims:
    """How likely each node is to be accepted. Every occurrence claims its rate of what earlier ones left of their common parent, so
    that occurrences which agree add up, and siblings never claim more than there is."""

    def __init__(self, builder: TreeBuilder) -> None:
        self.builder = builder
        self._shares, self._left = [1.0], [1.0]  # by node: its part of its parent, and what its children have not claimed

    def add_chain(self, tokens: Sequence[int], length: int) -> None:
        """Add a path from the root that a match of this length proposes, as far as the budget allows."""
        parent, rate = 0, HIT[length - 1]
        for token in tokens:
            node = self.builder.add(parent, token)
            if node is None:
                return
            if node == len(self._shares):
                self._shares.append(0.0)
                self._left.append(1.0)
            claim = self._left[parent] * rate
            self._left[parent] -= claim
            self._shares[node] += claim
            parent, rate = node, THEN[length - 1]

    def scores(self, tree: Tree) -> tuple[float, ...]:
        """(N,) log-probabilities of the paths."""
        scores = [0.0]
        for parent, part in zip(tree.parents[1:], self._shares[1:], strict=True):
            scores.append(scores[parent] + math.log(part))
        return tuple(scores)


def _copy(tokens: list[int], start: int, count: int) -> list[int]:
    """`count` tokens from `start` on; where they reach the end, the copy goes on with itself, as a text that repeats would."""
    copied: list[int] = tokens[start : start + count]
    while len(copied) < count:
        copied.append(copied[start + len(copied) - len(tokens)])
    return copied


def _continuations(tokens: np.ndarray, longest: int, shortest: int) -> Iterator[tuple[int, int]]:
    """Where earlier occurrences of the last n-gram go on, with n; longest first, then latest first."""
    last = len(tokens) - 1
    ends = np.flatnonzero(tokens[:last] == tokens[last])  # matches of length 1 end here
    by_length = [ends]
    for n in range(2, longest + 1):
        ends = ends[ends >= n - 1]
        ends = ends[tokens[ends - n + 1] == tokens[last - n + 1]] if n <= last else ends[:0]
        if not len(ends):
            break
        by_length.append(ends)
    seen: set[int] = set()
    for n in range(len(by_length), shortest - 1, -1):
        for end in by_length[n - 1][::-1].tolist():
            if end not in seen:
                seen.add(end)
                yield end + 1, n
