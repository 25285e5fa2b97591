"""Joined projections against the layers that they stand for."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
from torch import nn

from paceline.targets.hf import HFTarget
from paceline.targets.join import Joined, JoinedPart, join_linears
from paceline.targets.pack import HalfLinear, can_pack, pack
from paceline.tree import Tree

from .. import tiny

SIZES = (48, 16, 32)


def linears(bias: bool = True, count: int = 3) -> list[nn.Linear]:
    torch.manual_seed(0)
    return [nn.Linear(24, size, bias=bias).requires_grad_(False) for size in SIZES[:count]]


def inputs(rows: int = 5) -> torch.Tensor:
    return torch.randn(2, rows, 24, generator=torch.Generator().manual_seed(rows))


@pytest.mark.parametrize("bias", [True, False])
def test_parts_give_what_their_layers_gave(bias):
    alone, x = linears(bias), inputs()
    joined = Joined(alone)
    for index, layer in enumerate(alone):
        assert torch.allclose(joined.part(x, index), layer(x), atol=1e-6), f"part {index} differs"


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 1, 0, 2), (0, 2, 2, 0)], ids=str)
def test_any_order_of_asking_gives_the_same(order):
    alone, x = linears(), inputs()
    joined = Joined(alone)
    for index in order:
        assert torch.allclose(joined.part(x, index), alone[index](x), atol=1e-6), f"part {index} of {order} differs"


def test_another_input_is_never_answered_with_what_was_kept():
    alone = linears()
    joined = Joined(alone)
    first, second = inputs(), inputs(4)
    joined.part(first, 0)
    assert torch.allclose(joined.part(second, 1), alone[1](second), atol=1e-6)


def test_one_product_serves_all_parts_and_is_not_kept_behind_the_last():
    joined, x, calls = Joined(linears()), inputs(), []
    joined.linear.register_forward_hook(lambda *_: calls.append(1))
    for index in range(3):
        joined.part(x, index)
    assert (len(calls), joined._kept) == (1, {})


def test_threads_do_not_meet():
    alone = linears()
    joined, gate, found = Joined(alone), threading.Barrier(2), {}

    def ask(rows: int) -> None:
        x = inputs(rows)
        for index in range(3):
            gate.wait()
            found[rows, index] = torch.allclose(joined.part(x, index), alone[index](x), atol=1e-6)

    threads = [threading.Thread(target=ask, args=(rows,)) for rows in (3, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == dict.fromkeys([(rows, index) for rows in (3, 7) for index in range(3)], True)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "gemma2", "mistral", "phi3", "gpt_neox", "gpt2", "olmo2", "mixtral"])
def test_a_joined_model_gives_the_same_logits(architecture):
    model, tree = tiny.plain(architecture), Tree((5, 6, 7, 8), (-1, 0, 0, 1))
    rows = []
    for target in (HFTarget(copy.deepcopy(model)), HFTarget(join_linears(copy.deepcopy(model)))):
        slot = target.cache.open()
        target.prefill([slot], [[1, 2, 3, 4]])
        rows.append(target.verify([tree], [slot]).logits)
    difference = float((rows[0] - rows[1]).abs().max())
    assert difference < 1e-4, f"differs by {difference}, logits up to {float(rows[0].abs().max())}"


def test_queries_keys_values_and_gate_and_up_are_joined():
    kinds = [type(m) for m in join_linears(copy.deepcopy(tiny.plain("llama"))).modules()]
    assert (kinds.count(Joined), kinds.count(JoinedPart), kinds.count(nn.Linear)) == (4, 10, 9), (
        "2 layers: 2 joined, o, down; and the output"
    )


@pytest.mark.parametrize("change", ["bias", "dtype"])
def test_layers_that_differ_stay_as_they_are(change):
    model = copy.deepcopy(tiny.plain("llama"))
    for layer in model.model.layers:
        other = layer.self_attn.k_proj
        layer.self_attn.k_proj = nn.Linear(other.in_features, other.out_features) if change == "bias" else other.double()
    kinds = [type(m) for m in join_linears(model).modules()]
    assert kinds.count(JoinedPart) == 4, "gate and up of two layers"


@pytest.mark.skipif(not can_pack(torch.float32, torch.device("cpu")), reason="this build of torch cannot pack linear weights")
def test_a_joined_layer_is_packed_as_one():
    model = pack(join_linears(copy.deepcopy(tiny.plain("llama")).to(torch.bfloat16)), torch.float32)
    kinds = [type(m) for m in model.modules()]
    assert kinds.count(nn.Linear) == 0
    assert kinds.count(HalfLinear) in (0, 9), "all or, on other CPUs, none is held in 16 bits"
