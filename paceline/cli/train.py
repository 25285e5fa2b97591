"""`paceline train jetspec`: a draft head for a target, from prompts to a folder that `--head` takes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import InvalidRequest, PacelineError
from .console import Progress, quiet_transformers, stderr

app = typer.Typer(help="Train draft heads.", no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)

Config = Annotated[Path | None, typer.Option(help="A recipe in YAML. Options and --set go over it.")]
Out = Annotated[Path | None, typer.Option(help="Folder of the run. A run that was interrupted goes on there.")]
Model = Annotated[str | None, typer.Option(help="The target: smollm2, a folder, a .gguf file, or a hub id. The default is smollm2.")]
Prompts = Annotated[
    list[Path] | None,
    typer.Option(help="JSONL (also .gz) with id, task and turns on each line; a folder stands for its files. Repeatable."),
]
Steps = Annotated[int | None, typer.Option(min=1, help="Optimiser steps. The default is four passes over the data.")]
MaxMinutes = Annotated[float | None, typer.Option(help="Training ends in this time at the latest; the learning rate follows.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Training prompts.")]
Seed = Annotated[int | None, typer.Option(help="Of the order, the anchors and the weights.")]
OnBadLine = Annotated[str | None, typer.Option(help="stop or skip, at a line of a prompts file that is no prompt.")]
Set = Annotated[list[str] | None, typer.Option("--set", help="A setting of the recipe, as head.markov_rank=0. Repeatable.")]
Yes = Annotated[bool, typer.Option("--yes", help="Go on even if the estimate says that the disk is too small.")]
DataOnly = Annotated[bool, typer.Option("--data-only", help="Stop when answers and features are made.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the resolved recipe and stop.")]


@app.callback()
def _group() -> None:
    """Train draft heads."""


@app.command("jetspec")
def jetspec(
    config: Config = None,
    out: Out = None,
    model: Model = None,
    prompts: Prompts = None,
    steps: Steps = None,
    max_minutes: MaxMinutes = None,
    limit: Limit = None,
    seed: Seed = None,
    on_bad_line: OnBadLine = None,
    settings: Set = None,
    yes: Yes = False,
    data_only: DataOnly = False,
    dry_run: DryRun = False,
) -> None:
    """Train a JetSpec head: the target answers the prompts, and the head learns to draft what it says.

    All that happened is kept in the folder; the same command goes on after an interruption. The head is in its folder `head`.
    """
    need("pydantic", "yaml")
    from ..train.recipe import Recipe

    given = {
        "model": model,
        "seed": seed,
        "data.prompts": prompt_files(prompts) if prompts else None,
        "data.limit": limit,
        "data.on_bad_line": on_bad_line,
        "length.steps": steps,
        "length.max_minutes": max_minutes,
    }
    started = begin(Recipe, config, given, settings, out, dry_run=dry_run)
    if started is None:
        return
    from ..train.jetspec import train_jetspec

    run(train_jetspec, *started, yes=yes, data_only=data_only)


def begin(
    kind: type[Any], config: Path | None, given: Mapping[str, Any], settings: list[str] | None, out: Path | None, *, dry_run: bool
) -> tuple[Any, Path] | None:
    """The recipe of this kind that the command line makes, shown, and its folder; None if it was only to be shown."""
    from ..train.read_recipe import as_yaml, parse_setting, read

    overrides = {key: value for key, value in given.items() if value is not None} | dict(map(parse_setting, settings or []))
    recipe = read(config, overrides, kind)
    if dry_run:
        print(as_yaml(recipe), end="")
        return None
    if out is None:
        raise InvalidRequest("training needs a folder; give one with --out DIR")
    stderr().print(as_yaml(recipe))
    return recipe, out


def run(train: Callable[[Any, Path, Any], Path], recipe: Any, out: Path, *, yes: bool, data_only: bool) -> None:
    """Train by a recipe, saying what is going on; after Ctrl-C say how to go on."""
    from ..train.setup import Options
    from .chat import interruptible

    quiet_transformers()
    say = Teller()
    with say, interruptible() as stopped:
        try:
            folder = train(recipe, out, Options(yes=yes, data_only=data_only, say=say, stopped=stopped))
        except KeyboardInterrupt:
            say.note(f"stopped; the same command goes on from {out}")
            raise
    stderr().print(f"written to {folder}")


def need(*packages: str) -> None:
    """Raise PacelineError if one of these is not installed."""
    for package in packages:
        if find_spec(package) is None:
            raise PacelineError(f"training needs the package {package}, which is not installed; pip install 'paceline[train]'")


def prompt_files(paths: list[Path]) -> list[str]:
    """A folder stands for the prompt files in it."""
    found: list[Path] = []
    for path in paths:
        inside = sorted(f for f in path.iterdir() if f.name.endswith((".jsonl", ".jsonl.gz"))) if path.is_dir() else [path]
        if not inside:
            raise InvalidRequest(f"folder {path} has no .jsonl or .jsonl.gz file; name another one")
        found += inside
    return [str(f) for f in found]


class Teller(Progress):
    """Says what is going on: one changing line on a terminal, elsewhere a line now and then."""

    EVERY = 20.0  # seconds between lines of a kind where there is no terminal

    def __init__(self) -> None:
        super().__init__()
        self._told: dict[str, float] = {}

    def __call__(self, message: str) -> None:
        if sys.stderr.isatty():
            super().__call__(message)
            return
        kind, now = message.split(" ")[0], time.monotonic()
        if now - self._told.get(kind, -self.EVERY) >= self.EVERY:
            self._told[kind] = now
            stderr().print(message)

    def note(self, message: str) -> None:
        """A line that stays."""
        self.stop()
        stderr().print(message)
