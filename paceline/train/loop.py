"""The one training loop: fetch, forward, backward, clip, check finite, step, log, checkpoint, evaluate. The objective is an argument."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..errors import NumericalError
from .checkpoint import Checkpoints, Progress
from .disk import put_text, whole_lines, writing
from .prompts import Say
from .recipe import Optimizer
from .schedule import learning_rate, progress

Objective = Callable[[Any, Any], tuple[torch.Tensor, dict[str, torch.Tensor]]]  # (head, batch) -> summed loss, sums


class Trainee(nn.Module):
    """Head and objective as one module, so that Accelerate can spread it over devices."""

    def __init__(self, head: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.head, self.objective = head, objective

    def forward(self, batch: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        return self.objective(self.head, batch)


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
    clock: Callable[[], float] = field(default=time.perf_counter)


def train(head: nn.Module, objective: Objective, run: Run, accelerator: Any = None) -> Progress:
    """Train a head in place, from the latest checkpoint on if there is one. Returns what was done over all runs.

    Raises NumericalError, naming the step, if loss or gradients are not finite, and KeyboardInterrupt, after a checkpoint, if stopped.
    """
    parameters = [p for p in head.parameters() if p.requires_grad]
    settings = run.settings
    optimizer = torch.optim.AdamW(parameters, lr=settings.lr, betas=settings.betas, weight_decay=settings.weight_decay, fused=True)
    done = run.checkpoints.load(head, optimizer)
    log = Log(run.log, done.step)
    model: Any = Trainee(head, objective)
    stepper: Any = optimizer
    if accelerator is not None:
        model, stepper = accelerator.prepare(model, optimizer)
    loop = _Loop(head, model, stepper, run, accelerator)
    before, began = done.elapsed, run.clock()
    saved, step = began, done.step

    def save() -> None:
        if accelerator is None or accelerator.is_main_process:
            run.checkpoints.save(head, optimizer, Progress(step, before + run.clock() - began))

    while step < run.steps:
        elapsed = before + run.clock() - began
        if run.seconds is not None and elapsed >= run.seconds:
            break
        figures = loop.step(step, elapsed)
        step += 1
        if run.evaluate is not None and run.every and step % run.every == 0:
            figures |= run.evaluate(step)
        log.add({"step": step, **figures})
        run.say(_summary(step, run.steps, figures))
        if run.stopped():
            save()
            raise KeyboardInterrupt
        if run.clock() - saved >= run.save_seconds:
            save()
            saved = run.clock()
    save()
    return Progress(step, before + run.clock() - began)


@dataclass
class _Loop:
    head: nn.Module
    model: Any
    optimizer: Any
    run: Run
    accelerator: Any

    def step(self, step: int, elapsed: float) -> dict[str, Any]:
        """One optimiser step over all micro-batches; returns its figures."""
        run, settings = self.run, self.run.settings
        rate = learning_rate(
            settings.lr, progress(step + 0.5, run.steps, elapsed, run.seconds), warmup=settings.warmup, floor=settings.floor
        )
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad(set_to_none=True)
        began = run.clock()
        totals: dict[str, torch.Tensor] = {}
        sequences = 0
        for batch in run.fetch(step):
            batch = batch.to(next(self.head.parameters()).device)
            with torch.autocast(batch.tokens.device.type, torch.bfloat16, enabled=settings.precision == "bfloat16"):
                loss, sums = self.model(batch)
            self._check(bool(torch.isfinite(loss)), step, f"the loss ({loss.item()})")
            self._backward(loss)
            for name, value in ({"loss": loss.detach()} | sums).items():
                totals[name] = totals.get(name, torch.zeros_like(value)) + value
            sequences += len(batch.tokens)
        norm = self._scale_and_clip(self._gather(totals), step)
        self.optimizer.step()
        seconds = run.clock() - began
        return means(totals) | {"lr": rate, "grad_norm": norm, "seconds": round(seconds, 3), "sequences": sequences}

    def _backward(self, loss: torch.Tensor) -> None:
        if self.accelerator is None:
            loss.backward()  # type: ignore[no-untyped-call]
        else:
            self.accelerator.backward(loss)

    def _gather(self, totals: dict[str, torch.Tensor]) -> float:
        """Sum over processes in place; returns what turns the summed gradients into those of the mean loss."""
        world = 1
        if self.accelerator is not None and self.accelerator.num_processes > 1:
            world = self.accelerator.num_processes  # whose gradients were averaged
            totals |= {name: self.accelerator.reduce(value, "sum") for name, value in totals.items()}
        return world / max(float(totals["weight"]), 1e-9)

    def _scale_and_clip(self, scale: float, step: int) -> float:
        named = {n: p for n, p in self.head.named_parameters() if p.grad is not None}
        grads = [p.grad for p in named.values() if p.grad is not None]
        torch._foreach_mul_(grads, scale)
        norm = nn.utils.get_total_norm(grads)
        if not bool(torch.isfinite(norm)):
            wrong = [n for n, p in named.items() if not bool(torch.isfinite(p.grad).all())]  # type: ignore[arg-type]
            self._check(False, step, f"the gradient of {wrong[0] if wrong else 'all parameters together'}")
        nn.utils.clip_grads_with_norm_(named.values(), self.run.settings.clip, norm)
        return float(norm)

    def _check(self, finite: bool, step: int, what: str) -> None:
        if not finite:
            kept = self.run.checkpoints.all()
            last = f"the last checkpoint is {kept[-1].name}" if kept else "there is no checkpoint yet"
            raise NumericalError(f"step {step + 1}: {what} is not finite; lower optimizer.lr ({last})")


class Log:
    """JSONL, one line a step; lines behind the checkpoint from which a run goes on are taken away."""

    def __init__(self, path: Path, step: int) -> None:
        self.path = path
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        lines = whole_lines(path)
        kept = [line for line in lines if json.loads(line)["step"] <= step]
        if len(kept) < len(lines):
            put_text(path, "".join(line + "\n" for line in kept))

    def add(self, figures: dict[str, Any]) -> None:
        with writing(self.path), self.path.open("a", encoding="utf-8") as out:
            out.write(json.dumps(figures) + "\n")


def means(totals: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Mean loss, accuracy by depth and simulated accepted length, from an objective's sums."""
    figures: dict[str, Any] = {"loss": float(totals["loss"] / totals["weight"].clamp(min=1e-9))}
    if "slots" in totals:
        figures["accuracy"] = [round(x, 4) for x in (totals["correct"] / totals["slots"].clamp(min=1)).tolist()]
        figures["accepted"] = round(float(1 + totals["accepted"] / totals["blocks"].clamp(min=1)), 4)
    return figures


def _summary(step: int, steps: int, figures: dict[str, Any]) -> str:
    shown = "".join(f", {name} {figures[name]:.3g}" for name in ("loss", "accepted", "lr") if name in figures)
    return f"step {step} of {steps}{shown}, {figures['sequences'] / max(figures['seconds'], 1e-9):.1f} sequences/s"
