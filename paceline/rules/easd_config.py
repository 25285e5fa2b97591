"""The settings of EASD, and its presets."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .ledger import check_mode, need, number


@dataclass(frozen=True)
class EasdConfig:
    """Settings; the defaults are the safe ones. None is no bound. Raises InvalidRequest naming the setting."""

    mode: str = "on"
    tau_target: float = 2.0  # nats
    tau_draft: float = 2.0
    n: int = 10
    tau_overlap: float = 0.8
    guards: bool = True  # special tokens, copies, replacements that look the same
    max_top: float = 0.5  # the target's largest probability, at temperature 1, at most
    min_ratio: float = 0.3  # of its second largest to that, at least
    cooldown: int = 8  # tokens from one flip to the next, at least
    max_nats: float | None = None  # per request
    max_nats_per_1k: float | None = 20.0  # per thousand tokens
    record: bool = False  # keep what was read at every node, for a calibration

    def __post_init__(self) -> None:
        check_mode(self.mode)
        for name in ("tau_target", "tau_draft"):
            need(self, name, number(getattr(self, name)) and getattr(self, name) >= 0, "0 or more nats")
        need(self, "n", isinstance(self.n, int) and not isinstance(self.n, bool) and 1 <= self.n <= 1000, "a whole number from 1 to 1000")
        for name in ("tau_overlap", "max_top", "min_ratio"):
            need(self, name, number(getattr(self, name)) and 0 <= getattr(self, name) <= 1, "between 0 and 1")
        need(self, "cooldown", isinstance(self.cooldown, int) and not isinstance(self.cooldown, bool) and self.cooldown >= 0, "0 or more")
        for name in ("max_nats", "max_nats_per_1k"):
            value = getattr(self, name)
            need(self, name, value is None or (number(value) and value >= 0), "none or 0 and more")
        for name in ("guards", "record"):
            need(self, name, isinstance(getattr(self, name), bool), "true or false")

    @property
    def least_shared(self) -> int:
        """How many of the n ids must be shared."""
        return math.ceil(self.tau_overlap * self.n - 1e-9)


SAFE = EasdConfig()
PUBLISHED = EasdConfig(guards=False, max_top=1.0, min_ratio=0.0, cooldown=0, max_nats_per_1k=None)
PRESETS = {"safe": SAFE, "published": PUBLISHED}
