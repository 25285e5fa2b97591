"""What earlier requests of a target have shown as a whole: how long answers get, and whether drafting pays.

The first decides what reading a long prompt for a further drafter is worth, the second how much a request may lose before it has gained.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

FIRST = (64, 192)  # tokens: two answers that are thought to have been seen before any was
_LAST, _FADES = 32, 0.99  # answers that are remembered; of what was gained, by round


@dataclass(eq=False)
class Answer:
    """One that may still grow; `tokens` so far."""

    tokens: int = 0


@dataclass
class Earlier:
    """It outlives requests. `gained` are the plain rounds that the last hundred rounds or so have saved."""

    answers: deque[Answer] = field(default_factory=lambda: deque(map(Answer, FIRST), _LAST))
    gained: float = 0.0

    def begin(self) -> Answer:
        self.answers.append(Answer())
        return self.answers[-1]

    def rest(self, answer: Answer, room: int) -> float:
        """Tokens that are still to be expected of one, of at most `room`: what answers longer than it had beyond its length, in the mean.
        One that is longer than all is thought to get twice as long."""
        beyond = [min(other.tokens - answer.tokens, room) for other in self.answers if other.tokens > answer.tokens]
        return sum(beyond) / len(beyond) if beyond else min(answer.tokens, room)

    def gain(self, rounds: float) -> None:
        """A round has saved so many plain ones; a negative number is a loss."""
        self.gained = _FADES * self.gained + rounds
