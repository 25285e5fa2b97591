"""The price of a lossy rule: accuracy, speed and distance from the target along a sweep of one setting, beside the rule inside, which is
the anchor, and a control that acts by lot as often as the rule did at each value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..bench.journal import Journal, Row
from ..bench.lineup import Lineup
from ..errors import InvalidRequest
from ..lossy import rules_around
from .evaluate import Advance, Encoded, Models, SeededRun, decode_runs, encode_all, unheard
from .plan import Plan
from .problems import Problem

CONTROLS = {"csd": "random_rescue", "easd": "random_veto"}
_SHARED = ("preset", "guards", "streak", "overshoot", "max_top", "min_ratio", "cooldown", "max_nats", "max_nats_per_1k")


@dataclass(frozen=True)
class Sweep:
    """A method with a lossy rule around another one, and the values of one of its settings, from the strictest on or back."""

    method: str
    setting: str  # csd.tau
    values: tuple[str, ...]

    def __post_init__(self) -> None:
        around = rules_around(self.method)
        if len(around) != 1 or around[0] not in CONTROLS:
            raise InvalidRequest(f"a sweep needs a method with one of the rules {', '.join(CONTROLS)}, and {self.method!r} has {around}")
        if self.setting.partition(".")[0] != around[0] or self.setting == f"{around[0]}.mode":
            raise InvalidRequest(f"--sweep names {self.setting!r}; name a setting of {around[0]} other than its mode")
        if len(set(self.values)) < len(self.values):
            raise InvalidRequest(f"--sweep gives a value twice: {', '.join(self.values)}")

    @classmethod
    def parse(cls, method: str, text: str) -> Sweep:
        """From NAME=VALUE,VALUE. Raises InvalidRequest."""
        setting, _, values = (part.strip() for part in text.partition("="))
        found = tuple(v.strip() for v in values.split(",") if v.strip())
        if "." not in setting or not found:
            raise InvalidRequest(f"--sweep {text!r} is none; write it as csd.tau=0.3,0.1,0.01")
        return cls(method, setting, found)

    @property
    def rule(self) -> str:
        return self.setting.partition(".")[0]

    @property
    def control(self) -> str:
        return CONTROLS[self.rule]

    @property
    def anchor(self) -> str:
        """The method without the rule."""
        return self._with(None)

    @property
    def control_method(self) -> str:
        return self._with(self.control)

    def _with(self, rule: str | None) -> str:
        drafter, _, names = self.method.partition("/")
        kept = [rule if name == self.rule else name for name in names.split("+")]
        inside = "+".join(name for name in kept if name is not None)
        return f"{drafter}/{inside}" if inside else drafter

    def point(self, value: str) -> str:
        """The name of a run at a value."""
        return f"{self.setting}={value}"

    def drawn(self, value: str) -> str:
        """The name of its control."""
        return f"{self.control} as often as {self.point(value)}"


def plan_at(plan: Plan, sweep: Sweep, value: str) -> Plan:
    """The plan of one point. Raises InvalidRequest for a value that the rule refuses."""
    settings = {**(plan.settings.rule_settings or {}), sweep.setting: value}
    return _with(plan, sweep.method, rule_mode="on", rule_settings=settings)


def plan_of_anchor(plan: Plan, sweep: Sweep) -> Plan:
    return _with(plan, sweep.anchor, memory=None, thresholds=None, rule_mode=None, rule_settings=None)


def plan_of_control(plan: Plan, sweep: Sweep, rate: float) -> Plan:
    """The control at this rate, with the guards and budgets of the rule. A swept one is the rule's own where it has it."""
    own = {f"{sweep.control}.rate": repr(rate)}
    for name, value in (plan.settings.rule_settings or {}).items():
        if (shared := name.partition(".")[2]) in _SHARED:
            own[f"{sweep.control}.{shared}"] = value
    return _with(plan, sweep.control_method, memory=None, thresholds=None, rule_mode="on", rule_settings=own)


def _with(plan: Plan, method: str, **changes: Any) -> Plan:
    return replace(plan, settings=replace(plan.settings, methods=(method,), **changes))


def check(plan: Plan, sweep: Sweep) -> None:
    """Raise InvalidRequest for a point that cannot be, before any model is loaded."""
    plan_of_anchor(plan, sweep)
    plan_of_control(plan, sweep, 0.5)
    for value in sweep.values:
        plan_at(plan, sweep, value)


def run_sweep(plan: Plan, sweep: Sweep, models: Models, chosen: Sequence[Problem], journal: Journal, advance: Advance = unheard) -> Lineup:
    """Anchor and points in turn, then the controls of the points that did anything, in turn. Rows go into the journal."""
    encoded = encode_all(models[0], plan, chosen)
    runs = [SeededRun(sweep.anchor, models, plan_of_anchor(plan, sweep), encoded.seeds, sweep.anchor)]
    runs += [SeededRun(sweep.method, models, plan_at(plan, sweep, v), encoded.seeds, sweep.point(v)) for v in sweep.values]
    lineup = Lineup(models[0], list(runs))
    decode_runs(lineup, plan, encoded, journal, advance)
    controls = _controls(plan, sweep, models, encoded, journal.rows)
    if controls:
        decode_runs(Lineup(models[0], list(controls)), plan, encoded, journal, lambda *a: advance("decoding controls", *a[1:]))
    lineup.runs += controls
    return lineup


def _controls(plan: Plan, sweep: Sweep, models: Models, encoded: Encoded, rows: Sequence[Row]) -> list[SeededRun]:
    made = []
    for value in sweep.values:
        at = plan_at(plan, sweep, value)
        if rate := RATES[sweep.rule](rows, sweep.point(value)):
            control = plan_of_control(at, sweep, rate)
            made.append(SeededRun(sweep.control_method, models, control, encoded.seeds, sweep.drawn(value)))
    return made


def wanted_of_open(rows: Sequence[Row], run: str) -> float:
    """At how many of the places where it could change something `easd` wanted to; what guards and budgets say after that they say to the
    control too."""
    found = _told(_outputs(rows, run), "easd")
    wanted: int = sum(told["altered"] + sum(told["refused"].values()) for told in found)
    places: int = sum(told["seen"].get("open", 0) for told in found)
    return wanted / max(1, places)


def passed_of_rejections(rows: Sequence[Row], run: str) -> float:
    """How many of a run's rejections passed the tests of `csd`; what its guards and budgets say after that they say to the control too."""
    passed, seen = 0, 0
    for told in _told(_outputs(rows, run), "csd"):
        rejections = told["altered"] + sum(told["refused"].values())
        passed += rejections - sum(told["refused"].get(test, 0) for test in ("frequency", "gate"))
        seen += rejections
    return passed / max(1, seen)


RATES = {"csd": passed_of_rejections, "easd": wanted_of_open}  # of the controls


def _outputs(rows: Sequence[Row], run: str) -> list[dict[str, Any]]:
    return [o for r in rows if r["run"] == run for o in r["outputs"]]


def _told(outputs: Sequence[dict[str, Any]], rule: str) -> list[dict[str, Any]]:
    return [o["rules"][rule] for o in outputs if rule in o.get("rules", {})]
