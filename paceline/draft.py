"""What a drafter returns and what it must offer.

Axes: N nodes, R rows of the draft distribution, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

import torch

from .tree import Tree

if TYPE_CHECKING:
    from .sequence import Sequence as Request


class Siblings(Enum):
    """How the children of a node were chosen. A rule is lossless for some of these only (see `rules`)."""

    FIXED = "fixed"  # a deterministic function of the prefix: top-k, lookup, the target's own early layers
    IID = "iid"  # independent draws from the node's row, duplicates kept
    WITHOUT_REPLACEMENT = "without replacement"  # draws from the node's row, renormalised after each
    TOP_AND_DRAW = "top and draw"  # the likeliest of the node's row, then one draw from the rest of it, renormalised


@dataclass(frozen=True)
class HeadStart:
    """Work that a self-drafting drafter has already done on the target's layers. Only the target reads it.

    The cache holds the nodes' keys and values of the layers that are done. A node enters a layer after all nodes before it, so `depth`
    never ascends.
    """

    depth: tuple[int, ...]  # (N,) layers done per node
    hidden: torch.Tensor  # (N, H) what the last of them said; not read where none is done


@dataclass(frozen=True)
class Draft:
    """A tree and what the drafter believed when it chose the nodes.

    `logits` (R, V) are processed as the request asks: `law` of a row is exactly what the node's children were drawn from, whatever
    the row's precision. `rows` (N,) names, for each parent, the row that proposed its children, or -1. Both are None for drafters
    without a distribution, such as prompt lookup. `beliefs` (N,) are, for a rule that asks, each parent's logits (V,) before temperature
    and truncation, None for a node without children.
    """

    tree: Tree
    siblings: Siblings = Siblings.FIXED
    logits: torch.Tensor | None = None
    rows: tuple[int, ...] | None = None
    head_start: HeadStart | None = None
    scores: tuple[float, ...] | None = None  # (N,) estimated log-probability that the path down to each node is accepted
    beliefs: tuple[torch.Tensor | None, ...] | None = None

    def probs(self, node: int) -> torch.Tensor:
        """(V,) the law that proposed the children of `node`."""
        row_index = -1 if self.rows is None else self.rows[node]
        assert self.logits is not None, "this draft comes without a distribution"
        assert row_index >= 0, f"node {node} has no draft row"
        return law(self.logits[row_index])


def law(row: torch.Tensor) -> torch.Tensor:
    """(V,) the probabilities that a row of `Draft.logits` states, in float32 at least."""
    return torch.softmax(row if row.dtype == torch.float64 else row.float(), -1)


class Drafter(Protocol):
    """Proposes one draft per live sequence. It reconciles its own state with each sequence; there are no other hooks."""

    @property
    def target_layer_ids(self) -> tuple[int, ...]:
        """Target layers whose outputs it reads as `Sequence.features`; empty for most."""

    @property
    def siblings(self) -> Siblings:
        """How it chooses children, checked against the rule before the first token."""

    def propose(self, seqs: Sequence[Request]) -> list[Draft]:
        """One draft per sequence. Node 0 is the sequence's root; no path is longer than `room - 1`."""
        ...
