"""A run whose data are there: the head, its objective, and what is done with them.

The head's weights are float32 while it trains; features come from disk or, online, from the target.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch

from .. import methods
from ..errors import InvalidRequest
from ..heads import formats
from ..heads.bigrams import Bigrams
from ..heads.config import JetSpecConfig
from ..heads.init import init_from_target
from ..heads.jetspec import JetSpecHead
from ..heads.local import start_local
from ..targets.hf import HFTarget
from ..targets.load import load
from . import bigrams, card, evaluate, examples, loop, start, teacher
from .anchors import draw
from .batches import Batch, Plan, make_batch
from .checkpoint import Progress
from .disk import put
from .distill import Distillation
from .features import packs
from .recipe import Recipe
from .setup import Gathered, loop_run
from .setup import Options as Options
from .teacher import Teacher

_INIT_TEXTS = 8
_EVALUATION_PACK, _EVALUATION_ANCHORS = 2048, 32  # tokens of held-out text at once; blocks of a sequence


class Session:
    """The parts of a run, made."""

    def __init__(self, recipe: Recipe, found: Gathered, out: Path, options: Options) -> None:
        self.recipe, self.target, self.taps = recipe, found.target, found.taps
        self.read, self.prepared, self.out, self.options = found.read, found.prepared, out, options
        target, taps, prepared = found.target, found.taps, found.prepared
        before = start.read(recipe.head.start, head_config(recipe, target), target)
        size = recipe.head.draft_vocab_size
        self.ids = examples.draft_vocabulary(prepared.train, size, target) if before is None else start.ids_of(before)
        needs_teacher = recipe.objective.loss != "ce"
        if needs_teacher:
            teacher.check(target, taps, prepared.train[0].tokens)
        self.objective = Distillation(recipe.objective, Teacher(target, self.ids) if needs_teacher else None)
        self.head = self._new_head(before)
        self.plan = Plan(
            [*prepared.train, *(examples.prompts_as_texts(prepared.train) if recipe.data.learn_prompts else [])],
            self.read,
            depth=self.head.config.depth,
            batch_size=recipe.optimizer.batch_size,
            micro_batch=recipe.optimizer.micro_batch,
            anchors=recipe.optimizer.anchors,
            seed=recipe.seed,
        )
        self._held_out: list[Batch] | None = None

    def _new_head(self, before: JetSpecHead | None) -> JetSpecHead:
        recipe = self.recipe
        torch.manual_seed(recipe.seed)
        head = JetSpecHead.for_target(self.target, head_config(recipe, self.target), self.ids)
        if before is not None:
            start.go_on(head, before, str(recipe.head.start), self.options.say)
        elif recipe.head.init != "random":  # from plain weights, which a packed target has no more
            some = self.prepared.train[:_INIT_TEXTS]
            plain = load(recipe.model, dtype="float32", device="cpu", weights="plain", revision=recipe.revision)
            init_from_target(head, plain, [e.tokens for e in some])
            start_local(head, torch.cat([tapped.features for tapped in self.read(some)]).to(head.embed_weight.device))
            if recipe.head.markov_rank:
                self.options.say("starting the Markov term from the target's bigrams")
                table = Bigrams(head.draft_vocab_ids, examples.counts(self.prepared.train, self.target.vocab_size))
                bigrams.collect(table, self.prepared.train, self.read, self.objective.teacher)
                table.start(head)
        return head

    def train(self, accelerator: Any) -> Progress:
        recipe = self.recipe
        rank, world = (0, 1) if accelerator is None else (accelerator.process_index, accelerator.num_processes)
        size, count = recipe.optimizer.batch_size, len(self.plan.examples)
        if world > 1 and (size % world or count < size):
            raise InvalidRequest(
                f"optimizer.batch_size {size} of {count} sequences cannot be shared by {world} processes; "
                f"make it a multiple of {world}, and at most {count}"
            )
        run = loop_run(
            recipe,
            self.out,
            self.options,
            lambda step: self.plan.step(step, rank, world),
            steps_per_epoch=self.plan.steps_per_epoch,
            evaluate=lambda step: {"evaluation": self.evaluate()},
        )
        return loop.train(self.head, self.objective, run, accelerator)

    def held_out(self) -> list[Batch]:
        """Some blocks of each held-out answer; made once, they are few."""
        if self._held_out is None:
            depth = self.head.config.depth
            found = []
            for pack in packs(self.prepared.held_out, _EVALUATION_PACK):
                for example, tapped in zip(pack, self.taps.read([e.tokens for e in pack]), strict=True):
                    drawn = draw(example, _EVALUATION_ANCHORS, seed=0, epoch=0)
                    found.append(make_batch([example], [tapped], [drawn], depth=depth).to(self.target.device))
            self._held_out = found
        return self._held_out

    def evaluate(self) -> dict[str, Any]:
        """On held-out text and by decoding with the head as it is; empty without held-out prompts."""
        if not self.prepared.held_out:
            return {}
        settings = self.recipe.evaluation
        method = methods.build("jetspec", self.target, methods.Options(budget=settings.budget, head=self.head))
        decoded = evaluate.acceptance(
            self.target,
            method,
            self.prepared.rows,
            max_new_tokens=settings.max_new_tokens,
            max_prompt_tokens=self.recipe.answers.max_prompt_tokens,
        )
        return {"text": evaluate.figures(self.head, self.objective, self.held_out), "decoding": {"budget": settings.budget, **decoded}}

    def finish(self, progress: Progress) -> Path:
        """Calibrate, evaluate and write the head with its card."""
        self.head.eval()
        if self.prepared.held_out:
            self.options.say("calibrating and evaluating")
            heats = evaluate.temperatures(self.head, self.held_out())
            self.head.config = dataclasses.replace(self.head.config, temperatures=heats)
        facts = card.facts(self.recipe, self.target, self.head, self.prepared, progress, self.evaluate(), self.ids)
        folder = self.out / "head"

        def write(scratch: Path) -> None:
            formats.save(self.head, scratch, card=facts)
            (scratch / "README.md").write_text(card.page(facts), "utf-8")

        put(folder, write)
        return folder


def head_config(recipe: Recipe, target: HFTarget) -> JetSpecConfig:
    """The shape of the head on this target. Raises CheckpointMismatch for one that cannot be."""
    shape = recipe.head
    size = shape.draft_vocab_size
    return JetSpecConfig.for_target(
        target,
        num_hidden_layers=shape.num_hidden_layers,
        block_size=shape.block_size,
        taps=shape.taps,
        mask_token_id=shape.mask_token_id,
        draft_vocab_size=None if size is None or size >= target.vocab_size else size,
        markov_rank=shape.markov_rank,
        last_feature=shape.last_feature,
    )
