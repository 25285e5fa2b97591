"""A head's configuration: defaults for a target, and what it refuses."""

from __future__ import annotations

import dataclasses

import pytest

from paceline.errors import CheckpointMismatch
from paceline.heads.config import JetSpecConfig, tap_layers

from .. import tiny
from .small import config


@pytest.mark.parametrize(
    ("layers", "taps", "want"),
    [
        (36, 5, (1, 9, 17, 25, 33)),
        (40, 5, (1, 10, 19, 28, 37)),
        (16, 5, (1, 4, 7, 10, 13)),
        (32, 5, (1, 8, 15, 22, 29)),
        (30, 5, (1, 8, 14, 20, 27)),
        (24, 1, (12,)),
        (6, 5, (1, 2, 3)),
        (4, 5, (2,)),
        (2, 5, (1,)),
        (1, 5, (0,)),
    ],
)
def test_taps_are_spread_as_published_and_fewer_where_layers_are_few(layers, taps, want):
    assert tap_layers(layers, taps) == want


def test_a_head_has_the_shapes_of_its_target():
    made = JetSpecConfig.for_target(tiny.target("qwen3", name="tiny"))
    got = (made.hidden_size, made.num_attention_heads, made.num_key_value_heads, made.head_dim, made.intermediate_size, made.vocab_size)
    assert (got, made.num_target_layers, made.target_name) == ((32, 4, 2, 8, 48, 61), 2, "tiny")


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_every_family_of_targets_has_a_head(family):
    made = JetSpecConfig.for_target(tiny.target(family))
    assert (made.feature_size, made.draft_size, made.depth) == (32, 61, 7)


def test_a_configuration_survives_its_dictionary():
    made = dataclasses.replace(config(tiny.target()), temperatures=(1.0, 1.1, 1.2, 1.3))
    assert JetSpecConfig.from_dict(made.as_dict()) == made


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"block_size": 1}, "block_size is 1"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"num_key_value_heads": 3}, "4 attention heads cannot share 3"),
        ({"head_dim": 7}, "head_dim is 7"),
        ({"target_layer_ids": (1, 0)}, r"target_layer_ids are \[1, 0\]"),
        ({"target_layer_ids": (0, 0)}, r"target_layer_ids are \[0, 0\]"),
        ({"target_layer_ids": ()}, r"target_layer_ids are \[\]"),
        ({"target_layer_ids": (0, 2)}, "the target has layers 0 to 1"),
        ({"mask_token_id": 61}, "mask_token_id is 61, outside the vocabulary of 61"),
        ({"draft_vocab_size": 62}, "draft_vocab_size is 62"),
        ({"draft_vocab_size": 0}, "draft_vocab_size is 0"),
        ({"markov_rank": -1}, "markov_rank is -1"),
        ({"temperatures": (1.0,)}, "need 4 positive numbers"),
        ({"temperatures": (1.0, 1.0, 1.0, 0.0)}, "need 4 positive numbers"),
    ],
)
def test_impossible_values_are_refused_with_the_value(changes, says):
    with pytest.raises(CheckpointMismatch, match=says):
        dataclasses.replace(config(tiny.target()), **changes)


def test_unknown_keys_are_named():
    with pytest.raises(CheckpointMismatch, match="unknown keys hidden_dim"):
        JetSpecConfig.from_dict({**config(tiny.target()).as_dict(), "hidden_dim": 3})


def test_missing_keys_are_named():
    values = config(tiny.target()).as_dict()
    del values["head_dim"]
    with pytest.raises(CheckpointMismatch, match="head_dim"):
        JetSpecConfig.from_dict(values)
