"""Draft with whatever pays here and now, or not at all.

Before each round the adaptive drafter looks at the last one: how long it really took, and what the tokens that came say about every
draft it has seen, verified or not (`claims`). A drafter that costs next to nothing is always asked. A further one is asked where the
tokens that it has been adding are worth more than its time, and now and then on trial. What they propose becomes one tree, cut where a
further node is not worth its time (`grow.share`). If all that has made the recent rounds slower than plain decoding would have been, it
stops drafting until the loss is made up (`account`).

A draft model must first read the text so far. That is paid once, so it is weighed against the whole answer, as long as answers usually get
(`earlier`), and what it has cost stops nobody afterwards.

Only when tokens come depends on time, never which: the rule is target match.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..draft import Draft, Siblings
from ..live_cost import FAR, LiveCost, LiveCosts
from ..sequence import Sequence as Request
from .account import Account
from .claims import judged, with_claims
from .earlier import Earlier
from .part import Part
from .pool import Pool, promised_by, root_only
from .requests import Requests

BUDGET = 32  # most nodes of a sequence's tree
FREE = 0.02  # a draft that costs less than this part of a plain round is made in every round
OPENING = 2  # plain rounds at the very beginning, since the price of a plain round is what all else is compared with
SURE, BACK = 1.0, 0.5  # tokens beyond its price that a free draft must promise while a loss is made up; plus the loss, up to so much
SOON, TAKEN = 0.25, 2.0  # reading must pay if only this part of the expected answer comes, by so many tokens a round
USUAL = 8.0  # samples that make what a drafter adds usual: before, a request that differs says as much of the others
LITTLE = 0.05  # of the expected answer's plain rounds may be spent on reading
_NOTHING = 1e-12  # what a draft claims at least
CLEAR, STALE = 1.15, 64  # one round in so many is plain, above such a speed-up one in four times as many: the comparison rests on it


@dataclass(frozen=True)
class _Asked:
    """A draft whose fate is not decided yet."""

    part: Part
    seq: Request
    prompt_length: int
    length: int  # tokens when it was made
    draft: Draft


@dataclass(frozen=True)
class _Last:
    """The round in progress."""

    began: float
    drafting: float  # seconds
    reading: float  # of those, what it took to catch up with the text
    nodes: int
    started: Part | None  # which drafter has begun with the target's work
    seqs: tuple[Request, ...]
    prompts: tuple[int, ...]  # lengths
    lengths: tuple[int, ...]


class AutoDrafter:
    """Chooses among drafters, and how many nodes of theirs are verified.

    Args:
        parts: the drafters, with what is known of each. They propose fixed children and are told no cost curve.
        costs: seconds of a forward by the number of nodes of all sequences; by batch size.
        earlier: what requests before this one have shown.
        budget: most nodes of a sequence's tree, the root included.
        clock: seconds; tests put in their own, and a bench one that stands still while others decode.
        basis: where the figures come from, for `report`.
    """

    siblings = Siblings.FIXED

    def __init__(
        self,
        parts: Sequence[Part],
        costs: LiveCosts,
        earlier: Earlier | None = None,
        *,
        budget: int = BUDGET,
        clock: Callable[[], float] = time.perf_counter,
        basis: str = "",
    ) -> None:
        self.parts, self.budget, self.basis = tuple(parts), budget, basis
        self.drafters = tuple(p.drafter for p in parts)
        self.target_layer_ids = tuple(sorted({i for d in self.drafters for i in d.target_layer_ids}))
        self._costs, self.clock, self._earlier = costs, clock, earlier or Earlier()
        self._account = Account(costs.of(1)(1))
        self._requests = Requests(self._earlier)
        self._open: list[_Asked] = []
        self._last: _Last | None = None
        self._reading = 0.0  # seconds of this round
        self._chosen: Part | None = None  # the one that was asked for its merits, or on trial, in this round
        self.rounds = self.plain_rounds = self.nodes = 0

    def propose(self, seqs: Sequence[Request]) -> list[Draft]:
        self._look_back(seqs, self.clock())
        self._requests.look_at(seqs)
        for part in self.parts:
            part.prepare(len(seqs))
        began, self._chosen, self._reading = self.clock(), None, 0.0
        drafts = self._draft(seqs)
        nodes = sum(len(d.tree) for d in drafts)
        self._count(nodes, seqs)
        prompts, lengths = zip(*((s.prompt_length, len(s.tokens)) for s in seqs), strict=True)
        started = self._chosen if self._chosen and self._chosen.starts else None
        self._last = _Last(began, self.clock() - began, self._reading, nodes, started, tuple(seqs), prompts, lengths)
        return drafts

    def _count(self, nodes: int, seqs: Sequence[Request]) -> None:
        self.rounds, self.nodes = self.rounds + 1, self.nodes + nodes
        self.plain_rounds += nodes == len(seqs)
        self._costs.of(len(seqs)).begin(nodes, sum(len(seq.tokens) for seq in seqs))

    # what the last round says

    def _look_back(self, seqs: Sequence[Request], now: float) -> None:
        self._judge(seqs)
        last = self._last
        if last is None or not _same(last, seqs):
            return
        batch, seconds = len(last.seqs), now - last.began
        cost = self._costs.of(batch)
        expected = cost(last.nodes) + last.drafting
        counted = min(seconds, FAR * expected)  # more was a pause
        if last.started is None:
            cost.add(last.nodes, seconds - last.drafting)
        else:  # the target had less to do, so what the round took beyond an ordinary one is the price of its draft
            last.started.known.paid(batch, 0, max(0.0, seconds - cost(last.nodes)))
        if last.nodes == batch:
            self._account.add_plain(counted, last.drafting, expected, once=last.reading)
        else:
            tokens = sum(len(s.tokens) - n for s, n in zip(last.seqs, last.lengths, strict=True))
            self._account.add(counted, tokens * cost(batch) / batch, once=min(last.reading, counted))

    def _judge(self, seqs: Sequence[Request]) -> None:
        """Compare open drafts with what came, once all that they claim can be decided; forget those of requests that were taken out."""
        still, live = [], set(map(id, seqs))
        for asked in self._open:
            seq, came = asked.seq, asked.seq.tokens[asked.length :]
            if seq.prompt_length != asked.prompt_length:  # another turn
                continue
            if seq.finish_reason is None and len(came) < max(asked.draft.tree.depth):
                if id(seq) in live:
                    still.append(asked)
                continue
            found = judged(asked.draft, came)
            asked.part.known.claims.add(found)
            self._requests.claims(asked.part, seq).add(found)
        self._open = still

    # what to draft

    def _draft(self, seqs: Sequence[Request]) -> list[Draft]:
        cost = self._costs.of(len(seqs))
        plain = cost(len(seqs))
        rate = max(1.0, self._account.speedup) * len(seqs) / plain  # tokens per second, of plain decoding at least
        pool = Pool(seqs, self.budget, cost, rate)
        dear = []
        for part in self.parts:
            if part.known.seconds and part.known.price(len(seqs)) <= FREE * plain and not part.starts:
                part.rounds += 1
                pool.add(self._ask(part, seqs, range(len(seqs)))[0])
            else:
                dear.append(part)
        debt = max(0.0, -self._account.slack) / plain
        if self._must_be_plain(cost, sum(len(seq.tokens) for seq in seqs)) or (debt and pool.value() < SURE + min(debt, BACK)):
            return [root_only(seq) for seq in seqs]
        if not debt:
            self._ask_dear(dear, seqs, pool)
        return pool.best()

    def _must_be_plain(self, cost: LiveCost, tokens: int) -> bool:
        """Whether to see what a plain round takes: at the beginning, with a new batch size, on texts of other lengths, and now and then."""
        unknown = (self.rounds < OPENING and cost.plain_rounds < OPENING) or not cost.is_of(tokens)
        return unknown or cost.since_plain >= (STALE if self._account.speedup < CLEAR else 4 * STALE)

    def _ask_dear(self, parts: Sequence[Part], seqs: Sequence[Request], pool: Pool) -> None:
        """Ask at most one drafter that costs something: the one that promises most beyond its price, or one that is due for a trial."""
        promised, before = pool.promised(), pool.value()
        plans = [(*self._plan(part, seqs, promised, before, pool.rate), part) for part in parts]
        net, members, chosen = max(plans, key=lambda plan: plan[0], default=(0.0, [], None))
        on_trial = net <= 0
        if on_trial:
            due = [part for part in parts if part.known.idle >= part.known.pause and self._affords(part, seqs)]
            chosen, members = (due[0], [0]) if due else (None, [])
        for part in parts:
            part.known.rest()
        self._chosen = chosen
        if chosen is None:
            return
        if chosen.steps is not None:
            chosen.steps.limit(pool.cost, pool.rate, asked=len(members), sequences=len(seqs))
        drafts, believed = self._ask(chosen, seqs, members)
        pool.add(drafts)
        chosen.rounds += 1
        chosen.known.asked(on_trial=on_trial)
        gained = (pool.value() - before) / len(members)
        for i in members:
            is_usual = chosen.known.gain(promised[i]).weight >= USUAL
            ratio = chosen.known.learn(promised[i], gained / believed[i])
            if is_usual:
                self._requests.gain(chosen, seqs[i]).add(ratio)

    def _plan(self, part: Part, seqs: Sequence[Request], promised: Sequence[float], at_hand: float, rate: float) -> tuple[float, list[int]]:
        """For which sequences to ask this drafter, and what that promises beyond its price, in tokens. Time is worth what rounds bring at
        the moment, but no more than this one would: where a drafter has just been lucky, plain rounds are no faster for it."""
        plain = self._costs.of(len(seqs))(len(seqs))
        gains = [part.known.gain(promised[i]).value * self._requests.worth(part, seq) for i, seq in enumerate(seqs)]
        spare = max(0.0, self._account.slack)
        readable = [i for i, seq in enumerate(seqs) if self._may_read(part, seq, len(seqs), readers=len(seqs), spare=spare)]
        order = sorted(readable, key=lambda i: -gains[i])
        best, members, total, dear, reading = 0.0, list[int](), 0.0, 0.0, 0.0
        for count, i in enumerate(order, 1):
            total, reading = total + gains[i], reading + self._spread(part, seqs[i])
            dear = max(dear, self._requests.price(part, seqs[i]).value)  # one forward drafts for all, and ends with the last of them
            seconds = part.known.price(count) * dear + reading
            reached = (len(seqs) + at_hand + total) / (plain + seconds)
            net = total - seconds * max(len(seqs) / plain, min(rate, reached))
            if net > best:
                best, members = net, order[:count]
        return best, members

    def _spread(self, part: Part, seq: Request) -> float:
        """Seconds of reading what this drafter has not read of a sequence, spread over the rounds that will surely come."""
        seconds = self._requests.to_read(part, seq)
        return seconds / max(SOON * self._requests.rest(seq) / TAKEN, 1.0) if seconds else 0.0

    def _may_read(self, part: Part, seq: Request, batch: int, *, readers: int, spare: float = 0.0) -> bool:
        """Whether catching up for so many sequences of a batch takes but a small part of the answers' time, `spare` seconds not counted."""
        seconds = self._requests.to_read(part, seq)
        if not seconds:
            return True
        allowed = LITTLE * self._requests.rest(seq) * self._costs.of(batch)(batch) + spare
        return seconds <= allowed / readers

    def _affords(self, part: Part, seqs: Sequence[Request]) -> bool:
        """Whether a trial may cost what it does. What others have gained buys drafts, but no long reading: where they gain much, one more
        adds little."""
        return part.known.price(1) <= self._account.slack and self._may_read(part, seqs[0], len(seqs), readers=1)

    def _ask(self, part: Part, seqs: Sequence[Request], members: Iterable[int]) -> tuple[dict[int, Draft], dict[int, float]]:
        """Its drafts for some of the sequences, by their index, with claims that are to be believed; and what part of its own claims
        those are."""
        asked = list(members)
        behind = sum(self._requests.behind(part, seqs[i]) for i in asked)
        began = self.clock()
        drafts = [with_claims(d) for d in part.drafter.propose([seqs[i] for i in asked])]
        part.starts |= any(d.head_start is not None for d in drafts)
        if not part.starts:
            seconds, usual = self.clock() - began, part.known.price(len(asked))
            if part.known.catches_up(len(asked), behind):
                self._reading += max(0.0, seconds - usual)
            elif usual:
                for i in asked:
                    self._requests.price(part, seqs[i]).add(min(seconds / usual, 3.0))
            part.known.paid(len(asked), behind, seconds)
        believed, parts = {}, {}
        for i, draft in zip(asked, drafts, strict=True):
            seq = seqs[i]
            self._requests.has_read(part, seq)
            if len(draft.tree) > 1:
                self._open.append(_Asked(part, seq, seq.prompt_length, len(seq.tokens), draft))
            believed[i] = self._requests.claims(part, seq).correct(draft)
            parts[i] = promised_by(believed[i]) / max(promised_by(draft), _NOTHING) if len(draft.tree) > 1 else 1.0
        return believed, parts

    @property
    def report(self) -> dict[str, Any]:
        """What was chosen, and why."""
        account, plain = self._account, self._costs.of(1)(1)
        speedup = account.total_plain / account.total_spent if account.total_spent else None
        nodes = self.nodes / max(self.rounds, 1)
        reasons = [] if speedup is None else [f"{nodes:.1f} nodes a round; by its own clock {speedup:.2f} times plain decoding"]
        return {
            "basis": self.basis,
            "rounds": self.rounds,
            "plain_rounds": self.plain_rounds,
            "nodes_per_round": nodes,
            "speedup_by_own_clock": speedup,
            "drafters": {p.name: p.report for p in self.parts},
            "reasons": reasons + [p.worth(plain) for p in self.parts if p.rounds],
        }


def _same(last: _Last, seqs: Sequence[Request]) -> bool:
    """Whether a round's time is that of its sequences alone: none has joined since, and none has begun another turn."""
    known = set(map(id, last.seqs))
    joined = any(id(seq) not in known for seq in seqs)
    return not joined and all(
        s.prompt_length == p and len(s.tokens) > n for s, p, n in zip(last.seqs, last.prompts, last.lengths, strict=True)
    )
