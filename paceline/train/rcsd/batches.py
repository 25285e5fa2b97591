"""From recorded rounds to tensors: the blocks that the head drafted in those rounds, and what became of each slot.

Axes: B sequences, A rounds of each, D depths, N nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch

from ...record.pairs import branch, pairs
from ...record.texts import RoundRecord, TextRecord
from .. import anchors
from ..batches import Batch, make_batch, turn
from ..examples import Example
from ..features import Tapped


@dataclass(frozen=True)
class RoundBatch:
    """Blocks whose anchors are the roots of recorded rounds.

    `reached`: the target spoke there after a prefix that it kept, so its word is a label: the accepted tokens and the next one.
    `accepted`: its word was in the draft. `refused`: the token that the drafter ranked first where the target said another one, else -1;
    behind the first refusal, where nothing is reached, what the drafter would have said next, which only mask `none` reads.
    """

    blocks: Batch
    reached: torch.Tensor  # (B, A, D)
    accepted: torch.Tensor  # (B, A, D)
    refused: torch.Tensor  # (B, A, D) token ids or -1
    replayed: torch.Tensor  # (B,) texts of earlier rounds

    def to(self, device: torch.device) -> RoundBatch:
        return RoundBatch(**{f.name: getattr(self, f.name).to(device) for f in fields(self)})

    @property
    def sequences(self) -> int:
        """B."""
        return self.blocks.sequences

    @property
    def before(self) -> torch.Tensor:
        """(B, A, D) the token before each slot."""
        return self.blocks.blocks[..., :-1]

    @property
    def labels(self) -> torch.Tensor:
        """(B, A, D) what the target said."""
        return self.blocks.blocks[..., 1:]


def example_of(text: TextRecord) -> Example:
    return Example(text.key, text.domain, text.tokens, text.prompt_length, text.temperature)


def make_rounds(
    texts: Sequence[TextRecord], tapped: Sequence[Tapped], chosen: Sequence[Sequence[RoundRecord]], replayed: Sequence[bool], *, depth: int
) -> RoundBatch:
    """Pad and stack. `chosen` are the rounds of each text, ascending; `replayed` says which texts are of earlier rounds."""
    places = [torch.tensor([r.at for r in rounds]) for rounds in chosen]
    blocks = make_batch([example_of(t) for t in texts], tapped, places, depth=depth)
    shape = blocks.supervised.shape
    taken, kept = torch.zeros(shape[:2], dtype=torch.long), torch.zeros(shape[:2], dtype=torch.long)
    refused = torch.full(shape, -1)
    for b, (text, rounds) in enumerate(zip(texts, chosen, strict=True)):
        for a, round_ in enumerate(rounds):
            taken[b, a], kept[b, a] = round_.taken, round_.accepted
            for place, token in _refusals(text, round_, depth):
                refused[b, a, place] = token
    depths = torch.arange(depth)
    reached = blocks.supervised & (depths < taken[..., None])
    return RoundBatch(blocks, reached, reached & (depths < kept[..., None]), refused, torch.tensor(list(replayed)))


def _refusals(text: TextRecord, round_: RoundRecord, depth: int) -> list[tuple[int, int]]:
    """(slot from 0, token) of what was refused, and of the branch behind the first refusal."""
    found: list[tuple[int, int]] = []
    for pair in pairs(text, round_):
        ended = pair.depth == round_.taken and round_.accepted < round_.taken
        tokens = branch(round_, pair.node) if ended else [pair.refused]
        found += [(pair.depth - 1 + i, token) for i, token in enumerate(tokens)]
    return [(place, token) for place, token in found if place < depth]


Make = Callable[[Sequence[TextRecord], Sequence[Sequence[RoundRecord]], Sequence[bool]], Any]  # texts, their rounds, replayed -> a batch


def blocks_of(read: Callable[[Sequence[Example]], Sequence[Tapped]], depth: int) -> Make:
    """Makes batches for a head of this depth, with features that are read by `read`."""

    def make(texts: Sequence[TextRecord], chosen: Sequence[Sequence[RoundRecord]], replayed: Sequence[bool]) -> RoundBatch:
        return make_rounds(texts, read([example_of(text) for text in texts]), chosen, replayed, depth=depth)

    return make


@dataclass(frozen=True)
class Mix:
    """Which rounds a step trains on, a function of the step's number alone: texts of this round, and a share of earlier ones."""

    current: Sequence[TextRecord]
    earlier: Sequence[TextRecord]
    make: Make
    replay: float
    batch_size: int
    micro_batch: int
    rounds: int  # of a text, in a step
    seed: int

    def step(self, step: int) -> list[Any]:
        """The micro-batches of a step."""
        old = min(len(self.earlier), round(self.replay * self.batch_size))
        members = [(*m, False) for m in self._turn(self.current, self.batch_size - old, step)]
        members += [(*m, True) for m in self._turn(self.earlier, old, step)]
        members.sort(key=lambda m: len(m[1].tokens), reverse=True)
        groups = [members[i : i + self.micro_batch] for i in range(0, len(members), self.micro_batch)]
        return [self._batch(group) for group in groups]

    def _turn(self, texts: Sequence[TextRecord], count: int, step: int) -> list[tuple[int, TextRecord]]:
        """The epoch and so many texts; every epoch goes through a new order."""
        if not count:
            return []
        epoch, places = turn(len(texts), count, step=step, seed=self.seed)
        return [(epoch, texts[i]) for i in places]

    def _batch(self, group: Sequence[tuple[int, TextRecord, bool]]) -> Any:
        chosen = []
        for epoch, text, _ in group:
            picks = anchors.choose(len(text.rounds), self.rounds, seed=self.seed, epoch=epoch, key=text.key)
            chosen.append([text.rounds[i] for i in picks.tolist()])
        return self.make([text for _, text, _ in group], chosen, [old for _, _, old in group])
