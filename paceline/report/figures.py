"""Figures of a bench, by matplotlib. The colours are told apart by people who see few."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import PacelineError
from .cases import Bench, is_base, runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#000000", "#f0e442")
_SHARES = ("target", "draft", "other")


def figures(bench: Bench, curves: Mapping[str, Mapping[int, float]] | None = None) -> dict[str, Figure]:
    """By name: speedup, acceptance, time and, with curves (by batch size, nodes -> seconds), cost. Raises PacelineError if there is no
    matplotlib."""
    found = {"speedup": _speedup(bench), "time": _time(bench)}
    if any(r.get("acceptance_by_depth") for r in runs(bench)):
        found["acceptance"] = _acceptance(bench)
    if curves:
        found["cost"] = _cost(curves)
    return found


def svg(figure: Figure) -> str:
    """As markup for a page."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue()[text.getvalue().index("<svg") :]


def save(made: Mapping[str, Figure], folder: Path, kinds: Sequence[str] = ("png", "svg", "pdf")) -> None:
    """Write each figure in each kind. Raises PacelineError if the folder cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, figure in made.items():
            for kind in kinds:
                figure.savefig(folder / f"{name}.{kind}", dpi=200)
    except OSError as error:
        raise PacelineError(f"the figures cannot be written to {folder} ({error.strerror}); make room, or name another folder") from None


def empty(width: float, height: float, columns: int = 1) -> tuple[Figure, Any]:
    """A figure of so many inches, and its axes side by side. Raises PacelineError if there is no matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise PacelineError("figures need matplotlib; pip install 'paceline[bench]'") from None
    made = Figure(figsize=(width, height), layout="constrained")
    return made, made.subplots(1, columns)


def _speedup(bench: Bench) -> Figure:
    """Pooled speed-up over plain decoding, with the interval of the median over prompts."""
    chosen = [r for r in runs(bench) if r.get("speedup_vs_none") is not None][::-1]
    made, axes = empty(7, 1 + 0.38 * len(chosen))
    for place, run in enumerate(chosen):
        colour = "#999999" if run.get("rule") is None or is_base(run) else COLOURS[0 if run["lossless"] else 4]
        axes.barh(place, run["speedup_vs_none"], color=colour, height=0.62)
        if interval := run.get("speedup_vs_none_interval"):
            axes.plot(interval, [place, place], color="black", lw=1.3, marker="|")
        axes.text(0.02, place, f" {run['speedup_vs_none']:.2f}x", va="center", color="white", fontsize=8)
    axes.axvline(1, color="black", lw=0.8)
    axes.set_yticks(range(len(chosen)), [r["run"] + ("" if r.get("lossless", True) else " LOSSY") for r in chosen])
    axes.set_xlabel("speed against plain decoding; line: 95 % interval of the median prompt")
    return made


def _acceptance(bench: Bench) -> Figure:
    """Share of rounds that keep at least so many drafted tokens."""
    made, axes = empty(6, 3.4)
    for colour, run in zip(COLOURS * 9, (r for r in runs(bench) if r.get("acceptance_by_depth")), strict=False):
        shares = run["acceptance_by_depth"]
        axes.plot(range(1, len(shares) + 1), shares, marker="o", ms=3.5, lw=1.3, color=colour, label=run["run"])
    axes.set(xlabel="drafted tokens kept, at least", ylabel="share of rounds", ylim=(0, 1))
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(fontsize=8)
    return made


def _time(bench: Bench) -> Figure:
    """Where the time goes."""
    chosen = runs(bench)[::-1]
    made, axes = empty(7, 1 + 0.34 * len(chosen))
    left = [0.0] * len(chosen)
    for colour, part in zip((COLOURS[0], COLOURS[1], "#999999"), _SHARES, strict=True):
        shares = [r["time_share"][part] for r in chosen]
        axes.barh(range(len(chosen)), shares, left=left, color=colour, height=0.62, label=part)
        left = [a + b for a, b in zip(left, shares, strict=True)]
    axes.set_yticks(range(len(chosen)), [r["run"] for r in chosen])
    axes.set(xlabel="share of the time", xlim=(0, 1))
    axes.legend(fontsize=8, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1))
    return made


def _cost(curves: Mapping[str, Mapping[int, float]]) -> Figure:
    """Milliseconds of a forward by its nodes, for each batch size."""
    made, axes = empty(6, 3.4)
    for colour, (batch, curve) in zip(COLOURS * 9, curves.items(), strict=False):
        points = sorted(curve.items())
        axes.plot([n for n, _ in points], [1000 * s for _, s in points], marker="o", ms=3.5, lw=1.3, color=colour, label=f"batch {batch}")
    axes.set(xlabel="nodes of all sequences", ylabel="ms per forward of the target", ylim=(0, None), xlim=(0, None))
    axes.legend(fontsize=8)
    return made
