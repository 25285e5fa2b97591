"""`paceline doctor` on the tiny model: a healthy head, and each way in which one can be ill."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from paceline.heads import formats
from paceline.heads.jetspec import JetSpecConfig, JetSpecHead
from paceline.targets.load import load

from .conftest import Call


@pytest.fixture
def head(model: str, tmp_path: Path) -> Path:
    """A random head of the tiny model, with a card that promises nothing much."""
    target = load(model, dtype="float32", weights="plain")
    torch.manual_seed(0)
    made = JetSpecHead.for_target(target, JetSpecConfig.for_target(target, block_size=4, taps=(0,)))
    card = {"evaluation": {"decoding": {"mean_acceptance_length": 1.0, "budget": 8}}}
    formats.save(made, tmp_path / "head", dtype=torch.float32, card=card)
    return tmp_path / "head"


@pytest.fixture
def doctor(paceline: Call, model: str, tmp_path: Path) -> Call:
    """`paceline doctor` on the tiny model and two short prompts."""
    prompts = tmp_path / "short.jsonl"
    prompts.write_text("".join(json.dumps({"id": turn, "task": "rain", "turns": [turn]}) + "\n" for turn in ("the rain", "a bird sings")))

    def call(head: Path, *args: str):
        if "--prompts" not in args:
            args = (*args, "--prompts", str(prompts))
        return paceline("doctor", str(head), "--model", model, "--dtype", "float32", "--max-new-tokens", "8", *args)

    return call


def edit(head: Path, **changes) -> None:
    """Set keys of config.json; `a__b` is key b of object a."""
    file = head / "config.json"
    config = json.loads(file.read_text())
    for name, value in changes.items():
        place, names = config, name.split("__")
        for part in names[:-1]:
            place = place[part]
        place[names[-1]] = value
    file.write_text(json.dumps(config))


def verdicts(result) -> dict[str, bool | None]:
    return {f["check"]: f["ok"] for f in json.loads(result.out)["findings"]}


def test_a_healthy_head_passes_every_check(doctor, head):
    result = doctor(head, "--json")
    assert (result.code, json.loads(result.out)["healthy"]) == (0, True), result.out
    assert set(verdicts(result).values()) == {True}, result.out


def test_the_table_says_what_layer_ids_mean(doctor, head):
    out = doctor(head).out
    assert "outputs of decoder layers 0, counted from 0 (entries 1 of Transformers' hidden states)" in " ".join(out.split()), out


def test_a_card_that_promises_more_is_a_finding(doctor, head):
    (head / "card.json").write_text(json.dumps({"evaluation": {"decoding": {"mean_acceptance_length": 2.5, "budget": 8}}}))
    result = doctor(head, "--json")
    assert (result.code, verdicts(result)["mean acceptance length"]) == (1, False), result.out


def test_without_a_card_acceptance_is_reported_and_not_judged(doctor, head):
    (head / "card.json").unlink()
    result = doctor(head, "--json")
    assert (result.code, verdicts(result)["mean acceptance length"]) == (0, None), result.out


def test_other_layer_ids_are_tried_where_acceptance_is_not_what_the_card_says(doctor, head):
    (head / "card.json").unlink()
    assert "with layer ids +1" in verdicts(doctor(head, "--json"))


@pytest.mark.parametrize(
    ("changes", "check"),
    [
        ({"paceline__target_tokenizer": "0123456789abcdef"}, "tokenizer"),
        ({"paceline__target_fingerprint": [1.0] * 32}, "fingerprint of embedding and output rows"),
        ({"num_target_layers": 5}, "number of target layers"),
    ],
)
def test_a_head_of_another_target_is_ill(doctor, head, changes, check):
    edit(head, **changes)
    result = doctor(head, "--json")
    assert (result.code, [name for name, ok in verdicts(result).items() if ok is False]) == (1, [check]), result.out


def test_a_head_of_another_width_is_ill_before_anything_is_decoded(doctor, head, paceline, tmp_path):
    from .conftest import SENTENCES, save_model

    other = save_model(tmp_path / "other", seed=1, sentences=SENTENCES)
    wide = tmp_path / "other" / "config.json"
    config = json.loads(wide.read_text())
    target = load(other, dtype="float32", weights="plain")
    made = JetSpecConfig.for_target(target, block_size=4, taps=(0,))
    shapes = JetSpecConfig.from_dict({**made.as_dict(), "hidden_size": 16, "target_fingerprint": []})
    formats.save(JetSpecHead(shapes, torch.zeros(config["vocab_size"], 16), torch.zeros(config["vocab_size"], 16)), tmp_path / "narrow")
    result = doctor(tmp_path / "narrow", "--json")
    assert result.code == 1
    assert (verdicts(result)["hidden size"], "mean acceptance length" in verdicts(result)) == (False, False)


def test_a_folder_without_a_head_is_one_line(doctor, tmp_path):
    result = doctor(tmp_path)
    assert (result.code, result.err.count("\n"), "config.json cannot be read" in result.err) == (2, 1, True), result.err


def test_missing_tensors_are_one_line(doctor, head):
    edit(head, num_hidden_layers=3)
    result = doctor(head)
    assert (result.code, "the head lacks layers.2." in result.err) == (2, True), result.err


def test_a_prompts_file_is_used(doctor, head, tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text(json.dumps({"id": "1", "task": "rain", "turns": ["the rain"]}) + "\n")
    assert "on 1 prompts" in doctor(head, "--json", "--prompts", str(file)).out


def test_prompts_that_leave_no_room_are_left_out(doctor, head, tmp_path):
    file = tmp_path / "prompts.jsonl"
    rows = [{"id": str(n), "task": "rain", "turns": ["the rain " * n]} for n in (1, 400)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "on 1 prompts" in doctor(head, "--json", "--prompts", str(file), "--limit", "2").out
