"""`--head`: where a head comes from, and what is refused before a model is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from paceline.heads import formats
from paceline.heads.jetspec import JetSpecConfig, JetSpecHead
from paceline.targets.load import load

from .conftest import save_model


@pytest.fixture(scope="module")
def head(model: str, tmp_path_factory) -> str:
    target = load(model, dtype="float32", weights="plain")
    torch.manual_seed(0)
    made = JetSpecHead.for_target(target, JetSpecConfig.for_target(target, block_size=4, markov_rank=2))
    folder = tmp_path_factory.mktemp("head")
    formats.save(made, folder)
    return str(folder)


@pytest.mark.parametrize("method", ["jetspec", "lookup+jetspec", "jetspec+lookup"])
def test_a_head_drafts_and_the_text_is_the_same(generate, head, method):
    settings = ("the rain", "--max-new-tokens", "16", "--json")
    drafted = generate(*settings, "--method", method, "--head", head).json
    assert drafted["tokens"] == generate(*settings, "--method", "none").json["tokens"]
    assert (drafted["method"], drafted["lossless"]) == (method, True)


def test_a_chat_and_a_bench_take_a_head(chat, paceline, model, head, tmp_path):
    assert chat("--method", "jetspec", "--head", head, "--max-new-tokens", "4", stdin="the rain\n").code == 0
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"id": "1", "task": "rain", "turns": ["the rain"]}) + "\n")
    options = ("--methods", "none,jetspec", "--peers", "", "--prompts", str(prompts), "--max-new-tokens", "4", "--dtype", "float32")
    result = paceline("bench", "--model", model, *options, "--head", head, "--json", "-")
    assert result.code == 0, result.err


@pytest.mark.parametrize("command", ["generate", "chat", "bench"])
def test_without_a_head_the_error_says_how_to_get_one(paceline, model, command):
    given = {"generate": ("x", "--method", "jetspec"), "chat": ("--method", "jetspec"), "bench": ("--methods", "jetspec")}[command]
    result = paceline(command, "--model", model, *given)
    assert (result.code, result.err.count("\n")) == (2, 1), result.err
    assert "give one with --head" in result.err, result.err
    assert "paceline train jetspec" in result.err, result.err


@pytest.mark.parametrize("given", [("--method", "lookup"), ("--method", "none")])
def test_a_head_without_a_method_that_reads_it_is_refused(generate, head, given):
    result = generate("x", *given, "--head", head)
    assert (result.code, "--head has no effect" in result.err) == (2, True), result.err


def test_a_folder_without_a_head_is_refused(generate, tmp_path):
    result = generate("x", "--method", "jetspec", "--head", str(tmp_path))
    assert (result.code, "holds no head" in result.err) == (2, True), result.err


def test_a_head_of_another_model_is_refused(paceline, head, tmp_path: Path):
    other = save_model(tmp_path / "other", seed=7)
    result = paceline("generate", "x", "--model", other, "--dtype", "float32", "--method", "jetspec", "--head", head)
    assert (result.code, result.err.count("\n"), "does not belong to" in result.err) == (2, 1, True), result.err


def test_rejection_is_refused(generate, head):
    result = generate("x", "--method", "jetspec/rejection", "--head", head)
    assert (result.code, "use rule match" in result.err) == (2, True), result.err
