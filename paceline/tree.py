"""Draft trees: topology only.

A draft is always a tree. Node 0 is the root, the last known token. Nodes are in topological order: a parent comes before its
children. A chain is a tree with one child per node; no draft at all is a tree of one node.

Axes: N nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch


@dataclass(frozen=True)
class Tree:
    """Tokens and parents of N nodes; `parents[0] == -1` and `parents[i] < i`."""

    tokens: tuple[int, ...]  # (N,)
    parents: tuple[int, ...]  # (N,)

    def __post_init__(self) -> None:
        if not self.tokens or len(self.tokens) != len(self.parents):
            raise ValueError(f"a tree needs one parent per token, got {len(self.tokens)} tokens and {len(self.parents)} parents")
        if self.parents[0] != -1:
            raise ValueError(f"node 0 is the root and has parent -1, got {self.parents[0]}")
        for node, parent in enumerate(self.parents[1:], 1):
            if not 0 <= parent < node:
                raise ValueError(f"node {node} has parent {parent}, which must be between 0 and {node - 1}")

    @classmethod
    def chain(cls, tokens: Iterable[int]) -> Tree:
        """One child per node; the first token is the root."""
        tokens = tuple(tokens)
        return cls(tokens, tuple(range(-1, len(tokens) - 1)))

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def depth(self) -> tuple[int, ...]:
        """(N,) distance from the root, which has depth 0."""
        depth = [0]
        for parent in self.parents[1:]:
            depth.append(depth[parent] + 1)
        return tuple(depth)

    @cached_property
    def is_chain(self) -> bool:
        """Whether every node but the last has exactly one child."""
        return self.parents == tuple(range(-1, len(self.parents) - 1))

    @cached_property
    def ancestors(self) -> torch.Tensor:
        """(N, N) bool; entry (i, j) says that j is i itself or one of its ancestors."""
        if self.is_chain:
            return torch.ones(len(self), len(self), dtype=torch.bool).tril_()
        sees = torch.eye(len(self), dtype=torch.bool)
        for node, parent in enumerate(self.parents[1:], 1):
            sees[node] |= sees[parent]
        return sees

    @cached_property
    def _children(self) -> tuple[tuple[int, ...], ...]:
        lists: list[list[int]] = [[] for _ in self.tokens]
        for node, parent in enumerate(self.parents[1:], 1):
            lists[parent].append(node)
        return tuple(map(tuple, lists))

    def children(self, node: int) -> tuple[int, ...]:
        """The nodes whose parent is `node`, in order (for sampled siblings: in draw order)."""
        return self._children[node]

    def path(self, node: int) -> list[int]:
        """The nodes from the root to `node`, both included."""
        path = [node]
        while path[-1]:
            path.append(self.parents[path[-1]])
        return path[::-1]

    def follow(self, tokens: Sequence[int]) -> list[int]:
        """The longest path from the root that spells a prefix of `tokens`; the root must match `tokens[0]`, else empty."""
        if not tokens or tokens[0] != self.tokens[0]:
            return []
        ends = [0]
        for token in tokens[1:]:
            further = [c for end in ends for c in self.children(end) if self.tokens[c] == token]  # several where siblings are equal
            if not further:
                break
            ends = further
        return self.path(ends[0])


class TreeBuilder:
    """Grow a tree node by node, siblings with equal tokens merged, up to `budget` nodes (the root included)."""

    def __init__(self, root: int, budget: int) -> None:
        self.tokens, self.parents = [root], [-1]
        self.budget = budget
        self._index: dict[tuple[int, int], int] = {}

    @property
    def full(self) -> bool:
        return len(self.tokens) >= self.budget

    def add(self, parent: int, token: int) -> int | None:
        """The child of `parent` with this token, made if it is not there; None if the budget is spent."""
        node = self._index.get((parent, token))
        if node is None and not self.full:
            node = self._index[(parent, token)] = len(self.tokens)
            self.tokens.append(token)
            self.parents.append(parent)
        return node

    def add_chain(self, tokens: Iterable[int], parent: int = 0) -> None:
        """Add a path below `parent`, as far as the budget allows."""
        for token in tokens:
            node = self.add(parent, token)
            if node is None:
                return
            parent = node

    def build(self) -> Tree:
        return Tree(tuple(self.tokens), tuple(self.parents))
