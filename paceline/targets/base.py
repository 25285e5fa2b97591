"""What the loop needs of a model.

Axes: B sequences, N nodes, V vocabulary, T cached tokens, F features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from ..draft import HeadStart
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

    def verify(
        self,
        trees: Sequence[Tree],
        slots: Sequence[int],
        layer_ids: Sequence[int] = (),
        head_starts: Sequence[HeadStart | None] = (),
    ) -> Output:
        """Run the nodes of each tree that are not in scratch yet; row i of a sequence is the law after its i-th new node.

        A node sees its slot's committed tokens and its own ancestors, and stands at position T + depth. Layers that a head start says
        are done are not run again, unless features are wanted.
        """
        ...

    def multiply(self, rows: int, layer: int) -> torch.Tensor:
        """So many rows times each linear weight of decoder layer `layer` (modulo their number), which is what most of a forward consists
        of: for timing. Returns a number of each product, so that one can wait for them; none where there are no such weights."""
        ...


class LayeredTarget(Target, Protocol):
    """A target that can also be run a few layers at a time, so that it can draft for itself."""

    @property
    def num_layers(self) -> int:
        """L, decoder layers."""
        ...

    def layers(self, span: range, trees: Sequence[Tree], slots: Sequence[int], hidden: torch.Tensor | None = None) -> torch.Tensor:
        """Run decoder layers `span` on the last nodes of each tree, those that no layer from `span.start` on has seen yet.

        A node enters a layer after all nodes before it have been through the span. `hidden` (sum of new nodes, H) is what the layer
        before said of them; None where `span` begins at 0. Returns the same after the last layer of the span. `verify` goes on from
        there.

        Raises UnsupportedModel if the model's layers cannot be run one by one.
        """
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """(n, H) outputs of any layer -> (n, V) by the model's own final norm and output layer: the logit lens."""
        ...
