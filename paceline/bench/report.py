"""The report: what the runs did, how they compare, and whether their outputs are equal."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import PacelineError
from . import environment, summary
from .compare import Logits, Outputs, compare, target_logits
from .journal import Row
from .lineup import Lineup, peak_rss_mb
from .peers import PLAIN
from .runs import Run
from .settings import Settings
from .suites import Prompt

Report = dict[str, Any]
_QUIET = 0.1  # cores
_MEASURED = ("tokens", "seconds", "tokens_per_second", "target_forwards", "mean_acceptance_length", "time_share")
_COMPARED = ("speedup_vs_none", "speedup_vs_transformers", "identical", "of", "reference")


def build(lineup: Lineup, settings: Settings, prompts: Sequence[Prompt], encoded: Sequence[list[int]], rows: Sequence[Row]) -> Report:
    """Everything, as strict JSON would have it."""
    ran = [r for r in lineup.runs if r.name not in lineup.skipped]
    by_run = {r.name: summary.of_run(rows, r.name) for r in ran}
    lines = [_line(run, settings, by_run) for run in ran]
    differences = _equality(lineup, settings, lines, by_run, {p.id: e for p, e in zip(prompts, encoded, strict=True)})
    lines += [_skipped(name, why) for name, why in lineup.skipped.items()]
    chosen = {name: environment.scrub(value) if isinstance(value, str) else value for name, value in dataclasses.asdict(settings).items()}
    return {
        "runs": lines,
        "settings": chosen | {"dtype": str(lineup.target.dtype).removeprefix("torch."), "chat_template": True, "turns": 1},
        "remarks": remarks(lines),
        "formulas": summary.FORMULAS,
        "memory": {"peak_rss_mb": peak_rss_mb(), "peak_rss_mb_after_loading_without_peers": lineup.loading_peak_mb},
        **environment.provenance(environment.command(sys.argv), lineup.target.device),
        "prompts": [p.id for p in prompts],
        "differences": differences,
        "rows": list(rows),
    }


def _line(run: Run, settings: Settings, by_run: dict[str, list[Row]]) -> Report:
    rows = by_run[run.name]
    single = settings.batch_size > 1 and run.batch_size == 1
    bases = {"none": by_run.get("none@1" if single else "none", []), "transformers": by_run.get(PLAIN, [])}
    line: Report = {
        "run": run.name,
        "method": run.method,
        "rule": run.rule,
        "lossless": run.lossless,
        "batch_size": run.batch_size,
        **summary.counts(rows),
    }
    if settings.batch_size > 1 and not single:
        bases["batch1"] = by_run[f"{run.name}@1"]
    for name, base in bases.items():
        ratio = summary.speedup(rows, base)
        line[f"speedup_vs_{name}"] = ratio["pooled"]
        line[f"speedup_vs_{name}_median"], line[f"speedup_vs_{name}_interval"] = ratio["median"], ratio["interval"]
    if "batch1" in bases:
        alone = summary.counts(bases["batch1"])["decode_tokens_per_second"]
        line["decode_speedup_vs_batch1"] = line["decode_tokens_per_second"] / alone
    return line | {"by_task": summary.by_task(rows, bases), "identical": None, "of": 0, "reference": None}


def _skipped(name: str, why: str) -> Report:
    line: Report = {"run": name, "method": name, "rule": None, "lossless": True, "batch_size": 1, "skipped": environment.scrub(why)}
    return line | dict.fromkeys((*_MEASURED, *_COMPARED))


def _equality(
    lineup: Lineup, settings: Settings, lines: list[Report], by_run: dict[str, list[Row]], prompts: dict[str, list[int]]
) -> list[Report]:
    """Fill in `identical`, `of` and `reference` of the lossless lines. Returns the differences. Sampled outputs are not compared."""
    reference = next((name for name in (PLAIN, "none@1", "none") if name in by_run), None)
    if settings.temperature > 0:
        return []
    outputs = {name: _outputs(rows) for name, rows in by_run.items()}
    ours = target_logits(lineup.target)
    differences: list[Report] = []

    def check(line: Report, against: str, logits: Logits, suffix: str = "") -> None:
        same, found = compare(outputs[against], outputs[line["run"]], prompts, logits)
        line[f"identical{suffix}"], line["of"] = same, len(outputs[line["run"]])
        differences.extend({"run": line["run"], "reference": against, **_texts(lineup, d)} for d in found)

    for line in lines:
        if line["lossless"] and reference is not None:
            peer = lineup.peer_model if reference == PLAIN else None
            line["reference"] = reference
            check(line, reference, peer.logits if peer else ours)
        if line["lossless"] and line["batch_size"] > 1:
            check(line, f"{line['run']}@1", ours, "_to_batch1")
    return differences


def _outputs(rows: Sequence[Row]) -> Outputs:
    found: Outputs = {}
    for row in sorted(rows, key=lambda r: r["repeat"]):
        for output in row["outputs"]:
            found.setdefault(output["prompt"], []).append(output["tokens"])
    return found


def _texts(lineup: Lineup, difference: Report) -> Report:
    tokenizer = lineup.target.tokenizer
    named = {"reference_text": difference["reference_token"], "text": difference["token"]}
    return difference | {k: None if token is None or tokenizer is None else tokenizer.decode([token]) for k, token in named.items()}


def remarks(lines: Sequence[Report]) -> list[str]:
    """What a reader must not miss: whatever is slower than it should be, differs or did not run."""
    found = []
    for line in lines:
        name, ratio = line["run"], line["speedup_vs_transformers"]
        if name.partition("@")[0] == "none" and ratio is not None and ratio < 1:
            found.append(f"{name} is SLOWER than transformers here: {ratio:.2f}x.")
        plain = line["speedup_vs_none"]
        if line["rule"] is not None and name.partition("@")[0] != "none" and plain is not None and plain < 1:
            found.append(f"{name} is SLOWER than plain decoding (none) here: {plain:.2f}x.")
        if line["lossless"] and line["identical"] is not None and line["identical"] < line["of"]:
            found.append(f"{name} differs from {line['reference']} on {line['of'] - line['identical']} of {line['of']} prompts.")
        if line.get("skipped"):
            found.append(f"{name} was skipped: {line['skipped']}")
    noise = [line["cores_used_by_others"] for line in lines if line.get("cores_used_by_others") is not None]
    if noise and max(noise) > _QUIET:
        found.append(
            f"The machine was NOT QUIET: other processes used up to {max(noise):.1f} cores during a run. Trust the counts, not the times."
        )
    return found


def as_json(report: Report) -> str:
    """One line of strict JSON."""
    return json.dumps(report, allow_nan=False, ensure_ascii=True)


def write(report: Report, file: Path) -> None:
    """Write the file whole or not at all."""
    scratch = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        scratch.write_text(as_json(report) + "\n", "utf-8")
        scratch.replace(file)
    except OSError as error:
        raise PacelineError(
            f"the report cannot be written to {file} ({error.strerror}); its rows are kept, run the same command again"
        ) from None
    finally:
        scratch.unlink(missing_ok=True)
