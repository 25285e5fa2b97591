"""A drafter that an adaptive one may ask, and what is known of it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ..draft import Drafter
from .claims import Claims
from .draft_growth import Further
from .grow import GoesOn

CONTEXTS = (0.3, 1.0, 2.5)  # accepted tokens that the drafts at hand promise already: what one more drafter adds depends on it
GUESS = (1.3, 1.0, 0.7, 0.3)  # tokens per round that a drafter is thought to add there until it has been tried
GUESS_MODEL = (2.5, 2.2, 1.7, 0.5)  # the same of a draft model, by context: it was chosen for this target, and costs more than a round
GUESS_WEIGHT = 2.0  # drafts that a guess counts as
_SETTLED = 30.0  # samples after which a mean follows at a steady pace
_PROFILED = 8.0  # drafts that what a profile says of a drafter counts as at most
_LONG, _READ = 16, 1000  # tokens that count as catching up; that are remembered of it at most
_FIRST_PAUSE, _LONGEST_PAUSE = 8, 256  # rounds
_SHARED, _SURPRISE = 0.7, 3.0  # of what surprises in one context, for the others; more than so many times what was thought is luck
MEASURED = (1, 2, 4, 8)  # sequences for which the price of a draft can be known beforehand


@dataclass
class Mean:
    """Of samples, the latest ones counting most; `weight` is how many it stands for."""

    value: float
    weight: float = 1.0

    def add(self, sample: float) -> None:
        self.weight = min(self.weight + 1, _SETTLED)
        self.value += (sample - self.value) / self.weight


@dataclass
class Known:
    """What is known of a drafter: its price and its worth. It outlives the requests that it was learnt from.

    Args:
        seconds: of a draft, by the number of sequences; empty is unknown, and taken for nothing until it has been asked once.
        catch_up: seconds per token that it has not read yet, such as those of a prompt.
        read: tokens that this figure rests on; as many as it says at first are a guess.
        claims: how far its claims are to be believed.
        drafts: how many a figure of `seconds` rests on. It follows as gains do: a sure draft takes longer and gains more.
        gains: tokens per round that it claims to add to the others' drafts, by context (see CONTEXTS and `adds`).
        tried: whether anything has shown what it adds.
        idle, pause: rounds since it was asked, and rounds after which it is tried again.
    """

    seconds: dict[int, float] = field(default_factory=dict)
    catch_up: float = 0.0
    read: int = 64
    claims: Claims = field(default_factory=Claims)
    drafts: dict[int, float] = field(default_factory=dict)
    gains: list[Mean] = field(default_factory=lambda: [Mean(guess, GUESS_WEIGHT) for guess in GUESS])
    tried: bool = False
    idle: int = 0
    pause: int = _FIRST_PAUSE

    @classmethod
    def of(cls, found: Mapping[str, object]) -> Known:
        """What a profile says (see `record`)."""
        made = cls()
        made.seconds = {int(k): float(v) for k, v in found["seconds"].items()}  # type: ignore[attr-defined]
        made.catch_up = float(found["catch_up"])  # type: ignore[arg-type]
        made.claims = Claims(Claims(counts=found["claims"]))  # type: ignore[arg-type]
        made.drafts = dict.fromkeys(made.seconds, _PROFILED)
        made.gains = [Mean(float(value), min(float(weight), _PROFILED)) for value, weight in found["gains"]]  # type: ignore[attr-defined]
        made.tried = any(gain.weight > GUESS_WEIGHT for gain in made.gains)
        return made

    @property
    def record(self) -> dict[str, object]:
        """For a profile."""
        return {
            "seconds": {str(k): v for k, v in self.seconds.items()},
            "catch_up": self.catch_up,
            "claims": self.claims.counts,
            "gains": [(g.value, g.weight) for g in self.gains],
        }

    def price(self, count: int, behind: int = 0) -> float:
        """Seconds of drafts for so many sequences that have together `behind` tokens which it has not read. Of a number of sequences that
        it was never asked about it is thought to cost as much for each as of the nearest one."""
        if not self.seconds:
            return self.catch_up * behind
        nearest = count if count in self.seconds else min(self.seconds, key=lambda n: (abs(n - count), n))
        return self.seconds[nearest] * max(1.0, count / nearest) + self.catch_up * (behind if self.catches_up(count, behind) else 0)

    def catches_up(self, count: int, behind: int) -> bool:
        """Whether so many unread tokens of so many sequences are more than what a round or two leave behind."""
        return behind > _LONG * count

    def paid(self, count: int, behind: int, seconds: float) -> None:
        """It took so long."""
        if self.catches_up(count, behind):
            extra, before = max(0.0, seconds - self.price(count)) / behind, self.read if self.catch_up else 0
            self.catch_up += (extra - self.catch_up) * behind / (before + behind)
            self.read = min(before + behind, _READ)
        elif known := self.seconds.get(count):
            mean = Mean(known, self.drafts.get(count, 1.0))
            mean.add(min(seconds, 4 * known))  # more was a pause of the machine
            self.seconds[count], self.drafts[count] = mean.value, mean.weight
        else:
            self.seconds[count] = seconds

    def gain(self, promised: float) -> Mean:
        """What it claims to add where the other drafts promise so many accepted tokens."""
        return self.gains[bisect_right(CONTEXTS, promised)]

    def adds(self, promised: float) -> float:
        """What it really adds there: if claims come to nothing, those that were made before are worth no more."""
        return self.gain(promised).value * self.claims.held

    def learn(self, promised: float, claimed: float) -> float:
        """It claims to add so much where the others promise so much; returns how many times the usual that is. A drafter that is better or
        worse than was thought in one context probably is in the others, too: those of which no more is known follow."""
        here, self.tried = self.gain(promised), True
        ratio = min(claimed / max(here.value, 0.05), _SURPRISE)
        for other in self.gains:
            if other is not here and other.weight <= here.weight:
                other.value *= 1 + _SHARED * (ratio - 1) / (here.weight + 1)
        here.add(claimed)
        return ratio

    def rest(self) -> None:
        """It was not asked in this round."""
        self.idle += 1

    def asked(self, *, on_trial: bool) -> None:
        """It was asked, on its merits or to see whether it has any by now; after each trial the next one comes later."""
        self.idle = 0
        self.pause = min(2 * self.pause, _LONGEST_PAUSE) if on_trial else _FIRST_PAUSE


class Stepwise(Protocol):
    """A drafter that asks after each forward but the last whether another one pays (see `grow.GoesOn`)."""

    goes_on: Further | None


@dataclass(frozen=True)
class Steps:
    """A drafter's forwards one after another, and the seconds of one for so many sequences."""

    drafter: Stepwise
    seconds: Callable[[int], float]

    def limit(self, cost: Callable[[int], float], rate: float, *, asked: int, sequences: int) -> None:
        """Let the next draft go on as long as that pays, where time is worth `rate` tokens a second."""
        self.drafter.goes_on = GoesOn(cost, rate, self.seconds(asked) / asked, sequences)


