"""The audit for people."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from .audit import Report

_SHOWN_DIFFERENCES = 20
FORMULAS = {
    "p value": "how likely a lossless rule gives tokens at least this far from the target's law, before correction",
    "detects": "the total variation that the test finds with probability {probability} at its level, {level:.1e}",
    "control": "the likeliest children claimed as draws, and every other miss kept: the same tests must fail on it",
    "acceptance": "probability that a decision ends in a child, mean over the captured rows",
    "bound": "the most that any lossless rule can accept there with such children (optimal transport)",
    "share of bound": "acceptance / bound",
    "total variation": "between emitted and target law, mean over the rows; 0 for a lossless rule, up to its standard error",
}


def show(report: Report, console: Console) -> None:
    """The verdict, the tests, the price, the differences and the warnings."""
    claim = "lossless" if report["lossless"] else "LOSSY"
    console.print(f"rule {report['rule']} says it is {claim}; the tests of losslessness: {report['lossless_tests'].upper()}")
    if report["power"] is not None:
        console.print("", _tests(report), sep="\n")
    console.print("", _price(report), sep="\n")
    for d in report.get("differences", [])[:_SHOWN_DIFFERENCES]:
        console.print(_difference(d))
    for warning in report["warnings"]:
        console.print(f"warning: {warning}")
    for name, formula in FORMULAS.items():
        console.print(f"{name} = {formula.format(**(report['power'] or {'probability': '-', 'level': 0}))}", style="dim")


def _tests(report: Report) -> Table:
    table = Table("test", "tokens", "p value", "control's p value", "detects", box=None)
    for name, p_value in report["p_values"].items():
        detects = report["power"]["detects"][name]
        numbers = _number(p_value, ".3g"), _number(report["control"]["p_values"][name], ".3g"), _number(detects["total_variation"])
        table.add_row(name, str(detects["n"]), *numbers)
    return table


def _price(report: Report) -> Table:
    table = Table(show_header=False, box=None)
    if report["greedy_identical"] is not None:
        ties = f", {report['near_ties']} near ties, {report['greedy_failures']} failures"
        table.add_row("greedy, identical to plain decoding", f"{report['greedy_identical']} of {report['of']}{ties}")
    table.add_row("acceptance", f"{_number(report['acceptance'])} of at most {_number(report['bound'])}")
    table.add_row("share of bound", _number(report["share_of_bound"]))
    table.add_row("acceptance by child", " ".join(f"{a:.3f}" for a in report["acceptance_by_child"] or []) or "-")
    table.add_row("tokens per round", _number(report["tokens_per_round"], ".2f"))
    table.add_row("total variation", f"{_number(report['total_variation'], '.4f')} ± {_number(report['total_variation_error'], '.4f')}")
    return table


def _difference(d: Report) -> str:
    margin = "none: one output ends there" if d["logit_margin"] is None else f"{d['logit_margin']:.4g} of {d['allowed_margin']:.4g} allowed"
    kind, tokens = "near tie" if d["near_tie"] else "FAILURE", f"{d['reference_token']} there, {d['token']} here"
    return f"greedy {kind} on {d['prompt']} at position {d['position']}: {tokens}, logit margin {margin}"


def _number(value: Any, form: str = ".3f") -> str:
    return "-" if value is None else format(value, form)
