"""The settings of EASD and of its control, and their presets."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .control import check_coin
from .ledger import LossyConfig, need, number, whole


@dataclass(frozen=True)
class VetoConfig(LossyConfig):
    """What a veto must respect; the defaults are the safe ones. Guards: special tokens, copies, replacements that look the same.

    Raises InvalidRequest naming the setting.
    """

    max_top: float = 0.5  # the target's largest probability, at temperature 1, at most
    min_ratio: float = 0.3  # of its second largest to that, at least
    cooldown: int = 8  # tokens from one flip to the next, at least
    max_nats_per_1k: float | None = 20.0

    @property
    def open_to(self) -> float:
        """The largest probability up to which the second one decides whether the target is too sure."""
        return self.max_top if self.min_ratio else 0.0

    def too_sure(self, top: float, ratio: float) -> str | None:
        """What of the target's largest probability, and of the second one's share of that, speaks against a veto."""
        return "likely" if top > self.max_top else "ratio" if ratio < self.min_ratio else None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("max_top", "min_ratio"):
            need(self, name, number(getattr(self, name)) and 0 <= getattr(self, name) <= 1, "between 0 and 1")
        need(self, "cooldown", whole(self.cooldown) and self.cooldown >= 0, "0 or more")


@dataclass(frozen=True)
class EasdConfig(VetoConfig):
    """When EASD vetoes, and what it must respect."""

    tau_target: float = 2.0  # nats
    tau_draft: float = 2.0
    n: int = 10
    tau_overlap: float = 0.8
    record: bool = False  # keep what was read at every node, for a calibration

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("tau_target", "tau_draft"):
            need(self, name, number(getattr(self, name)) and getattr(self, name) >= 0, "0 or more nats")
        need(self, "n", whole(self.n) and 1 <= self.n <= 1000, "a whole number from 1 to 1000")
        need(self, "tau_overlap", number(self.tau_overlap) and 0 <= self.tau_overlap <= 1, "between 0 and 1")
        need(self, "record", isinstance(self.record, bool), "true or false")

    @property
    def least_shared(self) -> int:
        """How many of the n ids must be shared."""
        return math.ceil(self.tau_overlap * self.n - 1e-9)


@dataclass(frozen=True)
class RandomVetoConfig(VetoConfig):
    """How often the control vetoes: the share `rate` of the places where a veto would change
    something and the target is not too sure for it, as far as the other guards let it."""

    rate: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_coin(self)


_UNBOUNDED = {"guards": False, "max_top": 1.0, "min_ratio": 0.0, "cooldown": 0, "max_nats_per_1k": None}
SAFE = EasdConfig()
PUBLISHED = EasdConfig(**_UNBOUNDED)  # type: ignore[arg-type]
PRESETS = {"safe": SAFE, "published": PUBLISHED}
RANDOM_PRESETS = {"safe": RandomVetoConfig(), "published": RandomVetoConfig(**_UNBOUNDED)}  # type: ignore[arg-type]
