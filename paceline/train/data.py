"""From prompts to training sequences, in stages that each go on where they stopped: answers, composed prompts, their answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import InvalidRequest
from ..heads.fingerprint import fingerprint as target_fingerprint
from ..heads.fingerprint import tokenizer_hash
from ..targets.hf import HFTarget
from . import compose, examples, prompts
from .answers import Answer, AnswerFile
from .examples import Example
from .features import Store, Taps
from .folder import RECIPE
from .prompts import Row, Say
from .read_recipe import read
from .recipe import Common
from .regenerate import Regenerator, fingerprint

HELD_OUT = "held-out.jsonl"


@dataclass
class Prepared:
    """What there is to learn from, and what is kept for the evaluation."""

    train: list[Example]
    held_out: list[Example]
    rows: list[Row]  # the prompts of the evaluation
    licences: list[str]  # of the training prompts
    made: int  # sequences, those included that are left out

    @property
    def figures(self) -> dict[str, Any]:
        """For a card."""
        return {
            "sequences": len(self.train),
            "sequences_made": self.made,
            "answer_tokens": sum(len(e) - e.prompt_length for e in self.train),
            "prompt_tokens": sum(e.prompt_length for e in self.train),
            "tasks": {task: sum(e.task == task for e in self.train) for task in sorted({e.task for e in self.train})},
        }


def joined(parts: Sequence[Prepared], *, seed: int, sequences: int | None = None) -> Prepared:
    """What one run or several have made, so many of its training sequences only, in an order of the seed.

    Where two runs answered one prompt, the first counts; what any of them holds out is not learnt from.
    """
    held = {e.key: e for part in reversed(parts) for e in part.held_out}
    train = {e.key: e for part in reversed(parts) for e in part.train if e.key not in held}
    return Prepared(
        sorted(train.values(), key=lambda e: prompts.chance(seed, "sequence", e.key))[:sequences],
        list(held.values()),
        list({row.id: row for part in reversed(parts) for row in part.rows}.values()),
        sorted({licence for part in parts for licence in part.licences}),
        sum(part.made for part in parts),
    )


def sources(recipe: Common, out: Path) -> list[tuple[Common, Path]]:
    """The recipes that say what the data are, and the folders that hold them: this run's, or those of the runs that it names."""
    if not recipe.data.from_run:
        return [(recipe, out)]
    return [(_their_recipe(recipe, folder), folder) for folder in (Path(name).expanduser() for name in recipe.data.from_run)]


def _their_recipe(recipe: Common, folder: Path) -> Common:
    theirs = read(folder / RECIPE, {})
    for key in ("model", "revision", "dtype"):
        ours, other = getattr(recipe, key), getattr(theirs, key)
        if ours != other:
            raise InvalidRequest(f"data.from_run {folder} is a run with {key} {other!r}, and this one has {ours!r}; make them equal")
    return theirs


def target_mark(target: HFTarget) -> list[Any]:
    """What identifies a target: its vocabulary, numbers from its weights, its precision."""
    return [tokenizer_hash(target.vocabulary), *target_fingerprint(target), str(target.dtype)]


def choose_rows(recipe: Common, say: Say) -> tuple[list[Row], list[Row]]:
    """Training rows in an order of the seed, and those of the evaluation."""
    data = recipe.data
    rows = prompts.shuffled(prompts.read(data.prompts, on_bad_line=data.on_bad_line, say=say), recipe.seed)
    train, held = prompts.split(rows, data.held_out)
    if recipe.evaluation.prompts is not None:
        held = prompts.shuffled(prompts.read([recipe.evaluation.prompts], on_bad_line=data.on_bad_line, say=say), recipe.seed)
    if recipe.evaluation.limit is not None:
        held = prompts.split(held, recipe.evaluation.limit, at_most=1.0)[1]
    return train[: recipe.most_prompts], held


