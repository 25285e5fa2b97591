"""One step of training: forward and backward over all micro-batches, clip, check finite, step. On one device or, by Accelerate, many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from ..errors import NumericalError
from .recipe import Optimizer

Sums = dict[str, torch.Tensor]
MEAN = "mean/"
Objective = Callable[[Any, Any], tuple[torch.Tensor, Sums]]  # (head, batch) -> summed loss, sums; sums["weight"] divides the loss


class Trainee(nn.Module):
    """Head and objective as one module, so that Accelerate can spread it over devices."""

    def __init__(self, head: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.head, self.objective = head, objective

    def forward(self, batch: Any) -> tuple[torch.Tensor, Sums]:
        return self.objective(self.head, batch)


class Stepper:
    """A head, its objective and its optimiser."""

    def __init__(self, head: nn.Module, objective: Objective, settings: Optimizer, accelerator: Any = None) -> None:
        self.head, self.settings, self.accelerator = head, settings, accelerator
        trained = [p for p in head.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=settings.lr, betas=settings.betas, weight_decay=settings.weight_decay, fused=True)
        self._device = trained[0].device
        self._model: Any = Trainee(head, objective)
        self._optimizer: Any = self.optimizer
        if accelerator is not None:
            self._model, self._optimizer = accelerator.prepare(self._model, self.optimizer)

    @property
    def main(self) -> bool:
        """Whether this process writes what there is to write."""
        return self.accelerator is None or bool(self.accelerator.is_main_process)

    def agree(self, value: float) -> float:
        """The mean of a number over all processes."""
        if self.accelerator is None:
            return value
        return float(self.accelerator.reduce(torch.tensor(value, device=self._device), "mean"))

    def step(self, batches: Sequence[Any], rate: float) -> dict[str, Any]:
        """Train on these micro-batches with this learning rate. Returns figures; raises NumericalError naming what is not finite."""
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.zero_grad(set_to_none=True)
        totals: Sums = {}
        for batch in batches:
            batch = batch.to(self._device)
            with torch.autocast(self._device.type, torch.bfloat16, enabled=self.settings.precision == "bfloat16"):
                loss, sums = self._model(batch)
            if not bool(torch.isfinite(loss)):
                raise NumericalError(f"the loss ({loss.item()}) is not finite")
            self._backward(loss)
            add(totals, loss, sums)
        norm = self._scale_and_clip(self._gather(totals))
        self._optimizer.step()
        return means(totals) | {"lr": rate, "grad_norm": norm}

    def _backward(self, loss: torch.Tensor) -> None:
        if self.accelerator is None:
            loss.backward()  # type: ignore[no-untyped-call]
        else:
            self.accelerator.backward(loss)

    def _gather(self, totals: Sums) -> float:
        """Sum over processes in place; returns what turns the summed gradients into those of the mean loss."""
        world = 1
        if self.accelerator is not None and self.accelerator.num_processes > 1:
            world = self.accelerator.num_processes  # whose gradients were averaged
            totals |= {name: self.accelerator.reduce(value, "sum") for name, value in totals.items()}
        return world / max(float(totals["weight"]), 1e-9)

    def _scale_and_clip(self, scale: float) -> float:
        grads = {n: p.grad for n, p in self.head.named_parameters() if p.grad is not None}
        torch._foreach_mul_(list(grads.values()), scale)
        norm = nn.utils.get_total_norm(grads.values())
        if not bool(torch.isfinite(norm)):
            wrong = [n for n, g in grads.items() if not bool(torch.isfinite(g).all())]
            raise NumericalError(f"the gradient of {wrong[0] if wrong else 'all parameters together'} is not finite")
        nn.utils.clip_grads_with_norm_(self.head.parameters(), self.settings.clip, norm)
        return float(norm)


def add(totals: Sums, loss: torch.Tensor, sums: Sums) -> None:
    """Add a batch's loss and sums to the totals."""
    for name, value in ({"loss": loss.detach()} | sums).items():
        totals[name] = totals.get(name, torch.zeros_like(value)) + value


def means(totals: Sums) -> dict[str, Any]:
    """Mean loss, accuracy by depth and simulated accepted length, from an objective's sums; and of sums named mean/... their means."""
    weight = totals["weight"].clamp(min=1e-9)
    figures: dict[str, Any] = {"loss": float(totals["loss"] / weight)}
    figures |= {name.removeprefix(MEAN): round(float(total / weight), 5) for name, total in totals.items() if name.startswith(MEAN)}
    if "slots" in totals:
        figures["accuracy"] = [round(x, 4) for x in (totals["correct"] / totals["slots"].clamp(min=1)).tolist()]
        figures["accepted"] = round(float(1 + totals["accepted"] / totals["blocks"].clamp(min=1)), 4)
    return figures
