"""`paceline train jetspec` launched in two processes: the losses and the head of one, and nothing left open at the exit."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

from ..train.conftest import prompts_file
from ..train.two import launched
from .test_train import SMALL

PROGRAM = """
import atexit, torch.distributed
from paceline.cli import main
atexit.register(lambda: print("group", "open" if torch.distributed.is_initialized() else "closed"))
main()
"""


@pytest.mark.slow
def test_two_processes_train_the_head_of_one(paceline, model, tmp_path):
    sets = [word for k, v in (SMALL | {"optimizer.batch_size": 2}).items() for word in ("--set", f"{k}={v}")]
    common = ["train", "jetspec", "--model", model, *sets, "--set", "dtype=float32", "--set", "device=cpu", "--steps", "3"]
    prompts = ["--prompts", str(prompts_file(tmp_path, 24))]
    one, two = tmp_path / "one", tmp_path / "two"
    for out, more in ((one, []), (two, ["--data-only"])):
        done = paceline(*common, *prompts, "--out", str(out), *more)
        assert done.code == 0, done.err
    outputs = launched("-c", PROGRAM, *common, *prompts, "--out", str(two))
    assert [out.strip().splitlines()[-1] for out in outputs] == ["group closed"] * 2
    losses = [[json.loads(line)["loss"] for line in (out / "log.jsonl").read_text().splitlines()] for out in (one, two)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-3), f"{losses[1]} in two processes, {losses[0]} in one"
    heads = [load_file(out / "head" / "model.safetensors") for out in (one, two)]
    far = {name: float((heads[1][name].float() - value.float()).abs().max()) for name, value in heads[0].items()}
    assert max(far.values()) < 1e-2, far
    assert torch.isfinite(torch.tensor(list(far.values()))).all()
