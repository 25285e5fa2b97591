"""What a lossy rule did to one request: whether the reply was altered, how often, why, and what that cost in nats.

A ledger lives with its sequence (`Sequence.ledgers`) and ends with the request, so it survives preemption and nothing of it reaches
another request. It holds positions: what a rule did behind the end of a sequence is not counted.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..errors import InvalidRequest

MODES = ("off", "shadow", "on")  # shadow counts what would have happened, and changes nothing


class Request(Protocol):
    """What a ledger needs to know of a sequence."""

    tokens: list[int]
    prompt_length: int
    ledgers: dict[str, Any]


@dataclass(frozen=True)
class Event:
    """A rule looked twice at the token at `position` of the sequence. `refusal` says why it did nothing; None if it acted.

    `nats` are the log-probability given up, `moved` the total variation at this position if the request is sampled.
    """

    position: int
    drafted: int
    target: int  # the token that stands against it: the target's own, or for a veto the replacement
    nats: float = 0.0
    moved: float = 0.0
    refusal: str | None = None


@dataclass
class Ledger:
    """The events of one rule and one request. `budget` are nats per request, `budget_per_1k` per thousand tokens (the first
    thousand count in full); None is no bound."""

    mode: str
    budget: float | None = None
    budget_per_1k: float | None = None
    events: list[Event] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)
    spent: float = 0.0
    acted: list[int] = field(default_factory=list)  # positions

    def add(self, event: Event) -> None:
        self.events.append(event)
        if event.refusal is None:
            self.acted.append(event.position)
            self.spent += event.nats

    def affords(self, nats: float, request: Request) -> bool:
        """Whether so many nats more stay within the budgets."""
        produced = len(request.tokens) - request.prompt_length
        bounds = [self.budget, None if self.budget_per_1k is None else self.budget_per_1k * max(produced, 1000) / 1000]
        return all(bound is None or self.spent + nats <= bound for bound in bounds)

    def close(self, request: Request) -> None:
        """The request is finished."""

    def summary(self, request: Request) -> dict[str, Any]:
        """What became of the tokens that were kept."""
        kept = [e for e in self.events if e.position < len(request.tokens)]
        acted = [e for e in kept if e.refusal is None]
        produced = max(1, len(request.tokens) - request.prompt_length)
        pairs = Counter((e.drafted, e.target) for e in acted)
        return {
            "mode": self.mode,
            "altered": len(acted) if self.mode == "on" else 0,
            "would_alter": len(acted) if self.mode == "shadow" else 0,
            "nats": sum(e.nats for e in acted),
            "total_variation": sum(e.moved for e in acted) / produced,
            "refused": dict(Counter(e.refusal for e in kept if e.refusal is not None)),
            "seen": dict(self.seen),
            "positions": [e.position - request.prompt_length for e in acted],
            "pairs": [[drafted, target, count] for (drafted, target), count in pairs.most_common(10)],
        }


def summaries(request: Request) -> dict[str, Any]:
    """By rule, what lossy rules did to this request. `altered` counts tokens that are not what the rule inside would have given."""
    return {name: ledger.summary(request) for name, ledger in request.ledgers.items()}


def close(request: Request) -> None:
    """A reader says that the request is finished, so that a shared memory may learn of it."""
    for ledger in request.ledgers.values():
        ledger.close(request)


def pooled(found: list[dict[str, Any]]) -> dict[str, Any]:
    """The summaries of several requests as one: sums, by rule."""
    total: dict[str, Any] = {}
    for rule, one in ((rule, one) for each in found for rule, one in each.items()):
        into = total.setdefault(
            rule, {"mode": one["mode"], "requests": 0, "altered_requests": 0, "altered": 0, "would_alter": 0, "nats": 0.0}
        )
        into["requests"] += 1
        into["altered_requests"] += one["altered"] > 0
        for name in ("altered", "would_alter", "nats"):
            into[name] += one[name]
        for name in ("refused", "seen"):
            into[name] = dict(Counter(into.get(name, {})) + Counter(one[name]))
    return total


def check_mode(mode: str) -> None:
    """Raise InvalidRequest for a mode that is none."""
    if mode not in MODES:
        raise InvalidRequest(f"mode is {mode!r}; it must be one of {', '.join(MODES)}")


def need(config: object, field_name: str, ok: bool, wants: str) -> None:
    """Raise InvalidRequest naming a setting of a rule and its value, unless it is ok."""
    if not ok:
        raise InvalidRequest(f"{field_name} is {getattr(config, field_name)!r}; it must be {wants}")


@dataclass(frozen=True)
class LossyConfig:
    """What every lossy rule is told. Budgets are in nats, None is no bound. Raises InvalidRequest naming the setting."""

    mode: str = "on"
    guards: bool = True
    max_nats: float | None = None  # per request
    max_nats_per_1k: float | None = None  # per thousand tokens

    def __post_init__(self) -> None:
        check_mode(self.mode)
        need(self, "guards", isinstance(self.guards, bool), "true or false")
        for name in ("max_nats", "max_nats_per_1k"):
            value = getattr(self, name)
            need(self, name, value is None or (number(value) and value >= 0), "none or 0 and more")

    @property
    def budgets(self) -> tuple[float | None, float | None]:
        """Nats per request, and per thousand tokens."""
        return self.max_nats, self.max_nats_per_1k


def whole(value: object) -> bool:
    """Whether it is a whole number."""
    return isinstance(value, int) and not isinstance(value, bool)


def number(value: object) -> bool:
    """Whether it is a number, infinite ones included."""
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)


def configured(presets: Mapping[str, Any], settings: Mapping[str, Any], rule: str) -> Any:
    """A preset with settings over it; text values are read as numbers, true, false or none. Raises InvalidRequest."""
    given = dict(settings)
    name = given.pop("preset", "safe")
    if name not in presets:
        raise InvalidRequest(f"{rule}.preset is {name!r}; it must be one of {', '.join(presets)}")
    known = {f.name for f in dataclasses.fields(presets[name])}
    if unknown := sorted(given.keys() - known):
        raise InvalidRequest(f"rule {rule} has no setting {unknown[0]!r}; it has preset, {', '.join(sorted(known))}")
    return dataclasses.replace(presets[name], **{key: _value(f"{rule}.{key}", value, presets[name], key) for key, value in given.items()})


def _value(where: str, value: Any, preset: Any, key: str) -> Any:
    like = getattr(preset, key)
    if not isinstance(value, str) or (isinstance(like, str) and value != "none"):
        return value
    words = {"true": True, "false": False, "none": None}
    if value in words:
        return words[value]
    try:
        return int(value) if value.lstrip("-").isdigit() else float(value)
    except ValueError:
        raise InvalidRequest(f"{where} is {value!r}; give a number, true, false or none") from None
