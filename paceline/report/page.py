"""One page with everything that a bench found. It needs no network and runs no script."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import PacelineError
from .cases import Bench, Case, is_base, losing_prompts, losing_tasks, runs
from .figures import svg

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST = 20  # losing prompts and differences that are listed
_TITLES = {
    "speedup": "Speed against plain decoding",
    "acceptance": "How much of a draft is kept",
    "time": "Where the time goes",
    "cost": "What a forward of the target costs",
}
_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1b1f24; max-width: 80rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: .6rem 0; font-size: 14px; font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid #d5dae0; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
.slow { background: #fbe3d6; } .quick { background: #dcf0e6; }
.lossy { color: #a33b00; font-weight: 600; }
svg { max-width: 100%; height: auto; }
code, pre { font-size: 13px; background: #f2f4f6; } pre { padding: .6rem; overflow-x: auto; }
h2 { margin-top: 2rem; border-bottom: 1px solid #d5dae0; } .faint { color: #5b646e; }
"""


def page(bench: Bench, made: Mapping[str, Figure]) -> str:
    """HTML. Every text of the bench is escaped."""
    settings, hardware = bench["settings"], bench["hardware"]
    title = f"{settings['model']}, {settings['dtype']}"
    about = (
        f"{len(bench['prompts'])} prompts, at most {settings['max_new_tokens']} new tokens, temperature {_all(settings, 'temperature')}, "
        f"batch {_all(settings, 'batch_size')}. {hardware['cpu']}, {hardware['cores']} cores, {hardware['device']}."
    )
    parts = [
        f"<h1>{escape(title)}</h1><p>{escape(about)}</p>",
        *(f"<p><b>{escape(remark)}</b></p>" for remark in bench["remarks"]),
        _section("Runs", _table(bench)),
        *(_section(_TITLES[name], svg(figure)) for name, figure in made.items()),
        _section("By task, against plain decoding", _tasks(bench)),
        _section("Where a method was slower than plain decoding", _lost(bench)),
        _section("First differences from the reference", _differences(bench)),
        _section("How to run it again", _again(bench)),
        _section("Formulas", "".join(f"<p class=faint>{escape(k)} = {escape(v)}</p>" for k, v in bench["formulas"].items())),
    ]
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    return head + "\n".join(parts) + "</html>\n"


def _all(settings: Mapping[str, Any], name: str) -> str:
    """All values of an axis; older files have one."""
    return ", ".join(f"{value:g}" for value in settings.get(f"{name}s") or [settings[name]])


def write(bench: Bench, made: Mapping[str, Figure], file: Path) -> None:
    """Raises PacelineError if the file cannot be written."""
    try:
        file.write_text(page(bench, made), "utf-8")
    except OSError as error:
        raise PacelineError(f"the report cannot be written to {file} ({error.strerror}); make room, or give another name") from None


def _section(title: str, inside: str) -> str:
    return f"<h2>{escape(title)}</h2>{inside}"


def _rows(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Cells are markup."""
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(cell if cell.startswith("<td") else f"<td>{cell}</td>" for cell in line) + "</tr>" for line in lines)
    return f'<div class="wide"><table><tr>{top}</tr>{body}</table></div>'


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}x"


def _shaded(value: float | None) -> str:
    kind = "" if value is None or 0.98 <= value <= 1.02 else ' class="slow"' if value < 1 else ' class="quick"'
    return f"<td{kind}>{_ratio(value)}</td>"


def _table(bench: Bench) -> str:
    head = (
        "run",
        "tokens/s",
        "vs none",
        "median of prompts",
        "vs transformers",
        "kept per round",
        "outside forwards",
        "peak MB",
        "identical",
    )
    lines: list[tuple[str, ...]] = []
    for run in bench["runs"]:
        name = escape(run["run"])
        if run.get("skipped"):
            lines.append(
                (
                    name,
                    f'<td colspan="{len(head) - 1}" style="text-align:left;white-space:normal">skipped: {escape(str(run["skipped"]))}</td>',
                )
            )
            continue
        interval = run.get("speedup_vs_none_interval")
        lossy = "" if run.get("lossless", True) else ' <span class="lossy">LOSSY</span>'
        lines.append(
            (
                name + lossy,
                f"{run['tokens_per_second']:.1f}",
                _shaded(run.get("speedup_vs_none")),
                f"[{interval[0]:.2f}, {interval[1]:.2f}]" if interval else "",
                _ratio(run.get("speedup_vs_transformers")),
                f"{run['mean_acceptance_length']:.2f}",
                f"{run['time_share']['other']:.1%}",
                f"{run['peak_rss_mb']:.0f}",
                f"{run['identical']} of {run['of']}" if run.get("identical") is not None else "",
            )
        )
    return _rows(head, lines)


def _tasks(bench: Bench) -> str:
    chosen = [r for r in runs(bench) if not is_base(r) and r.get("by_task")]
    tasks = sorted({task for r in chosen for task in r["by_task"]})
    lines = [(escape(r["run"]), *(_shaded(r["by_task"].get(t, {}).get("speedup_vs_none")) for t in tasks)) for r in chosen]
    return _rows(("run", *(t.rpartition("/")[2] for t in tasks)), lines) if lines else "<p>One run only.</p>"


def _lost(bench: Bench) -> str:
    tasks, prompts = losing_tasks(bench), losing_prompts(bench)
    if not tasks and not prompts:
        return "<p>Nowhere.</p>"
    more = f"<p class=faint>and {len(prompts) - _MOST} more prompts</p>" if len(prompts) > _MOST else ""
    return _cases("task", tasks) + _cases("prompt", prompts[:_MOST]) + more


def _cases(what: str, cases: Sequence[Case]) -> str:
    lines = [(escape(c.run), escape(c.what), f"{c.speedup:.2f}x") for c in cases]
    return _rows(("run", what, "vs none"), lines) if lines else ""


def _differences(bench: Bench) -> str:
    found = bench["differences"]
    if not found:
        return "<p>None.</p>"
    lines = [
        (
            escape(d["run"]),
            escape(d["prompt"]),
            str(d["position"]),
            f"{escape(repr(d.get('reference_text')))} / {escape(repr(d.get('text')))}",
            "" if d.get("logit_margin") is None else f"{d['logit_margin']:.4f}",
        )
        for d in found[:_MOST]
    ]
    more = f"<p class=faint>and {len(found) - _MOST} more</p>" if len(found) > _MOST else ""
    return _rows(("run", "prompt", "token", "reference / run", "logit margin"), lines) + more


def _again(bench: Bench) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in bench["versions"].items())
    peers = "".join(
        f"; {escape(family)} with " + ", ".join(f"{escape(name)} {escape(str(version))}" for name, version in found.items())
        for family, found in bench.get("peer_versions", {}).items()
    )
    changed = ", with uncommitted changes" if bench.get("uncommitted_changes") else ""
    return (
        f"<pre>{escape(bench['command'])}</pre><p class=faint>{escape(versions)}; commit {escape(str(bench['commit']))}{changed}{peers}</p>"
    )
