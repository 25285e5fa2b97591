"""Two processes that train together, and three steps on a toy objective for them: `python -m tests.train.two`, RANK and WORLD_SIZE set."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from paceline.train.recipe import Optimizer
from paceline.train.step import Stepper


def launched(*arguments: str) -> list[str]:
    """What Python prints with these arguments in each of two processes that find each other, as a launcher would start them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    group = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, *arguments],
            env=os.environ | group | {"RANK": rank, "LOCAL_RANK": rank},
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in "01"
    ]
    outputs = [process.communicate(timeout=300) for process in ranks]
    assert not any(process.returncode for process in ranks), outputs
    return [out for out, _ in outputs]


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

    both = Accelerator(cpu=True)
    print(json.dumps(steps(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), both)))
    both.end_training()
