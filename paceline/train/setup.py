"""What trainings on features of the target have in common: the data, made or read, and what the loop is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ..targets.hf import HFTarget
from ..targets.load import load
from . import data, loop
from .checkpoint import Checkpoints
from .data import Maker, Prepared
from .disk import need_room
from .examples import Example
from .features import Shelf, Store, Tapped, Taps, stored_taps
from .folder import open_folder
from .prompts import Say
from .recipe import Checkpoints as Kept
from .recipe import Common, Evaluation, Length, Optimizer


@dataclass(frozen=True)
class Options:
    """What a person wants of this run besides the recipe."""

    yes: bool = False
    data_only: bool = False
    say: Say = lambda message: None
    stopped: Callable[[], bool] = lambda: False


class Trained(Protocol):
    """A recipe whose run has a length."""

    @property
    def length(self) -> Length: ...
    @property
    def optimizer(self) -> Optimizer: ...
    @property
    def checkpoints(self) -> Kept: ...
    @property
    def evaluation(self) -> Evaluation: ...


@dataclass(frozen=True)
class Gathered:
    """The target and what there is to learn. `read` gives features of sequences, from disk or, online, from the target."""

    target: HFTarget
    taps: Taps
    store: Shelf | None
    prepared: Prepared

    def read(self, members: Sequence[Any]) -> list[Tapped]:
        if self.store is not None:
            return [self.store.get(e) for e in members]
        return self.taps.read([e.tokens for e in members])


def gather(
    recipe: Common,
    out: Path,
    options: Options,
    taps_of: Callable[[HFTarget, Path], Taps],
    *,
    device: str | None = None,
    ask: bool = True,
    main: bool = True,
) -> Gathered:
    """Load the target, and make its answers and features in `out`, or read those of the runs that are named.

    `taps_of` says what is read of the target, also given the (first) folder that holds the data. `ask` False asks the target nothing:
    what is there is all. `main` False leaves the folder as it is.
    """
    sources = data.sources(recipe, out)
    chosen = [data.choose_rows(source, options.say) for source, _ in sources]
    target = load(
        recipe.model,
        dtype=recipe.dtype,
        device=device or recipe.device,
        revision=recipe.revision,
        batch_size=recipe.answers.batch_size,
        progress=options.say,
    )
    taps = taps_of(target, sources[0][1])  # a shape that cannot be is known before the work
    if main:
        open_folder(out, recipe, target.device)
    stores: dict[Path, Store] = {}
    parts: list[tuple[Store | None, Prepared]] = []
    for (source, folder), (rows, held) in zip(sources, chosen, strict=True):
        store = None
        if recipe.features.where == "cached":
            place = folder if stored_taps(folder) in ((), taps.head_layers) else out
            if place == out:
                options.say(need_room(out, data.estimate(source, target, taps, rows), "all features at most", anyway=options.yes))
            mark = str(data.target_mark(target))
            store = stores[place] = stores.get(place) or Store(place / "features", taps, mark, recipe.features.shard_mb)
        maker = Maker(source, target, folder, taps, store, options.say, options.stopped, ask and folder == out)
        parts.append((store, maker.prepare(rows, held)))
    prepared = data.joined([part for _, part in parts], seed=recipe.seed, sequences=recipe.data.sequences)
    _complete(parts, prepared.train, options.say)
    return Gathered(target, taps, Shelf(list(stores.values())) if stores else None, prepared)


def _complete(parts: Sequence[tuple[Store | None, Prepared]], train: Sequence[Example], say: Say) -> None:
    """Make the features that are missing, each in the store of the first run that has the text."""
    wanted = {e.key: e for e in train}
    for store, part in parts:
        own = [wanted.pop(e.key) for e in part.train if e.key in wanted]
        if store is not None:
            store.complete(own, say)


def loop_run(
    recipe: Trained,
    out: Path,
    options: Options,
    fetch: Callable[[int], Sequence[Any]],
    *,
    steps_per_epoch: int,
    evaluate: Callable[[int], dict[str, Any]],
) -> loop.Run:
    """What the loop is told by a recipe."""
    return loop.Run(
        fetch=fetch,
        steps=recipe.length.steps or recipe.length.epochs * steps_per_epoch,
        settings=recipe.optimizer,
        checkpoints=Checkpoints(out / "checkpoints", recipe.checkpoints.keep),
        log=out / "log.jsonl",
        seconds=None if recipe.length.max_minutes is None else 60 * recipe.length.max_minutes,
        save_seconds=60 * recipe.checkpoints.every_minutes,
        every=recipe.evaluation.every,
        evaluate=evaluate,
        stopped=options.stopped,
        say=options.say,
    )
