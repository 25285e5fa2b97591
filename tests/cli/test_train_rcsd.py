"""`paceline train rcsd` on a tiny model: rounds, refusals, interruptions, records from elsewhere, and bad input."""

from __future__ import annotations

import json
import os
import signal

import pytest
import torch
from safetensors.torch import load_file

from paceline.heads import formats
from paceline.heads.bigrams import Bigrams
from paceline.targets.load import load
from paceline.tree import Tree

from ..train.conftest import new_head, prompts_file

SMALL = {
    "answers.max_new_tokens": 16,
    "evaluation.max_new_tokens": 16,
    "optimizer.batch_size": 3,
    "optimizer.anchors": 6,
    "optimizer.lr": 0.003,
    "evaluation.budget": 8,
    "data.held_out": 2,
}


@pytest.fixture(scope="module")
def head(model, tmp_path_factory):
    """A head that says the likeliest words, so that some of its drafts are accepted."""
    target = load(model, dtype="float32", device="cpu", weights="plain")
    made = new_head(target, markov_rank=64, seed=2)
    with torch.no_grad():
        made.norm.weight.mul_(0.1)
    ids, slot = made.draft_vocab_ids, target.cache.open()
    after = target.verify([Tree((5, *ids.tolist()), (-1, *[0] * len(ids)))], [slot]).logits[1:, ids].softmax(-1)
    table = Bigrams(ids, torch.ones(target.vocab_size))
    table.add(ids.repeat(50), after.repeat(50, 1))
    table.start(made)
    folder = tmp_path_factory.mktemp("trained") / "head"
    formats.save(made, folder, card={"method": "jetspec", "draft_vocabulary": {"size": 300}})
    return folder


@pytest.fixture
def train(paceline, model, head):
    """`paceline train rcsd` on the tiny model with small settings over which others go."""

    def call(out, prompts, *args, **settings):
        given = {k.replace("__", "."): v for k, v in settings.items()}
        sets = [word for k, v in (SMALL | given).items() for word in ("--set", f"{k}={v}")]
        where = () if prompts is None else ("--prompts", str(prompts))
        return paceline("train", "rcsd", "--model", model, "--head", str(head), *where, "--out", str(out), *sets, *args)

    return call


def results(out):
    return [json.loads((f / "result.json").read_text()) for f in sorted((out / "stages").iterdir())]


def log(folder):
    return [json.loads(line)["loss"] for line in (folder / "log.jsonl").read_text().splitlines()]


def test_from_a_head_to_a_head_with_its_rounds_in_its_card(train, model, tmp_path):
    done = train(tmp_path / "run", prompts_file(tmp_path, 10), "--steps", "4", "--rounds", "1", gate__enforce=False)
    assert done.code == 0, done.err
    (result,) = results(tmp_path / "run")
    assert result["pairs"] > 0
    assert result["verify_rounds"] > result["texts"]
    head = tmp_path / "run" / "head"
    assert formats.load(head, load(model, dtype="float32", device="cpu")).config.depth == 3
    card = json.loads((head / "card.json").read_text())
    assert card["rcsd"]["rounds"] == [result]
    assert card["evaluation"]["decoding"]["prompts"] == 2
    assert "| birds |" in (head / "README.md").read_text()


def test_a_round_that_does_not_gain_is_refused_and_the_head_stays_what_it_was(train, head, tmp_path):
    done = train(tmp_path / "run", prompts_file(tmp_path, 10), "--steps", "1", "--rounds", "1", optimizer__lr=1e-9)
    assert done.code == 0, done.err
    (result,) = results(tmp_path / "run")
    assert (result["deployed"], result["attempts"], "must gain" in result["reason"]) == (False, 2, True), result
    before, after = (load_file(f / "model.safetensors") for f in (head, tmp_path / "run" / "head"))
    assert all(torch.equal(before[k], after[k]) for k in before)


def test_domains_come_in_turn_and_what_was_forgotten_is_judged_and_reported(train, tmp_path, monkeypatch):
    from paceline.train.rcsd import course

    judge, earlier = course.judge, []
    monkeypatch.setattr(course, "judge", lambda *given: earlier.append(set(given[3])) or judge(*given))
    words = ("--protocol", "domains", "--steps", "2")
    done = train(tmp_path / "run", prompts_file(tmp_path, 10), *words, gate__enforce=False, continual__replay=0)
    assert done.code == 0, done.err
    assert [r["domains"] for r in results(tmp_path / "run")] == [["birds"], ["weather"]]
    assert earlier == [set(), {"birds"}], f"judged as earlier domains: {earlier}"
    figures = json.loads((tmp_path / "run" / "head" / "card.json").read_text())["rcsd"]
    birds = [r["lengths"]["birds"] for r in figures["rounds"]]
    assert figures["backward_transfer"] == pytest.approx(birds[1] - birds[0], abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["collecting", "training"])
