"""Starting from the target: what is copied, and what the head computes then."""

from __future__ import annotations

import pytest
import torch

from paceline.heads.init import init_from_target
from paceline.heads.jetspec import JetSpecHead
from paceline.targets.hf import HFTarget

from .. import tiny
from .small import config, kept_ids

LAYER = ["input_layernorm.weight", "mlp.down_proj.weight", "mlp.gate_proj.weight", "mlp.up_proj.weight", "post_attention_layernorm.weight"]
ATTENTION = [f"self_attn.{name}_proj.weight" for name in "kovq"]


def started(target: HFTarget, **changes) -> tuple[JetSpecHead, list[str]]:
    made = config(target, **changes)
    head = JetSpecHead.for_target(target, made, kept_ids(made))
    return head, init_from_target(head, target)


def test_layers_begin_as_the_targets_last_ones():
    target = HFTarget(tiny.build(tiny.config("llama", num_hidden_layers=4), 1))
    head, copied = started(target)
    assert sorted(copied) == sorted([*(f"layers.{i}.{name}" for i in (0, 1) for name in LAYER + ATTENTION), "norm.weight"])
    for i in (0, 1):
        assert torch.equal(head.layers[i].mlp.up_proj.weight, target.decoder_layers[2 + i].mlp.up_proj.weight), f"layer {i}"
    assert torch.equal(head.norm.weight, target.model.model.norm.weight)


def test_queries_and_keys_begin_with_neutral_norms():
    head, _ = started(tiny.target())
    assert [bool((layer.self_attn.q_norm.weight == 1).all()) for layer in head.layers] == [True, True]


def test_norms_of_queries_and_keys_are_copied_where_the_target_has_them():
    target = tiny.target("qwen3")
    with torch.no_grad():
        target.decoder_layers[1].self_attn.q_norm.weight.fill_(0.5)
    head, copied = started(target)
    assert ("layers.1.self_attn.q_norm.weight" in copied, head.layers[1].self_attn.q_norm.weight[0].item()) == (True, 0.5)


def test_a_norm_that_is_kept_less_one_is_copied_as_what_it_multiplies_by():
    head, _ = started(tiny.target("gemma3"))
    assert torch.allclose(head.norm.weight, 1 + tiny.target("gemma3").model.model.norm.weight, atol=1e-5)


def test_the_context_begins_as_the_last_tapped_layer():
    head, _ = started(tiny.target())
    rows = torch.randn(3, 64)
    want = torch.nn.functional.rms_norm(rows[:, 32:], (32,), head.layers[0].input_layernorm.weight, head.config.rms_norm_eps)
    assert torch.allclose(head.fuse(rows), want, atol=1e-5)


@pytest.mark.parametrize("family", [f for f in tiny.FAMILIES if f != "gpt2"])
def test_whatever_fits_is_copied_of_every_family(family):
    head, copied = started(tiny.target(family))
    assert "norm.weight" in copied, f"{family}: only {copied}"
    assert all(bool(p.isfinite().all()) for p in head.parameters())


def test_other_shapes_are_left_at_random():
    _, copied = started(tiny.target(), intermediate_size=20)
    assert [name for name in copied if "mlp" in name] == []
