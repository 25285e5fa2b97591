"""What `paceline audit --sweep` does with its options: the price of a lossy rule, on problems with reference answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InvalidRequest
from ..heads.exit_settings import parsed as exit_settings_of
from ..lossy import parsed
from .common import EMBEDDED
from .solving import solved

if TYPE_CHECKING:
    from ..bench.report import Report
    from ..quality.plan import Plan
    from ..quality.sweep import Sweep

PROBLEMS = 50  # unless --limit says otherwise
_TOKENS = 512  # unless --max-new-tokens does
_SETTINGS = (
    "draft_model", "draft_weights", "shape", "num_speculative_tokens", "head", "memory", "thresholds", "exits", "prompts", "dtype",
    "batch_size", "temperature", "seed",
)  # fmt: skip


def swept(method: str, sweep: str, task: str | None, given: dict[str, Any], file: Path | None) -> Report:
    """Decode and grade every point. With a file, one that was cut short goes on. Bad input is refused before a model is loaded."""
    from ..quality import sweep_report
    from ..quality.sweep import Sweep, check, run_sweep

    if task is None:
        raise InvalidRequest("--sweep needs --task, gsm8k, math500, humaneval or mbpp: a price is paid in answers")
    asked = Sweep.parse(method, sweep)
    plan = _plan(asked, task, given)
    check(plan, asked)
    plan.require()
    return solved(
        plan,
        file,
        lambda models, chosen, journal, advance: run_sweep(plan, asked, models, chosen, journal, advance),
        lambda lineup, chosen, rows, grades: sweep_report.build(plan, asked, lineup, chosen, rows, grades),
        sweep=[asked.method, asked.setting, *asked.values],
    )


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
