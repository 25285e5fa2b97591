"""A sweep for people: a table, and a plot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ..bench.report import Report
from ..errors import PacelineError
from ..report.figures import COLOURS, empty


def show(report: Report, console: Console) -> None:
    """Anchor, points and controls, remarks and formulas."""
    table = Table("run", "correct", "accuracy [95%]", "vs anchor", "vs control", "tokens/round", "tokens/s", box=None)
    for name in ("altered/1k", "nats/1k", "TV"):
        table.add_column(name, justify="right")
    _add(table, report["anchor"], "-", "-", timed=True)
    for point in report["points"]:
        _add(table, point["method"], _difference(point["vs_anchor"]), _difference(point.get("vs_control")), timed=True)
        if point["control"] is not None:
            _add(table, point["control"], _difference(point["control_vs_anchor"]), "-", timed=False)
    console.print(f"{report['method']} along {report['setting']}: {report['task']}, {report['problems']} problems", table, "", sep="\n")
    for remark in report["remarks"]:
        console.print(remark)
    for name, formula in report["formulas"].items():
        console.print(f"{name} = {formula}", style="dim")


def _add(table: Table, line: Report, anchor: str, control: str, *, timed: bool) -> None:
    low, high = line["interval"]
    table.add_row(
        line["run"],
        str(line["correct"]),
        f"{line['accuracy']:.1%} [{low:.1%}, {high:.1%}]",
        anchor,
        control,
        f"{line['tokens_per_round']:.2f} ({line['rounds_saved']:+.1%})",
        f"{line['tokens_per_second']:.1f} ({line['speedup']:.2f}x)" if timed else "-",
        f"{line['altered_per_1k']:.1f}",
        f"{line['nats_per_1k']:.2f}",
        f"{line['total_variation']:.4f}",
    )


def _difference(versus: Report | None) -> str:
    return "-" if versus is None else f"{versus['difference']:+.1%} p={versus['p_value']:.2g}"


def plot(report: Report, file: Path) -> None:
    """Accuracy and tokens per round against the tokens altered, for the rule and its control. The file's ending says the format.

    Raises PacelineError without matplotlib, or where the file cannot be written.
    """
    figure, (left, right) = empty(10, 4, columns=2)
    anchor, (low, high) = report["anchor"], report["anchor"]["interval"]
    left.axhspan(low, high, alpha=0.15, color="gray", lw=0)
    left.axhline(anchor["accuracy"], color="gray", lw=1, label=f"{anchor['run']}, 95% interval")
    right.axhline(anchor["tokens_per_round"], color="gray", lw=1, label=anchor["run"])
    for kind, colour, marker in (("method", COLOURS[0], "o"), ("control", COLOURS[1], "s")):
        lines = [p[kind] for p in report["points"] if p[kind] is not None]
        label = report["method"] if kind == "method" else "control, by lot"
        _curve(left, right, lines, label=label, color=colour, marker=marker)
    for point in report["points"]:
        line = point["method"]
        left.annotate(point["value"], (line["altered_per_1k"], line["accuracy"]), textcoords="offset points", xytext=(4, 4), fontsize=8)
    left.set(xlabel="tokens altered per 1000", ylabel="accuracy", title=f"{report['task']}, {report['problems']} problems")
    right.set(xlabel="tokens altered per 1000", ylabel="tokens per round", title=f"along {report['setting']}")
    for axes in (left, right):
        axes.legend(fontsize=8)
    try:
        figure.savefig(file, dpi=150)
    except (OSError, ValueError) as error:
        raise PacelineError(f"the plot cannot be written to {file} ({error}); give a name such as sweep.png or sweep.svg") from None


def _curve(left: Any, right: Any, lines: list[Report], **style: Any) -> None:
    lines = sorted(lines, key=lambda line: line["altered_per_1k"])
    x, y = [line["altered_per_1k"] for line in lines], [line["accuracy"] for line in lines]
    off = [
        [max(0.0, line["accuracy"] - line["interval"][0]) for line in lines],
        [max(0.0, line["interval"][1] - line["accuracy"]) for line in lines],
    ]
    left.errorbar(x, y, yerr=off, capsize=3, lw=1, **style)
    right.plot(x, [line["tokens_per_round"] for line in lines], lw=1, **style)
