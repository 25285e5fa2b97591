"""How many tokens of a chain drawn from the head speculative sampling would keep, in expectation, without drawing one.

For a draft y_1..y_D with y_j ~ q_j(. | y_{j-1}), the chance that all of the first j are kept is the sum over paths of
prod min(p_i, q_i). With the path taken from the target's own text, y ~ p, that is the mean of
prod_{i<j} min(1, q_i(y_i) / p_i(y_i)) * sum_v min(p_j(v), q_j(v)).

Axes: B sequences, A blocks, D depths, R slots, V vocabulary, Vd draft vocabulary.
"""

from __future__ import annotations

import torch

from ...heads.jetspec import JetSpecHead
from ..batches import Batch
from ..distill import slot_logits, slot_states
from ..teacher import Teacher

_CHUNK = 64  # slots at once: the target's rows are over its whole vocabulary


@torch.no_grad()
def expected_kept(head: JetSpecHead, batch: Batch, teacher: Teacher) -> torch.Tensor:
    """(blocks,) expected drafted tokens that are kept, of each valid block of text that the target said at temperature 1.

    `teacher` gives logits over the whole vocabulary. The head's logits are divided by its temperatures, as in decoding.
    """
    slots = batch.supervised  # (B, A, D)
    heat = torch.tensor(head.config.temperatures or [1.0] * head.config.depth).expand(slots.shape)[slots]
    rows = (slot_states(head, batch)[slots], batch.blocks[..., :-1][slots], batch.blocks[..., 1:][slots], heat, batch.hidden[slots])
    parts = [_slots(head, teacher, *chunk) for chunk in zip(*(torch.split(r, _CHUNK) for r in rows), strict=True)]
    ratio, overlap = (torch.zeros(slots.shape).masked_scatter(slots, torch.cat(found)) for found in zip(*parts, strict=True))
    reach = torch.cat([torch.ones_like(ratio[..., :1]), ratio.cumprod(-1)[..., :-1]], -1)
    return (reach * overlap).sum(-1)[batch.valid]


def _slots(
    head: JetSpecHead,
    teacher: Teacher,
    states: torch.Tensor,
    before: torch.Tensor,
    labels: torch.Tensor,
    heat: torch.Tensor,
    hidden: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(R,) min(1, q / p) at the tokens of the text, and the overlap of both laws."""
    q = (slot_logits(head, states, before) / heat[:, None]).softmax(-1)  # (R, Vd)
    p = teacher(hidden).softmax(-1)  # (R, V)
    rows = head.draft_index[labels]
    own = q.gather(1, rows.clamp(min=0)[:, None])[:, 0] * (rows >= 0)
    ratio = (own / p.gather(1, labels[:, None])[:, 0]).clamp(max=1)
    return ratio, torch.minimum(p[:, head.draft_vocab_ids], q).sum(-1)
