"""What the loop needs of a model.

Axes: B sequences, N nodes, V vocabulary, T cached tokens, F features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from ..tree import Tree


@dataclass(frozen=True)
class Output:
    """One forward over packed nodes: those of sequence 0, then those of sequence 1, and so on."""

    logits: torch.Tensor  # (sum of N, V)
    sizes: list[int]  # (B,)
    features: torch.Tensor | None = None  # (sum of N, F)

    def span(self, index: int) -> slice:
        """The packed rows of sequence `index`."""
        start = sum(self.sizes[:index])
        return slice(start, start + self.sizes[index])


class Cache(Protocol):
    """Committed rows plus scratch rows, one slot per sequence, each with its own length."""

    def open(self, capacity: int = 0) -> int:
        """A new empty slot, with memory for `capacity` tokens (it grows when needed)."""
        ...

    def free(self, slot: int) -> None:
        """Give the slot and its memory back."""

    def length(self, slot: int) -> int:
        """T, the number of committed tokens."""
        ...

    def scratch(self, slot: int) -> int:
        """The number of rows above the committed ones."""
        ...

    def commit(self, slot: int, path: Sequence[int]) -> None:
        """Keep these scratch rows, in this order, and drop the others."""

    def truncate(self, slot: int, length: int) -> None:
        """Drop all scratch rows and all committed rows from `length` on."""


class Target(Protocol):
    """A causal language model that can look at several continuations in one forward and take them back."""

    vocab_size: int
    max_length: int | None
    eos_token_ids: frozenset[int]

    @property
    def cache(self) -> Cache: ...

    @property
    def device(self) -> torch.device:
        """Where its logits are."""
        ...

    def prefill(self, slots: Sequence[int], tokens: Sequence[Sequence[int]], layer_ids: Sequence[int] = ()) -> list[torch.Tensor] | None:
        """Append tokens to each slot and commit them. Returns (T, F) features for each, if layers are named."""
        ...

    def verify(self, trees: Sequence[Tree], slots: Sequence[int], layer_ids: Sequence[int] = ()) -> Output:
        """Run the nodes of each tree that are not in scratch yet; row i of a sequence is the law after its i-th new node.

        A node sees its slot's committed tokens and its own ancestors, and stands at position T + depth.
        """
        ...
