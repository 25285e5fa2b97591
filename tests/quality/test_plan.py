"""What an evaluation is asked for: seeds, fingerprints, and what cannot be asked."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from paceline.bench.lineup import load_models
from paceline.bench.settings import Settings
from paceline.errors import InvalidRequest, PacelineError
from paceline.quality import plan as plans
from paceline.quality.evaluate import SeededRun, encode_all
from paceline.quality.plan import Plan
from paceline.quality.problems import Problem
from paceline.targets.hf import HFTarget
from paceline.targets.quantize import can_quantize

PROBLEMS = [Problem("p0", "gsm8k", "How many birds?", {"answer": "1"}), Problem("p1", "gsm8k", "How many small birds?", {"answer": "2"})]


def plan(task: str = "gsm8k", hub: bool = False, **settings: Any) -> Plan:
    return Plan(task, Settings(**{"peers": (), "methods": ("none",), **settings}), hub=hub)


def test_each_problem_has_a_seed_of_its_own_that_depends_on_the_seed_given() -> None:
    seeds = [plan(temperature=1.0, seed=seed).seed(p) for seed in (0, 1) for p in PROBLEMS]
    assert len(set(seeds)) == 4, f"{seeds}"
    assert seeds[:2] == [plan(temperature=1.0).seed(p) for p in PROBLEMS], "no seed is seed 0"


def test_nothing_is_seeded_where_nothing_is_drawn() -> None:
    assert plan().seed(PROBLEMS[0]) is None


def test_a_problem_is_decoded_with_its_own_seed(small: HFTarget) -> None:
    sampled = plan(temperature=1.0, seed=3)
    encoded = encode_all(small, sampled, PROBLEMS)
    run = SeededRun("none", (small, None), sampled, encoded.seeds)
    assert [run._request(e, 8).params.seed for e in encoded.tokens] == [sampled.seed(p) for p in PROBLEMS]


@pytest.mark.parametrize("other", [plan(task="math500"), plan(max_new_tokens=5), Plan("gsm8k", plan().settings, chat=False)])
def test_other_evaluations_have_other_fingerprints(other: Plan) -> None:
    assert plan().fingerprint(PROBLEMS) != other.fingerprint(PROBLEMS)
    assert plan().fingerprint(PROBLEMS) == plan().fingerprint(PROBLEMS) != plan().fingerprint(PROBLEMS[:1])


def test_peers_repeats_and_tasks_have_no_place_here() -> None:
    for settings in (
        {"peers": ("transformers",)},
        {"repeat": 2},
        {"batch_by_task": True, "batch_size": 4},
        {"lockstep": True, "methods": ("none", "lookup")},
    ):
        with pytest.raises(InvalidRequest, match="leave repeat, peers, batch_by_task and lockstep out"):
            plan(**settings)


def test_what_grading_needs_is_asked_for_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "find_spec", lambda name: None)
    with pytest.raises(PacelineError, match=r"needs scipy .* pip install 'paceline\[eval\]'"):
        plan().require()


@pytest.mark.parametrize("weights", ["plain", "int8"])
def test_the_draft_model_holds_its_weights_as_told(model: str, draft_model: str, weights: str) -> None:
    if weights == "int8" and not can_quantize(torch.float32, torch.device("cpu"), 8):
        pytest.skip("no kernel for 8 bits here")
    told = plan(methods=("draft_model",), model=model, draft_model=draft_model, draft_weights=weights, dtype="float32").settings
    _, draft = load_models(told, lambda message: None, told.batch_size)
    assert draft is not None
    kinds = {type(part).__name__ for part in draft.model.modules()}
    assert ("Int8Linear" in kinds) is (weights == "int8"), f"{kinds}"