def estimate(recipe: Common, target: HFTarget, taps: Taps, rows: Sequence[Row]) -> int:
    """Bytes that cached features take at most: all prompts answered at full length."""
    composed = sum(recipe.compose.model_dump().values())
    sample = rows[:: max(1, len(rows) // 200)]
    asked = sum(len(target.tokenizer(r.turns[0])["input_ids"]) for r in sample) / max(1, len(sample)) + 40
    lengths = len(rows) * min(asked, recipe.answers.max_prompt_tokens) + composed * min(600, recipe.answers.max_prompt_tokens)
    return int((lengths + (len(rows) + composed) * recipe.answers.max_new_tokens) * taps.bytes_per_token)


@dataclass
class Maker:
    """Makes the sequences of a recipe in a run's folder."""

    recipe: Common
    target: HFTarget
    folder: Path
    taps: Taps
    store: Store | None
    say: Say
    stopped: Callable[[], bool] = lambda: False
    ask: bool = True  # False: what is in the folder is all, and the target is asked nothing

    def prepare(self, rows: Sequence[Row], held: Sequence[Row]) -> Prepared:
        recipe = self.recipe
        held_answers = self._answer(HELD_OUT.removesuffix(".jsonl"), held, None, for_training=False)
        if recipe.answers.source == "corpus":
            found = examples.from_corpus(self.target, rows, recipe.optimizer.max_length)
        else:
            found = examples.from_answers(self._stages(rows), recipe.optimizer.max_length)
        kept = [e for e in examples.from_answers(held_answers, recipe.optimizer.max_length) if e.trainable]
        return Prepared(
            examples.trainable(found, self.target), kept, list(held), sorted({r.licence for r in rows if r.licence}), len(found)
        )

    def _stages(self, rows: Sequence[Row]) -> list[Answer]:
        """Answers to the prompts, then to what is composed of them. Each stage gets its share of the minutes that are left."""
        kinds, minutes = self.recipe.compose, self.recipe.answers.max_minutes
        counts = [len(rows), kinds.translate + kinds.summarize + kinds.answer_from, kinds.translate_back]
        left = None if minutes is None else 60 * minutes
        answers: list[Answer] = []
        stages = (
            ("answers", lambda: rows),
            ("composed", lambda: compose.compose(kinds, rows, answers, self.recipe.seed)),
            ("composed-back", lambda: compose.translate_back(kinds, answers, self.recipe.seed)),
        )
        for number, (name, make) in enumerate(stages):
            if counts[number] == 0:
                continue
            share = None if left is None else left * counts[number] / sum(counts[number:])
            made: Sequence[Row] = make()  # type: ignore[no-untyped-call]
            own = self._answer(name, self._rows(name, made) if number else made, share, for_training=True)
            answers += own
            if left is not None:
                left = max(0.0, left - max((a.elapsed for a in own), default=0.0))
        return answers

    def _rows(self, name: str, made: Sequence[Row]) -> list[Row]:
        """Composed prompts in an order of the seed, as they were first written."""
        path = self.folder / f"{name}-prompts.jsonl"
        if not path.exists():
            compose.save(path, prompts.shuffled(made, self.recipe.seed))
        return prompts.read([path], on_bad_line="stop", say=self.say) if made else []

    def _answer(self, name: str, rows: Sequence[Row], seconds: float | None, *, for_training: bool) -> list[Answer]:
        recipe = self.recipe
        settings = recipe.answers
        if not for_training:
            settings = settings.model_copy(update={"temperatures": [0.0], "max_new_tokens": recipe.evaluation.max_new_tokens})
        file = AnswerFile(self.folder / f"{name}.jsonl", fingerprint(target_mark(self.target), settings, recipe.seed))
        known, had = len(file.answers), file.tokens
        if known:
            self.say(f"{name}: {known} answers are there already")
        store = self.store if for_training else None
        maker = Regenerator(
            self.target,
            settings,
            seed=recipe.seed,
            layer_ids=() if store is None else self.taps.layer_ids,
            keep=None if store is None else lambda key, features: store.add(key, features),
            say=lambda message: self.say(f"{name}: {message} of {len(rows)}"),
            stopped=self.stopped,
        )
        try:
            maker.run(rows, file, seconds=seconds if self.ask else 0.0)
        finally:
            if store is not None:
                store.flush()
        if len(file.answers) > known:
            speed = (file.tokens - had) / maker.seconds
            limits = f"{maker.cut} prompts cut, {maker.left_out} left out"
            self.say(f"{name}: {len(file.answers)} answers, {file.tokens} tokens, {speed:.0f} tokens/s, {limits}")
        wanted = {row.id for row in rows}
        return [a for a in file.answers.values() if a.id in wanted]
