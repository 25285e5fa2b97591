"""What a draft model's steps minimise: the same terms as a head's (`objective`), at the places that recorded rounds reached.

Axes: R places, P pairs, V vocabulary that target and draft model share.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..distill import Distillation
from ..step import MEAN, Sums
from ..teacher import Teacher
from .losses import divergence, policy_gradient, preference, total_variation
from .model import Learner
from .model_rows import Rows
from .recipe import Preference

Terms = dict[str, tuple[float, torch.Tensor]]  # name -> weight, sum over the rounds


@dataclass(frozen=True)
class DraftObjective:
    """`(learner, rows) -> loss, sums`, summed over rounds; the loop divides by their number.

    `distill` is the anchor alone, which then is continued distillation: every word of the target is reached by one round.
    """

    settings: Preference
    distillation: Distillation
    teacher: Teacher
    reference: Learner
    size: int  # V

    def __call__(self, learner: Learner, rows: Rows) -> tuple[torch.Tensor, Sums]:
        kept = rows.labels < self.size  # a word that the draft model does not know is no label
        rows = _some(rows, kept)
        logits = learner.logits(rows.tokens, rows.places)[:, : self.size]
        made = {"pref": self._preferred, "pg": self._rewarded, "distill": lambda *_: {}}[self.settings.objective](rows, logits)
        weight = 1.0 if self.settings.objective == "distill" else self.settings.anchor
        if weight:
            made["anchor"] = weight, self.distillation.losses(logits, rows.labels, rows.hidden).sum()
        loss = torch.stack([share * term for share, term in made.values()]).sum()
        sums = {MEAN + name: term.detach() for name, (_, term) in made.items()}
        right = (logits.detach().argmax(-1) == rows.labels).sum().float()
        return loss, sums | {MEAN + "right": right, "weight": rows.rounds}

    def _preferred(self, rows: Rows, logits: torch.Tensor) -> Terms:
        settings, paired = self.settings, (rows.refused >= 0) & (rows.refused < self.size)
        with torch.no_grad():
            old = self.reference.logits(rows.tokens, rows.places)[:, : self.size]
        margin = _difference(logits, rows, paired) - _difference(old, rows, paired)
        odds = torch.sigmoid(_difference(self.teacher(rows.hidden), rows, paired)) if settings.soft else None
        terms = {"pref": (settings.pref, (settings.decay ** rows.depths[paired] * preference(margin, settings.beta, odds)).sum())}
        if settings.overlap:
            terms["overlap"] = settings.overlap, total_variation(self.teacher(rows.hidden), logits).sum()
        if settings.stay and bool(rows.replayed):
            terms["stay"] = settings.stay, divergence(old, logits).sum()
        return terms

    def _rewarded(self, rows: Rows, logits: torch.Tensor) -> Terms:
        refusal = ~rows.accepted & (rows.refused >= 0) & (rows.refused < self.size)
        logps = logits.log_softmax(-1)
        won = logps[rows.accepted].gather(1, rows.labels[rows.accepted][:, None])[:, 0]
        lost = logps[refusal].gather(1, rows.refused[refusal][:, None])[:, 0]
        rewards = torch.cat([torch.ones_like(won), torch.zeros_like(lost)])
        return {
            "likelihood": (1.0, -won.sum()),
            "reward": (self.settings.reward, policy_gradient(torch.cat([won, lost]), rewards).sum() if len(rewards) else won.sum()),
        }


def _difference(logits: torch.Tensor, rows: Rows, paired: torch.Tensor) -> torch.Tensor:
    """(P,) the chosen token's logit less that of the refused one: of their log-probabilities, too."""
    own = logits[paired]
    return (own.gather(1, rows.labels[paired][:, None]) - own.gather(1, rows.refused[paired][:, None]))[:, 0]


def _some(rows: Rows, kept: torch.Tensor) -> Rows:
    """Some of the places."""
    if bool(kept.all()):
        return rows
    cut = {name: getattr(rows, name)[kept] for name in ("places", "labels", "refused", "depths", "accepted", "hidden")}
    return Rows(rows.tokens, **cut, rounds=rows.rounds, replayed=rows.replayed)