@dataclass
class Part:
    """One drafter that takes part in some requests, and what is known of it."""

    name: str
    drafter: Drafter
    known: Known = field(default_factory=Known)
    rounds: int = 0  # in which it was asked
    starts: bool = False  # whether it begins with the target's own work, so that its drafts must be verified as they are
    measure: Callable[[int], float] | None = None  # tells the seconds of a draft for so many sequences without a text
    steps: Steps | None = None  # where a draft takes several forwards and may end early

    def prepare(self, batch: int) -> None:
        """See what drafts for up to so many sequences cost, where that can be told and is not known yet."""
        if self.measure is not None:
            for count in MEASURED:
                if count < 2 * batch and count not in self.known.seconds:
                    self.known.seconds[count] = self.measure(count)

    @property
    def report(self) -> dict[str, object]:
        """How often it was asked, seconds of a draft, and what it adds by context."""
        return {"rounds": self.rounds, "seconds": self.known.price(1), "gain": [self.known.adds(promised) for promised in (0.0, *CONTEXTS)]}

    def worth(self, plain: float) -> str:
        """What it costs and adds, for people; `plain` are the seconds of a plain round."""
        price = self.known.price(1)
        told = f"{self.name}: {1000 * price:.1f} ms a draft, {price / plain:.2f} plain rounds"
        if not self.known.tried:
            return f"{told}; so cheap that it is always asked"
        little, much = self.known.adds(0.0), self.known.adds(CONTEXTS[-1])
        return f"{told}; it adds {little:.2f} tokens a round where other drafts promise little, {much:.2f} where they promise much"
