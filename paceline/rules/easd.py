"""EASD: a veto where draft and target agree without being sure (Su et al. 2025, arXiv 2512.23765). LOSSY: another output.

Wrapped around any rule. At a node with children, with the laws of target and draft at temperature 1 (bans included, nothing cut off):

    H_target > tau_target,  H_draft > tau_draft     Shannon entropies in nats, over the whole vocabulary
    shared >= ceil(tau_overlap n)                   ids that are among the n likeliest of both

If all hold, the drafted token x gets probability 0 and the target's law without x gives the next token; the block ends there. *High*
overlap triggers. x is the node's first child, the one that a chain would have drafted, so that a node says the same in a tree. Behind the
last drafted token nothing was drafted and nothing is tested, so the text depends on where blocks end.

Greedy: the text changes only where x is the target's own token (a flip, to the second choice, at ln p1 / p2 nats); elsewhere the trigger
forbids what the base rule would have rejected. Sampled: the trigger is tested first, as it depends on the context alone; x drawn from q
gives the law sum over x of q(x) p(y) / (1 - p(x)), y != x, and a total variation of at most sum of q p.

Guards, budgets and the cool-down are not in the paper: preset `published` has none.

Axes: V vocabulary, n likeliest tokens.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from ..sampling import Rng
from .control import Coin
from .easd_config import SAFE, EasdConfig, RandomVetoConfig, VetoConfig
from .ledger import Event, Ledger
from .spelling import Spelling
from .walk import Decide, Node, Rule, Step

_GRAM = 3  # tokens before x that make it a copy if they stand before it elsewhere


class Outlook(NamedTuple):
    """How sure both are; `shared` and `ratio` (the target's p2 / p1, p1 being `top`) are there if they were asked for."""

    target: float
    draft: float
    shared: int = 0
    top: float = 1.0
    ratio: float = 0.0


def outlook(target: torch.Tensor, draft: torch.Tensor, n: int, *, above: tuple[float, float] = (-1.0, -1.0), level: float = 0.0) -> Outlook:
    """Entropies and overlap of two rows of logits (V,), by one exponential each. The n likeliest are looked for only if both entropies are
    above these; the target's second one also where its first has at most this probability."""
    (ours, total, first), (theirs, _, second) = _entropy(target), _entropy(draft)
    top = 1 / total
    if not (first > above[0] and second > above[1]):
        return Outlook(first, second, top=top, ratio=_ratio(ours) if top <= level else 0.0)
    likely, likely_too = (row.topk(min(n, len(row))).indices for row in (ours, theirs))
    return Outlook(first, second, int((likely[:, None] == likely_too).sum()), top, _ratio(ours))


def _ratio(row: torch.Tensor) -> float:
    """p2 / p1 of a row (V,) whose largest number is 0."""
    return float(row.topk(2).values[1].exp()) if len(row) > 1 else 0.0


def _entropy(row: torch.Tensor) -> tuple[torch.Tensor, float, float]:
    """The row (V,) as z with 0 as its largest number, s = sum of e^z, and H = ln s - sum of e^z z / s. The largest p is 1 / s."""
    row = row if row.dtype == torch.float64 else row.float()
    z = (row - row.max()).clamp_(min=-1e4)  # a banned token: e^z is 0, and 0 times that too
    e = z.exp()  # a softmax of one row would use one core
    s = float(e.sum())
    return z, s, math.log(s) - float(e.dot(z)) / s


@dataclass
class Watch(Ledger):
    """A request's ledger; `readings` are kept for a calibration: (H_target, H_draft, shared, p1, p2 / p1, x is the target's token).
    The control has a `coin`."""

    readings: list[tuple[float, float, int, float, float, bool]] | None = None
    coin: Coin | None = None


class Place(NamedTuple):
    """Whether a rule wants a veto at a node, and how sure the target is there: p1 and p2 / p1."""

    wanted: bool
    top: float
    ratio: float


Trigger = Callable[[Node, torch.Tensor, Watch], Place]  # of a node and what the draft believed there


def agreement(config: EasdConfig) -> Trigger:
    """Both are unsure and favour the same tokens: conditions on the context alone, each counted."""
    least = (-1.0, -1.0) if config.record else (config.tau_target, config.tau_draft)

    def look(node: Node, belief: torch.Tensor, watch: Watch) -> Place:
        scores = node.target_probs.scores(node.index)
        seen = outlook(scores, belief.to(scores.device), config.n, above=least, level=config.open_to)
        sure = seen.target <= config.tau_target, seen.draft <= config.tau_draft
        watch.seen.update(target_unsure=int(not sure[0]), draft_unsure=int(not sure[1]), both_unsure=int(not any(sure)))
        if watch.readings is not None:
            watch.readings.append((*seen, node.token(node.children[0]) == int(scores.argmax())))
        return Place(not any(sure) and seen.shared >= config.least_shared, seen.top, seen.ratio)

    return look


def by_lot(config: RandomVetoConfig) -> Trigger:
    """The control: a share of the places where the target is not too sure, whatever the two believe."""

    def look(node: Node, belief: torch.Tensor, watch: Watch) -> Place:
        row, total, _ = _entropy(node.target_probs.scores(node.index))
        top = 1 / total
        ratio = _ratio(row) if top <= config.open_to else 0.0
        assert watch.coin is not None, "a control draws"
        return Place(config.too_sure(top, ratio) is None and watch.coin.falls(node.position), top, ratio)

    return look


@dataclass(frozen=True, eq=False)
class Veto:
    """A rule's decision, unless the draft is vetoed. `open` begins a request's ledger, which counts as `open` the places where a veto would
    change something and the target is not too sure for it."""

    name: str
    base: Decide
    config: VetoConfig
    spelling: Spelling
    open: Callable[[Any], Watch]
    trigger: Trigger

    def __call__(self, node: Node, rng: Rng) -> Step:
        beliefs = node.draft.beliefs
        belief = beliefs[node.index] if node.children and beliefs is not None else None
        if belief is None:
            return self.base(node, rng)
        context: Any = node.target_probs.context
        if self.name not in context.ledgers:
            context.ledgers[self.name] = self.open(context)
        watch: Watch = context.ledgers[self.name]
        place = self.trigger(node, belief, watch)
        sure = self.config.too_sure(place.top, place.ratio)
        watch.seen.update(scanned=1, triggered=int(place.wanted))
        if sure is not None:
            watch.seen[f"guard:{sure}"] += place.wanted
            return self.base(node, rng)
        greedy, x = node.target_probs.greedy, node.token(node.children[0])
        scores = node.target_probs.scores(node.index)
        best = int(scores.argmax())
        no_op = greedy and x != best  # forbidden and rejected anyway
        watch.seen["open"] += not no_op
        if not place.wanted:
            return self.base(node, rng)
        if no_op:
            if (guard := self._guard(node, x, best, watch)) is not None:
                watch.seen[f"no-op, guard:{guard}"] += 1
                return self.base(node, rng)
            watch.seen["no-op"] += 1
            return self.base(dataclasses.replace(node, vetoed=True) if self.config.mode == "on" else node, rng)
        event, law = self._event(node, x, scores, watch)
        watch.add(event)
        if event.refusal is not None or self.config.mode != "on":
            return self.base(node, rng)
        return Step(None, event.target if greedy else rng.pick(law))

    def _event(self, node: Node, x: int, scores: torch.Tensor, watch: Watch) -> tuple[Event, torch.Tensor]:
        """A flip (greedy) or a veto (sampled), with the law (V,) that replaces the target's."""
        laws = node.target_probs
        without = (scores if laws.greedy else laws.row(node.index)).clone()
        without[x] = -math.inf if laws.greedy else 0
        other = int(without.argmax())
        if laws.greedy:
            forced, nats, moved = bool(without[other] == -math.inf), float(scores[x] - scores[other]), 0.0
        else:
            moved = float(laws.row(node.index)[x])
            forced = float(without[other]) == 0
            nats = 0.0 if forced else -math.log1p(-min(moved, 1 - 1e-12))
        if forced:
            refusal: str | None = "guard:forced"
        elif (guard := self._guard(node, x, other, watch)) is not None:
            refusal = f"guard:{guard}"
        else:
            refusal = None if watch.affords(nats, laws.context) else "budget"  # type: ignore[arg-type]
        return Event(node.position, x, other, nats, moved, refusal), without

    def _guard(self, node: Node, x: int, other: int, watch: Watch) -> str | None:
        """What speaks against a veto; of the replacement, the likeliest one is looked at."""
        config = self.config
        if config.cooldown and watch.acted and node.position - watch.acted[-1] < config.cooldown:
            return "cooldown"
        if not config.guards:
            return None
        if x in self.spelling.special or other in self.spelling.special:
            return "special"
        if self.spelling.same_surface(x, other):
            return "surface"
        return "copied" if _copied(node, x) else None


def _copied(node: Node, x: int) -> bool:
    """Whether x goes on with what followed the same last tokens before."""
    tree = node.draft.tree
    tokens = [*node.target_probs.context.tokens, *(tree.tokens[n] for n in tree.path(node.index)[1:])]
    gram = [*tokens[-_GRAM:], x]
    return len(tokens) >= _GRAM and any(tokens[i : i + _GRAM + 1] == gram for i in range(len(tokens) - _GRAM))


def easd(base: Rule, config: EasdConfig = SAFE, spelling: Spelling | None = None) -> Rule:
    """The base rule with a veto; the base rule itself if the mode is off. With CSD inside, a veto beats a rescue.

    Drafters must hand over what they believed (`Draft.beliefs`).
    """

    def begin(context: Any) -> Watch:
        return Watch(config.mode, *config.budgets, readings=[] if config.record else None)

    return _around(base, "easd", config, spelling, begin, agreement(config))


def random_veto(base: Rule, config: RandomVetoConfig | None = None, spelling: Spelling | None = None) -> Rule:
    """The control of EASD: a share of the places where it could change something is vetoed, chosen by lot."""
    chosen = config or RandomVetoConfig()

    def begin(context: Any) -> Watch:
        return Watch(chosen.mode, *chosen.budgets, coin=Coin(chosen.rate, chosen.seed, context))

    return _around(base, "random_veto", chosen, spelling, begin, by_lot(chosen))


def _around(base: Rule, kind: str, config: VetoConfig, spelling: Spelling | None, begin: Callable[[Any], Watch], trigger: Trigger) -> Rule:
    if config.mode == "off":
        return base
    vetoes = (Veto(kind, decide, config, spelling or Spelling(), begin, trigger) for decide in (base.decide, base.greedy))
    decide, greedy = vetoes
    name = kind if base.name == "match" else f"{base.name}+{kind}"
    lossless = base.lossless and config.mode == "shadow"
    return dataclasses.replace(base, name=name, decide=decide, greedy=greedy, lossless=lossless, reads_beliefs=True)
