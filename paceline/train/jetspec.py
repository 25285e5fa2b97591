"""From a recipe to a JetSpec head: data, features, training, calibration, evaluation, and the folder that holds it all.

The folder: `recipe.yaml`, `run.json`, `answers.jsonl` and its like, `features/`, `checkpoints/`, `log.jsonl`, and `head/`, the result.
Each part goes on where it stopped when the same command is run again.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import torch

from ..errors import InvalidRequest
from ..targets.load import load
from . import data
from .data import Maker
from .disk import need_room
from .features import Store, Taps
from .folder import open_folder
from .recipe import Recipe
from .session import Options, Session, head_config

__all__ = ["Options", "train_jetspec"]


def train_jetspec(recipe: Recipe, out: Path, options: Options | None = None) -> Path:
    """Make the head that a recipe describes; returns its folder. Raises a PacelineError that says what is wrong and what to do."""
    accelerator, options = _accelerator(recipe), options or Options()
    main = accelerator is None or accelerator.is_main_process
    if not main:
        options = dataclasses.replace(options, say=lambda message: None)
    session = _session(recipe, out, options, accelerator)
    if session is None:
        return out
    progress = session.train(accelerator)
    return session.finish(progress) if main else out


def _session(recipe: Recipe, out: Path, options: Options, accelerator: Any) -> Session | None:
    """The data, made or read, and the head; None if only the data were wanted."""
    source, folder = data.source(recipe, out)
    if accelerator is not None and not (folder / data.HELD_OUT).exists():
        raise InvalidRequest(f"{folder} has no data yet; make them in one process first: the same command, not launched, with --data-only")
    rows, held = data.choose_rows(source, options.say)
    device = recipe.device if accelerator is None else "cpu" if _on_cpu(recipe) else str(accelerator.device)
    target = load(recipe.model, dtype=recipe.dtype, device=device, revision=recipe.revision, progress=options.say)
    taps = Taps(target, head_config(recipe, target).target_layer_ids)  # a shape that cannot be is known before the work
    if accelerator is None or accelerator.is_main_process:
        open_folder(out, recipe, target.device)
    store = None
    if recipe.features.where == "cached":
        if folder == out:
            options.say(need_room(out, data.estimate(source, target, taps, rows), "all features at most", anyway=options.yes))
        store = Store(folder / "features", taps, str(data.target_mark(target)), recipe.features.shard_mb)
    ask = folder == out and accelerator is None
    maker = Maker(source, target, folder, taps, store, options.say, options.stopped, recipe.data.sequences, ask)
    prepared = maker.prepare(rows, held)
    return None if options.data_only else Session(recipe, target, taps, store, prepared, out, options)


def _on_cpu(recipe: Recipe) -> bool:
    return recipe.device == "cpu" or not torch.cuda.is_available()


def _accelerator(recipe: Recipe) -> Any:
    """One if several processes were launched (accelerate launch, torchrun), else None."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return None
    from accelerate import Accelerator

    return Accelerator(cpu=_on_cpu(recipe))
