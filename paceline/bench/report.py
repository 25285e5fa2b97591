"""The report: what the runs did, how they compare, and whether their outputs are equal."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import PacelineError
from . import environment, memory, summary
from .compare import Logits, Outputs, compare, target_logits
from .grid import Grid
from .journal import Row
from .lineup import Lineup
from .peers.names import PLAIN
from .runs import Run
from .suites import Prompt

Report = dict[str, Any]
_QUIET = 0.1  # cores
_MEASURED = ("tokens", "seconds", "tokens_per_second", "target_forwards", "mean_acceptance_length", "time_share", "peak_rss_mb")
_COMPARED = ("speedup_vs_none", "speedup_vs_transformers", "identical", "of", "reference")


@dataclasses.dataclass(frozen=True)
class Field:
    """The runs that took part, and their rows."""

    runs: Sequence[Run]
    rows: dict[str, list[Row]]

    def like(self, run: Run, method: str, batch_size: int | None = None) -> str | None:
        """The run of a method at the same temperature, and at the same batch size unless another is given; for the same method also
        with the same budget."""
        size = batch_size or run.batch_size
        found = (r for r in self.runs if (r.method, r.temperature, r.batch_size) == (method, run.temperature, size))
        return next((r.name for r in found if method != run.method or r.budget == run.budget), None)

    def reference(self, run: Run) -> str | None:
        """What the greedy outputs of a run are compared with: Transformers at the smallest batch size, else plain decoding there."""
        sizes = sorted({r.batch_size for r in self.runs})
        return next((name for method in (PLAIN, "none") for n in sizes if (name := self.like(run, method, n))), None)

    def bases(self, run: Run) -> dict[str, list[Row]]:
        """The rows that a run's speed is compared with, by name."""
        names = {"none": self.like(run, "none"), "transformers": self.like(run, PLAIN)}
        if run.batch_size > 1 and (alone := self.like(run, run.method, 1)):
            names["batch1"] = alone
        return {base: self.rows[name] if name else [] for base, name in names.items()}


def build(lineup: Lineup, grid: Grid, prompts: Sequence[Prompt], encoded: Sequence[list[int]], rows: Sequence[Row]) -> Report:
    """Everything, as strict JSON would have it."""
    ran = [r for r in lineup.runs if r.name not in lineup.skipped]
    field = Field(ran, {r.name: summary.of_run(rows, r.name) for r in ran})
    lines = [_line(run, field) for run in ran]
    differences = _equality(lineup, field, lines, {p.id: e for p, e in zip(prompts, encoded, strict=True)})
    lines += _skipped(lineup)
    chosen = {
        name: environment.scrub(value) if isinstance(value, str) else value for name, value in dataclasses.asdict(grid.settings).items()
    }
    turns = max(len(p.answers) + 1 for p in prompts)
    return {
        "runs": lines,
        "settings": chosen
        | grid.told()
        | {"dtype": str(lineup.target.dtype).removeprefix("torch."), "chat_template": True, "turns": turns},
        "remarks": remarks(lines),
        "formulas": summary.FORMULAS,
        "memory": {"peak_rss_mb": memory.lifetime_mb(), "peak_rss_mb_after_loading_without_peers": lineup.loading_peak_mb},
        **environment.provenance(environment.command_line(), lineup.target.device),
        "peer_versions": {family: worker.versions for family, worker in lineup.workers.items() if worker.versions},
        "prompts": [p.id for p in prompts],
        "differences": differences,
        "rows": list(rows),
    }


def _line(run: Run, field: Field) -> Report:
    rows, bases = field.rows[run.name], field.bases(run)
    line: Report = {
        "run": run.name,
        "method": run.method,
        "rule": run.rule,
        "lossless": run.lossless,
        "budget": run.budget,
        "temperature": run.temperature,
        "batch_size": run.batch_size,
        "baseline": field.like(run, "none"),
        **summary.counts(rows),
    }
    for name, base in bases.items():
        ratio = summary.speedup(rows, base)
        line[f"speedup_vs_{name}"] = ratio["pooled"]
        line[f"speedup_vs_{name}_median"], line[f"speedup_vs_{name}_interval"] = ratio["median"], ratio["interval"]
    if "batch1" in bases:
        speed, alone = line["decode_tokens_per_second"], summary.counts(bases["batch1"])["decode_tokens_per_second"]
        line["decode_speedup_vs_batch1"] = None if speed is None or alone is None else speed / alone
    return line | {"by_task": summary.by_task(rows, bases), "identical": None, "of": 0, "reference": None}


def _skipped(lineup: Lineup) -> list[Report]:
    """A line for each peer that did not run to its end, with the reason."""
    known = {r.name: {"method": r.method, "temperature": r.temperature, "batch_size": r.batch_size} for r in lineup.runs}
    known |= {told["run"]: told for told in lineup.left_out}
    common = {"rule": None, "lossless": True, "budget": None, "baseline": None, **dict.fromkeys((*_MEASURED, *_COMPARED))}
    return [{"run": name, **known[name], **common, "skipped": environment.scrub(why)} for name, why in lineup.skipped.items()]


def _equality(lineup: Lineup, field: Field, lines: list[Report], prompts: dict[str, list[int]]) -> list[Report]:
    """Fill in `identical`, `of` and `reference` of the lossless greedy lines. Returns the differences. Sampled outputs are not compared."""
    outputs = {name: _outputs(rows) for name, rows in field.rows.items()}
    ours = target_logits(lineup.target)
    differences: list[Report] = []

    def check(line: Report, against: str, logits: Logits, suffix: str = "") -> None:
        same, found = compare(outputs[against], outputs[line["run"]], prompts, logits)
        line[f"identical{suffix}"], line["of"] = same, len(outputs[line["run"]])
        differences.extend({"run": line["run"], "reference": against, **_texts(lineup, d)} for d in found)

    for line, run in zip(lines, field.runs, strict=True):
        if not run.lossless or run.temperature > 0:
            continue
        if reference := field.reference(run):
            line["reference"] = reference
            check(line, reference, lineup.logits_of(next(r.method for r in field.runs if r.name == reference)))
        if run.batch_size > 1 and (alone := field.like(run, run.method, 1)):
            check(line, alone, ours, "_to_batch1")
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
        if line["method"] == "none" and ratio is not None and ratio < 1:
            found.append(f"{name} is SLOWER than transformers here: {ratio:.2f}x.")
        plain = line["speedup_vs_none"]
        if line["rule"] is not None and line["method"] != "none" and plain is not None and plain < 1:
            found.append(f"{name} is SLOWER than plain decoding (none) here: {plain:.2f}x.")
        if line["lossless"] and line["identical"] is not None and line["identical"] < line["of"]:
            found.append(f"{name} differs from {line['reference']} on {line['of'] - line['identical']} of {line['of']} prompts.")
    reasons: dict[str, list[str]] = {}
    for line in lines:
        if line.get("skipped"):
            reasons.setdefault(line["skipped"], []).append(line["run"])
    found += [f"{', '.join(names)} {'were' if len(names) > 1 else 'was'} skipped: {why}" for why, names in reasons.items()]
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
