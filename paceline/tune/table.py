"""The tuner's report, for people and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ..bench import environment
from ..cost import SIZES
from .run import Tuning

Report = dict[str, Any]
FORMULAS = {
    "mean acceptance length": "1 + accepted draft tokens / rounds, by a replay over the target's own greedy text",
    "expected tokens/s": "B x mean acceptance length / (mean seconds of a forward over B drafts + those of drafting), the prompt left out",
    "speed-up": "expected tokens/s / that of plain decoding at the same batch size",
}


def as_report(tuning: Tuning, settings: Mapping[str, Any], target: Any) -> Report:
    """Everything, as strict JSON would have it."""
    return {
        "choices": [
            {"batch_size": c.batch_size, **c.line.as_dict(), "options": c.line.options, "reason": c.reason} for c in tuning.choices
        ],
        "candidates": [line.as_dict() for line in tuning.lines],
        "auto": dict(tuning.adaptive),
        "cost": {str(b): {"nodes": curve.sizes, "seconds": curve.seconds} for b, curve in tuning.profile.cost.items()},
        "lacking": dict(tuning.lacking),
        "left_out": dict(tuning.left_out),
        "prompts": [text.key for text in tuning.texts],
        "seconds": tuning.seconds,
        "settings": {k: environment.scrub(str(v)) if isinstance(v, str | Path) else v for k, v in settings.items()},
        "formulas": FORMULAS,
        **environment.provenance(environment.typed_as("paceline"), target.device),
    }


def show(report: Report, console: Console) -> None:
    """Costs, candidates, the choices and what was left out."""
    console.print("Seconds of a forward by nodes, relative to one per sequence", _costs(report["cost"]), "", sep="\n")
    console.print("Candidates", _candidates(report), "", sep="\n")
    for choice in report["choices"]:
        console.print(f"batch {choice['batch_size']}: {choice['options']}; {choice['reason']}")
    auto = report["auto"]
    console.print(
        f"auto on the same texts, one at a time: {auto['speedup']:.2f} times plain decoding, {auto['nodes_per_round']:.1f} nodes a round"
    )
    for name, why in {**report["lacking"], **report["left_out"]}.items():
        console.print(f"{name} was left out: {why}")
    for name, formula in FORMULAS.items():
        console.print(f"{name} = {formula}", style="dim")


def _costs(cost: Report) -> Table:
    table = Table("batch", "nodes: seconds relative to the first (ms of the first)", box=None)
    for batch, curve in cost.items():
        one = curve["seconds"][0]
        shown = [int(batch) * n for n in SIZES]
        steps = " ".join(f"{n}: {s / one:.2f}" for n, s in zip(curve["nodes"], curve["seconds"], strict=True) if n in shown)
        table.add_row(batch, f"{steps} ({1000 * one:.1f} ms)")
    return table


def _candidates(report: Report) -> Table:
    batches = list(report["cost"])
    heads = [f"expected tokens/s (speed-up) at batch {b}" for b in batches]
    table = Table("method", "budget", "mean acceptance length", "nodes/round", "ms a draft", *heads, box=None)
    for line in report["candidates"]:
        speeds = [f"{line['tokens_per_second'][int(b)]:.1f} ({line['speedup'][int(b)]:.2f}x)" for b in batches]
        table.add_row(
            line["method"],
            "-" if line["budget"] is None else str(line["budget"]),
            f"{line['mean_acceptance_length']:.2f}",
            f"{line['nodes_per_round']:.1f}",
            f"{1000 * line['draft_seconds'][1]:.1f}",
            *speeds,
        )
    return table
