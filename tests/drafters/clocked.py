"""A world without a model for the adaptive drafter: a known text, drafters that are right as often as they are told, and a clock that
only they and the rounds move.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.cost import CostCurve
from paceline.draft import Draft, HeadStart, Siblings
from paceline.drafters.auto import AutoDrafter
from paceline.drafters.part import GUESS_MODEL, Known, Mean, Part
from paceline.live_cost import LiveCosts
from paceline.replay import Text
from paceline.sequence import Sequence as Request
from paceline.tree import Tree
from paceline.tune.policies import Clock
from paceline.tune.replay import counted

FLAT = CostCurve((1, 8, 64), (1.0, 1.0, 8.0))  # seconds: up to eight nodes cost what one does
STEEP = CostCurve((1, 64), (1.0, 64.0))
PROMPT = 4


def text(length: int = 300, number: int = 0, prompt: int = PROMPT) -> Text:
    lots = random.Random(number)
    return Text(str(number), "", [lots.randrange(50) for _ in range(prompt + length)], prompt)


Rate = float | Callable[[int], float]


def by_place(rate: Rate) -> Callable[[int], float]:
    return rate if callable(rate) else lambda _: rate


@dataclass
class Right:
    """Chains of which each token is right with probability `rate(place)`, by a fixed lot for each place of the text. To read a token of the
    text takes `reads` seconds.

    `claims(place)` is the probability that it states for each token; None states nothing.
    """

    clock: Clock
    texts: Sequence[Text]
    rate: Callable[[int], float]
    seconds: float = 0.0
    depth: int = 4
    claims: Callable[[int], float] | None = None
    starts: bool = False
    reads: float = 0.0
    have_read: dict[int, int] = field(default_factory=dict)  # tokens, by text
    asked: list[int] = field(default_factory=list)  # places, of the first text
    goes_on: Any = None  # set by who knows what its forwards cost; not heeded
    siblings: Siblings = Siblings.FIXED
    target_layer_ids: tuple[int, ...] = ()

    def propose(self, seqs: Sequence[Request]) -> list[Draft]:
        self.clock.now += self.seconds
        for seq in seqs:
            unread = len(seq.tokens) - self.have_read.get(seq.slot or 0, 0)
            self.clock.now += self.reads * unread
            self.have_read[seq.slot or 0] = len(seq.tokens)
        return [self._draft(seq) for seq in seqs]

    def _draft(self, seq: Request) -> Draft:
        truth, place = self.texts[seq.slot or 0].tokens, len(seq.tokens)
        if seq.slot == 0:
            self.asked.append(place)
        tokens = []
        for i in range(place, min(place + self.depth, place + seq.room - 1)):
            right = random.Random(1000 * (seq.slot or 0) + i).random() < self.rate(i)
            tokens.append(truth[i] if right else truth[i] + 50)
        tree = Tree.chain([seq.root, *tokens])
        scores = None if self.claims is None else tuple(depth * math.log(self.claims(place)) for depth in tree.depth)
        start = HeadStart((1,) * len(tree), None) if self.starts else None  # type: ignore[arg-type]
        return Draft(tree, scores=scores, head_start=start)


@dataclass
class World:
    """`noise(round)` multiplies the seconds of a round's forward."""

    cost: CostCurve = FLAT
    texts: Sequence[Text] = field(default_factory=lambda: [text()])
    noise: Callable[[int], float] = lambda _: 1.0
    clock: Clock = field(default_factory=Clock)
    trees: list[list[Tree]] = field(default_factory=list)

    def right(self, rate: Rate, claims: Rate | None = None, **settings: Any) -> Right:
        return Right(self.clock, self.texts, by_place(rate), claims=None if claims is None else by_place(claims), **settings)

    def part(self, name: str, drafter: Right) -> Part:
        return Part(name, drafter, Known({1: drafter.seconds}))

    def model(self, rate: Rate, seconds: float, weight: float = 1.0) -> Part:
        """A draft model of which only the price is known; `weight` is that of the guesses of what it adds."""
        return Part("a", self.right(rate, seconds=seconds), Known({1: seconds}, gains=[Mean(guess, weight) for guess in GUESS_MODEL]))

    def run(self, *drafters: Right, names: Sequence[str] = "abc") -> AutoDrafter:
        """Decode the texts at once with an adaptive drafter over these."""
        parts = [self.part(name, drafter) for name, drafter in zip(names, drafters, strict=False)]
        auto = AutoDrafter(parts, LiveCosts({1: self.cost}), clock=self.clock)
        self.follow(auto)
        return auto

    def follow(self, drafter: object) -> None:
        def verified(drafts: list[Draft]) -> None:
            self.trees.append([d.tree for d in drafts])
            self.clock.now += self.cost(sum(len(d.tree) for d in drafts)) * self.noise(len(self.trees))

        counted(drafter, self.texts, after=verified)  # type: ignore[arg-type]

    @property
    def plain(self) -> float:
        """Seconds of plain decoding."""
        lengths = [len(t.tokens) - t.prompt_length for t in self.texts]
        return sum(self.cost(sum(length > i for length in lengths)) for i in range(max(lengths)))

    @property
    def slowdown(self) -> float:
        return self.clock.now / self.plain
