"""A step in two processes is the step that one process makes with all their micro-batches, though their weights differ."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import json, os, sys, torch
from paceline.train.recipe import Optimizer
from paceline.train.step import Stepper

class Batch:
    def __init__(self, seed, rows):
        self.x = torch.randn(rows, 4, generator=torch.Generator().manual_seed(seed))
    def to(self, device):
        return self

def objective(head, batch):
    loss = (head(batch.x) ** 2).sum()
    return loss, {"weight": torch.tensor(float(len(batch.x)))}

accelerator = None
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
if world > 1:
    from accelerate import Accelerator
    accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
head = torch.nn.Linear(4, 2)
stepper = Stepper(head, objective, Optimizer(lr=0.1, clip=0.5), accelerator)
batches = [Batch(1, 3), Batch(2, 9), Batch(3, 1), Batch(4, 5)]
figures = [stepper.step(batches[rank::world], 0.1) for _ in range(3)]
if rank == 0:
    print(json.dumps({"figures": figures, "weight": head.weight.tolist(), "mean": stepper.agree(float(rank + 4))}))
else:
    stepper.agree(float(rank + 4))
"""


def result(world: int) -> dict:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            env={
                **os.environ,
                "RANK": str(r),
                "LOCAL_RANK": str(r),
                "WORLD_SIZE": str(world),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": "29517",
                "OMP_NUM_THREADS": "1",
            },
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for r in range(world)
    ]
    outputs = [process.communicate(timeout=300) for process in ranks]
    assert not any(process.returncode for process in ranks), outputs
    return json.loads(outputs[0][0].strip().splitlines()[-1])


@pytest.mark.slow
def test_two_processes_make_the_steps_of_one() -> None:
    one, two = result(1), result(2)
    assert two["weight"] == [pytest.approx(row, abs=1e-5) for row in one["weight"]], f"{two['weight']} in two, {one['weight']} in one"
    for key in ("loss", "grad_norm"):
        got, want = ([f[key] for f in found["figures"]] for found in (two, one))
        assert got == pytest.approx(want, rel=1e-4), f"{key}: {got} in two processes, {want} in one"
    assert (one["mean"], two["mean"]) == (4.0, 4.5)
