"""`paceline train exits`: exit heads for a target, from prompts to a folder that `--exits` takes."""

from __future__ import annotations

from typing import Annotated

import typer

from ..errors import InvalidRequest
from . import train

Layers = Annotated[str | None, typer.Option(help="Comma list: after how many layers a token may exit, as 8,12,16.")]


def main(
    config: train.Config = None,
    out: train.Out = None,
    model: train.Model = None,
    prompts: train.Prompts = None,
    layers: Layers = None,
    steps: train.Steps = None,
    max_minutes: train.MaxMinutes = None,
    limit: train.Limit = None,
    seed: train.Seed = None,
    on_bad_line: train.OnBadLine = None,
    settings: train.Set = None,
    yes: train.Yes = False,
    data_only: train.DataOnly = False,
    dry_run: train.DryRun = False,
) -> None:
    """Train exit heads: the target answers the prompts, and its early layers learn to read what its last one will say.

    All that happened is kept in the folder; the same command goes on after an interruption. The heads are in its folder `exits`.
    """
    train.need("pydantic", "yaml")
    from ..train.exits_recipe import ExitRecipe

    given = {
        "model": model,
        "seed": seed,
        "data.prompts": train.prompt_files(prompts) if prompts else None,
        "data.limit": limit,
        "data.on_bad_line": on_bad_line,
        "exits.layers": None if layers is None else depths(layers),
        "length.steps": steps,
        "length.max_minutes": max_minutes,
    }
    started = train.begin(ExitRecipe, config, given, settings, out, dry_run=dry_run)
    if started is None:
        return
    from ..train.exits import train_exits

    train.run(train_exits, *started, yes=yes, data_only=data_only)


def depths(text: str) -> list[int]:
    """`8,12,16`. Raises InvalidRequest."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InvalidRequest(f"exit layers {text!r} are none; write them as 8,12,16") from None
