"""The loop on a head of one layer: the same losses after an interruption, nothing that is not finite, a bounded number of checkpoints."""

from __future__ import annotations

import json

import pytest
import torch

from paceline.errors import CheckpointMismatch, NumericalError, PacelineError
from paceline.train.batches import Plan
from paceline.train.checkpoint import Checkpoints
from paceline.train.distill import Distillation
from paceline.train.loop import Run, train
from paceline.train.recipe import Objective, Optimizer
from paceline.train.schedule import learning_rate, progress

from .conftest import new_head, sequences

STEPS = 7


@pytest.fixture
def plan(teacher_target, taps):
    examples = sequences(teacher_target, 5)
    return Plan(examples, lambda found: taps.read([e.tokens for e in found]), depth=3, batch_size=2, micro_batch=1, anchors=4, seed=0)


def run(folder, plan, steps=STEPS, **changes):
    settings = changes.pop("settings", Optimizer(lr=1e-2))
    return Run(plan.step, steps, settings, Checkpoints(folder / "checkpoints", changes.pop("keep", 2)), folder / "log.jsonl", **changes)


def log(folder):
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def losses(folder):
    return [line["loss"] for line in log(folder)]


OBJECTIVE = Distillation(Objective(loss="ce"), None)


def test_a_run_that_was_stopped_goes_on_with_the_same_losses_and_ends_with_the_same_weights(teacher_target, plan, tmp_path):
    whole = new_head(teacher_target)
    train(whole, OBJECTIVE, run(tmp_path / "a", plan))
    asked = iter([False, False, True])
    with pytest.raises(KeyboardInterrupt):
        train(new_head(teacher_target), OBJECTIVE, run(tmp_path / "b", plan, stopped=lambda: next(asked)))
    again = new_head(teacher_target, seed=9)  # whatever it was: the checkpoint counts
    done = train(again, OBJECTIVE, run(tmp_path / "b", plan))
    assert losses(tmp_path / "b") == losses(tmp_path / "a"), f"{losses(tmp_path / 'b')} after a stop, {losses(tmp_path / 'a')} without"
    assert done.step == STEPS
    differing = [n for (n, p), q in zip(again.named_parameters(), whole.parameters(), strict=True) if not torch.equal(p, q)]
    assert not differing, f"{differing} differ"


def test_lines_of_the_log_behind_the_checkpoint_are_written_again(teacher_target, plan, tmp_path):
    train(new_head(teacher_target), OBJECTIVE, run(tmp_path, plan, 3))
    with (tmp_path / "log.jsonl").open("a") as out:
        out.write('{"step": 4, "loss": 77}\n{"step": 5, "lo')  # a crash before the next checkpoint
    train(new_head(teacher_target), OBJECTIVE, run(tmp_path, plan, 5))
    assert [line["step"] for line in log(tmp_path)] == [1, 2, 3, 4, 5]
    assert losses(tmp_path)[3] != 77


def test_the_loss_falls(teacher_target, plan, tmp_path):
    train(new_head(teacher_target), OBJECTIVE, run(tmp_path, plan, 15))
    found = losses(tmp_path)
    assert found[-1] < 0.9 * found[0], f"from {found[0]} to {found[-1]}"


def test_micro_batches_make_the_same_step_as_one_batch(teacher_target, plan, tmp_path):
    from dataclasses import replace

    one, parts = new_head(teacher_target), new_head(teacher_target)
    train(one, OBJECTIVE, run(tmp_path / "one", replace(plan, micro_batch=2), 1))
    train(parts, OBJECTIVE, run(tmp_path / "parts", plan, 1))
    assert losses(tmp_path / "one") == pytest.approx(losses(tmp_path / "parts"), rel=1e-5)
    norms = [log(tmp_path / name)[0]["grad_norm"] for name in ("one", "parts")]
    assert norms[0] == pytest.approx(norms[1], rel=1e-4), f"gradient norms {norms}"


def test_a_loss_that_is_not_finite_stops_the_run_and_says_where(teacher_target, plan, tmp_path):
    head = new_head(teacher_target)
    train(head, OBJECTIVE, run(tmp_path, plan, 2))

    def broken(head, batch):
        loss, sums = OBJECTIVE(head, batch)
        return loss * float("nan"), sums

    with pytest.raises(NumericalError, match=r"step 3: the loss \(nan\) is not finite; .*step-0000002"):
        train(head, broken, run(tmp_path, plan, 4))


def test_a_gradient_that_is_not_finite_is_named(teacher_target, plan, tmp_path):
    head = new_head(teacher_target)
    head.mask_embedding.register_hook(lambda grad: grad * float("inf"))
    with pytest.raises(NumericalError, match=r"step 1: the gradient of mask_embedding is not finite"):
        train(head, OBJECTIVE, run(tmp_path, plan, 2))


def test_only_the_latest_checkpoints_stay(teacher_target, plan, tmp_path):
    train(new_head(teacher_target), OBJECTIVE, run(tmp_path, plan, 5, save_seconds=0.0, keep=2))
    assert sorted(f.name for f in (tmp_path / "checkpoints").iterdir()) == ["step-0000004", "step-0000005"]


def test_a_checkpoint_that_was_cut_short_is_never_seen(teacher_target, plan, tmp_path, monkeypatch):
    train(new_head(teacher_target), OBJECTIVE, run(tmp_path, plan, 2))
    monkeypatch.setattr("paceline.train.checkpoint.save_file", full_disk)
    with pytest.raises(PacelineError, match="No space left on device"):
        train(new_head(teacher_target), OBJECTIVE, run(tmp_path, plan, 4))
    assert sorted(f.name for f in (tmp_path / "checkpoints").iterdir()) == ["step-0000002"]


def full_disk(tensors, path):
    path.write_bytes(b"half")
    raise OSError(28, "No space left on device")


def test_a_checkpoint_of_another_head_is_refused(teacher_target, plan, tmp_path):
    train(new_head(teacher_target), OBJECTIVE, run(tmp_path, plan, 1))
    with pytest.raises(CheckpointMismatch, match="step-0000001 does not fit this run"):
        train(new_head(teacher_target, markov_rank=2), OBJECTIVE, run(tmp_path, plan, 2))


def test_training_ends_with_its_time_and_the_learning_rate_with_it(teacher_target, plan, tmp_path):
    now = iter(range(10_000))  # each look at the clock takes a second
    train(new_head(teacher_target), OBJECTIVE, run(tmp_path, plan, 1000, seconds=60.0, clock=lambda: float(next(now))))
    rates = [line["lr"] for line in log(tmp_path)]
    assert 5 < len(rates) < 30, f"{len(rates)} steps in 60 seconds"
    assert rates[-1] < 0.1 * max(rates), f"the last learning rate is {rates[-1]}, the largest {max(rates)}"


def test_the_learning_rate_warms_up_and_falls_along_a_cosine():
    rates = [learning_rate(2.0, p, warmup=0.1, floor=0.1) for p in (0.0, 0.05, 0.1, 0.55, 1.0)]
    assert rates == pytest.approx([0.0, 1.0, 2.0, 1.1, 0.2])


def test_progress_is_that_of_steps_or_time_whichever_is_further():
    assert [progress(5, 10, 0, None), progress(5, 10, 80, 100), progress(5, 10, 10, 100), progress(5, 10, 300, 100)] == [0.5, 0.8, 0.5, 1.0]
