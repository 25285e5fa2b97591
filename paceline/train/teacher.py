"""The target as a teacher: its next-token law from its last hidden states, for the rows that are needed only.

Axes: R rows, H hidden size, V vocabulary, Vd draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import linear

from ..errors import UnsupportedModel
from ..heads.borrow import finisher, output_weight
from ..targets.hf import HFTarget
from ..tree import Tree

if TYPE_CHECKING:
    from .features import Taps

_TOLERANCE = 0.02  # of the logits' spread: bfloat16 rounds by less


class Teacher:
    """(R, H) normed hidden states -> (R, Vd) logits of the target for the draft vocabulary's tokens.

    Args:
        target: whose output matrix is used.
        ids: (Vd,) the tokens, or None for all.
    """

    def __init__(self, target: HFTarget, ids: torch.Tensor | None) -> None:
        weight = output_weight(target)[: target.vocab_size]
        self._weight = weight if ids is None else weight[ids.to(weight.device)].clone()
        self._finish = finisher(target)

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._finish(linear(hidden.to(self._weight.dtype), self._weight).float())


@torch.inference_mode()
def check(target: HFTarget, taps: Taps, tokens: Sequence[int]) -> None:
    """Raise UnsupportedModel unless norm and output matrix, as used here, give the target's own logits on this text."""
    tokens = list(tokens[:32])
    slot = target.cache.open(len(tokens))
    try:
        want = target.verify([Tree.chain(tokens)], [slot]).logits.float()
    finally:
        target.cache.free(slot)
    (tapped,) = taps.read([[*tokens, tokens[-1]]])
    error = float((Teacher(target, None)(tapped.hidden) - want).abs().max() / want.std())
    if not error < _TOLERANCE:
        raise UnsupportedModel(
            f"the logits of {target.name} are not its final norm times its output matrix (off by {error:.1%} of their spread), so it "
            "cannot teach by loss kl; use --set objective.loss=ce"
        )
