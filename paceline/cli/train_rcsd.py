"""`paceline train rcsd`: train a head or a draft model further on what the target kept and refused of its own drafts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import train

Head = Annotated[str | None, typer.Option(help="Folder of the head to begin with. The default is the one that is shipped for the target.")]
DraftModel = Annotated[
    str | None, typer.Option("--draft-model", help="Train this draft model instead of a head: a folder or a hub id, as for generate.")
]
LoraRank = Annotated[int | None, typer.Option(min=1, help="Train low-rank adapters of this rank, and merge them. The default is all.")]
Records = Annotated[Path | None, typer.Option(help="Rounds recorded with this drafter (--record): the first round learns from them.")]
Rounds = Annotated[
    int | None, typer.Option(min=1, help="Rounds of collecting, training and judging; of each domain with protocol domains.")
]
Steps = Annotated[int | None, typer.Option(min=1, help="Optimiser steps of a round.")]
Protocol = Annotated[str | None, typer.Option(help="mixed, domains (one after the other) or online (a stream).")]
Objective = Annotated[str | None, typer.Option(help="pref (preference), pg (policy gradient) or distill (the control).")]
DataOnly = Annotated[bool, typer.Option("--data-only", help="Stop when the target's answers are made.")]


def main(
    config: train.Config = None,
    out: train.Out = None,
    model: train.Model = None,
    head: Head = None,
    draft_model: DraftModel = None,
    lora_rank: LoraRank = None,
    prompts: train.Prompts = None,
    records: Records = None,
    rounds: Rounds = None,
    steps: Steps = None,
    protocol: Protocol = None,
    objective: Objective = None,
    limit: train.Limit = None,
    seed: train.Seed = None,
    on_bad_line: train.OnBadLine = None,
    settings: train.Set = None,
    yes: train.Yes = False,
    data_only: DataOnly = False,
    dry_run: train.DryRun = False,
) -> None:
    """Train a head on its own accepted and refused drafts, in rounds; a round that does not pay is refused.

    All that happened is kept in the folder; the same command goes on after an interruption. The head is in its folder `head`, a draft
    model in `model`.
    """
    train.need("pydantic", "yaml")
    from ..train.rcsd.recipe import RcsdRecipe

    given = {
        "model": model,
        "head": head,
        "draft.model": draft_model,
        "draft.lora_rank": lora_rank,
        "records": None if records is None else str(records),
        "seed": seed,
        "data.prompts": train.prompt_files(prompts) if prompts else None,
        "data.limit": limit,
        "data.on_bad_line": on_bad_line,
        "continual.rounds": rounds,
        "continual.steps": steps,
        "continual.protocol": protocol,
        "preference.objective": objective,
    }
    started = train.begin(RcsdRecipe, config, given, settings, out, dry_run=dry_run)
    if started is None:
        return
    from ..train.rcsd.course import train_rcsd

    train.run(train_rcsd, *started, yes=yes, data_only=data_only)
