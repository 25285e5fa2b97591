"""Prompt lookup: find the longest recent n-gram again and copy what followed it (Saxena 2023; also "n-gram" in vLLM).

Where earlier occurrences disagree, their continuations are merged into one tree, longest match and latest occurrence first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ..draft import Draft, Siblings
from ..errors import InvalidRequest
from ..sequence import Sequence as Request
from ..tree import Tree, TreeBuilder

CONFIDENT, WEAK_BUDGET = 3, 6


class LookupDrafter:
    """Looks through prompt and output; keeps no state.

    Args:
        prompt_lookup_max, prompt_lookup_min: longest and shortest n-gram that counts as a match.
        num_speculative_tokens: depth of the tree.
        budget: nodes of the tree, the root included, when a match of at least CONFIDENT tokens is found. Shorter matches, whose
            guesses are worth less, get at most WEAK_BUDGET nodes: on a CPU a forward over six tokens costs what one over one costs.
    """

    siblings = Siblings.FIXED
    target_layer_ids: tuple[int, ...] = ()

    def __init__(self, num_speculative_tokens: int = 8, budget: int = 8, *, prompt_lookup_max: int = 4, prompt_lookup_min: int = 1) -> None:
        if not 1 <= prompt_lookup_min <= prompt_lookup_max:
            raise InvalidRequest(
                f"prompt_lookup_min is {prompt_lookup_min} and prompt_lookup_max {prompt_lookup_max}; need 1 <= min <= max"
            )
        self.depth, self.budget = num_speculative_tokens, budget
        self.longest, self.shortest = prompt_lookup_max, prompt_lookup_min

    def propose(self, seqs: Sequence[Request]) -> list[Draft]:
        return [Draft(self._tree(seq)) for seq in seqs]

    def _tree(self, seq: Request) -> Tree:
        depth = min(self.depth, seq.room - 1)
        builder = TreeBuilder(seq.root, min(self.budget, WEAK_BUDGET))
        if depth > 0 and self.budget > 1:
            for start, length in _continuations(np.asarray(seq.tokens), self.longest, self.shortest):
                if length >= CONFIDENT:
                    builder.budget = self.budget
                if builder.full:
                    break
                builder.add_chain(_copy(seq.tokens, start, depth))
        return builder.build()


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
