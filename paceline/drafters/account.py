"""Real seconds, against what plain decoding would have needed for the same tokens."""

from __future__ import annotations

import math

TOLERANCE = 0.008  # how much slower than plain decoding the recent past may be, in the long run
CREDIT = 2.0  # plain rounds that a request may lose at its beginning: a draft of a draft model takes more than one, and may be unlucky
_FADES, _RECENT, _FOLLOW = 0.99, 0.95, 0.1  # per round
_FIRST = 4.0  # plain rounds that the first belief, no speed-up, counts as


class Account:
    """Sums over the rounds so far. Older ones fade, so that a disturbance of the machine is forgotten."""

    def __init__(self, plain: float) -> None:
        self.spent = self.plain = 0.0  # seconds, and those of plain decoding
        self.total_spent = self.total_plain = 0.0  # without fading
        self._credit = CREDIT * plain
        self._noise = self._drafted = 0.0  # mean square of what plain rounds took beyond what was expected; rounds with drafts
        self._recent = [_FIRST * plain, _FIRST * plain]

    def add(self, seconds: float, plain: float, once: float = 0.0) -> None:
        """A round with drafts took these seconds, and plain decoding would have needed `plain` for its tokens. What was spent `once`, such
        as on reading a prompt, uses up what has been gained, but makes no debt and says nothing of rounds to come."""
        self._drafted = _FADES * self._drafted + 1
        self._sum(seconds, plain, once)

    def add_plain(self, seconds: float, drafting: float, expected: float, once: float = 0.0) -> None:
        """A plain round, which is slower than it might have been by the drafting only. How far it is from what was expected is noise."""
        self._noise += _FOLLOW * (min(abs(seconds - expected), expected) ** 2 - self._noise)
        self._sum(seconds, seconds - drafting, once)

    def _sum(self, seconds: float, plain: float, once: float) -> None:
        covered = min(once, max(0.0, self.slack - self._credit))
        self.total_spent, self.total_plain = self.total_spent + seconds, self.total_plain + plain
        seconds -= once
        self._credit *= _FADES
        self.spent, self.plain = _FADES * self.spent + seconds + covered, _FADES * self.plain + plain
        self._recent = [_RECENT * self._recent[0] + seconds, _RECENT * self._recent[1] + plain]

    @property
    def speedup(self) -> float:
        """Of the most recent rounds over plain decoding."""
        return self._recent[1] / self._recent[0]

    @property
    def slack(self) -> float:
        """Seconds that may still be lost; negative means that drafting has lost too much and must stop for a while. What noise may have
        made of as many rounds, half a standard deviation, is no loss."""
        return self.plain * (1 + TOLERANCE) + self._credit + math.sqrt(self._noise * self._drafted) / 2 - self.spent
