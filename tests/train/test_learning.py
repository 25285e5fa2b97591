"""The point of it all: what a head has learnt from text it can also draft (spec 2.7, test 7)."""

from __future__ import annotations

from paceline import methods
from paceline.train import evaluate
from paceline.train.answers import AnswerFile
from paceline.train.batches import Plan, make_batch
from paceline.train.checkpoint import Checkpoints
from paceline.train.distill import Distillation
from paceline.train.examples import from_answers
from paceline.train.loop import Run, train
from paceline.train.prompts import read
from paceline.train.recipe import Answers, Objective, Optimizer
from paceline.train.regenerate import Regenerator

from .conftest import new_head, prompts_file


def test_a_head_drafts_in_decoding_what_it_predicts_on_the_same_text(teacher_target, taps, tmp_path):
    rows = read([prompts_file(tmp_path, 3)], on_bad_line="stop", say=print)
    file = AnswerFile(tmp_path / "a.jsonl", "s")
    Regenerator(teacher_target, Answers(max_new_tokens=24)).run(rows, file)
    examples = from_answers(file.answers.values(), 100)
    tapped = {e.key: t for e, t in zip(examples, taps.read([e.tokens for e in examples]), strict=True)}
    plan = Plan(examples, lambda found: [tapped[e.key] for e in found], depth=3, batch_size=3, micro_batch=3, anchors=30, seed=0)
    head, objective = new_head(teacher_target), Distillation(Objective(loss="ce"), None)
    train(head, objective, Run(plan.step, 45, Optimizer(lr=1e-2), Checkpoints(tmp_path / "c", 1), tmp_path / "log.jsonl"))
    on_text = evaluate.figures(head, objective, lambda: plan.step(0))
    method = methods.build("jetspec", teacher_target, methods.Options(budget=4, head=head))
    decoded = evaluate.acceptance(teacher_target, method, rows, max_new_tokens=24, max_prompt_tokens=100)
    assert on_text["accepted"] > 2.5, f"predicts {on_text['accuracy']} of the text it was trained on"
    got, want = decoded["mean_acceptance_length"], on_text["accepted"]
    assert got > 0.8 * want, f"mean acceptance length {got} in decoding and {want} on the text, by position {on_text['accuracy']}"


def test_calibration_finds_the_temperature_that_was_put_on_the_logits(teacher_target, taps):
    """Labels drawn from the head's own law at temperature 2 are likeliest at temperature 2."""
    import torch

    from .conftest import sequences

    head = new_head(teacher_target, markov_rank=0)
    (example,) = sequences(teacher_target, 1)
    (tapped,) = taps.read([example.tokens])
    batch = make_batch([example], [tapped], [torch.arange(3, 10)], depth=3)
    hidden = head(head.fuse(batch.features), batch.blocks[..., 0], batch.anchors, batch.valid)
    torch.manual_seed(0)
    many = []
    for _ in range(30):
        labels = torch.distributions.Categorical(logits=head.logits(hidden) / 2).sample()
        many.append(_with_labels(batch, labels))
    found = evaluate.temperatures(head, many)
    assert all(1.6 < t < 2.5 for t in found), f"temperatures {found}, put on: 2"


def _with_labels(batch, labels):
    """The same blocks with other tokens behind their anchors, one sequence per block."""
    import torch

    from paceline.train.batches import Batch

    tokens = torch.cat([batch.blocks[..., :1], labels], -1)

    class Fixed(Batch):
        @property
        def blocks(self):
            return tokens

    return Fixed(**vars(batch))
