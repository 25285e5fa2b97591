"""The control of a lossy rule: it acts as often, under the same guards and budgets, but at places that are chosen by lot. What a method
does no better than its control it owes to acting at all, not to what it looks at.
"""

from __future__ import annotations

import zlib
from array import array
from typing import Any

import numpy as np

from .ledger import Request, need, number, whole


def _source(request: Request, seed: int) -> list[int]:
    """What the lots of a request are drawn from: its prompt and a seed."""
    prompt = array("q", request.tokens[: request.prompt_length])
    return [zlib.crc32(prompt.tobytes()), seed]


class Coin:
    """Falls for a position with probability `rate`. A function of the prompt, the seed and the position alone."""

    def __init__(self, rate: float, seed: int, request: Request) -> None:
        self._rate, self._source = rate, _source(request, seed)

    def falls(self, position: int) -> bool:
        return bool(np.random.default_rng([*self._source, position]).random() < self._rate)


class Lot:
    """Positions of a request that are due, each with probability `rate` whatever stands there. One that finds no opportunity waits for
    the next, so that the rate holds where opportunities are few. A function of the prompt, the seed and the position alone."""

    def __init__(self, rate: float, seed: int, request: Request) -> None:
        self._rng, self._rate = np.random.default_rng(_source(request, seed)), rate
        self._next, self.due = request.prompt_length - 1, 0
        self._draw()

    def _draw(self) -> None:
        self._next += int(self._rng.geometric(self._rate))

    def waits(self, position: int, acted: int) -> bool:
        """Whether more positions up to this one were due than acts there have been."""
        while self._next <= position:
            self.due += 1
            self._draw()
        return self.due > acted


def check_lot(config: Any) -> None:
    """Raise InvalidRequest for a rate or a seed that is none."""
    need(config, "rate", number(config.rate) and 0 < config.rate <= 1, "above 0 and at most 1")
    need(config, "seed", whole(config.seed) and config.seed >= 0, "0 or more")
