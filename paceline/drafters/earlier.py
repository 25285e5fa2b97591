"""How long answers get, as earlier requests of a target have shown: that decides what reading a long prompt for a further drafter is
worth."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

FIRST = (64, 192)  # tokens: two answers that are thought to have been seen before any was
_LAST = 32  # answers that are remembered


@dataclass(eq=False)
class Answer:
    """One that may still grow; `tokens` so far."""

    tokens: int = 0


@dataclass
class Earlier:
    """It outlives requests."""

    answers: deque[Answer] = field(default_factory=lambda: deque(map(Answer, FIRST), _LAST))

    def begin(self) -> Answer:
        self.answers.append(Answer())
        return self.answers[-1]

    def rest(self, answer: Answer, room: int) -> float:
        """Tokens that are still to be expected of one, of at most `room`: what answers longer than it had beyond its length, in the mean.
        One that is longer than all is thought to get twice as long."""
        beyond = [min(other.tokens - answer.tokens, room) for other in self.answers if other.tokens > answer.tokens]
        return sum(beyond) / len(beyond) if beyond else min(answer.tokens, room)
