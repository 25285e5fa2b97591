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
from . import data
from .features import Taps
from .recipe import Recipe
from .session import Session, head_config
from .setup import Options, gather

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
    if accelerator is not None:
        accelerator.end_training()  # a process that ends with its group alive is now and then aborted at the exit
    return session.finish(progress) if main else out


def _session(recipe: Recipe, out: Path, options: Options, accelerator: Any) -> Session | None:
    """The data, made or read, and the head; None if only the data were wanted."""
    empty = [folder for _, folder in data.sources(recipe, out) if not (folder / data.HELD_OUT).exists()]
    if accelerator is not None and empty:
        raise InvalidRequest(
            f"{empty[0]} has no data yet; make them in one process first: the same command, not launched, with --data-only"
        )
    found = gather(
        recipe,
        out,
        options,
        lambda target, _: Taps(target, head_config(recipe, target).target_layer_ids),
        device=None if accelerator is None else "cpu" if _on_cpu(recipe) else str(accelerator.device),
        ask=accelerator is None,
        main=accelerator is None or accelerator.is_main_process,
    )
    return None if options.data_only else Session(recipe, found, out, options)


def _on_cpu(recipe: Recipe) -> bool:
    return recipe.device == "cpu" or not torch.cuda.is_available()


def _accelerator(recipe: Recipe) -> Any:
    """One if several processes were launched (accelerate launch, torchrun), else None."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return None
    from accelerate import Accelerator

    return Accelerator(cpu=_on_cpu(recipe))
