"""The report for people."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from ..bench.report import Report
from .score import FORMULAS


def show(report: Report, console: Console) -> None:
    """Accuracy and speed of each method, each against the first, how answers ended, remarks and formulas."""
    lines = report["methods"]
    console.print(f"{report['task']}, {report['problems']} problems", _methods(lines), "", sep="\n")
    if any(line["vs_first"] for line in lines):
        where = f" in {report['against']['file']}" if report["against"] else ""
        console.print(f"against {report['first']}{where}, on the same problems", _pairs(lines), "", sep="\n")
    for line in lines:
        console.print(f"{line['method']}: " + ", ".join(f"{n} {kind}" for kind, n in sorted(line["outcomes"].items(), key=lambda x: -x[1])))
    for line in lines:
        for rule, did in line["rules"].items():
            altered = f"altered {did['altered']} tokens in {did['altered_requests']} of {did['requests']} answers, {did['nats']:.2f} nats"
            console.print(f"{line['method']}: rule {rule} ({did['mode']}) {altered}, would have altered {did['would_alter']}")
            if did["kinds"]:
                console.print("  of these: " + ", ".join(f"{count} {kind}" for kind, count in did["kinds"].items()))
    for remark in report["remarks"]:
        console.print(remark)
    for name, formula in FORMULAS.items():
        console.print(f"{name} = {formula}", style="dim")


def _methods(lines: list[Report]) -> Table:
    table = Table("method", "rule", "correct", "accuracy [95%]", "tokens/s", "tokens/round", "tokens", "cut short", "different", box=None)
    for line in lines:
        low, high = line["interval"]
        table.add_row(
            line["method"],
            line["rule"] + ("" if line["lossless"] else " LOSSY"),
            str(line["correct"]),
            f"{line['accuracy']:.1%} [{low:.1%}, {high:.1%}]",
            f"{line['tokens_per_second']:.1f}",
            f"{line['tokens_per_round']:.2f}",
            str(line["tokens"]),
            str(line["cut_short"]),
            "-" if line["different"] is None else str(line["different"]),
        )
    return table


def _pairs(lines: list[Report]) -> Table:
    table = Table("method", "both right", "only the first", "only this", "neither", "difference [95%]", "McNemar p", box=None)
    for line in lines:
        if (versus := line["vs_first"]) is None:
            continue
        low, high = versus["difference_interval"]
        counts = (str(versus[name]) for name in ("both", "only_first", "only_this", "neither"))
        table.add_row(line["method"], *counts, f"{versus['difference']:+.1%} [{low:+.1%}, {high:+.1%}]", f"{versus['p_value']:.3g}")
    return table
