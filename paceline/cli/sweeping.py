"""What `paceline audit --sweep` does with its options: the price of a lossy rule, on problems with reference answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InvalidRequest
from ..heads.exit_settings import parsed as exit_settings_of
from ..lossy import parsed
from .common import EMBEDDED
from .console import Progress, bars, quiet_transformers, stderr

if TYPE_CHECKING:
    from ..bench.journal import Journal
    from ..bench.lineup import Lineup
    from ..bench.report import Report
    from ..quality.evaluate import Grades
    from ..quality.plan import Plan
    from ..quality.problems import Problem
    from ..quality.sweep import Sweep

PROBLEMS = 50  # unless --limit says otherwise
_TOKENS = 512  # unless --max-new-tokens does
_SETTINGS = (
    "draft_model", "draft_weights", "shape", "num_speculative_tokens", "head", "memory", "thresholds", "exits", "prompts", "dtype",
    "batch_size", "temperature", "seed",
)  # fmt: skip


def swept(method: str, sweep: str, task: str | None, given: dict[str, Any], file: Path | None) -> Report:
    """Decode and grade every point. With a file, one that was cut short goes on. Bad input is refused before a model is loaded."""
    from ..bench import environment, report
    from ..bench.journal import Journal
    from ..quality import sweep_report
    from ..quality.sweep import Sweep, check

    if task is None:
        raise InvalidRequest("--sweep needs --task, gsm8k, math500, humaneval or mbpp: a price is paid in answers")
    asked = Sweep.parse(method, sweep)
    plan = _plan(asked, task, given)
    check(plan, asked)
    plan.require()
    chosen = plan.problems(stderr().print)
    mark = plan.fingerprint(
        chosen, sweep=[asked.method, asked.setting, *asked.values], versions=environment.versions(), code=environment.code()
    )
    journal = Journal(file, mark)
    if journal.resumed:
        stderr().print(f"going on after {journal.resumed} decodes that are in {journal.file}")
    lineup, grades = _answer(plan, asked, chosen, journal)
    made = sweep_report.build(plan, asked, lineup, chosen, journal.rows, grades)
    if file is not None:
        report.write(made, file)
        journal.close()
    return made


def _plan(sweep: Sweep, task: str, given: dict[str, Any]) -> Plan:
    from ..bench.settings import Settings
    from ..quality.plan import Plan

    chosen = {name: given[name] for name in _SETTINGS if name in given}
    if "prompts" in chosen:
        chosen["prompts"] = str(chosen["prompts"])
    settings = Settings(
        model=given.get("model", EMBEDDED),
        methods=(sweep.method,),
        peers=(),
        limit=given.get("limit", PROBLEMS),
        max_new_tokens=given.get("max_new_tokens", _TOKENS),
        rule_settings=parsed(given.get("rule_settings", [])),
        exit_settings=exit_settings_of(given.get("exit_settings", [])),
        **chosen,
    )
    return Plan(task, settings)


def _answer(plan: Plan, sweep: Sweep, chosen: list[Problem], journal: Journal) -> tuple[Lineup, Grades]:
    from ..bench.lineup import load_models
    from ..quality import evaluate
    from ..quality.sweep import run_sweep

    quiet_transformers()
    with Progress() as say:
        models = load_models(plan.settings, say)
    with bars() as bar:
        tasks = {name: bar.add_task(name, total=None) for name in ("decoding", "decoding controls", "grading")}

        def advance(doing: str, done: int, of: int) -> None:
            bar.update(tasks[doing], completed=done, total=of)

        lineup = run_sweep(plan, sweep, models, chosen, journal, advance)
        answers = evaluate.texts(journal.rows, models[0])
        return lineup, evaluate.grade_all(plan, chosen, answers, advance)
