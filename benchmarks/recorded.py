"""Drafts that were recorded once, and a clock that forwards of known costs move: the world in which `adaptive.py` replays decoding."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.cost import CostCurve
from paceline.draft import Draft, Drafter, Siblings
from paceline.drafters.draft_growth import Further
from paceline.drafters.grow import Pace, share
from paceline.drafters.union import Union
from paceline.replay import Text, replay
from paceline.sequence import Sequence as Request
from paceline.tree import Tree
from paceline.tune.policies import Clock

Places = Mapping[int, tuple[Draft, int]]  # number of tokens so far -> the draft there, and the forwards that it took


@dataclass(frozen=True)
class Row:
    """One answer, and the drafts at all of its places."""

    task: str
    text: Text
    places: Places


@dataclass(frozen=True)
class Costs:
    """Seconds. What `auto` thinks of them before it has seen anything is beside them."""

    target: dict[int, CostCurve]  # of a forward by its nodes, by the number of sequences
    target_first: CostCurve
    forward: CostCurve  # of a drafter's forward by the number of sequences
    forward_first: CostCurve
    read: float  # of reading a token that the drafter has not seen
    read_first: float
    context: float = 0.0  # what each token of a sequence's text adds to a forward of the target

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Costs:
        """From plain numbers, as in a JSON file: a curve is a size -> seconds mapping."""
        curves = {name: curve(found[name]) for name in ("target_first", "forward", "forward_first")}
        target = {int(batch): curve(points) for batch, points in found["target"].items()}
        numbers = {name: float(found[name]) for name in ("read", "read_first", "context") if name in found}
        return cls(target, **curves, **numbers)


def curve(points: Mapping[Any, float]) -> CostCurve:
    """Through these points; a single one costs the same per sequence at any size."""
    known = {int(size): float(seconds) for size, seconds in points.items()}
    if len(known) == 1:
        ((size, seconds),) = known.items()
        known[2 * size] = 2 * seconds
    sizes = sorted(known)
    return CostCurve(tuple(sizes), tuple(known[s] for s in sizes))


@dataclass
class Weather:
    """How much slower or quicker than usual a forward is: noise of each, and a drift that holds for some seconds."""

    lots: random.Random
    noise: float = 0.0  # standard deviations, relative
    drift: float = 0.0
    holds: float = 6.0  # seconds, in the mean
    _level: float = 1.0
    _until: float = 0.0

    def __call__(self, now: float) -> float:
        if now >= self._until:
            self._level, self._until = max(0.5, self.lots.gauss(1.0, self.drift)), now + self.lots.expovariate(1 / self.holds)
        return self._level * max(0.5, self.lots.gauss(1.0, self.noise))


@dataclass
class World:
    """A recording and the time."""

    rows: Sequence[Row]
    costs: Costs
    clock: Clock = field(default_factory=Clock)
    weather: Weather = field(default_factory=lambda: Weather(random.Random(0)))

    def __post_init__(self) -> None:
        self.of = {tuple(row.text.tokens[: row.text.prompt_length]): row for row in self.rows}

    def row(self, seq: Request) -> Row:
        return self.of[tuple(seq.tokens[: seq.prompt_length])]

    def passes(self, seconds: float) -> None:
        self.clock.now += seconds * self.weather(self.clock.now)

    def decode(self, drafter: Drafter, rows: Sequence[Row], batch_size: int) -> float:
        """Seconds that answers take of which so many are decoded at once."""
        began, seen = self.clock.now, _Seen(drafter)

        def verified(drafts: Sequence[Draft]) -> None:
            forward = self.costs.target[min(len(drafts), max(self.costs.target))]
            self.passes(forward(sum(len(d.tree) for d in drafts)) + self.costs.context * seen.tokens)

        for _ in replay(seen, [row.text for row in rows], batch_size, after=verified):
            pass
        return self.clock.now - began


class _Seen:
    """A drafter, and how long the texts were when it was last asked."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter, self.tokens = drafter, 0
        self.siblings, self.target_layer_ids = drafter.siblings, drafter.target_layer_ids

    def propose(self, seqs: Sequence[Request]) -> list[Draft]:
        self.tokens = sum(len(seq.tokens) for seq in seqs)
        return self._drafter.propose(seqs)


class Recorded:
    """A drafter whose drafts were recorded, told of a budget and of when to stop: no deeper and no larger than that allows. With a `cost`
    curve a batch shares its nodes (see `share`)."""

    siblings, target_layer_ids = Siblings.FIXED, ()

    def __init__(self, world: World, budget: int, cost: Callable[[int], float] | None = None) -> None:
        self.world, self.budget, self.cost = world, budget, cost
        self.goes_on: Further | None = None
        self._pace, self._read = Pace(), set[tuple[int, ...]]()

    def propose(self, seqs: Sequence[Request]) -> list[Draft]:
        world, found = self.world, [self.world.row(seq).places[len(seq.tokens)] for seq in seqs]
        depths = [self._depth(draft, min(forwards, self.budget - 1)) for draft, forwards in found]
        for done in range(max(depths)):
            world.passes(world.costs.forward(sum(depth > done for depth in depths)))
        for seq in seqs:
            if (prompt := tuple(seq.tokens[: seq.prompt_length])) not in self._read:
                self._read.add(prompt)
                world.passes(len(seq.tokens) * world.costs.read)
        drafts = [self._cut(draft, depth if forwards > 1 else None) for (draft, forwards), depth in zip(found, depths, strict=True)]
        return drafts if self.cost is None else share(drafts, self.cost, self._pace)

    def _depth(self, draft: Draft, forwards: int) -> int:
        """Where it would have stopped."""
        tree, scores = draft.tree, draft.scores or ()
        for depth in range(1, forwards if self.goes_on else 0):
            shallow = sum(d <= depth for d in tree.depth)
            best = max((s for s, d in zip(scores, tree.depth, strict=True) if d == depth), default=-math.inf)
            if not self.goes_on(scores[:shallow], best):
                return depth
        return forwards

    def _cut(self, draft: Draft, depth: int | None) -> Draft:
        """The likeliest nodes down to a depth; a head drafts all depths in one forward."""
        tree, scores = draft.tree, draft.scores or ()
        kept = len(tree) if depth is None else sum(d <= depth for d in tree.depth)  # shallow nodes come first
        union = Union(tree.tokens[0])
        union.add(Draft(Tree(tree.tokens[:kept], tree.parents[:kept]), scores=scores[:kept]))
        return union.likeliest(self.budget)
