"""Rotary positions of heads, against Transformers' own."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from paceline.errors import UnsupportedModel
from paceline.heads.rope import Rotary, rope_of, rotate

from .. import tiny

LLAMA3 = {"factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
SCALINGS = {
    "default": {"rope_type": "default", "rope_theta": 100000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    "llama3": {"rope_type": "llama3", "rope_theta": 500000.0, **LLAMA3},
    "yarn": {"rope_type": "yarn", "rope_theta": 1000000.0, "factor": 4.0, "original_max_position_embeddings": 32768},
    "yarn, set by hand": {
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 4096, "beta_fast": 20.0,
        "beta_slow": 2.0, "attention_factor": 1.3,
    },
}  # fmt: skip
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 77.0, "factor": 2.0}
POSITIONS = torch.tensor([[0, 1, 7, 100, 5000, 30000]])


def theirs(parameters) -> LlamaRotaryEmbedding:
    settings = LlamaConfig(hidden_size=256, num_attention_heads=4, max_position_embeddings=131072, rope_parameters=dict(parameters))
    return LlamaRotaryEmbedding(settings)


@pytest.mark.parametrize("parameters", SCALINGS.values(), ids=SCALINGS)
def test_the_table_is_that_of_transformers(parameters):
    want = theirs(parameters)(torch.zeros(1), POSITIONS)
    for name, ours, his in zip(("cosine", "sine"), Rotary(parameters, 64)(POSITIONS), want, strict=True):
        worst = float((ours[:, 0] - his).abs().max())
        assert worst < 2e-3, f"{name} is off by {worst:.1e}"  # 30000 turns of float32 angles


def test_rotation_is_that_of_transformers():
    parameters, x = SCALINGS["default"], torch.randn(1, 3, 6, 64)
    want, _ = apply_rotary_pos_emb(x, x, *theirs(parameters)(x, POSITIONS))
    assert torch.allclose(rotate(x, Rotary(parameters, 64)(POSITIONS)), want, atol=1e-5)


def test_rotation_keeps_the_type_but_not_the_error_of_bfloat16():
    x, table = torch.randn(1, 1, 6, 64).bfloat16(), Rotary(SCALINGS["default"], 64)(POSITIONS)
    assert torch.equal(rotate(x, table), rotate(x.float(), table).bfloat16())


def test_an_unknown_scaling_is_refused_by_name():
    with pytest.raises(UnsupportedModel, match="'spiral' is unknown to heads"):
        Rotary({"rope_type": "spiral", "rope_theta": 1e4}, 64)


@pytest.mark.parametrize(
    ("family", "changes", "want"),
    [
        ("llama", {}, {"rope_type": "default", "rope_theta": 10000.0}),
        ("llama", {"rope_parameters": SCALINGS["llama3"]}, SCALINGS["llama3"]),
        ("gemma3", {}, {"rope_type": "default", "rope_theta": 1000000.0}),
        ("gpt2", {}, {"rope_type": "default", "rope_theta": 10000.0}),
        ("llama", {"rope_parameters": DYNAMIC}, {"rope_type": "default", "rope_theta": 77.0}),
    ],
    ids=["plain", "scaled", "the full layers' of a mixed model", "of a model without", "the base of one that depends on length"],
)  # fmt: skip
def test_a_head_takes_the_targets_positions(family, changes, want):
    assert rope_of(tiny.config(family, **changes)) == want
