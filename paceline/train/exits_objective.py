"""Exit heads against the final layer: at each exit layer KL(final law || exit's law), summed over the layers (spec 6).

Axes: R rows, K exit layers, H hidden size, V vocabulary, Vd draft vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..heads.exit import ExitHeads
from .distill import forward_kl
from .exits_data import Rows
from .exits_fit import tokens
from .step import MEAN, Sums
from .teacher import Teacher


@dataclass(frozen=True)
class ExitDistillation:
    """`(heads, rows) -> loss, sums`: summed over rows; the loop divides by the sum `weight`.

    Further sums: of each exit layer the rows at which its likeliest token is the target's.
    """

    teacher: Teacher  # over the whole vocabulary

    def __call__(self, heads: ExitHeads, rows: Rows) -> tuple[torch.Tensor, Sums]:
        logits = self.teacher(rows.hidden)
        best, law = logits.argmax(-1), reduced(logits, heads.ids)
        loss, sums = logits.new_zeros(()), {"weight": logits.new_tensor(float(len(logits)))}
        for index, depth in enumerate(heads.config.layers):
            found = heads.logits(depth, rows.states[:, index]).float()
            loss = loss + forward_kl(law, found, 1.0).sum()
            sums[f"{MEAN}agreement_{depth}"] = (tokens(found, heads.ids) == best).sum().float()
        return loss, sums


def reduced(logits: torch.Tensor, ids: torch.Tensor | None) -> torch.Tensor:
    """(R, V) logits as (R, Vd + 1): those of a reduced vocabulary, and what all other tokens together weigh."""
    if ids is None:
        return logits
    others = logits.index_fill(1, ids, -torch.inf).logsumexp(-1, keepdim=True)
    return torch.cat([logits[:, ids], others], -1)
