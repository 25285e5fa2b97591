"""From recorded rounds of a draft model to the places of a text that they reached, one text at a time.

Whatever the rounds reached stands behind tokens that the target kept. So a draft model's law at a place in a round is its law at that
place of the text: one forward over the text gives all of them as they were while drafting.

Axes: T tokens, R places, H hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import torch

from ...record.pairs import pairs
from ...record.texts import RoundRecord, TextRecord
from ..examples import Example
from ..features import Tapped
from .batches import Make, example_of


@dataclass(frozen=True)
class Rows:
    """`refused` is the token that the drafter ranked first where the target said another one, else -1."""

    tokens: torch.Tensor  # (T,) of the text, as far as it is needed
    places: torch.Tensor  # (R,) the law of the next token is behind these
    labels: torch.Tensor  # (R,) what the target said
    refused: torch.Tensor  # (R,) token ids or -1
    depths: torch.Tensor  # (R,) in the round, from 0
    accepted: torch.Tensor  # (R,) whether the target's word was in the draft
    hidden: torch.Tensor  # (R, H) the target's last normed states
    rounds: torch.Tensor  # () how many these are of
    replayed: torch.Tensor  # () whether the text is of an earlier round

    sequences = 1

    def to(self, device: torch.device) -> Rows:
        return Rows(**{f.name: getattr(self, f.name).to(device) for f in fields(self)})


def rows_of(read: Callable[[Sequence[Example]], Sequence[Tapped]], limit: int | None) -> Make:
    """Makes batches of one text. `limit` is how many tokens the draft model can read; places further on are left out."""

    def make(texts: Sequence[TextRecord], chosen: Sequence[Sequence[RoundRecord]], replayed: Sequence[bool]) -> Rows:
        (text,) = texts
        (tapped,) = read([example_of(text)])
        return make_rows(text, chosen[0], tapped.hidden, replayed=replayed[0], limit=limit)

    return make


def make_rows(
    text: TextRecord, rounds: Sequence[RoundRecord], hidden: torch.Tensor, *, replayed: bool = False, limit: int | None = None
) -> Rows:
    """The places that these rounds reached: of each round those of the tokens that it brought. `hidden` (T - 1, H) is of the text."""
    places, refused, depths, accepted = list[int](), list[int](), list[int](), list[bool]()
    for round_ in rounds:
        against = {pair.depth: pair.refused for pair in pairs(text, round_)}
        taken = round_.taken if limit is None else min(round_.taken, limit - round_.at)
        for depth in range(taken):
            places.append(round_.at + depth)
            refused.append(against.get(depth + 1, -1))
            depths.append(depth)
            accepted.append(depth < round_.accepted)
    at = torch.tensor(places, dtype=torch.long)
    tokens = torch.tensor(text.tokens)
    return Rows(
        tokens[: max(places, default=0) + 1],
        at,
        tokens[at + 1],
        torch.tensor(refused, dtype=torch.long),
        torch.tensor(depths, dtype=torch.long),
        torch.tensor(accepted, dtype=torch.bool),
        hidden[at],
        torch.tensor(float(len(rounds))),
        torch.tensor(replayed),
    )
