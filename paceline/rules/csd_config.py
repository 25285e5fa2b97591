"""The settings of CSD and of its control, and their presets."""

from __future__ import annotations

from dataclasses import dataclass

from .control import check_coin
from .ledger import LossyConfig, need, number

TESTS = ("both", "memory", "gate")  # the latter two are ablations: they lose accuracy


@dataclass(frozen=True)
class RescueConfig(LossyConfig):
    """What a rescue must respect; the defaults are the safe ones. Guards: special tokens, numbers, comparisons, brackets, the first token.

    Raises InvalidRequest naming the setting.
    """

    streak: int | None = 2  # rescues in a row; None is no bound
    overshoot: float = 0.1  # kappa, sampled: the target's probability is at least so much of the draft's
    max_nats_per_1k: float | None = 40.0

    def __post_init__(self) -> None:
        super().__post_init__()
        need(self, "streak", self.streak is None or (number(self.streak) and self.streak >= 1), "none or at least 1")
        need(self, "overshoot", number(self.overshoot) and 0 <= self.overshoot <= 1, "between 0 (off) and 1")


@dataclass(frozen=True)
class CsdConfig(RescueConfig):
    """When CSD rescues, and what it must respect."""

    min_count: float = 6  # lambda: a pair must be seen more often
    tau: float = 0.01
    tests: str = "both"
    recent: bool = True  # a pair must be frequent among recent sightings too
    symmetric: bool = True  # sightings of a pair's reverse count as well

    def __post_init__(self) -> None:
        super().__post_init__()
        need(self, "min_count", number(self.min_count) and self.min_count >= 0, "0 or more")
        need(self, "tau", number(self.tau) and 0 < self.tau <= 1, "above 0 and at most 1")
        need(self, "tests", self.tests in TESTS, f"one of {', '.join(TESTS)}")
        need(self, "recent", isinstance(self.recent, bool), "true or false")
        need(self, "symmetric", isinstance(self.symmetric, bool), "true or false")


@dataclass(frozen=True)
class RandomRescueConfig(RescueConfig):
    """How often the control rescues: the share `rate` of the rejections, as far as the guards let it."""

    rate: float = 0.3
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_coin(self)


SAFE = CsdConfig()
PUBLISHED = CsdConfig(recent=False, symmetric=False, guards=False, streak=None, overshoot=0.0, max_nats_per_1k=None)
PRESETS = {"safe": SAFE, "published": PUBLISHED}
RANDOM_PRESETS = {
    "safe": RandomRescueConfig(),
    "published": RandomRescueConfig(guards=False, streak=None, overshoot=0.0, max_nats_per_1k=None),
}
