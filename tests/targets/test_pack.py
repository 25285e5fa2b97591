"""Packed and 4-bit weights against the plain layer."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from paceline.targets.hf import HFTarget
from paceline.targets.pack import X86_ENGINES, HalfLinear, PackedLinear, can_pack, pack
from paceline.targets.quantize import GROUP, Int4Linear, Int8Linear, can_quantize, quantize
from paceline.tree import Tree

from .. import tiny

FLOAT, HALF, CPU = torch.float32, torch.bfloat16, torch.device("cpu")
ROWS = [1, 2, 3, 4, 5, 8, 9, 40]
wide_registers = pytest.mark.skipif(not can_pack(HALF, CPU), reason="this CPU has no bfloat16 kernels")
x86 = pytest.mark.skipif(torch.backends.quantized.engine not in X86_ENGINES, reason="these kernels are for x86")
pytestmark = pytest.mark.skipif(not can_pack(FLOAT, CPU), reason="this build of torch cannot pack linear weights")
four_bits = pytest.mark.skipif(not can_quantize(HALF, CPU, 4), reason="this CPU has no 4-bit kernel for bfloat16")


def linear(dtype: torch.dtype, bias: bool = True, inputs: int = 96, outputs: int = 48) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(inputs, outputs, bias=bias).to(dtype).requires_grad_(False)


def inputs(rows: int, dtype: torch.dtype, size: int = 96) -> torch.Tensor:
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(rows)).to(dtype)


def exact(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    out = x.double() @ layer.weight.double().T
    return out if layer.bias is None else out + layer.bias.double()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", ROWS)
def test_packed_float32_equals_the_exact_product(rows, bias):
    layer, x = linear(FLOAT, bias), inputs(rows, FLOAT)
    difference = float((PackedLinear(layer)(x) - exact(layer, x)).abs().max())
    assert difference < 1e-5, f"{rows} rows differ by {difference}"


@wide_registers
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", ROWS)
def test_packed_bfloat16_is_the_exact_product_rounded(rows, bias):
    layer, x = linear(HALF, bias), inputs(rows, HALF)
    want = exact(layer, x)
    excess = float(((PackedLinear(layer)(x).double() - want).abs() - want.abs() * 2**-8).max())
    assert excess < 1e-5, f"{rows} rows: {excess} beyond one rounding to bfloat16"


@pytest.mark.parametrize("dtype", [FLOAT, pytest.param(HALF, marks=wide_registers)], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_few_rows_give_what_they_give_in_a_larger_batch(rows, dtype):
    packed, x = PackedLinear(linear(dtype)), inputs(4, dtype)
    got, want = packed(x[:rows]), packed(x)[:rows]
    assert torch.equal(got, want), f"{rows} rows differ by {float((got - want).abs().max())}"


@pytest.mark.parametrize("rows", ROWS)
def test_the_kernel_never_sees_fewer_than_four_rows(monkeypatch, rows):
    seen, multiply = [], PackedLinear._multiply
    monkeypatch.setattr(PackedLinear, "_multiply", lambda self, x: (seen.append(x.shape[:-1].numel()), multiply(self, x))[1])
    PackedLinear(linear(FLOAT))(inputs(rows, FLOAT))
    assert seen == [max(rows, 4)], f"{rows} rows reached the kernel as {seen}"


@pytest.mark.parametrize("shape", [(96,), (1, 1, 96), (1, 3, 96), (2, 5, 96)])
def test_a_packed_layer_keeps_the_shape_of_its_input(shape):
    layer, x = linear(FLOAT), inputs(1, FLOAT, 960).flatten()[: torch.Size(shape).numel()].reshape(shape)
    got, want = PackedLinear(layer)(x), layer(x)
    assert (got.shape, torch.allclose(got, want, atol=1e-5)) == (want.shape, True)


def steps(layer: nn.Linear) -> torch.Tensor:
    """(out, in) the quantisation step of each weight: its group's range in 15 parts."""
    blocks = layer.weight.double().reshape(layer.out_features, -1, GROUP)
    return ((blocks.amax(-1) - blocks.amin(-1)) / 15).repeat_interleave(GROUP, 1)


@four_bits
def test_a_4_bit_weight_is_within_its_quantisation_step():
    layer = linear(HALF, bias=False)
    rounded = Int4Linear(layer)
    unit = torch.eye(96, dtype=HALF)
    weight = torch.cat([rounded(unit[i : i + 8]) for i in range(0, 96, 8)]).T.double()
    worst = float(((weight - layer.weight.double()).abs() / steps(layer)).max())
    assert worst < 0.6, f"{worst} steps off; rounding to nearest is off by half a step, and bfloat16 scales by a little more"


