"""Drafters for the replay: priced, remembered, and merged under a budget."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter

from ..draft import Draft, Drafter, Siblings
from ..drafters.claims import with_claims
from ..drafters.union import Union
from ..replay import Text
from ..sequence import Sequence as Request
from .replay import counted

COUNTS = (1, 4)  # sequences at once for which a draft's price is measured
_SHORT = 24  # tokens of a text that are drafted for that


@dataclass
class Clock:
    """Seconds that pass only when somebody says so."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


class Timed:
    """Asks a drafter, and keeps the real seconds of each call."""

    def __init__(self, drafter: Drafter) -> None:
        self.drafter, self.seconds = drafter, list[float]()
        self.siblings, self.target_layer_ids = drafter.siblings, drafter.target_layer_ids

    def propose(self, seqs: Sequence[Request]) -> list[Draft]:
        began = perf_counter()
        drafts = self.drafter.propose(seqs)
        self.seconds.append(perf_counter() - began)
        return drafts


@dataclass(frozen=True)
class Price:
    """Seconds of a draft by the number of sequences, and per token of a prompt that must be read first."""

    seconds: dict[int, float]
    catch_up: float

    def __call__(self, count: int) -> float:
        """Of a number that was not measured: what each costs of the nearest."""
        nearest = min(self.seconds, key=lambda n: (abs(n - count), n))
        return self.seconds[nearest] * max(1.0, count / nearest)


def price(drafter: Drafter, texts: Sequence[Text], layer_ids: Sequence[int]) -> Price:
    """Measure a drafter on the beginnings of some texts: the median, as other work of the machine would be in a mean."""
    counted(drafter, [_short(texts[0])], layer_ids)  # warms up
    seconds, catch_up = {}, 0.0
    for count in COUNTS:
        if count <= len(texts):
            timed = Timed(drafter)
            few = [_short(t) for t in reversed(texts)][:count]
            counted(timed, few, layer_ids)
            first, *rest = timed.seconds
            seconds[count] = statistics.median(rest or [first])
            catch_up = max(0.0, first - seconds[count]) / sum(t.prompt_length for t in few)
    return Price(seconds, catch_up)


def _short(text: Text) -> Text:
    tokens = text.tokens[: text.prompt_length + _SHORT]
    return replace(text, tokens=tokens, features=None if text.features is None else text.features[: len(tokens) - 1])


class Remembered:
    """Asks a drafter once for each place in each text: its drafts depend on nothing else. Where a clock is told, it moves on by the
    price of a draft, asked or remembered."""

    def __init__(self, drafter: Drafter, cost: Price, clock: Clock) -> None:
        self.drafter, self.price, self.clock = drafter, cost, clock
        self.siblings, self.target_layer_ids = drafter.siblings, drafter.target_layer_ids
        self._known: dict[tuple[int | None, int], Draft] = {}  # by slot and number of tokens

    def propose(self, seqs: Sequence[Request]) -> list[Draft]:
        missing = [seq for seq in seqs if self._place(seq) not in self._known]
        for seq, draft in zip(missing, self.drafter.propose(missing) if missing else [], strict=True):
            self._known[self._place(seq)] = draft
        self.clock.now += self.price(len(seqs))
        return [self._known[self._place(seq)] for seq in seqs]

    @staticmethod
    def _place(seq: Request) -> tuple[int | None, int]:
        return seq.slot, len(seq.tokens)


@dataclass
class Fixed:
    """Some drafters in every round, merged under one budget: the policy that a method's name and --budget stand for."""

    drafters: Sequence[Remembered]
    budget: int
    siblings: Siblings = Siblings.FIXED
    target_layer_ids: tuple[int, ...] = field(default=())

    def propose(self, seqs: Sequence[Request]) -> list[Draft]:
        by_drafter = [[with_claims(d) for d in drafter.propose(seqs)] for drafter in self.drafters]
        return [self._merged(drafts) for drafts in zip(*by_drafter, strict=True)]

    def _merged(self, drafts: Sequence[Draft]) -> Draft:
        union = Union(drafts[0].tree.tokens[0])
        for draft in drafts:
            union.add(draft)
        return union.likeliest(self.budget)
