"""`paceline eval`: how many answers are right, for several methods on the same problems."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..heads.exit_settings import parsed as exit_settings_of
from ..lossy import parsed
from . import common, options
from .bench import Methods
from .console import publish, report_file
from .solving import solved

if TYPE_CHECKING:
    from ..bench.journal import Journal
    from ..bench.lineup import Lineup
    from ..bench.report import Report
    from ..quality.evaluate import Advance, Models
    from ..quality.plan import Plan
    from ..quality.problems import Problem

Task = Annotated[str, typer.Option(help="gsm8k, math500, humaneval or mbpp.")]
Prompts = Annotated[
    Path | None, typer.Option(help="JSONL file (also .gz) with id, task, turns and reference. The default is TASK.jsonl in this folder.")
]
DraftWeights = Annotated[str, typer.Option(help="auto, plain, packed, int4 or int8: how the draft model holds its weights.")]
BatchSize = Annotated[int, typer.Option(help="Problems that are decoded at once.")]
Hub = Annotated[bool, typer.Option("--hub", help="Load the problems with the package datasets, from its cache or the hub.")]
Limit = Annotated[int | None, typer.Option(help="Problems, spread evenly over the file.")]
Chat = Annotated[bool, typer.Option("--chat/--raw", help="Put the problem into the model's chat template, or let the model continue it.")]
OnBadLine = Annotated[str, typer.Option(help="stop or skip, at a line that is no prompt or has no reference answer.")]
Against = Annotated[
    Path | None,
    typer.Option(help="An earlier evaluation of the same problems (its --json file): all methods are compared with its first one."),
]
Json = Annotated[
    str | None,
    typer.Option(
        "--json",
        help="- for one last line of JSON on stdout (the table goes to stderr), or a file, with which an evaluation that was cut "
        "short goes on.",
    ),
]


def main(
    task: Task,
    model: options.Model = common.EMBEDDED,
    draft_model: options.DraftModel = None,
    draft_weights: DraftWeights = "auto",
    methods: Methods = "none,lookup",
    prompts: Prompts = None,
    hub: Hub = False,
    limit: Limit = None,
    max_new_tokens: options.MaxNewTokens = 512,
    budget: options.Budget = None,
    num_speculative_tokens: options.NumSpeculativeTokens = None,
    dtype: options.Dtype = "auto",
    batch_size: BatchSize = 1,
    temperature: options.Temperature = 0.0,
    seed: options.Seed = None,
    shape: options.Shape = None,
    head: options.Head = None,
    rule_mode: options.RuleMode = None,
    memory: options.Memory = None,
    thresholds: options.Thresholds = None,
    rule_settings: options.RuleSettings = None,
    exits: options.Exits = None,
    exit_settings: options.ExitSettings = None,
    chat: Chat = True,
    on_bad_line: OnBadLine = "stop",
    against: Against = None,
    json: Json = None,
) -> None:
    """Solve problems with reference answers, and compare methods on them: accuracy, speed, and whether a difference may be chance.

    Code that a model writes is run, in a sandbox: docs/eval.md says what that guarantees and what not.
    """
    from ..bench.settings import Settings
    from ..quality.plan import Plan

    names = tuple(name.strip() for name in methods.split(",") if name.strip())
    settings = Settings(
        model=model, draft_model=draft_model, draft_weights=draft_weights, methods=names, peers=(), limit=limit,
        prompts=None if prompts is None else str(prompts), max_new_tokens=max_new_tokens, budget=budget,
        num_speculative_tokens=num_speculative_tokens, dtype=dtype, batch_size=batch_size, temperature=temperature, seed=seed,
        shape=shape, head=head, rule_mode=rule_mode, memory=memory, thresholds=thresholds, rule_settings=parsed(rule_settings or []),
        exits=exits, exit_settings=exit_settings_of(exit_settings or []),
    )  # fmt: skip
    plan = Plan(task, settings, hub=hub, chat=chat, on_bad_line=on_bad_line)
    file = report_file(json)
    from ..quality.table import show

    publish(_evaluate(plan, file, against), show, file, to_stdout=json == "-")


def _evaluate(plan: Plan, file: Path | None, against: Path | None) -> Report:
    from ..quality import evaluate
    from ..quality.against import read
    from ..quality.report import build

    layers = plan.require()
    earlier = None

    def check(chosen: list[Problem]) -> None:
        nonlocal earlier
        earlier = read(against, plan, chosen) if against else None

    def decode(models: Models, chosen: list[Problem], journal: Journal, advance: Advance) -> Lineup:
        if earlier:
            earlier.require_dtype(str(models[0].dtype).removeprefix("torch."))
        return evaluate.decode_all(plan, models, chosen, journal, advance)

    return solved(
        plan,
        file,
        decode,
        lambda lineup, chosen, rows, grades: build(plan, lineup, chosen, rows, grades, layers, earlier=earlier),
        check=check,
    )