@four_bits
def test_4_bit_groups_with_equal_weights_survive():
    layer = linear(HALF, bias=False)
    layer.weight.fill_(0.5)
    got = Int4Linear(layer)(torch.ones(1, 96, dtype=HALF))
    assert torch.allclose(got.float(), torch.tensor(48.0), rtol=2**-7), f"96 weights of 0.5 sum to {got[0, 0]}"


@four_bits
def test_a_4_bit_layer_adds_its_bias():
    layer = linear(HALF)
    layer.bias.fill_(100)
    got = float(Int4Linear(layer)(torch.zeros(1, 96, dtype=HALF))[0, 0])
    assert got == 100


@four_bits
@pytest.mark.parametrize(("rows", "rounded"), [(1, True), (8, True), (9, False), (40, False)])
def test_many_rows_use_the_bfloat16_weight(rows, rounded):
    layer, x = linear(HALF), inputs(rows, HALF)
    difference = float((Int4Linear(layer)(x) - PackedLinear(layer)(x)).abs().max())
    assert (difference > 0) == rounded, f"{rows} rows differ from the bfloat16 product by {difference}"


@four_bits
def test_layers_that_the_4_bit_kernel_cannot_take_are_packed():
    model = nn.Sequential(linear(HALF), linear(HALF, outputs=50), linear(HALF, inputs=40))
    assert [type(layer) for layer in quantize(model, 4)] == [Int4Linear, PackedLinear, PackedLinear]


@pytest.mark.parametrize(("bits", "dtype"), [(4, FLOAT), (8, HALF)])
def test_a_model_of_the_other_type_is_not_quantised(bits, dtype):
    assert not can_quantize(dtype, CPU, bits)


@x86
@pytest.mark.parametrize("rows", ROWS)
def test_an_8_bit_layer_is_near_the_exact_product(rows):
    layer, x = linear(FLOAT), inputs(rows, FLOAT)
    want = exact(layer, x)
    error = float((Int8Linear(layer)(x) - want).norm() / want.norm())
    assert 0 < error < 0.02, f"{rows} rows are off by {error:.4f} of their norm"


@x86
def test_a_weight_of_zeros_survives_8_bits():
    layer = linear(FLOAT)
    layer.weight.fill_(0)
    assert torch.equal(Int8Linear(layer)(inputs(2, FLOAT)), layer.bias.expand(2, -1))


def test_a_type_that_the_kernel_cannot_multiply_is_not_packed():
    assert not can_pack(torch.float16, CPU)


def test_bfloat16_is_packed_only_where_the_cpu_has_its_kernels(monkeypatch):
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    assert (can_pack(HALF, CPU), can_pack(FLOAT, CPU)) == (False, True)


def rounded_to(dtype: torch.dtype) -> nn.Linear:
    """A float32 layer whose weights are numbers of a shorter type, from very small to large ones."""
    layer = linear(FLOAT)
    layer.weight.mul_(torch.logspace(-5, 0, 96)).copy_(layer.weight.to(dtype).float())
    return layer


@x86
@pytest.mark.parametrize("dtype", [HALF, torch.float16])
@pytest.mark.parametrize("rows", ROWS)
def test_a_weight_held_in_16_bits_multiplies_as_the_float32_one(rows, dtype):
    layer, x = rounded_to(dtype), inputs(rows, FLOAT)
    difference = float((HalfLinear(layer)(x) - exact(layer, x)).abs().max())
    assert difference < 1e-5, f"{rows} rows differ by {difference}"


@x86
def test_no_entry_of_a_16_bit_weight_is_rounded():
    layer = rounded_to(HALF)
    assert torch.equal(HalfLinear(layer)(torch.eye(96)), layer.weight.T + layer.bias)


@x86
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("outputs", [96, 80, 75])
def test_a_layer_cut_into_pieces_for_many_rows_gives_the_same_numbers(monkeypatch, outputs, bias):
    monkeypatch.setattr("paceline.targets.pack._PIECE", 32)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    layer = nn.Linear(600, outputs, bias=bias).requires_grad_(False)  # more inputs than one block of the kernel has
    layer.weight.copy_(layer.weight.half().float())
    whole, cut = HalfLinear(layer, rows=15), HalfLinear(layer, rows=16)
    assert (len(whole.pieces), len(cut.pieces)) == (1, 3)
    for rows in (1, 6, 7, 50):
        x = torch.randn(rows, 600)
        assert torch.equal(cut(x), whole(x)), f"{rows} rows differ by {float((cut(x) - whole(x)).abs().max())}"
    for got, want in zip(cut.unpacked(), (layer.weight, layer.bias), strict=True):
        assert (got is want is None) or torch.equal(got, want)


