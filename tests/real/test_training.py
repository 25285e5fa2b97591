"""A head for the embedded model from nothing, by the command of docs/train.md."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROMPTS = [
    "Write a haiku about rain.",
    "What is the capital of France? Answer with one word.",
    "Natalia sold clips to 48 of her friends in April, and half as many in May. How many did she sell altogether?",
    "Write a Python function that reverses a string.",
    "Explain in two sentences why the sky is blue.",
]


@pytest.mark.real
@pytest.mark.slow
def test_twenty_steps_from_nothing_to_a_head_that_drafts(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    rows = [{"id": f"{i}-{n}", "task": "smoke", "turns": [f"{text} ({n})"]} for i, text in enumerate(PROMPTS) for n in range(6)]
    prompts.write_text("".join(json.dumps(r) + "\n" for r in rows))
    out = tmp_path / "run"
    began = time.monotonic()
    command = ["train", "jetspec", "--model", "smollm2", "--prompts", str(prompts), "--steps", "20", "--out", str(out)]
    for small in ("answers.max_new_tokens=64", "evaluation.max_new_tokens=32", "head.draft_vocab_size=2048"):
        command += ["--set", small]
    done = subprocess.run([sys.executable, "-m", "paceline.cli", *command], capture_output=True, text=True, timeout=900, check=False)
    seconds = time.monotonic() - began
    assert done.returncode == 0, done.stderr[-1000:]
    print(f"{seconds:.0f} s")
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    assert lines[-1]["loss"] < lines[0]["loss"], f"loss {lines[0]['loss']} at first, {lines[-1]['loss']} at last"
    answer = subprocess.run(
        [sys.executable, "-m", "paceline.cli", "generate", PROMPTS[0], "--method", "jetspec", "--head", str(out / "head"), "--json"],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr[-1000:]
    assert json.loads(answer.stdout)["text"], answer.stdout
