"""The report of a sweep: a line per run, each point against the anchor and against its control."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..bench import summary
from ..bench.journal import Row
from ..bench.lineup import Lineup
from ..bench.report import Report
from ..targets.hf import HFTarget
from . import report
from .evaluate import Grades
from .plan import Plan
from .problems import Problem
from .score import FORMULAS as SCORES
from .score import paired
from .sweep import Sweep

FORMULAS = {
    "altered_per_1k": "tokens that the rule altered / tokens * 1000",
    "nats_per_1k": "log-probability given up against the target's own choices along the text / tokens * 1000 (greedy)",
    "total_variation": "mean over positions of the total variation there, of csd exactly, of easd an upper bound (sampled)",
    "speedup": "tokens_per_second / that of the anchor; times of controls were taken later and are left out",
    "rounds_saved": "tokens_per_round / that of the anchor - 1",
    "control": "the rule's guards and budgets, by lot: vetoes as often per token as easd vetoed at this value, rescues of as large a share "
    "of the rejections as passed the tests of csd",
}


def build(plan: Plan, sweep: Sweep, lineup: Lineup, chosen: Sequence[Problem], rows: Sequence[Row], grades: Grades) -> Report:
    """Everything, as strict JSON would have it."""
    ids = [p.id for p in chosen]
    lines = {run.name: _line(plan, sweep, run, ids, rows, grades, lineup.target) for run in lineup.runs}
    anchor = lines[sweep.anchor]
    for line in lines.values():
        line["speedup"] = line["tokens_per_second"] / anchor["tokens_per_second"]
        line["rounds_saved"] = line["tokens_per_round"] / anchor["tokens_per_round"] - 1
    points = [_point(sweep, value, lines, grades, ids) for value in sweep.values]
    return {
        "task": plan.task,
        "problems": len(ids),
        "method": sweep.method,
        "setting": sweep.setting,
        "anchor": anchor,
        "points": points,
        "remarks": remarks(sweep, points),
        "formulas": SCORES | FORMULAS,
        **report.about(plan, lineup),
        "grades": [{"problem": i, "runs": {name: report.grade_of(grades[name][i]) for name in grades}} for i in ids],
        "rows": list(rows),
    }


def _line(plan: Plan, sweep: Sweep, run: Any, ids: Sequence[str], rows: Sequence[Row], grades: Grades, target: HFTarget) -> Report:
    own = summary.of_run(rows, run.name)
    made = report.line_of(plan, run, ids, own, grades[run.name], target)
    outputs = [o for r in own for o in r["outputs"]]
    return {"run": run.name, **made, **price(outputs, run.method, sweep)}


def price(outputs: Sequence[Mapping[str, Any]], method: str, sweep: Sweep) -> Report:
    """How far a run went from the target, from what its rule wrote down."""
    rule = sweep.rule if method == sweep.method else sweep.control
    tokens = sum(len(o["tokens"]) for o in outputs)
    told = [(len(o["tokens"]), o["rules"][rule]) for o in outputs if rule in o.get("rules", {})]
    return {
        "altered_per_1k": 1000 * sum(one["altered"] for _, one in told) / tokens,
        "nats_per_1k": 1000 * sum(one["nats"] for _, one in told) / tokens,
        "total_variation": sum(length * one["total_variation"] for length, one in told) / tokens,
    }


def _point(sweep: Sweep, value: str, lines: Mapping[str, Report], grades: Grades, ids: Sequence[str]) -> Report:
    def right(name: str) -> list[bool]:
        return [grades[name][i].correct for i in ids]

    name, drawn = sweep.point(value), sweep.drawn(value)
    made = {"value": value, "method": lines[name], "vs_anchor": paired(right(sweep.anchor), right(name)), "control": None}
    if drawn in lines:
        made |= {"control": lines[drawn], "vs_control": paired(right(drawn), right(name))}
        made["control_vs_anchor"] = paired(right(sweep.anchor), right(drawn))
    return made


def remarks(sweep: Sweep, points: Sequence[Report]) -> list[str]:
    """What a reader must not miss."""
    found = []
    for point in points:
        name, versus, drawn = sweep.point(point["value"]), point["vs_anchor"], point.get("vs_control")
        if drawn is None:
            found.append(f"{name} altered nothing: the text is the anchor's.")
            continue
        if versus["p_value"] < 0.05:
            verb = "MORE" if versus["difference"] > 0 else "FEWER"
            found.append(f"{name} solves {verb} problems than {sweep.anchor}: p = {versus['p_value']:.3g}, before any correction.")
        low, high = drawn["difference_interval"]
        better = drawn["p_value"] < 0.05 and drawn["difference"] > 0
        found.append(
            f"{name} {'beats' if better else 'does NOT beat'} its control in accuracy: {drawn['difference']:+.1%} "
            f"[{low:+.1%}, {high:+.1%}], p = {drawn['p_value']:.3g}."
        )
    return found