@x86
def test_layers_are_cut_for_a_batch_only(monkeypatch):
    monkeypatch.setattr("paceline.targets.pack._PIECE", 16)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    counts = [len(pack(nn.Sequential(rounded_to(HALF)), FLOAT, batch)[0].pieces) for batch in (1, 2)]
    assert counts[0] == 1 < counts[1]


@x86
def test_a_weight_that_16_bits_would_round_is_refused_and_packed_in_32():
    with pytest.raises(ValueError, match="float16 would round"):
        HalfLinear(linear(FLOAT))
    assert type(pack(nn.Sequential(linear(FLOAT)), FLOAT)[0]) is PackedLinear


@x86
def test_a_float32_model_with_shorter_numbers_is_held_in_16_bits():
    assert type(pack(nn.Sequential(rounded_to(HALF)), FLOAT)[0]) is HalfLinear


@x86
@pytest.mark.parametrize("value", [0.0, 1e-30, 1e30])
def test_extreme_weights_are_held_exactly(value):
    layer = nn.Linear(8, 4, bias=False).requires_grad_(False)
    layer.weight.fill_(torch.tensor(value).to(HALF).float())
    got, want = HalfLinear(layer)(torch.eye(8)), layer.weight.T
    assert torch.equal(got, want), f"{float(want[0, 0])} became {float(got[0, 0])}"


def wide(tied: bool):
    """A model whose embedding is larger than a page of memory: what is given back by mistake reads as zeros."""
    return tiny.build(tiny.config("llama", vocab_size=512, hidden_size=64, tie_word_embeddings=tied)).requires_grad_(False)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_the_embedding_survives_packing(tied):
    model = wide(tied)
    before = model.get_input_embeddings().weight.clone()
    pack(model, FLOAT)
    assert torch.equal(model.get_input_embeddings().weight, before)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_a_packed_model_gives_the_same_logits(tied):
    model, ids = wide(tied), torch.tensor([[3, 400, 5, 77, 511]])
    want = model(ids).logits
    got = pack(model, FLOAT)(ids).logits
    difference = float((got - want).abs().max())
    assert difference < 1e-4, f"differs by {difference}, logits up to {float(want.abs().max())}"


def test_packing_leaves_no_plain_linear_layer():
    kinds = [type(m) for m in pack(wide(True), FLOAT).modules()]
    assert (kinds.count(nn.Linear), kinds.count(PackedLinear)) == (0, 15), "2 layers of 7, and the output layer"


def test_a_packed_target_verifies_a_tree_as_the_plain_one():
    tree = Tree((5, 6, 7, 8), (-1, 0, 0, 1))
    targets = [tiny.target(), HFTarget(pack(copy.deepcopy(tiny.plain("llama")), FLOAT))]
    rows = []
    for target in targets:
        slot = target.cache.open()
        target.prefill([slot], [[1, 2, 3, 4]])
        rows.append(target.verify([tree], [slot]).logits)
    difference = float((rows[0] - rows[1]).abs().max())
    assert difference < 1e-4, f"differs by {difference}, logits up to {float(rows[0].abs().max())}"


@x86
@pytest.mark.parametrize("bias", [True, False])
def test_a_shorter_model_is_widened_while_it_is_packed(bias):
    short = nn.Sequential(linear(HALF, bias), nn.LayerNorm(48).to(HALF))
    x, want = inputs(3, FLOAT), copy.deepcopy(short).float()(inputs(3, FLOAT))
    packed = pack(short, FLOAT)
    got = packed(x)
    assert [type(packed[0]), packed[1].weight.dtype] == [HalfLinear, FLOAT]
    assert torch.allclose(got, want, atol=1e-5), f"differs by {float((got - want).abs().max())}"


@x86
def test_a_tied_embedding_is_widened_with_its_output_layer():
    model = wide(True).to(HALF)
    want = copy.deepcopy(model).float()(torch.tensor([[3, 400, 5]])).logits
    got = pack(model, FLOAT)(torch.tensor([[3, 400, 5]])).logits
    assert float((got - want).abs().max()) < 1e-4
