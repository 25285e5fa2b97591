"""What `paceline eval` and `paceline audit --sweep` share: decode problems, grade the answers, report; one that was cut short goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .console import Progress, counting, quiet_transformers, stderr

if TYPE_CHECKING:
    from ..bench.journal import Journal
    from ..bench.lineup import Lineup
    from ..bench.report import Report
    from ..quality.evaluate import Advance, Grades, Models
    from ..quality.plan import Plan
    from ..quality.problems import Problem

    Decode = Callable[[Models, list[Problem], Journal, Advance], Lineup]
    Build = Callable[[Lineup, list[Problem], list[dict[str, Any]], Grades], Report]


def solved(
    plan: Plan, file: Path | None, decode: Decode, build: Build, *, check: Callable[[list[Problem]], None] | None = None, **also: Any
) -> Report:
    """The report, written to the file if there is one. `also` marks what was asked besides the plan: decodes of another mark are refused.

    Bad input is refused before a model is loaded; `check` looks at the problems then, and raises.
    """
    from ..bench import environment, report
    from ..bench.journal import Journal
    from ..bench.lineup import load_models
    from ..quality import evaluate

    chosen = plan.problems(stderr().print)
    if check is not None:
        check(chosen)
    journal = Journal(file, plan.fingerprint(chosen, versions=environment.versions(), code=environment.code(), **also))
    if journal.resumed:
        stderr().print(f"going on after {journal.resumed} decodes that are in {journal.file}")
    quiet_transformers()
    with Progress() as say:
        models = load_models(plan.settings, say, plan.settings.batch_size)
    with counting() as advance:
        lineup = decode(models, chosen, journal, advance)
        grades = evaluate.grade_all(plan, chosen, evaluate.texts(journal.rows, models[0]), advance)
    made = build(lineup, chosen, journal.rows, grades)
    if file is not None:
        report.write(made, file)
        journal.close()
    return made
