"""Configurations of heads in the public layouts: every key that others read, and what is refused."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest

from paceline.errors import CheckpointMismatch
from paceline.heads import layouts
from paceline.heads.config import JetSpecConfig

from .. import tiny
from .small import config

PUBLISHED: dict[str, Any] = {  # the keys of a published JetSpec head for Qwen3-8B
    "architectures": ["DFlashDraftModel"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
    "block_size": 16,
    "dflash_config": {"causal_head": True, "mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33]},
    "dtype": "bfloat16",
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "layer_types": ["full_attention"] * 5,
    "max_position_embeddings": 40960,
    "model_type": "qwen3",
    "num_attention_heads": 32,
    "num_hidden_layers": 5,
    "num_key_value_heads": 8,
    "num_target_layers": 36,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 151936,
}


def changed(values: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A copy with keys set, or taken out where the value is ...; `a__b` is key b of object a."""
    made = copy.deepcopy(values)
    for name, value in changes.items():
        place, names = made, name.split("__")
        for part in names[:-1]:
            place = place[part]
        place[names[-1]] = value
        if value is ...:
            del place[names[-1]]
    return made


def ours(**changes: Any) -> JetSpecConfig:
    own = {"target_name": "tiny", "target_tokenizer": "abc", "temperatures": (1.0, 1.1, 1.2, 1.3)}
    return dataclasses.replace(config(tiny.target()), **{**own, **changes})


def test_a_published_configuration_is_read_as_what_it_means():
    read = layouts.read(PUBLISHED)
    assert (read.target_layer_ids, read.block_size, read.causal, read.mask_token_id) == ((1, 9, 17, 25, 33), 16, True, 151669)
    assert (read.rope_parameters, read.draft_vocab_size) == ({"rope_type": "default", "rope_theta": 1000000}, None)


def test_the_block_size_may_stand_in_dflash_config():
    moved = changed(PUBLISHED, block_size=..., dflash_config__block_size=10)
    assert layouts.read(moved).block_size == 10


@pytest.mark.parametrize("layout", ["dflash", "speculators"])
@pytest.mark.parametrize("changes", [{}, {"causal": False}, {"draft_vocab_size": None, "mask_token_id": 7, "temperatures": ()}])
def test_a_configuration_survives_either_layout(layout, changes):
    assert layouts.read(layouts.write(ours(**changes), layout, "bfloat16")) == ours(**changes)


@pytest.mark.parametrize("causal", [True, False])
def test_the_flat_layout_says_three_times_whether_blocks_are_causal(causal):
    made = layouts.write(ours(causal=causal), "dflash", "float32")
    said = (made["is_causal"], made["dflash_config"]["causal"], made["dflash_config"]["causal_head"])
    assert said == (causal, causal, causal)


@pytest.mark.parametrize("key", ["is_causal", "dflash_config__causal", "dflash_config__causal_head"])
def test_each_causality_key_alone_is_understood(key):
    silent = changed(PUBLISHED, dflash_config__causal_head=...)
    assert [layouts.read(changed(silent, **{key: value})).causal for value in (True, False)] == [True, False]


def test_a_head_that_does_not_say_sees_both_ways_as_dflash_does():
    assert not layouts.read(changed(PUBLISHED, dflash_config__causal_head=...)).causal


def test_keys_that_contradict_each_other_are_refused():
    with pytest.raises(CheckpointMismatch, match="both that the head is causal and that it is not"):
        layouts.read(changed(PUBLISHED, is_causal=False))


def test_the_flat_layout_counts_layers_as_we_do_and_speculators_one_more():
    flat, other = (layouts.write(ours(), layout, "float32") for layout in ("dflash", "speculators"))
    assert (flat["dflash_config"]["target_layer_ids"], other["aux_hidden_state_layer_ids"]) == ([0, 1], [1, 2])


def test_layer_ids_come_with_their_meaning():
    for layout in ("dflash", "speculators"):
        assert layouts.write(ours(), layout, "float32")["paceline"]["layer_ids_mean"] == "output of decoder layer l, counted from 0"


def test_a_causal_head_is_written_for_speculators_as_windows_over_everything():
    made = layouts.write(ours(), "speculators", "float32")
    layer = made["transformer_layer_config"]
    assert (layer["layer_types"], layer["sliding_window"], made["sliding_window_non_causal"]) == (["sliding_attention"] * 2, 256, False)


def test_full_attention_of_speculators_sees_both_ways():
    made = layouts.write(ours(), "speculators", "float32")
    made["transformer_layer_config"]["layer_types"] = ["full_attention"] * 2
    assert not layouts.read(made).causal


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"transformer_layer_config__sliding_window": 128}, "with a window of 128"),
        ({"transformer_layer_config__layer_types": ["full_attention", "sliding_attention"]}, "full_attention"),
        ({"sample_from_anchor": True}, "sample_from_anchor"),
        ({"shift_label": True}, "shift_label"),
        ({"speculators_model_type": "eagle3"}, "eagle3"),
        ({"projector_type": "domino"}, "domino"),
        ({"aux_hidden_state_layer_ids": ...}, "lacks aux_hidden_state_layer_ids"),
        ({"transformer_layer_config__hidden_size": ...}, "lacks hidden_size"),
    ],
)
def test_other_kinds_of_speculators_are_refused(changes, says):
    with pytest.raises(CheckpointMismatch, match=says):
        layouts.read(changed(layouts.write(ours(), "speculators", "float32"), **changes))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"hidden_size": ...}, "lacks hidden_size"),
        ({"num_target_layers": ...}, "lacks num_target_layers"),
        ({"block_size": ...}, "lacks block_size"),
        ({"dflash_config__target_layer_ids": ...}, "dflash_config of the head lacks target_layer_ids"),
        ({"rope_theta": ...}, "lacks rope_theta"),
        ({"dflash_config": ...}, "neither dflash_config nor speculators_model_type"),
        ({"attention_bias": True}, "attention_bias"),
        ({"hidden_size": "4096"}, "hidden_size is '4096'"),
        ({"block_size": 16.5}, "block_size is 16.5"),
        ({"dflash_config__target_layer_ids": "1,9"}, "target_layer_ids is '1,9'"),
    ],
)
def test_missing_renamed_and_wrong_keys_are_named(changes, says):
    with pytest.raises(CheckpointMismatch, match=says):
        layouts.read(changed(PUBLISHED, **changes))
