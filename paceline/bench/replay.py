"""Decide again and again at captured nodes: the rule's own code, with children drawn anew each time.

Axes: V vocabulary, K children, M redraws.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import numpy.typing as npt
import torch

from ..draft import Draft, Siblings
from ..rules.walk import Decide, Node, Rule, Step
from ..sampling import Random, Rng, SamplingParams, TargetProbs
from ..tree import Tree
from .laws import Laws, Tokens, Vector, likeliest, redraw

_ROOT = 0  # stands for a token that no rule looks at
KEPT_MISSES = 0.5


@dataclass(frozen=True, eq=False)
class Replay:
    """What came of M decisions at one node: `tokens` (M,) and `taken` (M,), the child taken from 0, or -1."""

    laws: Laws
    tokens: Tokens
    taken: Tokens

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """(V,) how often each token was emitted."""
        return np.bincount(self.tokens, minlength=len(self.laws.p))


def replay(rule: Rule, laws: Laws, count: int, rng: np.random.Generator, coins: Rng) -> Replay:
    """Decide `count` times with new children."""
    return _decided(rule.decide, laws, redraw(laws, count, rng), coins)


def replay_broken(rule: Rule, laws: Laws, count: int, coins: Rng) -> Replay:
    """The control: the likeliest children, said to be draws, and every other miss keeps its first child all the same."""
    children = np.array(laws.children, dtype=np.int64)
    if laws.drawn:
        assert laws.q is not None
        children = likeliest(laws.q, min(len(children), int(np.count_nonzero(laws.q))))
    return _decided(broken(rule).decide, laws, np.tile(children, (count, 1)), coins)


def broken(rule: Rule) -> Rule:
    """A rule that keeps the first child where `rule` would stop, in half of the cases."""

    def decide(node: Node, rng: Rng) -> Step:
        step = rule.decide(node, rng)
        if step.child is None and node.children and rng.coin(KEPT_MISSES):
            return Step(node.children[0], node.token(node.children[0]))
        return step

    return dataclasses.replace(rule, decide=decide)


def _decided(decide: Decide, laws: Laws, children: Tokens, coins: Rng) -> Replay:
    """One decision per row of `children` (M, K)."""
    probs, logits = _target(laws.p), None if laws.q is None else _logits(laws.q)
    steps = []
    for row in children.tolist():
        probs.context.ledgers.clear()  # each is a request's first: budgets of lossy rules are not shared
        steps.append(decide(Node(_draft(laws.siblings, row, logits), probs, 0), coins))
    tokens = np.array([s.token for s in steps], dtype=np.int64)
    taken = np.array([-1 if s.child is None else s.child - 1 for s in steps], dtype=np.int64)
    return Replay(laws, tokens, taken)


def _draft(siblings: Siblings, children: list[int], logits: torch.Tensor | None) -> Draft:
    tree = Tree((_ROOT, *children), (-1, *[0] * len(children)))
    if logits is None:
        return Draft(tree, siblings)
    return Draft(tree, siblings, logits, (0, *[-1] * len(children)), beliefs=(logits[0], *[None] * len(children)))


def _target(p: Vector) -> TargetProbs:
    """The law after the root, as the loop would hand it over."""
    params, none = SamplingParams(temperature=1.0), frozenset[int]()
    context = SimpleNamespace(tokens=[_ROOT], prompt_length=1, params=params, eos_token_ids=none, ledgers={})
    return TargetProbs(_logits(p), context, Tree.chain([_ROOT]))


def _logits(law: Vector) -> torch.Tensor:
    """(1, V) float32, as production has it."""
    return torch.from_numpy(law).log().float()[None]


def coins(seed: int) -> Random:
    """The generator that the rules draw from."""
    return Random(seed)
