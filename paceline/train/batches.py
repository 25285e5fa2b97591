"""From examples to what one forward of a head takes, and which examples come when.

Axes: B sequences, S tokens, A blocks, D depths, F features, H hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import torch

from . import anchors
from .examples import Example
from .features import Tapped


@dataclass(frozen=True)
class Batch:
    """Some sequences and their blocks, padded on the right to the longest and to the most blocks."""

    features: torch.Tensor  # (B, S, F) of the tokens before the last anchor
    tokens: torch.Tensor  # (B, T)
    hidden: torch.Tensor  # (B, A, D, H) the target's last normed states at anchor + k - 1: they give the law of the token at anchor + k
    anchors: torch.Tensor  # (B, A) positions
    valid: torch.Tensor  # (B, A) False for padding blocks
    supervised: torch.Tensor  # (B, A, D) whether slot k of the block is trained

    def to(self, device: torch.device) -> Batch:
        return Batch(**{f.name: getattr(self, f.name).to(device, non_blocking=True) for f in fields(self)})

    @property
    def sequences(self) -> int:
        """B."""
        return len(self.tokens)

    @property
    def places(self) -> torch.Tensor:
        """(B, A, D + 1) positions of each block's tokens, the anchor first, cut at the end of the text."""
        steps = torch.arange(self.supervised.shape[2] + 1, device=self.anchors.device)
        return (self.anchors[..., None] + steps).clamp(max=self.tokens.shape[1] - 1)

    @property
    def blocks(self) -> torch.Tensor:
        """(B, A, D + 1) their tokens."""
        places = self.places
        return self.tokens[:, None].expand(-1, places.shape[1], -1).gather(2, places)


def make_batch(
    examples: Sequence[Example], tapped: Sequence[Tapped], drawn: Sequence[torch.Tensor], *, depth: int, blocks: int | None = None
) -> Batch:
    """Pad and stack. `drawn` are each example's anchors; `blocks` pads to more of them than the most there are."""
    blocks = blocks or max(map(len, drawn))
    context = max(int(a[-1]) for a in drawn)
    length = max(map(len, examples))
    width, hidden_size = tapped[0].features.shape[1], tapped[0].hidden.shape[1]
    features = tapped[0].features.new_zeros(len(examples), context, width)
    hidden = tapped[0].hidden.new_zeros(len(examples), blocks, depth, hidden_size)
    tokens = torch.zeros(len(examples), length, dtype=torch.long)
    places = torch.zeros(len(examples), blocks, dtype=torch.long)
    valid = torch.zeros(len(examples), blocks, dtype=torch.bool)
    supervised = torch.zeros(len(examples), blocks, depth, dtype=torch.bool)
    steps = torch.arange(depth)
    for i, (example, own, at) in enumerate(zip(examples, tapped, drawn, strict=True)):
        rows, count = min(context, len(own.features)), len(at)
        features[i, :rows] = own.features[:rows]
        tokens[i, : len(example)] = torch.tensor(example.tokens)
        places[i, :count], valid[i, :count] = at, True
        before = at[:, None] + steps  # (A, D) positions anchor + k - 1
        supervised[i, :count] = before + 1 < len(example)
        hidden[i, :count] = own.hidden[before.clamp(max=len(own.hidden) - 1)]
    return Batch(features, tokens, hidden, places, valid, supervised)


@dataclass(frozen=True)
class Plan:
    """Which examples a step trains on: a function of the step's number alone.

    Every epoch goes through a new order, cut into batches; what does not fill a batch is left for the next epoch.
    """

    examples: Sequence[Example]
    read: Callable[[Sequence[Example]], Sequence[Tapped]]
    depth: int
    batch_size: int
    micro_batch: int
    anchors: int
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        return steps_per_epoch(len(self.examples), self.batch_size)

    def members(self, step: int) -> tuple[int, list[Example]]:
        """The epoch and the examples of a step, longest first."""
        epoch, places = turn(len(self.examples), self.batch_size, step=step, seed=self.seed)
        return epoch, sorted((self.examples[i] for i in places), key=len, reverse=True)

    def step(self, step: int, rank: int = 0, world: int = 1) -> list[Batch]:
        """The micro-batches of a step, or the share of one of `world` processes."""
        epoch, members = self.members(step)
        mine = members[rank::world]
        groups = [mine[i : i + self.micro_batch] for i in range(0, len(mine), self.micro_batch)]
        return [
            make_batch(g, self.read(g), [anchors.draw(e, self.anchors, seed=self.seed, epoch=epoch) for e in g], depth=self.depth)
            for g in groups
        ]


def steps_per_epoch(count: int, batch_size: int) -> int:
    return max(1, count // batch_size)


def turn(count: int, batch_size: int, *, step: int, seed: int) -> tuple[int, list[int]]:
    """The epoch of a step, and which of `count` things are its batch: each epoch goes through a new order of the seed."""
    epoch, index = divmod(step, steps_per_epoch(count, batch_size))
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    order = torch.randperm(count, generator=generator)[index * batch_size : (index + 1) * batch_size]
    return epoch, order.tolist()
