"""A tiny target with a tokenizer and a chat template, prompts for it, and a small head."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.heads.config import JetSpecConfig
from paceline.heads.jetspec import JetSpecHead
from paceline.targets.hf import HFTarget
from paceline.targets.load import load
from paceline.train.examples import Example
from paceline.train.features import Taps

from ..cli.conftest import SENTENCES, save_model

WORDS = ["the", "rain", "falls", "on", "a", "quiet", "lake", "and", "small", "bird", "sings", "in", "old", "stone", "wall", "morning"]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_model(tmp_path_factory.mktemp("trained"), seed=3)


@pytest.fixture
def teacher_target(model: str) -> HFTarget:
    return load(model, dtype="float32", device="cpu", weights="plain")


def prompts_file(folder: Path, count: int = 12, **changes: Any) -> Path:
    """So many prompts of two tasks."""
    path = folder / "prompts.jsonl"
    rows = [
        {"id": f"p{i}", "task": ("weather", "birds")[i % 2], "turns": [" ".join(WORDS[(i * 3 + j) % len(WORDS)] for j in range(4 + i % 5))]}
        | {"reference": {"solution": SENTENCES[i % 3]}, "licence": "CC0"}
        | changes
        for i in range(count)
    ]
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return path


def new_head(target: HFTarget, seed: int = 0, **shape: Any) -> JetSpecHead:
    """A random head whose every part matters: norms and mask off their neutral values, the Markov term on."""
    torch.manual_seed(seed)
    ids = shape.pop("ids", None)
    settings = {"num_hidden_layers": 2, "block_size": 4, "taps": (0, 1), "markov_rank": 4} | shape
    config = JetSpecConfig.for_target(target, draft_vocab_size=None if ids is None else len(ids), **settings)
    head = JetSpecHead.for_target(target, config, ids)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return head


def sequences(target: HFTarget, count: int = 3, seed: int = 0) -> list[Example]:
    """Random texts of different lengths with prompts of different lengths."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for i in range(count):
        length = 14 + 5 * i
        tokens = torch.randint(0, target.vocab_size, (length,), generator=generator).tolist()
        made.append(Example(f"e{i}", "random", tuple(tokens), 3 + 2 * i))
    return made


@pytest.fixture
def taps(teacher_target: HFTarget) -> Taps:
    return Taps(teacher_target, (0, 1))
