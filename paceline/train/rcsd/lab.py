"""What all rounds of a run share: the target, its texts by domain, their features, and what drafters are worth on held-out texts.

A learner is what is trained: a head (`head_lab`) or a draft model (`model_lab`). Learners go from round to round as folders in float32, so
that a run that goes on begins a round with what it would have had.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch

from ...draft import Drafter
from ...errors import CheckpointMismatch
from ...record.origin import Origin, origin
from ...record.texts import TextRecord
from ...replay import Text
from ...stats import Stats
from ...targets.hf import HFTarget
from ..examples import Example
from ..features import Tapped, packs
from ..setup import Gathered, Options
from ..step import Objective
from ..teacher import Teacher
from .batches import Make, Mix
from .gate import Lengths, acceptance
from .recipe import RcsdRecipe
from .stages import by_domain

_PACK = 2048  # tokens of held-out text read at once
_ROWS, _FAR = 64, 0.25  # recorded rows that are compared; nats by which they may differ in the mean: precisions differ by less


@dataclass
class Lab(ABC):
    """`texts` are what is trained on, `held_out` what judges, both of the target's own. `start` is the folder of the first learner."""

    recipe: RcsdRecipe
    found: Gathered
    start: Path
    out: Path
    texts: dict[str, list[Example]]
    held_out: list[Example]
    options: Options

    result: ClassVar[str]  # the folder in `out` that the last learner is published in

    @abstractmethod
    def load(self, folder: Path, *, trained: bool = False) -> Any:
        """A learner in float32, frozen unless it is to be trained."""

    @abstractmethod
    def save(self, learner: Any, folder: Path) -> None:
        """Keep one in float32."""

    @abstractmethod
    def drafter(self, learner: Any) -> Drafter:
        """What drafts with this learner as it is now."""

    @abstractmethod
    def mark(self, learner: Any) -> str:
        """What records of its drafts are known by."""

    @abstractmethod
    def fetch(self, learner: Any, records: Sequence[TextRecord], earlier: Sequence[TextRecord]) -> Callable[[int], Sequence[Any]]:
        """The micro-batches of a step, a function of its number alone."""

    @abstractmethod
    def objective(self, learner: Any, reference: Any) -> Objective:
        """What the recipe's steps minimise; `reference` is the learner as it drafted."""

    @abstractmethod
    def calibrate(self, learner: Any) -> None:
        """Fit what is fitted to held-out texts after training."""

    @abstractmethod
    def publish(self, current: Path, figures: dict[str, Any]) -> Path:
        """Write the result and its card."""

    @property
    def target(self) -> HFTarget:
        return self.found.target

    def say(self, message: str) -> None:
        self.options.say(message)

    def origin(self, learner: Any) -> Origin:
        return origin(self.target, self.mark(learner))

    def mix(self, records: Sequence[TextRecord], earlier: Sequence[TextRecord], make: Make) -> Callable[[int], Sequence[Any]]:
        """The micro-batches of a step, as the recipe mixes them."""
        optimizer, replayed = self.recipe.optimizer, self.recipe.continual.replay
        sizes = (optimizer.batch_size, optimizer.micro_batch, optimizer.anchors)
        return Mix(records, earlier, make, replayed, *sizes, self.recipe.seed).step

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

    def check_records(self, texts: Sequence[TextRecord], learner: Any, folder: Path) -> None:
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

    def judging(self) -> Iterator[Text]:
        """The held-out texts."""
        return (Text(e.key, e.task, e.tokens, e.prompt_length, t.features) for e, t in self.judges)

    def acceptance(self, learner: Any) -> tuple[Stats, dict[str, Stats]]:
        """Replay the held-out texts: counts in all, and by domain."""
        return acceptance(self.drafter(learner), self.judging())

    def lengths(self, learner: Any) -> Lengths:
        """Mean acceptance length of the held-out texts, by domain."""
        return {domain: stats.mean_acceptance_length for domain, stats in sorted(self.acceptance(learner)[1].items())}


def sorted_texts(recipe: RcsdRecipe, found: Gathered) -> tuple[dict[str, list[Example]], list[Example]]:
    """The texts to train on by domain, and those that judge."""
    groups = by_domain(found.prepared.train, recipe.continual)
    texts = {name: [replace(e, task=name) for e in group] for name, group in groups.items()}
    judging = by_domain(found.prepared.held_out, recipe.continual, whole=False)
    return texts, [replace(e, task=name) for name, group in judging.items() for e in group[: recipe.gate.texts]]
