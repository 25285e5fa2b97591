"""Where blocks begin: anchors drawn anew in every epoch (spec 2.2; SpecForge's rule)."""

from __future__ import annotations

import torch

from .examples import Example
from .prompts import chance


def draw(example: Example, count: int, *, seed: int, epoch: int) -> torch.Tensor:
    """(A,) ascending positions of at most `count` anchors, without replacement.

    An anchor and the token after it are supervised. The draw depends on seed, epoch and the example's key alone, so a run that goes on
    draws what it would have drawn.
    """
    first, last = example.prompt_length, len(example) - 2
    return choose(last - first + 1, count, seed=seed, epoch=epoch, key=example.key) + first


def choose(eligible: int, count: int, *, seed: int, epoch: int, key: str) -> torch.Tensor:
    """Ascending places below `eligible`, at most `count` of them, without replacement; drawn by seed, epoch and key alone."""
    if eligible <= count:
        return torch.arange(eligible)
    generator = torch.Generator().manual_seed(chance(seed, "anchors", str(epoch), key))
    return torch.randperm(eligible, generator=generator)[:count].sort().values
