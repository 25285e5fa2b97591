"""What the adaptive drafter knows of each request, for as long as it lives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from ..sequence import Sequence as Request
from .claims import BRIEF, Claims
from .earlier import Answer, Earlier
from .part import Mean, Part


@dataclass
class _Own:
    prompt_length: int
    answer: Answer
    claims: dict[str, Claims] = field(default_factory=dict)  # the four by drafter
    gain: dict[str, Mean] = field(default_factory=dict)
    price: dict[str, Mean] = field(default_factory=dict)
    read: dict[str, int] = field(default_factory=dict)


class Requests:
    """The answer of each, and by drafter how far its claims hold here, how its gain and its price compare with the usual, and what it has
    read. A draft model that is unsure gives up early, so that where it gains little it costs little too."""

    def __init__(self, earlier: Earlier) -> None:
        self._earlier = earlier
        self._own: WeakKeyDictionary[Request, _Own] = WeakKeyDictionary()

    def look_at(self, seqs: Sequence[Request]) -> None:
        """Note how long their answers are by now."""
        for seq in seqs:
            self._of(seq).answer.tokens = len(seq.tokens) - seq.prompt_length

    def claims(self, part: Part, seq: Request) -> Claims:
        return self._of(seq).claims.setdefault(part.name, Claims(part.known.claims, most=BRIEF))

    def gain(self, part: Part, seq: Request) -> Mean:
        return self._of(seq).gain.setdefault(part.name, Mean(1.0, 4.0))

    def worth(self, part: Part, seq: Request) -> float:
        """What a token that it usually claims to add is worth here: how much more or less it claims, times how much of that comes true."""
        return self.gain(part, seq).value * self.claims(part, seq).held

    def price(self, part: Part, seq: Request) -> Mean:
        return self._of(seq).price.setdefault(part.name, Mean(1.0, 4.0))

    def has_read(self, part: Part, seq: Request) -> None:
        """It knows all of the text so far."""
        self._of(seq).read[part.name] = len(seq.tokens)

    def behind(self, part: Part, seq: Request) -> int:
        """Tokens that it has not read."""
        return len(seq.tokens) - min(self._of(seq).read.get(part.name, 0), len(seq.tokens))

    def to_read(self, part: Part, seq: Request) -> float:
        """Seconds of reading them."""
        behind = self.behind(part, seq)
        return part.known.catch_up * behind if part.known.catches_up(1, behind) else 0.0

    def rest(self, seq: Request) -> float:
        """Tokens that are still to be expected of the answer."""
        return self._earlier.rest(self._of(seq).answer, seq.room)

    def _of(self, seq: Request) -> _Own:
        own = self._own.get(seq)
        if own is None:
            own = self._own[seq] = _Own(seq.prompt_length, self._earlier.begin())
        elif own.prompt_length != seq.prompt_length:  # another turn
            own.prompt_length, own.answer = seq.prompt_length, self._earlier.begin()
        return own
