"""`paceline train rcsd --draft-model`: a folder that `--draft-model` loads, interruptions, records from elsewhere, and bad input."""

from __future__ import annotations

import json
import os
import signal

import pytest
import torch
from safetensors.torch import load_file

from ..train.conftest import prompts_file
from .conftest import save_model
from .test_train_rcsd import SMALL, log, results

OURS = {k: v for k, v in SMALL.items() if k != "optimizer.anchors"} | {"draft.num_speculative_tokens": 3}


@pytest.fixture(scope="module")
def draft(tmp_path_factory):
    """A model near the target, so that some of its drafts are accepted."""
    return save_model(tmp_path_factory.mktemp("near"), noise=0.05)


@pytest.fixture
def train(paceline, model, draft):
    def call(out, prompts, *args, **settings):
        given = {k.replace("__", "."): v for k, v in settings.items()}
        sets = [word for k, v in (OURS | given).items() for word in ("--set", f"{k}={v}")]
        where = ("--model", model, "--draft-model", draft, "--prompts", str(prompts), "--out", str(out))
        return paceline("train", "rcsd", *where, *sets, *args)

    return call


def weights(out):
    return load_file(out / "model" / "model.safetensors")


def test_from_a_draft_model_to_one_that_generate_takes(train, generate, draft, tmp_path):
    done = train(tmp_path / "run", prompts_file(tmp_path, 8), "--steps", "2", "--rounds", "1", gate__enforce=False)
    assert done.code == 0, done.err
    (result,) = results(tmp_path / "run")
    assert result["pairs"] > 0
    assert json.loads((tmp_path / "run" / "model" / "card.json").read_text())["rcsd"]["rounds"] == [result]
    words = ("the rain", "--method", "draft_model", "--max-new-tokens", "8", "--json", "--draft-model")
    plain, ours = (generate(*words, folder).json for folder in (draft, str(tmp_path / "run" / "model")))
    assert ours["text"] == plain["text"], "decoding is lossless whatever the draft model has learnt"


@pytest.mark.parametrize("words", [("--set", "draft.shape=chain"), ("--lora-rank", "2")], ids=["chain", "lora"])
def test_chains_and_adapters_give_an_ordinary_folder(train, draft, tmp_path, words):
    settings = {"evaluation__budget": 16} if "draft.shape=chain" in words else {}
    done = train(tmp_path / "run", prompts_file(tmp_path, 8), "--steps", "1", *words, gate__enforce=False, **settings)
    assert done.code == 0, done.err
    before, after = load_file(f"{draft}/model.safetensors"), weights(tmp_path / "run")
    moved = {n for n in before if not torch.equal(before[n], after[n])}
    assert before.keys() == after.keys()
    assert "model.layers.0.mlp.up_proj.weight" in moved
    assert ("model.embed_tokens.weight" in moved) is ("--lora-rank" not in words), "adapters leave the embedding alone"


def test_a_round_that_does_not_gain_leaves_the_model_what_it_was(train, draft, tmp_path):
    done = train(tmp_path / "run", prompts_file(tmp_path, 8), "--steps", "1", optimizer__lr=1e-9, gate__retries=0)
    assert done.code == 0, done.err
    (result,) = results(tmp_path / "run")
    assert (result["deployed"], "must gain" in result["reason"]) == (False, True), result
    before, after = load_file(f"{draft}/model.safetensors"), weights(tmp_path / "run")
    assert all(torch.equal(before[n], after[n]) for n in before)


@pytest.mark.slow
@pytest.mark.parametrize("words", [(), ("--lora-rank", "2")], ids=["all", "lora"])
def test_a_run_that_was_killed_while_training_ends_as_one_that_was_not(train, tmp_path, monkeypatch, words):
    from paceline.train.step import Stepper

    prompts, words = prompts_file(tmp_path, 8), ("--steps", "3", *words)
    assert train(tmp_path / "whole", prompts, *words, gate__enforce=False).code == 0
    original, calls = Stepper.step, iter(range(10**6))

    def interrupt(self, *given):
        if next(calls) == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return original(self, *given)

    monkeypatch.setattr(Stepper, "step", interrupt)
    assert train(tmp_path / "parts", prompts, *words, gate__enforce=False).code == 130
    monkeypatch.undo()
    assert train(tmp_path / "parts", prompts, *words, gate__enforce=False).code == 0
    losses = [log(tmp_path / run / "stages" / "00-mixed" / "try-0") for run in ("whole", "parts")]
    assert losses[0] == losses[1]
    one, two = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert all(torch.equal(one[n], two[n]) for n in one)


def recorded(generate, draft, folder):
    words = ("--method", "draft_model", "--draft-model", draft, "--max-new-tokens", "16", "--record", str(folder))
    done = generate("the rain sings on a small bird", *words)
    assert done.code == 0, done.err


def test_rounds_that_generate_recorded_are_learnt_from(train, generate, draft, tmp_path):
    recorded(generate, draft, tmp_path / "records")
    words = ("--records", str(tmp_path / "records"), "--steps", "1")
    done = train(tmp_path / "run", prompts_file(tmp_path, 8), *words, gate__enforce=False)
    assert done.code == 0, done.err
    assert results(tmp_path / "run")[0]["domains"] == ["generate"]


def test_rounds_of_another_draft_model_are_refused(train, generate, draft, draft_model, tmp_path):
    recorded(generate, draft_model, tmp_path / "records")
    done = train(tmp_path / "run", prompts_file(tmp_path, 8), "--records", str(tmp_path / "records"), "--steps", "1")
    assert (done.code, "were made with drafter" in done.err) == (2, True), done.err


def test_rounds_whose_first_choices_are_not_this_models_are_refused(train, generate, draft, tmp_path):
    recorded(generate, draft, tmp_path / "records")
    shard = tmp_path / "records" / "000000.jsonl"
    text = json.loads(shard.read_text())
    for r in text["rounds"]:
        r["tokens"] = [r["tokens"][0], *(7 for _ in r["tokens"][1:])]
    shard.write_text(json.dumps(text) + "\n")
    done = train(tmp_path / "run", prompts_file(tmp_path, 8), "--records", str(tmp_path / "records"), "--steps", "1")
    assert (done.code, "made with another draft model" in done.err) == (2, True), done.err


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"preference__mask": "none"}, "preference.mask has no effect on a draft model"),
        ({"distillation__depth_weights": "dynamic"}, "distillation.depth_weights has no effect on a draft model"),
        ({"optimizer__micro_batch": 2}, "optimizer.micro_batch has no effect on a draft model"),
        ({"draft__shape": "chain"}, "evaluation.budget has no effect on a draft model"),
        ({"draft__lora_alpha": 4}, "lora_alpha has no effect without lora_rank"),
    ],
    ids=["mask", "depth weights", "micro batch", "budget", "alpha"],
)
def test_what_has_no_effect_is_one_line(train, tmp_path, settings, message):
    done = train(tmp_path / "run", prompts_file(tmp_path, 8), "--steps", "1", **settings)
    errors = [line for line in done.err.splitlines() if line.startswith("error: ")]
    assert (done.code, len(errors)) == (2, 1), done.err
    assert message in errors[0], errors[0]


def test_a_draft_model_learns_slower_than_a_head_unless_told(paceline):
    words = ("train", "rcsd", "--prompts", "p.jsonl", "--draft-model", "d", "--dry-run")
    rates = [paceline(*words, *more).out.split("  lr: ")[1].split("\n")[0] for more in ((), ("--lora-rank", "4"))]
    assert [float(r) for r in rates] == [1e-5, 1e-4]
