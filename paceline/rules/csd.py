"""CSD: a second look at what was just rejected (Zhou et al. 2026, arXiv 2604.13634). LOSSY: the output is not the target's.

Wrapped around any rule. Where that stops at a node with children, the best child x is kept after all if, with t the target's likeliest
token and z its processed logits (before temperature),

    memory   the pair (x, t), or its reverse, was seen more than `min_count` times, and
    gate     z[x] - z[t] >= ln tau.

The loop goes on below x at no cost: the forward was conditioned on x already. The base rule decides first and draws what it draws, so
that a rule which rescues nothing draws the same numbers. In a tree, x is the child with the largest margin among those that pass.

Greedy, the margins of the rescues are exactly the log-probability given up along the way, each at most |ln tau|. Sampled, whether x may
be rescued depends on the context alone, so the total variation at a position is the probability of a rescue there.

Where the draft says t and the target x, the target itself finds x the better of the two, so a sighting of the reverse speaks for the
rescue at least as much. What is not in the paper (reverses, trees, sampling, guards, budgets, the share of recent sightings) can be
switched off: preset `published`.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..draft import Draft
from ..sampling import Rng
from .control import Coin
from .csd_config import SAFE, CsdConfig, RandomRescueConfig, RescueConfig
from .ledger import Event, Ledger, Request
from .memory import Memory, SharedMemory, both_ways, pack
from .spelling import Spelling
from .walk import Decide, Node, Rule, Step


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

    def refusal(self, config: CsdConfig, key: int, margin: float) -> str | None:
        """Which of the two tests a pair does not pass."""
        if config.tests != "gate" and not self._nominates(config, both_ways(key) if config.symmetric else (key,)):
            return "frequency"
        return "gate" if config.tests != "memory" and margin < math.log(config.tau) else None

    def _nominates(self, config: CsdConfig, keys: tuple[int, ...]) -> bool:
        more = sum(self.own[key] for key in keys)
        return self.memory.nominates(keys, config.min_count, more=more, of=self.total, recent=config.recent)

    def close(self, request: Request) -> None:
        """Hand the request's sightings to the shared memory, once."""
        self.count(len(request.tokens))
        if self.shared is not None:
            self.shared.add(self.own)
            self.shared = None


@dataclass
class Drawn(Ledger):
    """The ledger of the control."""

    coin: Coin | None = None

    def refusal(self, position: int) -> str | None:
        assert self.coin is not None, "a control draws"
        return None if self.coin.falls(position) else "lot"


@dataclass(frozen=True, eq=False)
class SecondLook:
    """A base rule's decision, and the second look. `open` begins a request's ledger, and `test` says why the child of a pair (its key) with
    this margin must not be kept, or None."""

    name: str
    base: Decide
    config: RescueConfig
    spelling: Spelling
    open: Callable[[Any], Any]
    test: Callable[[Any, Node, int, float], str | None]

    def __call__(self, node: Node, rng: Rng) -> Step:
        step = self.base(node, rng)
        if step.child is not None or not node.children or node.vetoed:
            return step
        context: Any = node.target_probs.context
        if self.name not in context.ledgers:
            context.ledgers[self.name] = self.open(context)
        child = self._rescued(node, step, context.ledgers[self.name])
        return step if child is None or self.config.mode != "on" else Step(child, node.token(child))

    def _rescued(self, node: Node, step: Step, book: Ledger) -> int | None:
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

    def refusal(self, node: Node, child: int, best: int, margin: float, book: Ledger) -> str | None:
        """Why this child must not stand for the target's token `best`, or None."""
        token = node.token(child)
        if (failed := self.test(book, node, pack(token, best), margin)) is not None:
            return failed
        if margin == -math.inf:
            return "gate"
        guard = self._guard(node, token, best, book)
        if guard is not None:
            return f"guard:{guard}"
        return None if book.affords(-margin, node.target_probs.context) else "budget"  # type: ignore[arg-type]

    def _guard(self, node: Node, token: int, best: int, book: Ledger) -> str | None:
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
    shared = memory if isinstance(memory, SharedMemory) else None

    def begin(context: Any) -> Book:
        snapshot = memory.snapshot if isinstance(memory, SharedMemory) else memory
        return Book(config.mode, *config.budgets, memory=snapshot or Memory(), shared=shared)

    def test(book: Book, node: Node, key: int, margin: float) -> str | None:
        book.count(len(node.target_probs.context.tokens))  # type: ignore[attr-defined]
        return book.refusal(config, key, margin)

    return _around(base, "csd", config, spelling, begin, test)


def random_rescue(base: Rule, config: RandomRescueConfig | None = None, spelling: Spelling | None = None) -> Rule:
    """The control of CSD: of the rejections a share is rescued, chosen by lot, and the likeliest child kept."""
    chosen = config or RandomRescueConfig()

    def begin(context: Any) -> Drawn:
        return Drawn(chosen.mode, *chosen.budgets, coin=Coin(chosen.rate, chosen.seed, context))

    def test(drawn: Drawn, node: Node, key: int, margin: float) -> str | None:
        return drawn.refusal(node.position)

    return _around(base, "random_rescue", chosen, spelling, begin, test)


def _around(base: Rule, kind: str, config: RescueConfig, spelling: Spelling | None, begin: Any, test: Any) -> Rule:
    if config.mode == "off":
        return base
    looks = (SecondLook(kind, decide, config, spelling or Spelling(), begin, test) for decide in (base.decide, base.greedy))
    decide, greedy = looks
    name = kind if base.name == "match" else f"{base.name}+{kind}"
    return dataclasses.replace(base, name=name, decide=decide, greedy=greedy, lossless=base.lossless and config.mode == "shadow")