def test_a_run_that_was_killed_in_the_middle_of_a_round_ends_as_one_that_was_not(train, tmp_path, monkeypatch, place):
    from paceline.record.recorder import Recorder
    from paceline.train.step import Stepper

    prompts, words = prompts_file(tmp_path, 10), ("--steps", "3", "--protocol", "domains")
    assert train(tmp_path / "whole", prompts, *words, gate__enforce=False).code == 0
    owner, name, when = {"collecting": (Recorder, "add", 30), "training": (Stepper, "step", 4)}[place]
    original, calls = getattr(owner, name), iter(range(10**6))

    def interrupt(self, *given):
        if next(calls) == when:
            os.kill(os.getpid(), signal.SIGINT)
        return original(self, *given)

    monkeypatch.setattr(owner, name, interrupt)
    stopped = train(tmp_path / "parts", prompts, *words, gate__enforce=False)
    assert stopped.code == 130, stopped.err
    assert "the same command goes on" in stopped.err
    monkeypatch.undo()
    assert train(tmp_path / "parts", prompts, *words, gate__enforce=False).code == 0
    for folder in sorted((tmp_path / "whole" / "stages").iterdir()):
        other = tmp_path / "parts" / "stages" / folder.name
        assert log(other / "try-0") == log(folder / "try-0"), f"other losses in {folder.name}"
    assert results(tmp_path / "parts") == results(tmp_path / "whole")
    weights = [load_file(tmp_path / run / "head" / "model.safetensors") for run in ("whole", "parts")]
    assert all(torch.equal(weights[0][k], weights[1][k]) for k in weights[0])


def recorded(paceline, model, head, folder, *args):
    done = paceline(
        "generate", "the rain sings on a small bird", "--model", model, "--dtype", "float32", "--method", "jetspec", "--head", str(head),
        "--max-new-tokens", "16", "--record", str(folder), *args,
    )  # fmt: skip
    assert done.code == 0, done.err


def test_rounds_that_generate_recorded_are_learnt_from(train, paceline, model, head, tmp_path):
    recorded(paceline, model, head, tmp_path / "records")
    words = ("--records", str(tmp_path / "records"), "--steps", "2")
    done = train(tmp_path / "run", prompts_file(tmp_path, 10), *words, gate__enforce=False)
    assert done.code == 0, done.err
    (result,) = results(tmp_path / "run")
    assert result["domains"] == ["generate"]
    assert result["verify_rounds"] > 3


def test_rounds_of_another_head_are_refused(train, paceline, model, head, tmp_path):
    other = new_head(load(model, dtype="float32", device="cpu", weights="plain"), seed=7)
    formats.save(other, tmp_path / "other")
    recorded(paceline, model, tmp_path / "other", tmp_path / "records")
    done = train(tmp_path / "run", prompts_file(tmp_path, 10), "--records", str(tmp_path / "records"), "--steps", "2")
    assert done.code == 2
    assert "were made with drafter" in done.err, done.err


def test_rounds_whose_rows_are_not_this_targets_are_refused(train, paceline, model, head, tmp_path):
    recorded(paceline, model, head, tmp_path / "records")
    shard = tmp_path / "records" / "000000.jsonl"
    text = json.loads(shard.read_text())
    text["rows"] = [[[token, logp - 1.0] for token, logp in row] for row in text["rows"]]
    shard.write_text(json.dumps(text) + "\n")
    done = train(tmp_path / "run", prompts_file(tmp_path, 10), "--records", str(tmp_path / "records"), "--steps", "2")
    assert (done.code, "made with another target" in done.err) == (2, True), done.err


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"preference__objective": "magic"}, "preference.objective is 'magic'"),
        ({"preference__objective": "distill", "preference__beta": 0.3}, "beta has no effect with objective distill"),
        ({"continual__update_every": 5}, "update_every has no effect with protocol mixed"),
        ({"continual__domains": "{poems: [sonnet]}"}, "domain poems has no text"),
        ({"answers__source": "corpus"}, "own answers"),
    ],
    ids=["objective", "idle beta", "idle update", "empty domain", "corpus"],
)
def test_what_cannot_work_is_one_line(train, tmp_path, settings, message):
    done = train(tmp_path / "run", prompts_file(tmp_path, 8), "--steps", "1", **settings)
    assert done.code == 2
    errors = [line for line in done.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, done.err
    assert message in errors[0], errors[0]


def test_a_dry_run_prints_the_resolved_recipe_and_makes_nothing(paceline, tmp_path):
    done = paceline("train", "rcsd", "--prompts", "p.jsonl", "--out", str(tmp_path / "run"), "--rounds", "3", "--dry-run")
    assert done.code == 0, done.err
    assert "rounds: 3\n" in done.out, done.out
    assert not (tmp_path / "run").exists()
