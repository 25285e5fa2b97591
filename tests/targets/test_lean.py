"""Layers with their arithmetic written out against the model's own: equal to the last bit, or not replaced."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
import transformers

from paceline.targets.hf import HFTarget
from paceline.targets.join import join_linears
from paceline.targets.lean import LeanLayer, make_lean
from paceline.targets.load import load
from paceline.targets.pack import can_pack
from paceline.tree import Tree

from .. import tiny
from ..cli.conftest import save_model

LEAN = ["llama", "qwen2", "qwen3", "mistral"]
OTHERS = ["gemma2", "gemma3", "phi3", "gpt_neox", "gpt2", "olmo2", "mixtral", "qwen3_moe"]
TREES = [Tree((5, 6, 7, 8), (-1, 0, 0, 1)), Tree((9,), (-1,)), Tree.chain(range(1, 8))]


def joined(model, dtype: torch.dtype = torch.float32) -> HFTarget:
    """Norms have weights of their own: those of a new model are all 1, where no rounding shows."""
    own, lots = copy.deepcopy(model), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in own.named_parameters():
            if "norm" in name:
                parameter += 0.3 * torch.randn(parameter.shape, generator=lots)
    return HFTarget(join_linears(own.to(dtype)))


def lean(model, dtype: torch.dtype = torch.float32) -> HFTarget:
    target = joined(model, dtype)
    make_lean(target)
    return target


def is_lean(target: HFTarget) -> bool:
    kinds = {isinstance(layer, LeanLayer) for layer in target.decoder_layers}
    assert len(kinds) == 1, "all layers or none"
    return kinds.pop()


def outputs(target: HFTarget) -> list[torch.Tensor]:
    """Logits and features of a batch of trees behind prompts of 3, 20 and 90 tokens, and of those prompts."""
    slots = [target.cache.open() for _ in TREES]
    prompts = [[i * 5 % tiny.VOCAB for i in range(count)] for count in (3, 20, 90)]
    read = target.prefill(slots, prompts, layer_ids=(0,))
    found = target.verify(TREES, slots, layer_ids=(0, 1))
    return [*read, found.logits, found.features]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", LEAN)
def test_a_lean_model_gives_what_its_own_layers_give_to_the_last_bit(family, dtype):
    model = tiny.plain(family)
    target = lean(model, dtype)
    assert is_lean(target)
    for got, want in zip(outputs(target), outputs(joined(model, dtype)), strict=True):
        assert torch.equal(got, want), f"differs by {float((got - want).abs().max())}"


def test_parameters_keep_their_names():
    names = [[name for name, _ in make(tiny.plain("llama")).model.named_parameters()] for make in (joined, lean)]
    assert names[0] == names[1]


def test_a_lean_layer_says_of_itself_what_its_own_says():
    target = joined(tiny.plain("qwen2"))
    target.decoder_layers[1].attention_type = "sliding_attention"
    make_lean(target)
    assert isinstance(target.decoder_layers[1], LeanLayer)
    assert target.decoder_layers[1].attention_type == "sliding_attention"
    assert not hasattr(target.decoder_layers[1], "no_such_thing")


@pytest.mark.parametrize("family", OTHERS)
def test_other_kinds_of_layers_stay_as_they_are(family):
    assert not is_lean(lean(tiny.plain(family)))


def test_layers_that_only_look_alike_stay_as_they_are():
    """Granite has a Llama's modules and scales what they give."""
    base = tiny.config("llama").to_dict() | {"model_type": "granite", "residual_multiplier": 0.5}
    model = tiny.build(transformers.GraniteConfig(**{k: v for k, v in base.items() if k != "architectures"}))
    target = lean(model)
    assert not is_lean(target)
    for got, want in zip(outputs(target), outputs(joined(model)), strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("change", ["norm", "bias"])
def test_a_layer_that_does_something_else_is_noticed(change):
    """Of its own class and with its own names, but not with its arithmetic."""
    model = copy.deepcopy(tiny.plain("llama"))
    layer = model.model.layers[1]
    if change == "norm":
        layer.input_layernorm.forward = lambda hidden: hidden
    else:
        layer.register_forward_hook(lambda _module, _args, output: output + 1)
    assert not is_lean(lean(model))


@pytest.mark.parametrize("family", LEAN)
def test_its_layers_can_be_run_one_by_one(family):
    target, tree = lean(tiny.plain(family)), TREES[0]
    slot = target.cache.open()
    target.prefill([slot], [[1, 2, 3]])
    hidden = target.layers(range(2), [tree], [slot])
    target.cache.truncate(slot, 3)
    assert torch.allclose(target.logits(hidden), target.verify([tree], [slot]).logits, atol=1e-5)


def test_two_threads_may_use_one_lean_model():
    model = lean(tiny.plain("llama")).model

    def logits() -> torch.Tensor:
        target = HFTarget(model)
        slot = target.cache.open()
        target.prefill([slot], [[1, 2, 3]])
        return target.verify(TREES[:1], [slot]).logits

    want, found = logits(), dict[int, list[bool]]()
    gate = threading.Barrier(2)

    def decode(number: int) -> None:
        gate.wait()
        found[number] = [torch.equal(logits(), want) for _ in range(20)]

    threads = [threading.Thread(target=decode, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {0: [True] * 20, 1: [True] * 20}


@pytest.mark.skipif(not can_pack(torch.float32, torch.device("cpu")), reason="this build of torch cannot pack linear weights")
@pytest.mark.parametrize("weights", ["packed", "plain"])
def test_packed_models_are_lean(tmp_path, weights):
    target = load(save_model(tmp_path), dtype="float32", device="cpu", weights=weights)
    assert is_lean(target) is (weights == "packed")
