"""What `paceline bench` does with its options."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InvalidRequest
from .console import Progress, bars, quiet_transformers, stderr

if TYPE_CHECKING:
    from ..bench.bundle import Bundle
    from ..bench.grid import Grid
    from ..bench.journal import Journal
    from ..bench.lineup import Lineup
    from ..bench.report import Report
    from ..bench.suites import Prompt

Axes = tuple[tuple[int, ...], tuple[float, ...], tuple[int, ...]]  # budgets, temperatures, batch sizes


@dataclass(frozen=True)
class Asked:
    """A bench that was asked for, checked. `again` is the bundle that it repeats, `records` where rounds are kept."""

    grid: Grid
    prompts: list[Prompt]
    turns: int = 1
    again: Path | None = None
    records: Path | None = None

    def fingerprint(self) -> str:
        """Equal for two benches whose rows may stand in one report."""
        from ..bench import environment

        more = {"grid": self.grid.axes, "turns": self.turns, "versions": environment.versions(), "code": environment.code()}
        return self.grid.settings.fingerprint(self.prompts, **more)


def asked_for(settings: dict[str, Any], axes: Axes, suite: str | None, prompts: Path | None, *, turns: int, on_bad_line: str) -> Asked:
    """Check the options and read the prompts. Raises InvalidRequest."""
    from ..bench import suites
    from ..bench.grid import Grid
    from ..bench.settings import Settings

    budgets, temperatures, batch_sizes = axes
    if on_bad_line not in ("stop", "skip"):
        raise InvalidRequest(f"on_bad_line is {on_bad_line!r}; it must be stop or skip")
    if turns < 1:
        raise InvalidRequest(f"turns is {turns}; it must be at least 1")
    file = suites.named(suite, prompts)
    if on_bad_line == "skip" and file is None:
        raise InvalidRequest("on_bad_line has no effect on the built-in prompts; leave it out, or give a file with --prompts")
    found: dict[str, Any] = {"budget": budgets[0] if budgets else None, "temperature": max(temperatures, default=0.0)}
    chosen = Settings(**settings, **found, batch_size=max(batch_sizes, default=1), prompts=None if file is None else str(file))
    grid = Grid(chosen, budgets, temperatures, batch_sizes)
    rows = suites.read(file, stderr().print if on_bad_line == "skip" else None)
    return Asked(grid, suites.choose(rows, chosen.limit), turns)


def read_again(place: Path) -> Asked:
    """A bundle's bench, once more. Raises InvalidRequest."""
    from ..bench import bundle

    grid, prompts = bundle.read(place)
    return Asked(grid, prompts, again=place)


def keeping(asked: Asked, records: Path) -> Asked:
    """The same bench, with its rounds kept. Raises InvalidRequest if no method of it has any to keep."""
    from ..bench import recording

    recording.check(asked.grid.settings.methods)
    return replace(asked, records=records)


def measured(asked: Asked, *, file: Path | None, bundle: Path | None, peer_seconds: float) -> Report:
    """Load, decode, compare and write. Bad input is refused before a model is loaded."""
    from ..bench import lineup, report
    from ..bench.bundle import Bundle, same_texts
    from ..bench.journal import Journal
    from ..bench.process import Worker

    folder = None if bundle is None else Bundle(bundle)
    if folder is not None:
        folder.check()
    journal = Journal(file, asked.fingerprint(), None if folder is None else folder.rows)
    if journal.resumed:
        stderr().print(f"going on after {journal.resumed} decodes that are in {journal.file}")
    quiet_transformers()
    with Progress() as say:
        models = lineup.line_up(asked.grid, say, lambda family, told: Worker(family, told, peer_seconds))
    try:
        made = _decoded(asked, models, journal, folder)
    finally:
        models.close()
    if asked.again is not None:
        made["again"] = same_texts(asked.again, journal.rows)
        made["remarks"].append("{identical} of {of} texts are those of {bundle}.".format(**made["again"]))
    if file is not None:
        report.write(made, file)
    if folder is not None:
        report.write(made, folder.report)
        folder.finish(made)
    journal.close()
    return made


def _decoded(asked: Asked, models: Lineup, journal: Journal, folder: Bundle | None) -> Report:
    from ..bench import report, run, turns

    prompts, settings = asked.prompts, asked.grid.settings
    if asked.turns > 1:
        with Progress() as say:
            prompts = turns.follow_up(models.target, prompts, asked.turns, settings.max_new_tokens, say)
    encoded = run.encode_all(models.target, prompts)
    if folder is not None:
        folder.begin(asked.grid, prompts)
    with bars() as bar:
        task = bar.add_task("decoding", total=len(run.plan(models, prompts, settings)))

        def advance(job: run.Job) -> None:
            bar.update(task, advance=1, description=job.run.name)

        run.run_all(models, settings, prompts, encoded, journal, advance, asked.records)
    return report.build(models, asked.grid, prompts, encoded, journal.rows)
