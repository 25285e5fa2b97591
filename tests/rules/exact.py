"""Exact laws without sampling: every random choice is explored, and its probability kept, in float64.

Axes: N nodes, V vocabulary.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from types import SimpleNamespace
from typing import Any, TypeVar

import torch

from paceline.draft import Draft, Siblings
from paceline.rules.walk import Rule
from paceline.sampling import Rng, SamplingParams, TargetProbs, truncate
from paceline.tree import Tree

T = TypeVar("T")
Prefix = tuple[int, ...]
Table = Callable[[Prefix], torch.Tensor]  # the tokens put out so far -> (V,) logits in float64
Propose = Callable[[Prefix, Rng], Draft]
ROOT = 0


class Replay:
    """Takes the choices it is told, then the first possible one each time, and remembers how likely all that was."""

    def __init__(self, told: list[int]) -> None:
        self.told, self.taken, self.prob = told, list[tuple[int, int]](), 1.0

    def _choose(self, probs: list[float]) -> int:
        at = len(self.taken)
        choice = self.told[at] if at < len(self.told) else 0
        self.taken.append((choice, len(probs)))
        self.prob *= probs[choice]
        return choice

    def pick(self, probs: torch.Tensor) -> int:
        possible = probs.nonzero().flatten().tolist()
        return possible[self._choose((probs[possible] / probs.sum()).tolist())]

    def coin(self, prob: float) -> bool:
        prob = min(prob, 1.0)
        sides = [(True, prob), (False, 1 - prob)]
        possible = [side for side in sides if side[1] > 0]
        return possible[self._choose([p for _, p in possible])][0]


def outcomes(experiment: Callable[[Rng], T]) -> Iterator[tuple[T, float]]:
    """Every outcome of an experiment, once per way to reach it, with the probability of that way."""
    told: list[int] = []
    while True:
        rng = Replay(told)
        yield experiment(rng), rng.prob
        taken = rng.taken
        while taken and taken[-1][0] + 1 == taken[-1][1]:
            taken.pop()
        if not taken:
            return
        told = [choice for choice, _ in taken[:-1]] + [taken[-1][0] + 1]


@dataclass(frozen=True, eq=False)
class World:
    """A target and a draft model given as tables, and the settings of the request."""

    target: Table
    draft: Table
    params: SamplingParams = field(default_factory=lambda: SamplingParams(temperature=1.0))

    def context(self, prefix: Prefix) -> Any:
        return SimpleNamespace(tokens=[ROOT, *prefix], prompt_length=1, params=self.params, eos_token_ids=frozenset(), ledgers={})

    def laws(self, prefix: Prefix, tree: Tree) -> TargetProbs:
        """The target's law after each node, as the loop makes it."""
        paths = [tuple(tree.tokens[n] for n in tree.path(node)[1:]) for node in range(len(tree))]
        return TargetProbs(torch.stack([self.target(prefix + p) for p in paths]), self.context(prefix), tree)

    def law(self, prefix: Prefix) -> torch.Tensor:
        """(V,) plain decoding: the target's law after `prefix`."""
        return self.laws(prefix, Tree.chain([ROOT])).row(0)

    def emitted(self, rule: Rule, propose: Propose, count: int, rng: Rng) -> Prefix:
        """The first `count` tokens of the decode loop."""
        out: Prefix = ()
        while len(out) < count:
            draft = propose(out, rng)
            path, token = rule(draft, self.laws(out, draft.tree), rng)
            out += (*(draft.tree.tokens[n] for n in path[1:]), token)
        return out[:count]

    def error(self, rule: Rule, propose: Propose, count: int) -> float:
        """Total variation between the law of the first `count` emitted tokens and plain decoding's."""
        law: dict[Prefix, float] = defaultdict(float)
        for tokens, prob in outcomes(lambda rng: self.emitted(rule, propose, count, rng)):
            law[tokens] += prob
        for tokens, prob in outcomes(lambda rng: self.plain(count, rng)):
            law[tokens] -= prob
        return sum(map(abs, law.values())) / 2

    def plain(self, count: int, rng: Rng) -> Prefix:
        out: Prefix = ()
        for _ in range(count):
            out += (rng.pick(self.law(out)),)
        return out

    @cache  # noqa: B019 - a world lives as long as its test
    def draft_logits(self, prefix: Prefix) -> torch.Tensor:
        """(V,) logits whose softmax is the law that the draft model draws from."""
        return truncate(self.draft(prefix), SamplingParams(temperature=self.params.temperature or 1.0, top_p=self.params.top_p))


def table(vocab: int, seed: int, zeros: float = 0.0) -> Table:
    """Random logits for each prefix, some of them -inf."""

    @cache
    def logits(prefix: Prefix) -> torch.Tensor:
        rng = random.Random(f"{seed} {prefix}")
        row = [-math.inf if rng.random() < zeros else rng.gauss(0, 2) for _ in range(vocab)]
        row[rng.randrange(vocab)] = rng.gauss(0, 2)
        return torch.tensor(row, dtype=torch.float64)

    return logits


def needed(parents: tuple[int, ...], prefix: Prefix) -> tuple[int, ...]:
    """The whole tree at first, and then its first level: what would come after the second token is not looked at."""
    return tuple(p for p in parents if p <= 0) if prefix else parents


def sampled_tree(world: World, parents: tuple[int, ...], siblings: Siblings, temperature: float = 1.0) -> Propose:
    """Children drawn from the draft model; the draft says that it drew at `temperature` (1 is the truth).

    A node with more children than its law has tokens repeats the last one.
    """

    def propose(prefix: Prefix, rng: Rng) -> Draft:
        shape = needed(parents, prefix)
        tokens, rows, laws = [ROOT], [-1] * len(shape), list[torch.Tensor]()
        left: dict[int, torch.Tensor] = {}
        for node, parent in enumerate(shape[1:], 1):
            if parent not in left:
                path = Tree(tuple(tokens), shape[:node]).path(parent)
                logits = world.draft_logits(prefix + tuple(tokens[n] for n in path[1:]))
                rows[parent] = len(laws)
                laws.append(logits / temperature)
                left[parent] = torch.softmax(logits, -1)
            likeliest = siblings is Siblings.TOP_AND_DRAW and parent in shape[node + 1 :]
            token = int(left[parent].argmax()) if likeliest else rng.pick(left[parent])
            tokens.append(token)
            if siblings is not Siblings.IID and int((left[parent] > 0).sum()) > 1:
                left[parent] = left[parent].clone()
                left[parent][token] = 0
        return Draft(Tree(tuple(tokens), shape), siblings, torch.stack(laws), tuple(rows))

    return propose


def top_tree(world: World, parents: tuple[int, ...], claim: Siblings = Siblings.FIXED) -> Propose:
    """The likeliest children of each node; `claim` is what the draft says of them."""

    def propose(prefix: Prefix, rng: Rng) -> Draft:
        shape = needed(parents, prefix)
        tokens, rows, laws = [ROOT], [-1] * len(shape), list[torch.Tensor]()
        taken: dict[int, int] = defaultdict(int)
        for node, parent in enumerate(shape[1:], 1):
            path = Tree(tuple(tokens), shape[:node]).path(parent)
            logits = world.draft_logits(prefix + tuple(tokens[n] for n in path[1:]))
            if rows[parent] < 0:
                rows[parent] = len(laws)
                laws.append(logits)
            tokens.append(int(logits.argsort(descending=True)[taken[parent]]))
            taken[parent] += 1
        return Draft(Tree(tuple(tokens), shape), claim, torch.stack(laws), tuple(rows))

    return propose
