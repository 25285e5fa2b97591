"""CSD: a second look at what was just rejected (Zhou et al. 2026, arXiv 2604.13634). LOSSY: the output is not the target's.

Wrapped around any rule. Where that stops at a node with children, the best child x is kept after all if, with t the target's likeliest
token and z its processed logits (before temperature),

    memory   the pair (x, t) was seen more than `min_count` times, and
    gate     z[x] - z[t] >= ln tau.

The loop goes on below x at no cost: the forward was conditioned on x already. The base rule decides first and draws what it draws, so
that a rule which rescues nothing draws the same numbers. In a tree, x is the child with the largest margin among those that pass.

Greedy, the margins of the rescues are exactly the log-probability given up along the way, each at most |ln tau|. Sampled, whether x may
be rescued depends on the context alone, so the total variation at a position is the probability of a rescue there.

What is not in the paper (trees, sampling, guards, budgets, the share of recent sightings) can be switched off: preset `published`.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from ..draft import Draft
from ..sampling import Rng
from .ledger import Event, Ledger, Request, check_mode, need, number
from .memory import Memory, SharedMemory, pack
from .spelling import Spelling
from .walk import Decide, Node, Rule, Step

NAME = "csd"
TESTS = ("both", "memory", "gate")  # the latter two are ablations: they lose accuracy


@dataclass(frozen=True)
class CsdConfig:
    """Settings; the defaults are the safe ones. None is no bound. Raises InvalidRequest naming the setting."""

    mode: str = "on"
    min_count: float = 6  # lambda: a pair must be seen more often
    tau: float = 0.01
    tests: str = "both"
    recent: bool = True  # a pair must be frequent among recent sightings too
    guards: bool = True  # special tokens, numbers, comparisons, brackets, the first token
    streak: int | None = 2  # rescues in a row
    overshoot: float = 0.1  # kappa, sampled: the target's probability is at least so much of the draft's
    max_nats: float | None = None  # per request
    max_nats_per_1k: float | None = 40.0  # per thousand tokens

    def __post_init__(self) -> None:
        check_mode(self.mode)
        need(self, "min_count", number(self.min_count) and self.min_count >= 0, "0 or more")
        need(self, "tau", number(self.tau) and 0 < self.tau <= 1, "above 0 and at most 1")
        need(self, "tests", self.tests in TESTS, f"one of {', '.join(TESTS)}")
        need(self, "streak", self.streak is None or (number(self.streak) and self.streak >= 1), "none or at least 1")
        need(self, "overshoot", number(self.overshoot) and 0 <= self.overshoot <= 1, "between 0 (off) and 1")
        for name in ("max_nats", "max_nats_per_1k"):
            value = getattr(self, name)
            need(self, name, value is None or (number(value) and value >= 0), "none or 0 and more")
        for name in ("recent", "guards"):
            need(self, name, isinstance(getattr(self, name), bool), "true or false")


SAFE = CsdConfig()
PUBLISHED = CsdConfig(recent=False, guards=False, streak=None, overshoot=0.0, max_nats_per_1k=None)
PRESETS = {"safe": SAFE, "published": PUBLISHED}


@dataclass
class Book(Ledger):
    """A request's ledger, with the memory as it was when the request began and the request's own sightings of earlier rounds."""

    memory: Memory = field(default_factory=Memory)
    shared: SharedMemory | None = None
    own: Counter[int] = field(default_factory=Counter)
    total: int = 0
    _counted: int = 0  # events

    def count(self, length: int) -> None:
        """Count the pairs of earlier rounds, those at positions below `length`: a round decides on the memory it began with."""
        while self._counted < len(self.events) and self.events[self._counted].position < length:
            event = self.events[self._counted]
            self.own[pack(event.drafted, event.target)] += 1
            self.total += 1
            self._counted += 1

    def nominates(self, key: int, config: CsdConfig) -> bool:
        return self.memory.nominates(key, config.min_count, more=self.own[key], of=self.total, recent=config.recent)

    def close(self, request: Request) -> None:
        """Hand the request's sightings to the shared memory, once."""
        self.count(len(request.tokens))
        if self.shared is not None:
            self.shared.add(self.own)
            self.shared = None


