"""A tiny model folder, problems that it solves or not, and `paceline eval` on them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline import api
from paceline.cli import main
from paceline.sampling import SamplingParams
from paceline.targets.hf import HFTarget
from paceline.targets.load import load

from ..cli.conftest import save_model

QUESTIONS = [f"How many {what} sing in the {where}?" for where in ("rain", "lake", "wall", "morning") for what in ("birds", "small birds")]
SENTENCES = [" ".join(map(str, range(60))), "How many birds sing in the rain?"]  # so that numbers are tokens, and come up
LENGTH = 24  # tokens of an answer


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_model(tmp_path_factory.mktemp("model"), seed=2, sentences=SENTENCES)


@pytest.fixture(scope="session")
def draft_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_model(tmp_path_factory.mktemp("draft"), seed=4, sentences=SENTENCES)


@pytest.fixture(scope="session")
def small(model: str) -> HFTarget:
    return load(model, dtype="float32", device="cpu", weights="plain")


@pytest.fixture(scope="session")
def says(small: HFTarget) -> Callable[[str], str]:
    """What plain decoding answers to a prompt."""

    def answer(prompt: str) -> str:
        params = SamplingParams(max_new_tokens=LENGTH)
        return api.generate(small, [prompt], params, method="none")[0].text

    return answer


def rows(references: list[dict[str, Any] | None], task: str = "gsm8k") -> list[dict[str, Any]]:
    return [
        {"id": f"p{i}", "task": task, "turns": [QUESTIONS[i]], "reference": reference, "licence": "CC0"}
        for i, reference in enumerate(references)
    ]


def write(file: Path, lines: list[dict[str, Any]]) -> Path:
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    """Eight problems of GSM8K's kind."""
    return write(tmp_path / "problems.jsonl", rows([{"answer": str(i)} for i in range(8)]))


Eval = Callable[..., tuple[int, str, str]]


@pytest.fixture
def evaluate(model: str, problems: Path, capsys: pytest.CaptureFixture[str]) -> Eval:
    """`paceline eval` on the tiny model in float32; returns exit code, stdout and stderr."""

    def call(*args: str, task: str = "gsm8k", file: Path | None = problems) -> tuple[int, str, str]:
        given = [] if file is None else ["--prompts", str(file)]
        options = ["--task", task, "--model", model, *given, "--dtype", "float32", "--max-new-tokens", str(LENGTH)]
        with pytest.raises(SystemExit) as ended:
            main(["eval", *options, *args])
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return call
