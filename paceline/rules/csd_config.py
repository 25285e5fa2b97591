"""The settings of CSD and of its control, and their presets."""

from __future__ import annotations

from dataclasses import dataclass

from .ledger import check_budgets, check_mode, need, number, whole

TESTS = ("both", "memory", "gate")  # the latter two are ablations: they lose accuracy


@dataclass(frozen=True)
class RescueConfig:
    """What a rescue must respect; the defaults are the safe ones. None is no bound. Raises InvalidRequest naming the setting."""

    mode: str = "on"
    guards: bool = True  # special tokens, numbers, comparisons, brackets, the first token
    streak: int | None = 2  # rescues in a row
    overshoot: float = 0.1  # kappa, sampled: the target's probability is at least so much of the draft's
    max_nats: float | None = None  # per request
    max_nats_per_1k: float | None = 40.0  # per thousand tokens

    def __post_init__(self) -> None:
        check_mode(self.mode)
        need(self, "streak", self.streak is None or (number(self.streak) and self.streak >= 1), "none or at least 1")
        need(self, "overshoot", number(self.overshoot) and 0 <= self.overshoot <= 1, "between 0 (off) and 1")
        need(self, "guards", isinstance(self.guards, bool), "true or false")
        check_budgets(self)

    @property
    def budgets(self) -> tuple[float | None, float | None]:
        """Nats per request, and per thousand tokens."""
        return self.max_nats, self.max_nats_per_1k


@dataclass(frozen=True)
class CsdConfig(RescueConfig):
    """When CSD rescues, and what it must respect."""

    min_count: float = 6  # lambda: a pair must be seen more often
    tau: float = 0.01
    tests: str = "both"
    recent: bool = True  # a pair must be frequent among recent sightings too

    def __post_init__(self) -> None:
        super().__post_init__()
        need(self, "min_count", number(self.min_count) and self.min_count >= 0, "0 or more")
        need(self, "tau", number(self.tau) and 0 < self.tau <= 1, "above 0 and at most 1")
        need(self, "tests", self.tests in TESTS, f"one of {', '.join(TESTS)}")
        need(self, "recent", isinstance(self.recent, bool), "true or false")


@dataclass(frozen=True)
class RandomRescueConfig(RescueConfig):
    """How often the control rescues: `rate` per token, wherever something was rejected and the guards let it."""

    rate: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        need(self, "rate", number(self.rate) and 0 < self.rate <= 1, "above 0 and at most 1")
        need(self, "seed", whole(self.seed) and self.seed >= 0, "0 or more")


SAFE = CsdConfig()
PUBLISHED = CsdConfig(recent=False, guards=False, streak=None, overshoot=0.0, max_nats_per_1k=None)
PRESETS = {"safe": SAFE, "published": PUBLISHED}
RANDOM_PRESETS = {
    "safe": RandomRescueConfig(),
    "published": RandomRescueConfig(guards=False, streak=None, overshoot=0.0, max_nats_per_1k=None),
}
