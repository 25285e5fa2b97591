"""A tiny draft model learns from its own rounds: what is accepted rises, with all of it trained and with adapters."""

from __future__ import annotations

import dataclasses

import pytest

from paceline import methods
from paceline.record.texts import record_round
from paceline.replay import Text, replay
from paceline.train import loop
from paceline.train.checkpoint import Checkpoints
from paceline.train.features import Taps
from paceline.train.rcsd.batches import Mix
from paceline.train.rcsd.gate import acceptance
from paceline.train.rcsd.model_rows import rows_of
from paceline.train.recipe import Optimizer

from .rounds import record
from .test_model import draft_folder, learn, objective  # noqa: F401 (fixtures)
from .test_toys import spoken


@pytest.mark.parametrize(
    ("rank", "settings"), [(None, {"beta": 0.5}), (4, {"beta": 0.5}), (None, {"objective": "pg"})], ids=["all", "lora", "pg"]
)
def test_acceptance_rises(teacher_target, learn, tmp_path, rank, settings):  # noqa: F811
    examples = spoken(teacher_target, "a", [5, 6, 7, 8, 9])
    texts = [Text(e.key, e.task, e.tokens, e.prompt_length) for e in examples]
    taps = Taps(teacher_target, ())
    learner, reference = learn(trained=True, rank=rank), learn()

    def drafter():
        told = methods.Options(draft_model=learner.drafting(), num_speculative_tokens=3, budget=4)
        return methods.build("draft_model", teacher_target, told)[0]

    before = acceptance(drafter(), texts)[0].mean_acceptance_length
    found = {e.key: [] for e in examples}
    for text, round_ in replay(drafter(), texts):
        found[text.key].append(record_round(round_))
    records = [dataclasses.replace(record(e, *found[e.key])) for e in examples]
    mix = Mix(records, [], rows_of(lambda m: taps.read([e.tokens for e in m]), None), 0.0, 3, 1, rounds=12, seed=0)
    run = loop.Run(mix.step, 25, Optimizer(lr=1e-2 if rank else 3e-3), Checkpoints(tmp_path, 1), tmp_path / "log.jsonl")
    loop.train(learner, objective(teacher_target, reference, **settings), run)
    after = acceptance(drafter(), texts)[0].mean_acceptance_length
    assert after > before + 0.2, f"from {before} to {after}"
