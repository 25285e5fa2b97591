"""The one training loop: fetch, step (see `step.py`), log, checkpoint, evaluate. The objective is an argument."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from ..errors import NumericalError
from .checkpoint import Checkpoints, Progress
from .disk import put_text, whole_lines, writing
from .prompts import Say
from .recipe import Optimizer
from .schedule import learning_rate, progress
from .step import Objective, Stepper


@dataclass
class Run:
    """What the loop is told.

    `fetch(step)` gives this process' micro-batches of a step. The run ends after `steps`, or when `seconds` of training are spent; the
    learning rate follows whichever is further. `stopped()` is asked after each step. `evaluate(step)` gives figures for the log.
    """

    fetch: Callable[[int], Sequence[Any]]
    steps: int
    settings: Optimizer
    checkpoints: Checkpoints
    log: Path
    seconds: float | None = None
    save_seconds: float = 600.0
    every: int = 0
    evaluate: Callable[[int], dict[str, Any]] | None = None
    stopped: Callable[[], bool] = lambda: False
    say: Say = lambda message: None
    clock: Callable[[], float] = time.perf_counter


def train(head: nn.Module, objective: Objective, run: Run, accelerator: Any = None) -> Progress:
    """Train a head in place, from the latest checkpoint on if there is one. Returns what was done over all runs.

    Raises NumericalError, naming the step, if loss or gradients are not finite, and KeyboardInterrupt, after a checkpoint, if stopped.
    """
    stepper = Stepper(head, objective, run.settings, accelerator)
    done = run.checkpoints.load(head, stepper.optimizer)
    log = Log(run.log if stepper.main else None, done.step)
    saved = began = run.clock()
    step = done.step

    def elapsed() -> float:
        return stepper.agree(done.elapsed + run.clock() - began)

    def save() -> Progress:
        now = Progress(step, elapsed())
        if stepper.main:
            run.checkpoints.save(head, stepper.optimizer, now)
        return now

    while step < run.steps and (run.seconds is None or elapsed() < run.seconds):
        figures = _step(stepper, run, step, elapsed())
        step += 1
        if stepper.main:
            if run.evaluate is not None and run.every and step % run.every == 0:
                figures |= run.evaluate(step)
            log.add({"step": step, **figures})
            run.say(_summary(step, run.steps, figures))
        if stepper.agree(float(run.stopped())) > 0:
            save()
            raise KeyboardInterrupt
        if stepper.agree(run.clock() - saved) >= run.save_seconds:
            save()
            saved = run.clock()
    return save()


def _step(stepper: Stepper, run: Run, step: int, elapsed: float) -> dict[str, Any]:
    """One step and its figures."""
    settings, began = run.settings, run.clock()
    along = progress(step + 0.5, run.steps, elapsed, run.seconds)
    batches = run.fetch(step)
    try:
        figures = stepper.step(batches, learning_rate(settings.lr, along, warmup=settings.warmup, floor=settings.floor))
    except NumericalError as error:
        kept = run.checkpoints.all()
        last = f"the last checkpoint is {kept[-1].name}" if kept else "there is no checkpoint yet"
        raise NumericalError(f"step {step + 1}: {error}; lower optimizer.lr ({last})") from None
    return figures | {"seconds": round(run.clock() - began, 3), "sequences": sum(b.sequences for b in batches)}


class Log:
    """JSONL, one line a step; lines behind the checkpoint from which a run goes on are taken away. Without a path it keeps nothing."""

    def __init__(self, path: Path | None, step: int) -> None:
        self.path = path
        if path is None:
            return
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        lines = whole_lines(path)
        kept = [line for line in lines if json.loads(line)["step"] <= step]
        if len(kept) < len(lines):
            put_text(path, "".join(line + "\n" for line in kept))

    def add(self, figures: dict[str, Any]) -> None:
        if self.path is None:
            return
        with writing(self.path), self.path.open("a", encoding="utf-8") as out:
            out.write(json.dumps(figures) + "\n")


def _summary(step: int, steps: int, figures: dict[str, Any]) -> str:
    shown = "".join(f", {name} {figures[name]:.3g}" for name in ("loss", "accepted", "lr") if name in figures)
    return f"step {step} of {steps}{shown}, {figures['sequences'] / max(figures['seconds'], 1e-9):.1f} sequences/s"
