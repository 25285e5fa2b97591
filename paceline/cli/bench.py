"""`paceline bench`: methods and Transformers peers side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..heads.exit_settings import parsed as exit_settings_of
from ..lossy import parsed
from . import common, options
from .console import Progress, bars, publish, quiet_transformers, report_file, stderr

if TYPE_CHECKING:
    from ..bench.journal import Journal
    from ..bench.lineup import Lineup
    from ..bench.report import Report
    from ..bench.settings import Settings
    from ..bench.suites import Prompt

DraftWeights = Annotated[
    str, typer.Option(help="auto, plain, packed, int4 or int8: how our draft model holds its weights. Peers draft with plain ones.")
]
Methods = Annotated[str, typer.Option(help="Comma list of methods; `paceline methods` lists them.")]
Peers = Annotated[
    str,
    typer.Option(
        help="Comma list of transformers, transformers-lookup, transformers-assisted (with the draft model) and "
        "transformers-early-exit[:LAYERS]; empty for none."
    ),
]
Prompts = Annotated[Path | None, typer.Option(help="JSONL file with id, task and turns on each line. The default is a small built-in set.")]
Limit = Annotated[int | None, typer.Option(help="Prompts per task; sub-tasks count as their task.")]
BatchSize = Annotated[int, typer.Option(help="Prompts that our methods decode at once; above 1 they run at 1 too. Peers run at 1.")]
Repeat = Annotated[int, typer.Option(help="How often to decode everything.")]
Json = Annotated[
    str | None,
    typer.Option(
        "--json",
        help="- for one last line of JSON on stdout (the table goes to stderr), or a file, with which a bench that was cut short goes on.",
    ),
]


def main(
    model: options.Model = common.EMBEDDED,
    draft_model: options.DraftModel = None,
    draft_weights: DraftWeights = "auto",
    methods: Methods = "none,lookup",
    peers: Peers = "transformers",
    prompts: Prompts = None,
    suite: options.Suite = None,
    limit: Limit = None,
    max_new_tokens: options.MaxNewTokens = 128,
    budget: options.Budget = None,
    num_speculative_tokens: options.NumSpeculativeTokens = None,
    dtype: options.Dtype = "auto",
    batch_size: BatchSize = 1,
    temperature: options.Temperature = 0.0,
    seed: options.Seed = None,
    repeat: Repeat = 1,
    shape: options.Shape = None,
    head: options.Head = None,
    rule_mode: options.RuleMode = None,
    memory: options.Memory = None,
    thresholds: options.Thresholds = None,
    rule_settings: options.RuleSettings = None,
    exits: options.Exits = None,
    exit_settings: options.ExitSettings = None,
    profile: options.Profile = None,
    json: Json = None,
) -> None:
    """Measure methods against plain decoding and Transformers, in one process and interleaved per prompt.

    Each prompt is its first turn in the model's chat template. Speed is tokens over the wall time of the whole decode.
    """
    from ..bench import suites
    from ..bench.settings import Settings
    from ..bench.table import show

    prompts = suites.named(suite, prompts)
    settings = Settings(
        model, draft_model, draft_weights, _names(methods), _names(peers), None if prompts is None else str(prompts), limit, max_new_tokens,
        budget, num_speculative_tokens, dtype, batch_size, temperature, seed, repeat, shape, head,
        rule_mode, memory, thresholds, parsed(rule_settings or []), exits, exit_settings_of(exit_settings or []), profile,
    )  # fmt: skip
    chosen = suites.choose(suites.read(prompts), limit)
    file = report_file(json)
    publish(_measure(settings, chosen, file), show, file, to_stdout=json == "-")


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _measure(settings: Settings, prompts: list[Prompt], file: Path | None) -> Report:
    from ..bench import environment, lineup, report, run
    from ..bench.journal import Journal

    mark = settings.fingerprint(prompts, versions=environment.versions(), code=environment.code())
    journal = Journal(file, mark)
    if journal.resumed:
        stderr().print(f"going on after {journal.resumed} decodes that are in {journal.file}")
    quiet_transformers()
    with Progress() as say:
        models = lineup.line_up(settings, say)
    encoded = run.encode_all(models.target, prompts)
    _decode_all(models, settings, prompts, encoded, journal)
    made = report.build(models, settings, prompts, encoded, journal.rows)
    if file is not None:
        report.write(made, file)
        journal.close()
    return made


def _decode_all(lineup: Lineup, settings: Settings, prompts: list[Prompt], encoded: list[list[int]], journal: Journal) -> None:
    from ..bench import run

    total = sum(1 for _ in run.jobs(lineup.runs, len(prompts), settings.batch_size, settings.repeat))
    with bars() as bar:
        task = bar.add_task("decoding", total=total)

        def advance(job: run.Job) -> None:
            bar.update(task, advance=1, description=job.run.name)

        run.run_all(lineup, settings, prompts, encoded, journal, advance)