@dataclass(frozen=True, eq=False)
class SecondLook:
    """A base rule's decision, and the second look."""

    base: Decide
    memory: Memory | SharedMemory
    config: CsdConfig
    spelling: Spelling

    def __call__(self, node: Node, rng: Rng) -> Step:
        step = self.base(node, rng)
        if step.child is not None or not node.children or node.vetoed:
            return step
        context: Any = node.target_probs.context
        book = self._book(context)
        book.count(len(context.tokens))
        child = self._rescued(node, step, book)
        return step if child is None or self.config.mode != "on" else Step(child, node.token(child))

    def _book(self, context: Any) -> Book:
        if NAME not in context.ledgers:
            shared = self.memory if isinstance(self.memory, SharedMemory) else None
            memory = self.memory.snapshot if isinstance(self.memory, SharedMemory) else self.memory
            budgets = self.config.max_nats, self.config.max_nats_per_1k
            context.ledgers[NAME] = Book(self.config.mode, *budgets, memory=memory, shared=shared)
        book: Book = context.ledgers[NAME]
        return book

    def _rescued(self, node: Node, step: Step, book: Book) -> int | None:
        """The child to keep, if any; the divergence goes into the book. There is none where the target's token was drafted."""
        laws, tokens = node.target_probs, [node.token(c) for c in node.children]
        scores = laws.scores(node.index)
        best = step.token if laws.greedy else int(scores.argmax())
        if best in tokens:
            return None
        margins = (scores[tokens].double() - scores[best].double()).tolist()
        order = sorted(range(len(tokens)), key=lambda i: (-margins[i], i))
        refusals = [self.refusal(node, node.children[i], best, margins[i], book) for i in order]
        place = next((n for n, refusal in enumerate(refusals) if refusal is None), 0)
        one = order[place]
        moved = 0.0 if laws.greedy else 1.0
        book.add(Event(node.position, tokens[one], best, -margins[one], moved, refusals[place]))
        return node.children[one] if refusals[place] is None else None

    def refusal(self, node: Node, child: int, best: int, margin: float, book: Book) -> str | None:
        """Why this child must not stand for the target's token `best`, or None."""
        config, token = self.config, node.token(child)
        if config.tests != "gate" and not book.nominates(pack(token, best), config):
            return "frequency"
        if margin == -math.inf or (config.tests != "memory" and margin < math.log(config.tau)):
            return "gate"
        guard = self._guard(node, token, best, book)
        if guard is not None:
            return f"guard:{guard}"
        return None if book.affords(-margin, node.target_probs.context) else "budget"  # type: ignore[arg-type]

    def _guard(self, node: Node, token: int, best: int, book: Book) -> str | None:
        config, laws, at = self.config, node.target_probs, node.position
        if config.guards:
            if conflict := self.spelling.conflict(token, best):
                return conflict
            if at == laws.context.prompt_length:
                return "first"
        if config.streak and book.acted[-config.streak :] == list(range(at - config.streak, at)):
            return "streak"
        if laws.greedy:
            return None
        p = float(laws.row(node.index)[token])
        if p == 0:
            return "support"  # cut off by top-k, top-p or min-p
        return "overshoot" if p < config.overshoot * _drafted_with(node.draft, node.index, token) else None


def _drafted_with(draft: Draft, node: int, token: int) -> float:
    """q of a token; 1 where it was chosen."""
    stated = draft.logits is not None and draft.rows is not None and draft.rows[node] >= 0
    return float(draft.probs(node)[token]) if stated else 1.0


def csd(base: Rule, memory: Memory | SharedMemory | None = None, config: CsdConfig = SAFE, spelling: Spelling | None = None) -> Rule:
    """The base rule with a second look; the base rule itself if the mode is off.

    Args:
        base: any rule; greedy, sampled and on trees.
        memory: a snapshot, or a shared memory whose owner calls `ledger.close` for finished requests; None is an empty one, which
            leaves the pairs that a request has seen itself.
        spelling: what tokens say, for the guards.
    """
    if config.mode == "off":
        return base
    looks = (SecondLook(decide, memory or Memory(), config, spelling or Spelling()) for decide in (base.decide, base.greedy))
    decide, greedy = looks
    name = NAME if base.name == "match" else f"{base.name}+{NAME}"
    return dataclasses.replace(base, name=name, decide=decide, greedy=greedy, lossless=base.lossless and config.mode == "shadow")
