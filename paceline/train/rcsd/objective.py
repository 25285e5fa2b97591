"""Objectives over recorded rounds: `(head, batch) -> loss, sums`, summed over rounds; the loop divides by their number.

Everything is computed in the drafting context: the block behind the round's root, as in decoding, and each token behind the one that the
draft had before it.

Axes: B sequences, A rounds, D depths, R slots, Vd draft vocabulary, H hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from ...heads.jetspec import JetSpecHead
from ..distill import Distillation, slot_logits, slot_states
from ..step import MEAN, Sums
from ..teacher import Teacher
from .batches import RoundBatch
from .losses import divergence, policy_gradient, preference, total_variation
from .recipe import Preference


@dataclass(frozen=True)
class Distilled:
    """The head's ordinary objective at all slots of the rounds' blocks: continued distillation, the control of equal compute."""

    distillation: Distillation

    def __call__(self, head: JetSpecHead, batch: RoundBatch) -> tuple[torch.Tensor, Sums]:
        return self.distillation(head, batch.blocks)


@dataclass(frozen=True)
class Preferred:
    """Preference, anchor, overlap and stay: `reference` is a frozen copy of the head as it drafted these rounds."""

    settings: Preference
    distillation: Distillation
    teacher: Teacher
    reference: JetSpecHead

    def __call__(self, head: JetSpecHead, batch: RoundBatch) -> tuple[torch.Tensor, Sums]:
        settings, hidden = self.settings, slot_states(head, batch.blocks)
        with torch.no_grad():
            old = slot_states(self.reference, batch.blocks)
        margin, trained = margins(head, self.reference, batch, hidden, old, whole=settings.mask == "none")
        depths = trained.nonzero()[:, -1]
        odds = self._odds(head, batch, trained) if settings.soft else None
        terms = {"pref": (settings.decay**depths * preference(margin, settings.beta, odds)).sum()}
        if settings.anchor:
            terms["anchor"] = anchor(self.distillation, head, batch, hidden)
        if settings.overlap:
            slots = batch.reached
            logits = slot_logits(head, hidden[slots], batch.before[slots])
            terms["overlap"] = total_variation(self.teacher(batch.blocks.hidden[slots]), logits).sum()
        if settings.stay and bool(batch.replayed.any()):
            slots = batch.reached & batch.replayed[:, None, None]
            kept = slot_logits(self.reference, old[slots], batch.before[slots])
            terms["stay"] = divergence(kept, slot_logits(head, hidden[slots], batch.before[slots])).sum()
        found = summed(batch, {name: (getattr(settings, name), term) for name, term in terms.items()})
        pairs = {"pairs": trained.sum(), "pairs_right": (margin > 0).sum(), "margin": margin.detach().sum()}
        return found[0], found[1] | {MEAN + name: value.float() for name, value in pairs.items()}

    def _odds(self, head: JetSpecHead, batch: RoundBatch, trained: torch.Tensor) -> torch.Tensor:
        """(P,) p(chosen) / (p(chosen) + p(refused)) by the target."""
        logits = self.teacher(batch.blocks.hidden[trained])
        both = [head.draft_index[tokens[trained]][:, None] for tokens in (batch.labels, batch.refused)]
        return torch.sigmoid((logits.gather(1, both[0]) - logits.gather(1, both[1]))[:, 0])


@dataclass(frozen=True)
class Rewarded:
    """Policy gradient, as in DVI (arXiv 2510.05421): likelihood of what was accepted, and reward 1 for it and 0 for the first refusal."""

    settings: Preference
    distillation: Distillation

    def __call__(self, head: JetSpecHead, batch: RoundBatch) -> tuple[torch.Tensor, Sums]:
        hidden = slot_states(head, batch.blocks)
        refusal = batch.reached & ~batch.accepted & (batch.refused >= 0)
        won = batch.accepted & (head.draft_index[batch.labels] >= 0)
        accepted = log_probs(head, hidden, batch.labels, batch.before, won)
        logps = torch.cat([accepted, log_probs(head, hidden, batch.refused, batch.before, refusal)])
        rewards = torch.cat([torch.ones_like(accepted), logps.new_zeros(len(logps) - len(accepted))])
        terms = {
            "likelihood": (1.0, -accepted.sum()),
            "reward": (self.settings.reward, policy_gradient(logps, rewards).sum()),
            "anchor": (self.settings.anchor, anchor(self.distillation, head, batch, hidden)),
        }
        return summed(batch, terms)


def margins(
    head: JetSpecHead, reference: JetSpecHead, batch: RoundBatch, hidden: torch.Tensor, old: torch.Tensor, *, whole: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of each pair the log-ratio to the reference of its chosen side less that of its refused side, (P,), and its slot's place (B, A, D).

    Single tokens at the divergence (`whole` false): the shared prefix cancels, and nothing behind the first refusal is read. With
    `whole` the pair at the first refusal compares all that the target said from there on with all that the drafter would have said, each
    side's sum divided by its length.
    """
    draftable = head.draft_index[batch.labels] >= 0
    paired = batch.reached & draftable & (batch.refused >= 0)
    tail = torch.zeros_like(paired)
    if whole:
        first = paired & ~batch.accepted
        tail = batch.blocks.supervised & ~batch.reached & first.any(-1, keepdim=True)
    refused_before = torch.where(tail, batch.refused.roll(1, -1), batch.before)
    sides = []
    for tokens, before, slots in (
        (batch.labels, batch.before, paired | (tail & draftable)),
        (batch.refused, refused_before, paired | (tail & (batch.refused >= 0))),
    ):
        with torch.no_grad():
            base = log_probs(reference, old, tokens, before, slots)
        ratio = torch.zeros(slots.shape, device=hidden.device).masked_scatter(slots, log_probs(head, hidden, tokens, before, slots) - base)
        sides.append(_over_tail(ratio, slots, paired, tail) if whole else ratio[paired])
    return sides[0] - sides[1], paired


def _over_tail(ratio: torch.Tensor, slots: torch.Tensor, paired: torch.Tensor, tail: torch.Tensor) -> torch.Tensor:
    """(P,) the mean ratio from the first refusal on; elsewhere the slot's own."""
    behind = tail & slots
    sums, counts = (ratio * behind).sum(-1, keepdim=True), behind.sum(-1, keepdim=True)
    last = paired & (paired.flip(-1).cumsum(-1).flip(-1) == 1)
    return torch.where(last, (ratio + sums) / (1 + counts), ratio)[paired]


def log_probs(head: JetSpecHead, hidden: torch.Tensor, tokens: torch.Tensor, before: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """(R,) the head's log-probability of these tokens (B, A, D), each behind the token `before` it, at the slots of a mask."""
    logits = slot_logits(head, hidden[slots], before[slots])
    rows = head.draft_index[tokens[slots]]
    return logits.log_softmax(-1).gather(1, rows[:, None])[:, 0]


def anchor(distillation: Distillation, head: JetSpecHead, batch: RoundBatch, hidden: torch.Tensor) -> torch.Tensor:
    """The head's ordinary loss, summed over the slots that were reached."""
    return distillation.of(head, replace(batch.blocks, supervised=batch.reached), hidden)[0]


def summed(batch: RoundBatch, terms: dict[str, tuple[float, torch.Tensor]]) -> tuple[torch.Tensor, Sums]:
    """The weighted sum of terms, and for the log each one's mean over rounds."""
    loss = torch.stack([weight * term for weight, term in terms.values()]).sum()
    sums = {MEAN + name: term.detach() for name, (_, term) in terms.items()}
    return loss, sums | {"weight": batch.blocks.valid.sum().float()}
