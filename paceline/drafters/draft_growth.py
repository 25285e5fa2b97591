"""A draft of the draft model under construction: its nodes, and what the draft model runs next.

Axes: M nodes of one forward, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence

import torch

from ..draft import Draft
from ..sequence import Sequence as Request
from ..tree import Tree

Further = Callable[[Sequence[float], float], bool]  # log-probabilities of all paths and of the likeliest new one: whether to run once more


class Growth(ABC):
    """Node 0 is the root. The nodes that the draft model ran have a scratch node each, behind the known tokens it was fed.

    Args:
        seq: whose draft this is.
        fed: known tokens that the draft model has not seen; the last one is the root.
        depth: how deep the draft may become.
    """

    def __init__(self, seq: Request, fed: list[int], depth: int) -> None:
        self.seq, self.depth = seq, depth
        self.tokens, self.parents = [fed[-1]], [-1]
        self.running = [0] if depth > 0 else []  # nodes in the next forward; empty when done
        self._ran = {0: len(fed) - 1}  # node -> scratch node
        self._beliefs: dict[int, torch.Tensor] | None = None  # node -> (V,) logits, kept for a rule that reads them
        self._scratch_tokens, self._scratch_parents = list(fed), list(range(-1, len(fed) - 1))

    @abstractmethod
    def expand(self, rows: torch.Tensor) -> None:
        """Add children of the nodes that ran, (M, V) logits, and choose what runs next."""

    @abstractmethod
    def draft(self) -> Draft:
        """What has become of it."""

    def keep_beliefs(self) -> None:
        """Let the draft say what the draft model thought at each node."""
        self._beliefs = {}

    def believe(self, node: int, row: torch.Tensor) -> None:
        if self._beliefs is not None:
            self._beliefs[node] = row

    def beliefs(self, nodes: Iterable[int]) -> tuple[torch.Tensor | None, ...] | None:
        """What was thought at these nodes, where that is kept."""
        return None if self._beliefs is None else tuple(map(self._beliefs.get, nodes))

    def scratch(self) -> Tree:
        """The fed tokens and, below them, the nodes that ran or run next."""
        return Tree(tuple(self._scratch_tokens), tuple(self._scratch_parents))

    def add(self, parent: int, token: int) -> int:
        self.tokens.append(token)
        self.parents.append(parent)
        return len(self.tokens) - 1

    def run_next(self, nodes: list[int]) -> None:
        """Put these nodes into the next forward."""
        self.running = nodes
        for node in nodes:
            self._ran[node] = len(self._scratch_tokens)
            self._scratch_tokens.append(self.tokens[node])
            self._scratch_parents.append(self._ran[self.parents[node]])

    def path_tokens(self, node: int) -> list[int]:
        """Tokens from below the root down to `node`."""
        tokens = []
        while node:
            tokens.append(self.tokens[node])
            node = self.parents[node]
        return tokens[::-1]
