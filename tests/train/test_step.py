"""A step in two processes is the step that one process makes with all their micro-batches, though their weights differ."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from .two import steps


def in_two_processes() -> dict:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.train.two"],
            env=os.environ
            | {"RANK": r, "LOCAL_RANK": r, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"},
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for r in "01"
    ]
    outputs = [process.communicate(timeout=300) for process in ranks]
    assert not any(process.returncode for process in ranks), outputs
    return json.loads(outputs[0][0].strip().splitlines()[-1])


@pytest.mark.slow
def test_two_processes_make_the_steps_of_one() -> None:
    one, two = steps(0, 1), in_two_processes()
    assert two["weight"] == [pytest.approx(row, abs=1e-5) for row in one["weight"]], f"{two['weight']} in two, {one['weight']} in one"
    for key in ("loss", "grad_norm"):
        got, want = ([f[key] for f in found["figures"]] for found in (two, one))
        assert got == pytest.approx(want, rel=1e-4), f"{key}: {got} in two processes, {want} in one"
    assert (one["mean"], two["mean"]) == (4.0, 4.5)
