"""`paceline tune`: what to use on this machine, for these prompts, and why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import common, options
from .console import Progress, counting, publish, quiet_transformers, report_file, stderr

if TYPE_CHECKING:
    from ..bench.suites import Prompt
    from ..options import Options
    from ..targets.hf import HFTarget
    from ..tune.run import Tuning

Prompts = Annotated[Path | None, typer.Option(help="JSONL file with id, task and turns on each line. The default is a small built-in set.")]
Limit = Annotated[int, typer.Option(min=1, help="Prompts per task.")]
Out = Annotated[Path | None, typer.Option(help="Where to write the profile. The default is Paceline's cache, where method auto finds it.")]
Json = Annotated[str | None, typer.Option("--json", help="- for one last line of JSON on stdout (the table goes to stderr), or a file.")]


def main(
    model: options.Model = common.EMBEDDED,
    draft_model: options.DraftModel = None,
    draft_weights: options.DraftWeights = None,
    head: options.Head = None,
    budget: options.Budget = None,
    prompts: Prompts = None,
    suite: options.Suite = None,
    limit: Limit = 1,
    max_new_tokens: options.MaxNewTokens = 96,
    dtype: options.Dtype = "auto",
    device: options.Device = "auto",
    out: Out = None,
    json: Json = None,
) -> None:
    """Measure the target, its drafters and their acceptance on prompts; pick a method or advise against one; write a profile for auto.

    The target answers the prompts once, greedily; drafters are replayed over that text. Speeds are expected ones.
    """
    from ..bench import suites
    from ..bench.report import write
    from ..options import Options
    from ..sampling import SamplingParams
    from ..tune import profile, table

    models = common.Models(model, draft_model, dtype, device, None, "auto", draft_weights)
    common.check(models, common.Plan("auto", None, budget, head=head), stream=None, as_json=False)
    SamplingParams(max_new_tokens=max_new_tokens)  # raises for what cannot be
    prompts = suites.named(suite, prompts)
    chosen, file = suites.choose(suites.read(prompts), limit), report_file(json)
    quiet_transformers()
    with Progress() as say:
        target, draft = common.load_models(models, say)
    tuning = _tune(target, Options(budget=budget, draft_model=draft, head=head), chosen, max_new_tokens)
    place = out or profile.default_file(target)
    profile.write(tuning.profile, place)
    asked = {"prompts": prompts, "limit": limit, "max_new_tokens": max_new_tokens, "budget": budget, "head": head, "profile": place}
    made = table.as_report(tuning, {"model": model, "draft_model": draft_model, "dtype": tuning.profile.dtype, **asked}, target)
    if file is not None:
        write(made, file)
    publish(made, table.show, file, to_stdout=json == "-")
    stderr().print(f"profile written to {place}", soft_wrap=True)


def _tune(target: HFTarget, told: Options, prompts: list[Prompt], max_new_tokens: int) -> Tuning:
    """With a bar for each stage. Raises InvalidRequest for a prompt that does not fit."""
    from ..bench.run import encode_all
    from ..tune.run import tune

    encoded = dict(zip((p.id for p in prompts), encode_all(target, prompts), strict=True))
    with counting() as tell:
        return tune(target, encoded, told, max_new_tokens=max_new_tokens, tell=tell)
