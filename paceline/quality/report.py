"""The report of an evaluation: a line per method, each method against the first one, and every grade."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ..bench import environment, summary
from ..bench.journal import Row
from ..bench.lineup import Lineup
from ..bench.report import Report
from ..rules import ledger
from ..rules.spelling import Spelling
from ..targets.hf import HFTarget
from .against import Earlier
from .evaluate import Grades
from .plan import Plan
from .problems import Problem
from .sandbox import KERNEL
from .score import FORMULAS, paired, wilson

_QUIET = 0.1  # cores


def build(
    plan: Plan,
    lineup: Lineup,
    chosen: Sequence[Problem],
    rows: Sequence[Row],
    grades: Grades,
    layers: Sequence[str] = (),
    *,
    earlier: Earlier | None = None,
) -> Report:
    """Everything, as strict JSON would have it. With an earlier evaluation, its first method is the one to compare with."""
    ids, first = [p.id for p in chosen], plan.settings.methods[0]
    lines = [line_of(plan, run, ids, summary.of_run(rows, run.name), grades[run.name], lineup.target) for run in lineup.runs]
    outputs = {line["method"]: _tokens(summary.of_run(rows, line["method"])) for line in lines}
    right = {line["method"]: _right(grades[line["method"]], ids) for line in lines}
    base_tokens = earlier.tokens if earlier else outputs[first]
    base_right = [earlier.right[i] for i in ids] if earlier else right[first]
    for line in lines:
        differ = sum(outputs[line["method"]][i] != base_tokens[i] for i in ids)
        line["different"] = None if plan.settings.temperature else differ  # draws differ anyhow
        is_base = not earlier and line["method"] == first
        line["vs_first"] = None if is_base else paired(base_right, right[line["method"]])
    return {
        "task": plan.task,
        "problems": len(ids),
        "first": earlier.method if earlier else first,
        "against": earlier.origin if earlier else None,
        "methods": lines,
        "remarks": remarks(plan, lines, layers, earlier.method if earlier else first),
        "formulas": FORMULAS,
        "sandbox": {"layers": list(layers), "missing": [x for x in KERNEL if x not in layers]} if plan.kind.code else None,
        **about(plan, lineup),
        "grades": [{"problem": i, "methods": {m: grade_of(grades[m][i]) for m in grades}} for i in ids],
        "rows": list(rows),
    }


def line_of(plan: Plan, run: Any, ids: Sequence[str], rows: Sequence[Row], grades: dict[str, Any], target: HFTarget) -> Report:
    """What one run solved, and how fast."""
    correct, counts = sum(g.correct for g in grades.values()), summary.counts(rows)
    cut = sum(o["tokens"][-1] not in target.eos_token_ids for r in rows for o in r["outputs"])  # there are no stop strings
    kept = ("tokens", "seconds", "tokens_per_second", "rounds", "target_forwards", "draft_forwards", "mean_acceptance_length")
    return {
        "method": run.method,
        "rule": run.rule,
        "lossless": run.lossless,
        "correct": correct,
        "accuracy": correct / len(ids),
        "interval": wilson(correct, len(ids)),
        "outcomes": dict(Counter(g.outcome for g in grades.values())),
        "cut_short": cut,
        **{name: counts[name] for name in kept},
        "tokens_per_round": counts["tokens"] / counts["rounds"],
        "cores_used_by_others": counts["cores_used_by_others"],
        "rules": _rules([o["rules"] for r in rows for o in r["outputs"] if "rules" in o], Spelling.of(target)),
    }


def _rules(found: list[dict[str, Any]], spelling: Spelling) -> Report:
    """What each rule did. `kinds` counts in what the tokens differed that it put for others: of the ten commonest pairs of each answer."""
    pooled = ledger.pooled(found)
    for rule, did in pooled.items():
        kinds: Counter[str] = Counter()
        for drafted, target, count in (pair for each in found if rule in each for pair in each[rule]["pairs"]):
            kinds[spelling.kind(drafted, target)] += count
        did["kinds"] = dict(kinds.most_common())
    return pooled


def _tokens(rows: Sequence[Row]) -> dict[str, list[int]]:
    return {o["prompt"]: o["tokens"] for r in rows for o in r["outputs"]}


def _right(grades: dict[str, Any], ids: Sequence[str]) -> list[bool]:
    return [grades[i].correct for i in ids]


def grade_of(found: Any) -> Report:
    """A grade without what it leaves open."""
    return {k: v for k, v in dataclasses.asdict(found).items() if v not in (None, "")}


def about(plan: Plan, lineup: Lineup) -> Report:
    """Settings, versions, commit, hardware and command, as the bench has them."""
    settings = {k: v for k, v in dataclasses.asdict(plan.settings).items() if k not in ("peers", "repeat")}
    for field in ("model", "draft_model", "prompts", "head", "memory", "thresholds"):
        settings[field] = environment.scrub(settings[field]) if settings[field] else settings[field]
    dtype = str(lineup.target.dtype).removeprefix("torch.")
    return {
        "settings": settings | {"task": plan.task, "hub": plan.hub, "chat": plan.chat, "on_bad_line": plan.on_bad_line, "dtype": dtype},
        "prompt": plan.kind.prompt("{question}", plan.chat),
        **environment.provenance(environment.typed_as("paceline"), lineup.target.device),
    }


def remarks(plan: Plan, lines: Sequence[Report], layers: Sequence[str], first: str) -> list[str]:
    """What a reader must not miss. `first` is the method that others are compared with."""
    found = []
    for line in lines:
        name, versus = line["method"], line["vs_first"]
        if line["lossless"] and line["different"]:
            found.append(
                f"{name} says it is lossless, and {line['different']} greedy texts differ: near-ties, or a fault (paceline audit tells)."
            )
        if versus and versus["p_value"] < 0.05:
            verb = "MORE" if versus["difference"] > 0 else "FEWER"
            found.append(f"{name} solves {verb} problems than {first}: p = {versus['p_value']:.3g}, before any correction.")
        if 2 * line["cut_short"] > sum(line["outcomes"].values()):
            found.append(
                f"{line['cut_short']} answers of {name} were cut short at {plan.settings.max_new_tokens} tokens; raise --max-new-tokens."
            )
    if plan.kind.code and (missing := [x for x in KERNEL if x not in layers]):
        found.append(
            f"The sandbox stood without {', '.join(missing)}: this system does not offer it. See docs/eval.md for what that means."
        )
    noise = [line["cores_used_by_others"] for line in lines if line["cores_used_by_others"] is not None]
    if noise and max(noise) > _QUIET:
        found.append(f"The machine was NOT QUIET: other processes used up to {max(noise):.1f} cores. Trust the counts, not the times.")
    return found
