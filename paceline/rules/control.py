"""The control of a lossy rule: it acts as often, under the same guards and budgets, but at places that are chosen by lot. What a method
does no better than its control it owes to acting at all, not to what it looks at.
"""

from __future__ import annotations

import zlib
from array import array

import numpy as np

from .ledger import Request


class Lot:
    """Positions of a request that are due, each with probability `rate` whatever stands there. One that finds no opportunity waits for
    the next, so that the rate holds where opportunities are few. A function of the prompt, the seed and the position alone."""

    def __init__(self, rate: float, seed: int, request: Request) -> None:
        prompt = array("q", request.tokens[: request.prompt_length])
        self._rng, self._rate = np.random.default_rng([zlib.crc32(prompt.tobytes()), seed]), rate
        self._next, self.due = request.prompt_length - 1, 0
        self._draw()

    def _draw(self) -> None:
        self._next += int(self._rng.geometric(self._rate))

    def waits(self, position: int, acted: int) -> bool:
        """Whether more positions up to this one were due than acts there have been. Positions are asked for in any order: a round may
        end before one that it looked at."""
        while self._next <= position:
            self.due += 1
            self._draw()
        return self.due > acted
