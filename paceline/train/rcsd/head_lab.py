"""Rounds for a JetSpec head: what they load, draft with, minimise and publish."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch

from ...draft import Drafter
from ...heads import formats
from ...heads.decode import quicken
from ...heads.jetspec import JetSpecHead
from ...heads.shipped import head_folder
from ...methods import Options as MethodOptions
from ...methods import build
from ...record.origin import head_hash
from ...record.texts import TextRecord
from ...targets.hf import HFTarget
from .. import evaluate, teacher
from ..anchors import draw
from ..batches import make_batch
from ..disk import put
from ..distill import Distillation
from ..features import Taps
from ..setup import Options, gather
from ..step import Objective
from ..teacher import Teacher
from . import publish
from .batches import blocks_of
from .lab import Lab, sorted_texts
from .objective import Distilled, Preferred, Rewarded
from .recipe import RcsdRecipe

_ANCHORS = 32  # blocks of a held-out text for calibration


@dataclass
class HeadLab(Lab):
    """The learner is a head."""

    result: ClassVar[str] = "head"
    _whole: Teacher | None = None

    def load(self, folder: Path, *, trained: bool = False) -> JetSpecHead:
        return formats.load(folder, self.target, torch.float32).requires_grad_(trained)

    def save(self, learner: JetSpecHead, folder: Path) -> None:
        put(folder, lambda scratch: formats.save(learner, scratch, dtype=torch.float32))

    def drafter(self, learner: JetSpecHead) -> Drafter:
        return build("jetspec", self.target, MethodOptions(budget=self.recipe.evaluation.budget, head=quick_copy(learner, self.target)))[0]

    def mark(self, learner: JetSpecHead) -> str:
        return head_hash(learner)

    def fetch(self, learner: JetSpecHead, records: Sequence[TextRecord], earlier: Sequence[TextRecord]) -> Callable[[int], Sequence[Any]]:
        return self.mix(records, earlier, blocks_of(self.read, learner.config.depth))

    def objective(self, learner: JetSpecHead, reference: JetSpecHead) -> Objective:
        settings, distillation = self.recipe.preference, self.distillation(learner)
        if settings.objective == "distill":
            return Distilled(distillation)
        if settings.objective == "pg":
            return Rewarded(settings, distillation)
        return Preferred(settings, distillation, self.teacher(learner), reference)

    def calibrate(self, learner: JetSpecHead) -> None:
        """Fit the temperatures of each depth to the held-out texts, as for every head that was trained."""
        depth = learner.config.depth
        batches = [make_batch([e], [t], [draw(e, _ANCHORS, seed=0, epoch=0)], depth=depth).to(self.target.device) for e, t in self.judges]
        if batches:
            learner.config = replace(learner.config, temperatures=evaluate.temperatures(learner, batches))

    def publish(self, current: Path, figures: dict[str, Any]) -> Path:
        return publish.publish(self, current, figures)

    def distillation(self, head: JetSpecHead) -> Distillation:
        """The head's ordinary objective."""
        settings = self.recipe.distillation
        return Distillation(settings, None if settings.loss == "ce" else self.teacher(head))

    def teacher(self, head: JetSpecHead) -> Teacher:
        """The target's law over the head's draft vocabulary."""
        if self._whole is None:
            teacher.check(self.target, self.found.taps, next(iter(self.texts.values()))[0].tokens)
            self._whole = Teacher(self.target, None if head.config.draft_vocab_size is None else head.draft_vocab_ids)
        return self._whole


def quick_copy(head: JetSpecHead, target: HFTarget) -> JetSpecHead:
    """The head as it is now, packed for decoding; what it borrows of the target is shared."""
    shared = {id(weight): weight for weight in (head.embed_weight, head.output_weight)}
    return quicken(copy.deepcopy(head, shared), target)


def open_lab(recipe: RcsdRecipe, out: Path, options: Options) -> HeadLab:
    """Load the target, have it answer what is not answered yet, and sort the texts."""

    def taps_of(target: HFTarget, _: Path) -> Taps:
        start = formats.load(head_folder(recipe.head, target.name), target)  # one of another target is refused before the work
        return Taps(target, start.config.target_layer_ids)

    found = gather(recipe, out, options, taps_of)
    return HeadLab(recipe, found, head_folder(recipe.head, found.target.name), out, *sorted_texts(recipe, found), options)
