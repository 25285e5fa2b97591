"""The control of a lossy rule: it acts as often, under the same guards and budgets, but at places that are chosen by lot. What a method
does no better than its control it owes to acting at all, not to what it looks at.
"""

from __future__ import annotations

import zlib
from array import array
from typing import Any

import numpy as np

from .ledger import Request, need, number, whole


class Coin:
    """Falls for a position with probability `rate`: a function of the prompt, the seed and the position alone."""

    def __init__(self, rate: float, seed: int, request: Request) -> None:
        prompt = array("q", request.tokens[: request.prompt_length])
        self._rate, self._source = rate, (zlib.crc32(prompt.tobytes()), seed)

    def falls(self, position: int) -> bool:
        return bool(np.random.default_rng([*self._source, position]).random() < self._rate)


def check_coin(config: Any) -> None:
    """Raise InvalidRequest for a rate or a seed that is none."""
    need(config, "rate", number(config.rate) and 0 < config.rate <= 1, "above 0 and at most 1")
    need(config, "seed", whole(config.seed) and config.seed >= 0, "0 or more")
