"""Audits of real decoding on tiny models: greedy equality, the tokens that were really emitted, and faults that only show there."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch

from paceline import engine, methods
from paceline.bench import equality
from paceline.bench.audit import Plan, audit
from paceline.bench.capture import Recorder
from paceline.draft import Draft
from paceline.drafters.draft_model import DraftModelDrafter
from paceline.methods import Options
from paceline.rules.walk import Rule, Verdict
from paceline.sampling import SamplingParams
from paceline.sequence import Sequence

from .. import tiny

PROMPTS = {f"p{i}": [3 + i, 5, 7, 9 + i] for i in range(12)}
PLAN = Plan(temperature=1.0, max_new_tokens=26, replays=500)


def quiet(doing: str, done: int, of: int) -> None:
    pass


def audited(method: str, plan: Plan = PLAN, shape: str | None = None, noise: float = 0.04, prompts=PROMPTS):
    draft = tiny.draft(noise=noise) if "draft_model" in method else None
    return audit(tiny.target(), method, Options(draft_model=draft, shape=shape), prompts, plan, quiet)


KEYS = {
    "rule", "lossless", "lossless_tests", "power", "acceptance", "bound", "share_of_bound", "total_variation", "acceptance_by_child",
    "tokens_per_round", "greedy_identical", "of", "p_values", "control",
}  # fmt: skip


METHODS = [("draft_model/rejection", "chain:2"), ("draft_model/greedy_draft", "2x1"), ("lookup", None)]


@pytest.mark.slow
@pytest.mark.parametrize(("method", "shape"), METHODS)
def test_what_is_lossless_passes_end_to_end(method, shape):
    made = audited(method, shape=shape)
    assert made["lossless_tests"] in ("passed", "inconclusive"), made["p_values"]
    assert min(p for p in made["p_values"].values() if p is not None) > made["power"]["level"]
    assert set(made) >= KEYS, KEYS - set(made)
    assert (made["greedy_identical"], made["of"], made["greedy_failures"]) == (12, 12, 0)
    json.dumps(made, allow_nan=False)


@pytest.fixture(scope="module")
def ramp():
    return audited("draft_model/ramp_wor", shape="2x1")


def test_a_lossless_rule_passes_and_its_acceptance_is_what_decoding_saw(ramp):
    assert ramp["lossless_tests"] == "passed", ramp["p_values"]
    assert ramp["control"]["fails"], ramp["control"]
    assert ramp["acceptance"] == pytest.approx(ramp["acceptance_decoded"], abs=0.08)
    assert ramp["acceptance"] < ramp["bound"] + 3 * ramp["acceptance_error"]
    assert ramp["tokens_per_round"] > 1.5


def test_every_token_was_tested(ramp):
    emitted = ramp["power"]["detects"]["tokens_uniform"]["n"]
    assert emitted >= len(PROMPTS) * PLAN.max_new_tokens, f"{emitted} decisions were tested"


@pytest.fixture(scope="module")
def printed():
    return audited("draft_model/resispec_printed", shape="2x1")


@pytest.mark.parametrize("test", ["tokens_drafted", "replay_drafted"])
def test_the_printed_rule_fails_where_it_decodes_and_where_it_is_replayed(printed, test):
    assert printed["lossless_tests"] == "failed"
    assert printed["p_values"][test] < printed["power"]["level"], printed["p_values"]


def test_the_printed_rules_children_and_greedy_text_are_right(printed):
    assert printed["p_values"]["children_uniform"] > printed["power"]["level"], printed["p_values"]
    assert printed["greedy_identical"] == len(PROMPTS)


def replaced(monkeypatch, wrap):
    """Build methods whose drafts are changed."""
    right = DraftModelDrafter.propose
    monkeypatch.setattr(DraftModelDrafter, "propose", lambda self, seqs: [wrap(d) for d in right(self, seqs)])


def test_a_row_that_states_another_temperature_than_was_drawn_at_fails(monkeypatch):
    replaced(monkeypatch, lambda d: d if d.logits is None else dataclasses.replace(d, logits=d.logits * 0.6))
    made = audited("draft_model/rejection", shape="chain:1")
    assert made["lossless_tests"] == "failed"
    assert made["p_values"]["children_uniform"] < made["power"]["level"], made["p_values"]
    assert made["p_values"]["replay_drafted"] > made["power"]["level"], "the rule itself is right for draws from the stated row"


def test_children_claimed_as_draws_fail(monkeypatch):
    def likeliest(draft: Draft) -> Draft:
        if draft.logits is None:
            return draft
        tokens = list(draft.tree.tokens)
        for node, parent in enumerate(draft.tree.parents):
            if parent == 0:
                tokens[node] = int(draft.logits[0].argmax())
        return dataclasses.replace(draft, tree=type(draft.tree)(tuple(tokens), draft.tree.parents))

    replaced(monkeypatch, likeliest)
    made = audited("draft_model/rejection", shape="chain:1")
    assert made["p_values"]["children_uniform"] < made["power"]["level"], made["p_values"]
    assert made["lossless_tests"] == "failed"


def test_a_method_that_drafts_nothing_is_inconclusive():
    made = audited("none", Plan(temperature=1.0, max_new_tokens=10, replays=100), prompts={"p": [3, 5, 7]})
    assert made["lossless_tests"] == "inconclusive"
    assert (made["acceptance"], made["acceptance_decoded"], made["tokens_per_round"]) == (None, None, 1.0)
    json.dumps(made, allow_nan=False)


def test_temperature_0_tests_greedy_equality_only_and_says_so():
    made = audited("draft_model/rejection", Plan(temperature=0, max_new_tokens=12), prompts={"p": [3, 5, 7]})
    assert (made["lossless_tests"], made["greedy_identical"], made["of"]) == ("passed", 1, 1)
    assert made["p_values"] is None
    assert "only greedy equality" in made["warnings"][0]


def test_a_method_that_changes_the_greedy_text_fails(monkeypatch):
    def call(self: Rule, draft: Draft, probs, rng) -> Verdict:
        return Verdict([0], 7 if len(draft.tree) > 1 else probs.draw(0, rng))

    monkeypatch.setattr(Rule, "__call__", call)
    made = audited("lookup", Plan(temperature=0, max_new_tokens=12), prompts={"p": [3, 5, 7, 5, 7, 5]})
    assert made["lossless_tests"] == "failed"
    assert made["differences"][0]["near_tie"] is False, made["differences"]


def test_a_recorded_rule_decodes_as_the_rule_does():
    outputs = []
    for wrapped in (False, True):
        drafter, rule = methods.build("draft_model/rejection", target := tiny.target(), Options(draft_model=tiny.draft()))
        seq = Sequence([3, 5, 7], SamplingParams(40, temperature=1.0, seed=3))
        recorder = Recorder(rule, np.random.default_rng(0))
        engine.generate(target, drafter, recorder.rule if wrapped else rule, [seq])
        outputs.append(seq.output)
    assert outputs[0] == outputs[1]
    assert len(recorder.visits) >= 40


# --- near ties


@pytest.mark.parametrize(
    ("logit", "dtype", "size"), [(20.0, torch.bfloat16, 0.125), (-3.0, torch.bfloat16, 2**-6), (1.0, torch.float32, 2**-23)]
)
def test_a_step_is_the_distance_to_the_next_number_of_the_dtype(logit, dtype, size):
    here = torch.tensor(abs(logit), dtype=dtype)
    assert equality.step(logit, dtype) == size
    assert float(torch.nextafter(here, here * 2) - here) == size


@pytest.mark.parametrize(
    ("margin", "dtype", "tie"),
    [
        (0.5, torch.bfloat16, True),
        (0.51, torch.bfloat16, False),
        (1e-4, torch.float32, True),
        (2e-4, torch.float32, False),
        (None, torch.bfloat16, False),
    ],
)
def test_a_difference_is_a_near_tie_up_to_some_steps_of_the_dtype(margin, dtype, tie):
    (found,) = equality.judged([{"logit_margin": margin}], [] if margin is None else [20.0], dtype)
    assert found["near_tie"] is tie, found


def test_differences_without_a_margin_do_not_shift_the_others():
    found = equality.judged([{"logit_margin": m} for m in (None, 0.4, 0.4)], [20.0, 1.0], torch.bfloat16)
    assert [d["near_tie"] for d in found] == [False, True, False], found


def test_each_prompt_has_its_own_seed():
    assert [PLAN.params(i).seed for i in range(3)] == [0, 1, 2]
