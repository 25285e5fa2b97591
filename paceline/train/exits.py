"""From a recipe to exit heads: data, features, training, calibration, evaluation, and the folder that holds it all.

The folder is that of any training (see `jetspec`); the result is in `exits/`.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from .. import methods
from ..errors import InvalidRequest
from ..heads import exit_format
from ..heads.exit import ExitHeads
from ..heads.exit_config import ExitConfig, check_layers
from ..heads.exit_cost import best_bounds
from ..heads.exit_ready import exit_costs, quicken
from ..targets.hf import HFTarget
from . import evaluate, examples, exits_fit, loop, teacher
from .checkpoint import Progress
from .disk import put
from .exits_card import facts, page
from .exits_data import RowPlan, columns
from .exits_objective import ExitDistillation
from .exits_recipe import ExitRecipe
from .features import Taps, packs, stored_taps
from .setup import Gathered, Options, gather, loop_run
from .teacher import Teacher

_PACK = 2048  # tokens of held-out text at once


def train_exits(recipe: ExitRecipe, out: Path, options: Options | None = None) -> Path:
    """Make the exit heads that a recipe describes; returns their folder. Raises a PacelineError that says what is wrong."""
    options = options or Options()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise InvalidRequest("exit heads are trained by one process; run the command without a launcher")
    found = gather(recipe, out, options, lambda target, folder: _taps(recipe, target, folder))
    if options.data_only:
        return out
    session = ExitSession(recipe, found, out, options)
    return session.finish(session.train())


def _config(recipe: ExitRecipe, target: HFTarget) -> ExitConfig:
    size = recipe.exits.draft_vocab_size
    small = None if size is None or size >= target.vocab_size else size
    config = ExitConfig.for_target(target, recipe.exits.layers, small)
    check_layers(config.layers, target.num_layers - 1)  # the last layer has a head
    return config


def _taps(recipe: ExitRecipe, target: HFTarget, folder: Path) -> Taps:
    """The exit layers, or what the run with the data has already read, if they are among it."""
    wanted = [depth - 1 for depth in _config(recipe, target).layers]
    stored = stored_taps(folder)
    return Taps(target, stored if set(wanted) <= set(stored) else wanted)


class ExitSession:
    """The parts of a run, made. The heads' weights are float32 while they train."""

    def __init__(self, recipe: ExitRecipe, found: Gathered, out: Path, options: Options) -> None:
        self.recipe, self.found, self.out, self.options = recipe, found, out, options
        target, prepared = found.target, found.prepared
        teacher.check(target, found.taps, prepared.train[0].tokens)
        self.teacher = Teacher(target, None)
        config = _config(recipe, target)
        self.ids = examples.draft_vocabulary(prepared.train, config.draft_vocab_size, target)
        self.heads = ExitHeads.for_target(target, config, self.ids).float()
        optimizer = recipe.optimizer
        self.plan = RowPlan(
            prepared.train, found.read, found.taps, config.layers,
            batch_size=optimizer.batch_size, micro_batch=optimizer.micro_batch, anchors=optimizer.anchors, seed=recipe.seed,
        )  # fmt: skip

    def train(self) -> Progress:
        run = loop_run(
            self.recipe,
            self.out,
            self.options,
            self.plan.step,
            steps_per_epoch=self.plan.steps_per_epoch,
            evaluate=lambda step: {"evaluation": self.text_figures(self.heads)},
        )
        return loop.train(self.heads, ExitDistillation(self.teacher), run)

    def finish(self, progress: Progress) -> Path:
        """Calibrate, choose a threshold, evaluate, and write the heads with their card."""
        heads, prepared = self.heads.eval(), self.found.prepared
        evaluation: dict[str, Any] = {}
        if prepared.held_out:
            self.options.say("calibrating and evaluating")
            untrained = ExitHeads.for_target(self.found.target, heads.config, self.ids).float()
            evaluation = {"untrained": self.text_figures(untrained), "text": self.text_figures(heads)}
            self.fit(heads)
            evaluation["decoding"] = self.decode(heads)
        card = facts(self.recipe, self.found.target, heads, prepared, progress, evaluation, self.ids)

        def write(scratch: Path) -> None:
            exit_format.save(heads, scratch, card=card)
            (scratch / "README.md").write_text(page(card), "utf-8")

        put(self.out / "exits", write)
        return self.out / "exits"

    def readings(self, heads: ExitHeads) -> exits_fit.Readings:
        """What heads say at the answers' positions of the held-out texts."""
        return exits_fit.read_exits(heads, self.found.target.num_layers, self._held_out)

    @cached_property
    def _held_out(self) -> list[tuple[list[torch.Tensor], torch.Tensor]]:
        return list(self._read_held_out())

    def _read_held_out(self) -> Iterator[tuple[list[torch.Tensor], torch.Tensor]]:
        """States of the exit layers and the target's own tokens, by text."""
        taps, chosen = self.found.taps, columns(self.found.taps, self.heads.config.layers)
        for pack in packs(self.found.prepared.held_out, _PACK):
            for example, tapped in zip(pack, taps.read([e.tokens for e in pack]), strict=True):
                own = slice(example.prompt_length - 1, None)
                states = tapped.features[own].view(len(tapped.features[own]), len(taps.head_layers), -1)
                yield [states[:, k] for k in chosen], self.teacher(tapped.hidden[own]).argmax(-1)

    def text_figures(self, heads: ExitHeads) -> dict[str, Any]:
        """Agreement by layer and calibration on held-out text; empty without."""
        if not self.found.prepared.held_out:
            return {}
        readings = self.readings(heads)
        return exits_fit.figures(readings, exits_fit.fit_annealing(readings))

    def fit(self, heads: ExitHeads) -> None:
        """Give the heads their annealing strength, profile and threshold."""
        readings = self.readings(heads)
        annealing = exits_fit.fit_annealing(readings)
        shares = exits_fit.profile(readings, annealing)
        heads.config = dataclasses.replace(heads.config, annealing=annealing, profile=shares)
        bounds = best_bounds(shares, exit_costs(self.found.target, self._ready(heads)))
        heads.config = dataclasses.replace(heads.config, threshold=bounds.threshold)

    def _ready(self, heads: ExitHeads) -> ExitHeads:
        """A copy as decoding uses it."""
        copied = ExitHeads.for_target(self.found.target, heads.config, self.ids)
        copied.load_state_dict(heads.state_dict())
        return quicken(copied.eval().requires_grad_(False))

    def decode(self, heads: ExitHeads) -> dict[str, Any]:
        """Mean acceptance length by decoding the held-out prompts."""
        target, settings = self.found.target, self.recipe.evaluation
        drafting = {"threshold": heads.config.threshold}  # told, it drafts whether or not that is quicker on this machine
        method: tuple[Any, Any] = methods.build("specbound", target, methods.Options(exits=self._ready(heads), exit_settings=drafting))
        found = evaluate.acceptance(
            target,
            method,
            self.found.prepared.rows,
            max_new_tokens=settings.max_new_tokens,
            max_prompt_tokens=self.recipe.answers.max_prompt_tokens,
        )
        return {**dataclasses.asdict(method[0].bounds), **found}
