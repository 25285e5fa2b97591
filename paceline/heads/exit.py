"""Exit heads: what a token will be, read off an early layer, and whether that reading may be trusted (SpecBound, arXiv 2604.12247).

A trained head is E M norm(h): the target's norm and rows of its output matrix, with a (H, H) map that begins as the identity. A reduced
vocabulary has one more column, for all tokens that it leaves out. Without training the target's own norm and output layer read the
early layer, which is called the logit lens.

Axes: n rows, H hidden size, V vocabulary, Vd draft vocabulary, L layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch
from torch import nn

from .borrow import final_norm, finisher, output_weight
from .exit_config import ExitConfig


def temperature(depth: int, layers: int, annealing: float) -> float:
    """T = 1 + annealing (1 - depth / L): the shallower, the softer the law that decides."""
    return 1 + annealing * (1 - depth / layers)


def fires(logits: torch.Tensor, heat: float, threshold: float) -> torch.Tensor:
    """(n, R) -> (n,) whether the largest of softmax(z / heat) reaches the threshold: sum of exp((z - max z) / heat) <= 1 / threshold."""
    above = ((logits - logits.amax(-1, keepdim=True)).float() / heat).exp_().sum(-1)
    return above * threshold <= 1


class Exits(Protocol):
    """Reads early layers."""

    config: ExitConfig
    ids: torch.Tensor | None  # (Vd,) ascending tokens of a reduced vocabulary

    def logits(self, depth: int, hidden: torch.Tensor) -> torch.Tensor:
        """(n, H) after `depth` layers -> (n, V), or (n, Vd + 1) with the tokens left out in the last column."""
        ...


class LogitLens:
    """The target's own norm and output layer, on any layer."""

    ids: torch.Tensor | None = None

    def __init__(self, target: Any, config: ExitConfig) -> None:
        self._target, self.config = target, config

    def logits(self, depth: int, hidden: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self._target.logits(hidden)
        return found


class ExitHeads(nn.Module):
    """A map for each exit layer; what is borrowed of the target is neither saved nor trained.

    Args:
        config: its layers and sizes.
        weight: (Vd, H) rows of the target's output matrix, in the order of `ids`.
        ids: (Vd,) ascending token ids of a reduced vocabulary, or None.
        norm: the target's final norm, from the target's type.
        finish: what the target does to its logits.
    """

    output_weight: torch.Tensor
    ids: torch.Tensor | None

    def __init__(
        self,
        config: ExitConfig,
        weight: torch.Tensor,
        ids: torch.Tensor | None,
        norm: Callable[[torch.Tensor], torch.Tensor],
        finish: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        super().__init__()
        self.config, self._norm, self._finish = config, norm, finish
        self.maps = nn.ModuleList(nn.Linear(config.hidden_size, config.hidden_size, bias=False) for _ in config.layers)
        self.others = nn.ModuleList(nn.Linear(config.hidden_size, 1) for _ in config.layers if ids is not None)
        self.register_buffer("output_weight", weight, persistent=False)
        self.register_buffer("ids", ids, persistent=False)
        self.output: Callable[[torch.Tensor], torch.Tensor] | None = None  # a quicker form of the same

    @classmethod
    def for_target(cls, target: Any, config: ExitConfig, ids: torch.Tensor | None = None) -> ExitHeads:
        """Untrained heads on a target (an HFTarget), which read as the logit lens does. In the target's type."""
        full = output_weight(target)[: target.vocab_size]
        weight = full if ids is None else full[ids.to(full.device)].clone()
        norm, dtype = final_norm(target), target.dtype
        own = None if ids is None else ids.to(target.device)
        heads = cls(config, weight.to(dtype), own, lambda hidden: norm(hidden.to(dtype)), finisher(target))
        with torch.no_grad():
            for linear in heads.maps:
                nn.init.eye_(linear.weight)  # type: ignore[arg-type]
            for linear in heads.others:
                left_out = len(full) - len(weight)
                linear.weight.copy_((full.sum(0) - weight.sum(0)) / left_out)  # type: ignore[operator]
                linear.bias.fill_(math.log(left_out))  # type: ignore[operator]
        return heads.to(target.device, target.dtype)

    def logits(self, depth: int, hidden: torch.Tensor) -> torch.Tensor:
        index = self.config.layers.index(depth)
        mapped = self.maps[index](self._norm(hidden).to(self.output_weight.dtype))
        output = self.output or partial(nn.functional.linear, weight=self.output_weight)
        found = self._finish(output(mapped))
        return found if self.ids is None else torch.cat([found, self.others[index](mapped)], -1)
