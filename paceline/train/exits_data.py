"""What exit heads learn from: the states of the exit layers at some positions, and the target's last state there.

Axes: R rows, K exit layers, H hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from . import anchors
from .batches import steps_per_epoch, turn
from .examples import Example
from .features import Tapped, Taps


@dataclass(frozen=True)
class Rows:
    """Positions of some sequences."""

    states: torch.Tensor  # (R, K, H) outputs of the exit layers
    hidden: torch.Tensor  # (R, H) the target's last normed states
    sequences: int

    def to(self, device: torch.device) -> Rows:
        return Rows(self.states.to(device), self.hidden.to(device), self.sequences)


def columns(taps: Taps, depths: Sequence[int]) -> list[int]:
    """Where the states after so many layers are among the tapped layers."""
    return [taps.head_layers.index(depth - 1) for depth in depths]


def make_rows(tapped: Sequence[Tapped], places: Sequence[torch.Tensor], taps: Taps, depths: Sequence[int]) -> Rows:
    """The states of each sequence at its places."""
    chosen = columns(taps, depths)
    states = [own.features[at].view(len(at), len(taps.head_layers), -1)[:, chosen] for own, at in zip(tapped, places, strict=True)]
    return Rows(torch.cat(states), torch.cat([own.hidden[at] for own, at in zip(tapped, places, strict=True)]), len(tapped))


@dataclass(frozen=True)
class RowPlan:
    """Which rows a step trains on: a function of the step's number alone."""

    examples: Sequence[Example]
    read: Callable[[Sequence[Example]], Sequence[Tapped]]
    taps: Taps
    depths: Sequence[int]
    batch_size: int
    micro_batch: int
    anchors: int
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        return steps_per_epoch(len(self.examples), self.batch_size)

    def step(self, step: int) -> list[Rows]:
        epoch, order = turn(len(self.examples), self.batch_size, step=step, seed=self.seed)
        groups = [[self.examples[i] for i in order[start : start + self.micro_batch]] for start in range(0, len(order), self.micro_batch)]
        return [self._rows(group, epoch) for group in groups]

    def _rows(self, group: Sequence[Example], epoch: int) -> Rows:
        places = [anchors.draw(example, self.anchors, seed=self.seed, epoch=epoch) for example in group]
        return make_rows(self.read(group), places, self.taps, self.depths)
