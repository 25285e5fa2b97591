"""Settings that cannot be served are refused before any model is loaded: the model named here does not exist."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.bench.settings import Settings
from paceline.bench.suites import Prompt
from paceline.errors import IncompatibleRule, InvalidRequest

PROMPTS = [Prompt("a", "t", ("hello",))]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"methods": ("nothing",)}, "unknown method 'nothing'"),
        ({"methods": ("lookup/never",)}, "unknown rule 'never'"),
        ({"methods": ()}, "methods is empty"),
        ({"methods": ("none", "none")}, "methods names 'none' twice"),
        ({"methods": ("none", "draft_model")}, "draft_model needs a draft model"),
        ({"peers": ("vllm",)}, "unknown peer 'vllm'"),
        ({"peers": ("transformers:3",)}, "'transformers:3' is not known"),
        ({"peers": ("transformers-early-exit:0",)}, "early-exit:0"),
        ({"draft_model": "small"}, "nothing here uses a draft model"),
        ({"draft_weights": "int4"}, "draft_weights has no effect without a draft model"),
        ({"draft_weights": "int3", "draft_model": "small", "methods": ("draft_model",)}, "draft_weights is 'int3'"),
        ({"methods": ("none",), "budget": 4}, "none of the methods none uses budget"),
        ({"shape": "2x2"}, "none of the methods none, lookup uses shape"),
        ({"methods": ("draft_model",), "draft_model": "small", "shape": "bush"}, "shape 'bush' is none"),
        ({"methods": ("draft_model",), "draft_model": "small", "shape": "chain", "num_speculative_tokens": 9000}, "more than 1024 nodes"),
        ({"budget": 0}, "budget is 0"),
        ({"limit": 0}, "limit is 0"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"repeat": 0}, "repeat is 0"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"seed": 3}, "seed has no effect at temperature 0"),
        ({"batch_by_task": True}, "batch_by_task has no effect at batch size 1"),
        ({"lockstep": True, "methods": ("none",)}, "lockstep has no effect on a single method"),
    ],
)
def test_what_cannot_be_served_is_refused_with_its_name_and_value(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        Settings(**{"model": "/nowhere", **changes})
    assert complaint in str(error.value)


def test_a_method_is_told_only_the_options_that_it_reads() -> None:
    settings = Settings(methods=("none", "lookup"), budget=5)
    assert settings.options("none", "a model").given() == set()
    assert settings.options("lookup", "a model").budget == 5


def test_a_shape_is_for_the_methods_that_can_draft_in_it() -> None:
    settings = Settings(methods=("draft_model/rejection", "draft_model/rrs_wor", "none"), draft_model="small", shape="2x3", peers=())
    told = {method: settings.options(method, "a model").shape for method in settings.methods}
    assert told == {"draft_model/rejection": None, "draft_model/rrs_wor": "2x3", "none": None}


def test_a_rule_that_does_not_fit_its_drafter_is_refused() -> None:
    with pytest.raises(IncompatibleRule, match="rule rejection needs"):
        Settings(methods=("none", "lookup/rejection"))


def test_the_fingerprint_changes_with_settings_prompts_and_versions() -> None:
    same = Settings().fingerprint(PROMPTS, torch="1")
    others = [
        Settings(max_new_tokens=7).fingerprint(PROMPTS, torch="1"),
        Settings().fingerprint([Prompt("a", "t", ("bye",))], torch="1"),
        Settings().fingerprint(PROMPTS, torch="2"),
    ]
    assert Settings().fingerprint(PROMPTS, torch="1") == same
    assert same not in others


def test_auto_needs_neither_a_draft_model_nor_a_head(model):
    settings = Settings(model=model, methods=("none", "auto"), peers=())
    assert settings.options("auto", None).given() == set()


def test_auto_takes_a_draft_model_if_there_is_one(model):
    settings = Settings(model=model, methods=("auto",), peers=(), draft_model="small", profile="p.json")
    assert settings.options("auto", "small").given() == {"draft_model", "profile"}


def test_a_profile_without_auto_has_no_effect(model):
    with pytest.raises(InvalidRequest, match="none of the methods none uses profile"):
        Settings(model=model, methods=("none",), peers=(), profile="p.json")
