"""Rounds for a draft model: what they load, draft with, minimise and publish."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from ...draft import Drafter
from ...errors import CheckpointMismatch
from ...methods import Options as MethodOptions
from ...methods import build
from ...record.origin import model_hash
from ...record.pairs import first_choice
from ...record.texts import TextRecord
from ...replay import Text
from ...targets.hf import HFTarget
from ...targets.load import check_same_tokenizer, load, resolve
from .. import evaluate, folder, teacher
from ..card import shared
from ..disk import put_text
from ..distill import Distillation
from ..examples import Example
from ..features import Taps
from ..setup import Options, gather
from ..step import Objective
from ..teacher import Teacher
from .lab import Lab, sorted_texts
from .model import Learner
from .model_objective import DraftObjective
from .model_rows import make_rows, rows_of
from .recipe import Draft, RcsdRecipe

_CHECKED, _ALIKE = 8, 0.9  # recorded texts whose drafts are compared; the share of first choices that must be the model's own


@dataclass
class ModelLab(Lab):
    """The learner is a whole small model."""

    result: ClassVar[str] = "model"

    @property
    def drafting(self) -> Draft:
        assert self.recipe.draft is not None, "this lab is for recipes with a draft model"
        return self.recipe.draft

    def load(self, folder: Path, *, trained: bool = False) -> Learner:
        made = load(str(folder), dtype="float32", device=str(self.target.device), weights="plain")
        check_same_tokenizer(self.target, made)
        settings = self.drafting
        return Learner(made, trained=trained, rank=settings.lora_rank, alpha=settings.alpha, seed=self.recipe.seed)

    def save(self, learner: Learner, folder: Path) -> None:
        learner.save(folder)

    def drafter(self, learner: Learner) -> Drafter:
        settings = self.drafting
        how: dict[str, Any] = {"budget": self.recipe.evaluation.budget} if settings.shape == "tree" else {"shape": "chain"}
        told = MethodOptions(settings.num_speculative_tokens, draft_model=learner.drafting(), **how)
        return build("draft_model", self.target, told)[0]

    def mark(self, learner: Learner) -> str:
        return model_hash(learner.draft)

    def fetch(self, learner: Learner, records: Sequence[TextRecord], earlier: Sequence[TextRecord]) -> Callable[[int], Sequence[Any]]:
        return self.mix(records, earlier, rows_of(self.read, learner.draft.max_length))

    def objective(self, learner: Learner, reference: Learner) -> Objective:
        size = min(self.target.vocab_size, learner.draft.vocab_size)
        teacher.check(self.target, self.found.taps, next(iter(self.texts.values()))[0].tokens)
        law = Teacher(self.target, None if size == self.target.vocab_size else torch.arange(size))
        return DraftObjective(self.recipe.preference, Distillation(self.recipe.distillation, law), law, reference, size)

    def calibrate(self, learner: Learner) -> None:
        """A model has nothing to fit."""

    def as_texts(self, examples: Iterable[Example]) -> Iterator[Text]:
        return (Text(e.key, e.task, e.tokens, e.prompt_length, None, e.temperature) for e in examples)

    def judging(self) -> Iterator[Text]:
        return self.as_texts(self.held_out)

    def check_records(self, texts: Sequence[TextRecord], learner: Learner, folder: Path) -> None:
        """Also raise CheckpointMismatch if this model would have ranked other tokens first than the records say."""
        super().check_records(texts, learner, folder)
        right = total = 0
        for text in [t for t in texts if not t.temperature][:_CHECKED]:
            rows = make_rows(text, text.rounds, torch.zeros(len(text.tokens) - 1, 0), limit=learner.draft.max_length)
            with torch.no_grad():
                said = learner.logits(rows.tokens, rows.places).argmax(-1).tolist()
            drafted = _first_choices(text)
            total += len(drafted)
            right += sum(said[i] == token for i, token in drafted.items() if i < len(said))
        if right < _ALIKE * total:
            raise CheckpointMismatch(
                f"the records in {folder} were made with another draft model: {right} of {total} first choices are those of {self.start}; "
                "use the one that they were made with, or record anew in another folder"
            )

    def publish(self, current: Path, figures: dict[str, Any]) -> Path:
        """Write `model/`, in the number format of the model that the run began with, and what the rounds brought."""
        learner, to = self.load(current), self.out / self.result
        decoded = evaluate.decoding(*self.acceptance(learner), self.drafting.num_speculative_tokens)
        facts = {
            "method": "draft_model",
            "evaluation": {"decoding": {"prompts": len(self.held_out), **decoded}},
            "rcsd": {"recipe": shared(self.recipe), **figures},
            **folder.about(self.target.device),
        }
        learner.save(to, _stored(self.start))
        put_text(to / "card.json", json.dumps(facts, indent=2) + "\n")
        return to


def _first_choices(text: TextRecord) -> dict[int, int]:
    """What was ranked first at each place that the rounds reached, by the place's row; nothing where there was no draft."""
    found, row = dict[int, int](), 0
    for round_ in text.rounds:
        for depth in range(round_.taken):
            node = first_choice(round_.tree, round_.path[depth], round_.scores)
            if node is not None:
                found[row] = round_.tokens[node]
            row += 1
    return found


def _stored(start: Path) -> torch.dtype:
    """The number format in a model's folder."""
    source = Path(resolve(str(start), None, lambda message: None)[0])
    config = json.loads((source / "config.json").read_text()) if (source / "config.json").exists() else {}
    return getattr(torch, config.get("dtype") or config.get("torch_dtype") or "bfloat16", torch.bfloat16)


def open_lab(recipe: RcsdRecipe, out: Path, options: Options) -> ModelLab:
    """Load the target, have it answer what is not answered yet, and sort the texts."""
    assert recipe.draft is not None, "this lab is for recipes with a draft model"
    start = recipe.draft.model

    def taps_of(target: HFTarget, _: Path) -> Taps:
        check_same_tokenizer(target, load(start, dtype="float32", weights="plain"))  # before the work
        return Taps(target, ())

    found = gather(recipe, out, options, taps_of)
    return ModelLab(recipe, found, Path(start), out, *sorted_texts(recipe, found), options)
