"""Distillation: the head's law at each slot against the target's, or against the target's own tokens (spec 2.4).

Axes: N blocks, D depths, R supervised slots, H hidden size, Vd draft vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import cross_entropy

from ..heads.jetspec import JetSpecHead
from .batches import Batch
from .chunked import chunked
from .recipe import Objective
from .step import Sums
from .teacher import Teacher

DEFAULT_GAMMA, DEFAULT_CE_WEIGHT, DEFAULT_TOP = 4.0, 0.5, 10


@dataclass(frozen=True)
class Distillation:
    """`(head, batch) -> loss, sums`: the loss is summed over slots; the loop divides by the sum `weight` of all micro-batches.

    Further sums, from which the loop makes means: `slots` and `correct` (D,), slots whose best token is the target's own; `blocks`, and
    `accepted`, the leading correct ones of each block.
    """

    settings: Objective
    teacher: Teacher | None

    def __call__(self, head: JetSpecHead, batch: Batch) -> tuple[torch.Tensor, Sums]:
        return self.of(head, batch, slot_states(head, batch))

    def of(self, head: JetSpecHead, batch: Batch, hidden: torch.Tensor) -> tuple[torch.Tensor, Sums]:
        """The same, for states (B, A, D, H) of the slots that are known already."""
        tokens, keep = batch.blocks, batch.valid
        part = _Part(head, self, tokens[keep], batch.supervised[keep], batch.hidden[keep])
        markov = [head.markov_prev, head.markov_next] if head.config.markov_rank else []
        loss, figures = chunked(part, hidden[keep], markov, self.settings.chunk_blocks)
        depth = head.config.depth
        weight, blocks, accepted = figures[:3]
        return loss, {
            "weight": weight,
            "blocks": blocks,
            "accepted": accepted,
            "slots": figures[3 : 3 + depth],
            "correct": figures[3 + depth :],
        }

    def losses(self, logits: torch.Tensor, labels: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """(R, Vd) logits in float32, (R,) draft rows of the target's tokens or -1, (R, H) the target's last states -> (R,)."""
        share = {"kl": 0.0, "ce": 1.0, "mix": _or(self.settings.ce_weight, DEFAULT_CE_WEIGHT)}[self.settings.loss]
        total = logits.new_zeros(len(logits))
        if share > 0:
            total = total + share * cross_entropy(logits, labels, ignore_index=-1, reduction="none")
        if share < 1:
            assert self.teacher is not None, "loss kl needs a teacher"
            law = self.teacher(hidden)
            total = total + (1 - share) * forward_kl(law, logits, _or(self.settings.temperature, 1.0))
            if self.settings.top_weight:
                total = total + self.settings.top_weight * top_cross_entropy(law, logits, self.settings.top_tokens or DEFAULT_TOP)
        return total

    def weights(self, logits: torch.Tensor, labels: torch.Tensor, trained: torch.Tensor) -> torch.Tensor:
        """(R,) of the trained slots, whose mask is `trained` (N, D); no gradient."""
        depths = trained.shape[1]
        if self.settings.depth_weights == "dynamic":
            return dynamic_weights(logits, labels, trained)
        if self.settings.depth_weights == "exponential":
            decay = torch.exp(-torch.arange(depths, device=trained.device) / _or(self.settings.gamma, DEFAULT_GAMMA))
            return decay.expand(len(trained), -1)[trained]
        return torch.ones(int(trained.sum()), device=trained.device)


@dataclass(frozen=True)
class _Part:
    """The loss of some blocks. `tokens` (N, D + 1), `supervised` (N, D), `hidden` (N, D, H) of the target."""

    head: JetSpecHead
    objective: Distillation
    tokens: torch.Tensor
    supervised: torch.Tensor
    hidden: torch.Tensor

    def __call__(self, rows: torch.Tensor, where: slice) -> tuple[torch.Tensor, torch.Tensor]:
        tokens, trained = self.tokens[where], self.supervised[where]
        labels = self.head.draft_index[tokens[:, 1:]]  # (N, D)
        correct = torch.zeros_like(trained)
        slots = trained.clone()
        if self.objective.settings.loss == "ce":
            trained = trained & (labels >= 0)  # a token that cannot be drafted is no label
        logits = slot_logits(self.head, rows[trained], tokens[:, :-1][trained])
        losses = self.objective.losses(logits, labels[trained], self.hidden[where][trained])
        weights = self.objective.weights(logits.detach(), labels[trained], trained)
        correct[trained] = logits.detach().argmax(-1) == labels[trained]
        accepted = correct.cumprod(-1).sum()
        figures = [weights.sum(), torch.tensor(float(len(trained)), device=rows.device), accepted.float()]
        return (weights * losses).sum(), torch.cat([torch.stack(figures), slots.sum(0).float(), correct.sum(0).float()])


def slot_states(head: JetSpecHead, batch: Batch) -> torch.Tensor:
    """(B, A, D, H) what the head makes of each slot."""
    hidden: torch.Tensor = head(head.fuse(batch.features), batch.blocks[..., 0], batch.anchors, batch.valid)
    return hidden


def slot_logits(head: JetSpecHead, hidden: torch.Tensor, prev: torch.Tensor) -> torch.Tensor:
    """(R, H) and (R,) the tokens before -> (R, Vd) in float32, the Markov term included."""
    logits = head.logits(hidden).float()
    return logits + head.markov(prev).float() if head.config.markov_rank else logits


def forward_kl(teacher: torch.Tensor, student: torch.Tensor, temperature: float) -> torch.Tensor:
    """T^2 KL(softmax(z_p / T) || softmax(z_q / T)) for logits (R, Vd) -> (R,)."""
    p = torch.log_softmax(teacher / temperature, -1)
    q = torch.log_softmax(student / temperature, -1)
    return temperature**2 * (p.exp() * (p - q)).sum(-1)


def top_cross_entropy(teacher: torch.Tensor, student: torch.Tensor, count: int) -> torch.Tensor:
    """-sum of p log q over the teacher's `count` likeliest tokens, for logits (R, Vd) -> (R,): HASS (Zhang et al. 2024)."""
    best = teacher.softmax(-1).topk(min(count, teacher.shape[-1]), -1)
    return -(best.values * student.log_softmax(-1).gather(-1, best.indices)).sum(-1)


def dynamic_weights(logits: torch.Tensor, labels: torch.Tensor, trained: torch.Tensor) -> torch.Tensor:
    """D-PACE: a slot counts by the expected number of slots from it on that a draft reaches: suffix sums of the running product of
    (q(y) + 1) / 2."""
    chosen = torch.softmax(logits, -1).gather(1, labels.clamp(min=0)[:, None])[:, 0] * (labels >= 0)  # (R,)
    reach = torch.zeros(trained.shape, device=logits.device)
    reach[trained] = 0.5 * chosen + 0.5
    product = torch.where(trained, reach, 1.0).cumprod(-1) * trained  # (N, D)
    return product.flip(-1).cumsum(-1).flip(-1)[trained]


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
