"""`paceline calibrate`: what a lossy rule must know of a pair of models, from prompts to a file that --memory or --thresholds takes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InvalidRequest
from ..methods import parse
from . import common, options
from .console import Progress, quiet_transformers, stderr, write
from .train import prompt_files

if TYPE_CHECKING:
    from ..calibrate.run import Pair, Plan
    from ..train.prompts import Row

app = typer.Typer(help="Calibrate lossy rules.", no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)

Prompts = Annotated[
    list[Path] | None,
    typer.Option(help="JSONL (also .gz) with id, task and turns on each line; a folder stands for its files. Repeatable."),
]
Out = Annotated[Path | None, typer.Option(help="The file to write. A calibration that was interrupted goes on with the same command.")]
Method = Annotated[str, typer.Option(help="The drafter that the rule will be used with.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Prompts at most, chosen by lot but always the same.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Prompts decoded at once.")]
MaxNewTokens = Annotated[int, typer.Option(min=1, help="Tokens per prompt.")]
Domain = Annotated[str, typer.Option(help="A word about the prompts, kept in the file.")]
AddTo = Annotated[Path | None, typer.Option(help="An earlier memory of other prompts, whose counts are added.")]
Aim = Annotated[float, typer.Option(help="Flips per drafted position that the thresholds are chosen for.")]


@app.callback()
def _group() -> None:
    """Calibrate lossy rules."""


@app.command("csd")
def csd(
    model: options.Model = common.EMBEDDED,
    draft_model: options.DraftModel = None,
    method: Method = "draft_model",
    prompts: Prompts = None,
    out: Out = None,
    limit: Limit = None,
    max_new_tokens: MaxNewTokens = 256,
    batch_size: BatchSize = 1,
    num_speculative_tokens: options.NumSpeculativeTokens = None,
    shape: options.Shape = None,
    dtype: options.Dtype = "auto",
    draft_weights: options.DraftWeights = None,
    domain: Domain = "",
    add_to: AddTo = None,
    as_json: options.Json = False,
) -> None:
    """Count where target and draft diverge, and write the correction memory (safetensors)."""
    given = {"max_new_tokens": max_new_tokens, "batch_size": batch_size, "num_speculative_tokens": num_speculative_tokens, "shape": shape}
    models = common.Models(model, draft_model, dtype, "auto", None, "auto", draft_weights)

    if add_to is not None and out is not None and add_to.resolve() == out.resolve():
        raise InvalidRequest(f"--add-to and --out are both {out}: given again, the command would count twice; choose another --out")
    from ..rules.memory_file import load

    start = None if add_to is None else load(add_to)

    def run(pair: Pair, plan: Plan, rows: list[Row], file: Path, say: Any) -> dict[str, Any]:
        from ..calibrate.csd import calibrate_csd

        return calibrate_csd(pair, plan, rows, file, domain=domain, start=start, say=say)

    _calibrate("csd", models, method, given, prompts, out, limit=limit, run=run, as_json=as_json)


@app.command("easd")
def easd(
    model: options.Model = common.EMBEDDED,
    draft_model: options.DraftModel = None,
    prompts: Prompts = None,
    out: Out = None,
    limit: Limit = None,
    max_new_tokens: MaxNewTokens = 256,
    batch_size: BatchSize = 1,
    num_speculative_tokens: options.NumSpeculativeTokens = None,
    shape: options.Shape = None,
    dtype: options.Dtype = "auto",
    draft_weights: options.DraftWeights = None,
    domain: Domain = "",
    aim: Aim = 0.0075,
    as_json: options.Json = False,
) -> None:
    """Read entropies and overlap where the draft is checked, and write thresholds (JSON)."""
    given = {"max_new_tokens": max_new_tokens, "batch_size": batch_size, "num_speculative_tokens": num_speculative_tokens, "shape": shape}
    models = common.Models(model, draft_model, dtype, "auto", None, "auto", draft_weights)

    def run(pair: Pair, plan: Plan, rows: list[Row], file: Path, say: Any) -> dict[str, Any]:
        from ..calibrate.easd import calibrate_easd

        return calibrate_easd(pair, plan, rows, file, domain=domain, aim=aim, say=say)

    _calibrate("easd", models, "draft_model", given, prompts, out, limit=limit, run=run, as_json=as_json)


def _calibrate(
    rule: str,
    models: common.Models,
    method: str,
    given: dict[str, Any],
    prompts: list[Path] | None,
    out: Path | None,
    *,
    limit: int | None,
    run: Callable[..., dict[str, Any]],
    as_json: bool,
) -> None:
    """Check everything, load the models, and print what came of it."""
    if not prompts or out is None:
        raise InvalidRequest("a calibration needs prompts and a file to write; give --prompts FILE and --out FILE")
    if out.is_dir():
        raise InvalidRequest(f"--out {out} is a folder; give the name of a file")
    if "/" in method:
        raise InvalidRequest(f"--method {method} names a rule; name the drafter only, the rule is {rule}")
    plan_method = f"{method}/{rule}"
    parse(plan_method)
    common.check(models, common.Plan(plan_method, given["num_speculative_tokens"], None, given["shape"]), stream=None, as_json=False)
    from ..calibrate.run import Pair, Plan
    from ..train.prompts import read, shuffled

    rows = read(prompt_files(prompts), on_bad_line="stop", say=stderr().print)
    rows = shuffled(rows, 0)[:limit] if limit is not None else rows
    quiet_transformers()
    with Progress() as progress:
        pair = Pair(*common.load_models(models, progress, given["batch_size"]))
        found = run(pair, Plan(drafter=method, **given), rows, out, lambda done, of: progress(f"calibrating, {done} of {of} prompts"))
    if as_json:
        write(json.dumps(found) + "\n")
        return
    for name, value in found.items():
        if name != "remarks":
            stderr().print(f"{name.replace('_', ' ')}: {value}")
    for remark in found.get("remarks", ()):
        stderr().print(remark)
    stderr().print(f"written to {out}")
