"""Three steps on a toy objective, as one process of several: `python -m tests.train.two` with RANK and WORLD_SIZE set."""

from __future__ import annotations

import json
import os
from typing import Any

import torch

from paceline.train.recipe import Optimizer
from paceline.train.step import Stepper


class Batch:
    def __init__(self, seed: int, rows: int) -> None:
        self.x = torch.randn(rows, 4, generator=torch.Generator().manual_seed(seed))

    def to(self, device: torch.device) -> Batch:
        return self


def objective(head: Any, batch: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    return (head(batch.x) ** 2).sum(), {"weight": torch.tensor(float(len(batch.x)))}


def steps(rank: int, world: int, accelerator: Any = None) -> dict[str, Any]:
    torch.manual_seed(0)
    head = torch.nn.Linear(4, 2)
    stepper = Stepper(head, objective, Optimizer(lr=0.1, clip=0.5), accelerator)
    batches = [Batch(1, 3), Batch(2, 9), Batch(3, 1), Batch(4, 5)]
    figures = [stepper.step(batches[rank::world], 0.1) for _ in range(3)]
    return {"figures": figures, "weight": head.weight.tolist(), "mean": stepper.agree(float(rank + 4))}


if __name__ == "__main__":
    from accelerate import Accelerator

    print(json.dumps(steps(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), Accelerator(cpu=True))))
