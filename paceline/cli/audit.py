"""`paceline audit`: is a rule lossless as it says, and what does it accept?"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InvalidRequest, PacelineError
from . import common, options
from .console import publish, report_file, tables, write

if TYPE_CHECKING:
    from ..bench.audit import Report

Model = Annotated[str | None, typer.Option(help=f"The target, by default {common.EMBEDDED}; a folder, a .gguf file or a hub id.")]
Rule = Annotated[str | None, typer.Option(help="Short for --method draft_model/RULE; `paceline methods` lists the rules.")]
Method = Annotated[str | None, typer.Option(help="drafter, drafter/rule or drafter+drafter.")]
Temperature = Annotated[float | None, typer.Option(help="0.8 by default; 0 tests greedy equality only.")]
Prompts = Annotated[Path | None, typer.Option(help="JSONL file with id, task and turns on each line. The default is a small built-in set.")]
Limit = Annotated[int | None, typer.Option(help="Prompts per task, 1 by default.")]
MaxNewTokens = Annotated[int | None, typer.Option(help="Tokens per prompt, 64 by default.")]
Dtype = Annotated[str | None, typer.Option(help="auto, float32, bfloat16 or float16; auto is bfloat16 where the hardware has it.")]
Laws = Annotated[Path | None, typer.Option(help="Audit --rule on given laws instead: an .npz file with arrays p and q of shape (rows, V).")]
Width = Annotated[int | None, typer.Option(help="With --laws: children per node.")]
Replays = Annotated[int | None, typer.Option(help="Decisions to replay at captured nodes, 10000 by default.")]
Sweep = Annotated[
    str | None,
    typer.Option(
        help="NAME=VALUE,VALUE of a lossy rule, as csd.tau=0.3,0.1,0.01: its price along these values, with a control; needs --task."
    ),
]
Task = Annotated[str | None, typer.Option(help="With --sweep: gsm8k, math500, humaneval or mbpp; the problems are in --prompts.")]
Plot = Annotated[Path | None, typer.Option(help="With --sweep: a file for the plot, .png, .svg or .pdf.")]
BatchSize = Annotated[int | None, typer.Option(help="With --sweep: problems decoded at once.")]
Json = Annotated[
    str | None, typer.Option("--json", help="- for one last line of JSON on stdout (the table goes to stderr), or a file for it.")
]


def main(
    model: Model = None,
    draft_model: options.DraftModel = None,
    rule: Rule = None,
    method: Method = None,
    temperature: Temperature = None,
    top_p: options.TopP = None,
    top_k: options.TopK = None,
    shape: options.Shape = None,
    prompts: Prompts = None,
    limit: Limit = None,
    max_new_tokens: MaxNewTokens = None,
    dtype: Dtype = None,
    draft_weights: options.DraftWeights = None,
    laws: Laws = None,
    width: Width = None,
    replays: Replays = None,
    seed: options.Seed = None,
    num_speculative_tokens: options.NumSpeculativeTokens = None,
    memory: options.Memory = None,
    thresholds: options.Thresholds = None,
    rule_settings: options.RuleSettings = None,
    exits: options.Exits = None,
    exit_settings: options.ExitSettings = None,
    sweep: Sweep = None,
    task: Task = None,
    batch_size: BatchSize = None,
    plot: Plot = None,
    json: Json = None,
) -> None:
    """Test a rule's claim to be lossless on real decoding, and say what it accepts and what any lossless rule could.

    With --sweep, the price of a lossy rule: accuracy, speed and distance from the target, beside the rule inside and a control that acts
    by lot. Exit code 1 if a rule that claims to be lossless fails.
    """
    if find_spec("scipy") is None:
        raise PacelineError("the audit needs scipy; pip install 'paceline[bench]'")
    from . import auditing

    file = report_file(json)
    decoding = {
        "model": model, "draft_model": draft_model, "method": method, "temperature": temperature, "top_p": top_p, "top_k": top_k,
        "shape": shape, "prompts": prompts, "limit": limit, "max_new_tokens": max_new_tokens, "dtype": dtype,
        "draft_weights": draft_weights, "num_speculative_tokens": num_speculative_tokens, "memory": memory, "thresholds": thresholds,
        "rule_settings": rule_settings or None, "exits": exits, "exit_settings": exit_settings or None,
    }  # fmt: skip
    for_sweeps = {"task": task, "batch_size": batch_size, "plot": plot}
    given, sizes = ({k: v for k, v in o.items() if v is not None} for o in (decoding, {"replays": replays, "seed": seed}))
    if sweep is not None:
        _sweep(sweep, auditing.method_of(rule, method), given | sizes, {"laws": laws, "width": width}, for_sweeps, file, json)
        return
    auditing.refuse(for_sweeps, "without --sweep")
    if laws is not None:
        made = auditing.on_laws(laws, rule, width, given, sizes)
    elif width is not None:
        raise InvalidRequest("--width has no effect without --laws; leave it out, or say --shape")
    else:
        made = auditing.decoded(rule, given, sizes)
    _publish(made, file, to_stdout=json == "-")
    if made["lossless"] and made["lossless_tests"] == "failed":
        raise typer.Exit(1)


def _sweep(
    sweep: str, method: str, given: dict[str, Any], of_laws: dict[str, Any], for_sweeps: dict[str, Any], file: Path | None, json: str | None
) -> None:
    from ..quality.sweep_table import plot, show
    from . import auditing, sweeping

    auditing.refuse(of_laws | {name: given.get(name) for name in ("top_p", "top_k", "replays")}, "with --sweep")
    picture = for_sweeps.pop("plot")
    task = for_sweeps.pop("task")
    made = sweeping.swept(method, sweep, task, given | {k: v for k, v in for_sweeps.items() if v is not None}, file)
    publish(made, show, file, to_stdout=json == "-")
    if picture is not None:
        plot(made, picture)


def _publish(made: Report, file: Path | None, to_stdout: bool) -> None:
    from ..bench import report
    from ..bench.audit_table import show

    console = tables(on_stderr=to_stdout, width=160)
    show(made, console)
    if to_stdout:
        write(report.as_json(made) + "\n")
    elif file is not None:
        try:
            file.write_text(report.as_json(made) + "\n", "utf-8")
        except OSError as error:
            raise PacelineError(f"the report cannot be written to {file} ({error.strerror}); make room, or give another name") from None
        console.print(f"written to {file}")
