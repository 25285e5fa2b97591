"""The report for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from .report import Report
from .summary import FORMULAS

_SHOWN_DIFFERENCES = 20


def show(report: Report, console: Console) -> None:
    """The runs, their ratios per task, the differences, remarks and formulas."""
    lines = [line for line in report["runs"] if not line.get("skipped")]
    console.print("What the runs did", _runs(lines), "", "Speed-ups: ratios of tokens/s", _speedups(lines), "", sep="\n")
    if any(line["by_task"] for line in lines):
        base = "transformers" if any(line["speedup_vs_transformers"] is not None for line in lines) else "none"
        console.print(f"tokens/s by task, as a ratio to {base}", _tasks(lines, base), "", sep="\n")
    _differences(report["differences"], console)
    for remark in report["remarks"]:
        console.print(remark)
    for name, formula in FORMULAS.items():
        console.print(f"{name} = {formula}", style="dim")


def _runs(lines: Sequence[Report]) -> Table:
    heads = "run,rule,batch,tokens,seconds,tokens/s (decode only),target forwards,tokens/forward,mean acceptance (pooled / per request)"
    table = Table(*heads.split(","), "nodes/round", "target / draft / outside forwards", "peak MB", "others' cores", "identical", box=None)
    table.columns[0].no_wrap = True
    for line in lines:
        share = line["time_share"]
        table.add_row(
            line["run"],
            (line["rule"] or "-") + ("" if line["lossless"] else " LOSSY"),
            str(line["batch_size"]),
            str(line["tokens"]),
            f"{line['seconds']:.2f}",
            f"{line['tokens_per_second']:.1f} ({_number(line['decode_tokens_per_second'])})",
            str(line["target_forwards"]),
            f"{line['tokens_per_forward']:.2f}",
            f"{line['mean_acceptance_length']:.2f} / {line['mean_acceptance_length_of_requests']:.2f}",
            _number(line.get("nodes_per_round")),
            " / ".join(f"{share[k]:.1%}" for k in ("target", "draft", "other")),
            _number(line["peak_rss_mb"], 0),
            _number(line["cores_used_by_others"], 2),
            _identical(line),
        )
    return table


def _identical(line: Report) -> str:
    if line["identical"] is None:
        return "-"
    if line["reference"] == line["run"]:
        return "reference"
    own = f"; {line['identical_to_batch1']} of {line['of']} as at batch 1" if "identical_to_batch1" in line else ""
    return f"{line['identical']} of {line['of']}{own}"


def _speedups(lines: Sequence[Report]) -> Table:
    bases = [b for b in ("none", "transformers", "batch1") if any(line.get(f"speedup_vs_{b}") is not None for line in lines)]
    heads = [h for b in bases for h in (f"vs {b}, pooled", "median of prompts [95%]")]
    depths = any(line.get("acceptance_by_depth") for line in lines)
    table = Table("run", *heads, *(["acceptance by depth"] if depths else []), box=None)
    for line in lines:
        cells = [c for b in bases for c in (_times(line.get(f"speedup_vs_{b}")), _median(line, b))]
        kept = " ".join(f"{a:.2f}" for a in line.get("acceptance_by_depth") or [])
        table.add_row(line["run"], *cells, *([kept] if depths else []))
    return table


def _median(line: Report, base: str) -> str:
    median, span = line.get(f"speedup_vs_{base}_median"), line.get(f"speedup_vs_{base}_interval")
    return _times(median) + (f" [{span[0]:.2f}, {span[1]:.2f}]" if span else "")


def _tasks(lines: Sequence[Report], base: str) -> Table:
    tasks = sorted({t for line in lines for t in line["by_task"]})
    table = Table("run", *(t.rpartition("/")[2] for t in tasks), box=None)
    for line in lines:
        table.add_row(line["run"], *(_times(line["by_task"].get(task, {}).get(f"speedup_vs_{base}")) for task in tasks))
    return table


def _differences(differences: Sequence[Report], console: Console) -> None:
    for d in differences[:_SHOWN_DIFFERENCES]:
        console.print(
            f"{d['run']} differs from {d['reference']} on {d['prompt']} at position {d['position']}: "
            f"{d['reference_text']!r} ({d['reference_token']}) there, {d['text']!r} ({d['token']}) here, "
            f"logit margin {_margin(d['logit_margin'])}"
        )
    if len(differences) > _SHOWN_DIFFERENCES:
        console.print(f"and {len(differences) - _SHOWN_DIFFERENCES} more differences, listed in the JSON")


def _margin(value: float | None) -> str:
    return "none: one output ends there" if value is None else f"{value:.6g}"


def _times(value: Any) -> str:
    return "-" if value is None else f"{value:.2f}x"


def _number(value: Any, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
