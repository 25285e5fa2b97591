"""What all rounds of a run share: the target, its texts by domain, their features, and what heads are worth on held-out ones.

Heads go from round to round as folders in float32, so that a run that goes on begins a round with what it would have had.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch

from ...errors import CheckpointMismatch
from ...heads import formats
from ...heads.jetspec import JetSpecHead
from ...heads.shipped import head_folder
from ...record.origin import Origin, origin
from ...record.texts import TextRecord
from ...replay import Text
from ...stats import Stats
from ...targets.hf import HFTarget
from .. import evaluate, teacher
from ..anchors import draw
from ..batches import Batch, make_batch
from ..disk import put
from ..distill import Distillation
from ..examples import Example
from ..features import Tapped, Taps, packs
from ..setup import Gathered, Options, gather
from ..teacher import Teacher
from .gate import Lengths, acceptance
from .recipe import RcsdRecipe
from .stages import by_domain

_PACK, _ANCHORS = 2048, 32  # tokens of held-out text read at once; blocks of a held-out text for calibration
_ROWS, _FAR = 64, 0.25  # recorded rows that are compared; nats by which they may differ in the mean: precisions differ by less


@dataclass
class Lab:
    """`texts` are what is trained on, `held_out` what judges, both of the target's own. `start` is the head's folder."""

    recipe: RcsdRecipe
    found: Gathered
    start: Path
    out: Path
    texts: dict[str, list[Example]]
    held_out: list[Example]
    options: Options
    _whole: Teacher | None = None

    @property
    def target(self) -> HFTarget:
        return self.found.target

    def say(self, message: str) -> None:
        self.options.say(message)

    def head(self, folder: Path, *, trained: bool = False) -> JetSpecHead:
        """A head in float32, frozen unless it is to be trained."""
        return formats.load(folder, self.target, torch.float32).requires_grad_(trained)

    def save(self, head: JetSpecHead, folder: Path) -> None:
        put(folder, lambda scratch: formats.save(head, scratch, dtype=torch.float32))

    def origin(self, head: JetSpecHead) -> Origin:
        return origin(self.target, head)

    def read(self, members: Sequence[Example]) -> list[Tapped]:
        """Features from disk, or of texts that are not there from the target."""
        store = self.found.store
        if store is not None and all(e.key in store for e in members):
            return [store.get(e) for e in members]
        return self.found.taps.read([e.tokens for e in members])

    def as_texts(self, examples: Iterable[Example]) -> Iterator[Text]:
        """With features, read when they are asked for."""
        for e in examples:
            yield Text(e.key, e.task, e.tokens, e.prompt_length, self.read([e])[0].features.float(), e.temperature)

    def check_rows(self, texts: Sequence[TextRecord], folder: Path) -> None:
        """Raise CheckpointMismatch if the target gives other probabilities than the records say, as a fine-tuned one would."""
        text = next((t for t in texts if t.rows), None)
        if text is None:
            return
        assert text.rows is not None
        (tapped,) = self.found.taps.read([text.tokens])
        tokens = torch.tensor(text.tokens[text.prompt_length :], device=tapped.hidden.device)[:_ROWS, None]
        states = tapped.hidden[text.prompt_length - 1 :][: len(tokens)]
        ours = Teacher(self.target, None)(states).log_softmax(-1).gather(1, tokens)[:, 0]
        theirs = torch.tensor([row[0][1] for row in text.rows[: len(tokens)]], device=ours.device)
        if float((ours - theirs).abs().mean()) > _FAR:
            raise CheckpointMismatch(
                f"the records in {folder} were made with another target: it gave its words a mean log-probability of "
                f"{float(theirs.mean()):.2f}, and this one gives them {float(ours.mean()):.2f}; use that one, or record anew"
            )

    @cached_property
    def judges(self) -> list[tuple[Example, Tapped]]:
        """Held-out texts with their features."""
        return [
            pair for pack in packs(self.held_out, _PACK) for pair in zip(pack, self.found.taps.read([e.tokens for e in pack]), strict=True)
        ]

    def acceptance(self, head: JetSpecHead) -> tuple[Stats, dict[str, Stats]]:
        """Of the held-out texts, in all and by domain."""
        texts = (Text(e.key, e.task, e.tokens, e.prompt_length, t.features) for e, t in self.judges)
        return acceptance(self.target, head, texts, self.recipe.evaluation.budget)

    def lengths(self, head: JetSpecHead) -> Lengths:
        """Mean acceptance length of the held-out texts, by domain."""
        return {domain: stats.mean_acceptance_length for domain, stats in sorted(self.acceptance(head)[1].items())}

    def calibrate(self, head: JetSpecHead) -> None:
        """Fit the temperatures of each depth to the held-out texts, as for every head that was trained."""
        if self.judges:
            batches = [self._batch(e, t, head.config.depth).to(self.target.device) for e, t in self.judges]
            head.config = replace(head.config, temperatures=evaluate.temperatures(head, batches))

    @staticmethod
    def _batch(example: Example, tapped: Tapped, depth: int) -> Batch:
        return make_batch([example], [tapped], [draw(example, _ANCHORS, seed=0, epoch=0)], depth=depth)

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


def open_lab(recipe: RcsdRecipe, out: Path, options: Options) -> Lab:
    """Load the target, have it answer what is not answered yet, and sort the texts."""

    def taps_of(target: HFTarget, _: Path) -> Taps:
        start = formats.load(head_folder(recipe.head, target.name), target)  # one of another target is refused before the work
        return Taps(target, start.config.target_layer_ids)

    found = gather(recipe, out, options, taps_of)
    groups = by_domain(found.prepared.train, recipe.continual)
    texts = {name: [replace(e, task=name) for e in group] for name, group in groups.items()}
    judging = by_domain(found.prepared.held_out, recipe.continual, whole=False)
    held_out = [replace(e, task=name) for name, group in judging.items() for e in group[: recipe.gate.texts]]
    return Lab(recipe, found, head_folder(recipe.head, found.target.name), out, texts, held_out, options)
