"""Every family of models through the same loop, around a sliding window of 8 where the family has one; and what is refused."""

from __future__ import annotations

import random

import pytest
import transformers
from transformers import AutoModelForCausalLM

from paceline import engine, methods
from paceline.errors import UnsupportedModel
from paceline.rules.match import match
from paceline.targets.hf import HFTarget
from paceline.tree import Tree

from . import matrix, tiny
from .drafts import Planted
from .oracle import answer

COUNT = 40
PROMPTS = {"inside the window": (5, 6, 7, 8, 9, 10), "beyond the window": tuple(random.Random(47).choices(range(tiny.VOCAB), k=20))}
ROWS = ("none", "lookup", "planted", "draft_model")


def method(family: str, row: str, target: HFTarget):
    if row == "planted":
        return Planted(lambda prompt: answer(family, prompt, COUNT)), match
    return methods.build(row, target, methods.Options(draft_model=tiny.draft(family)) if row == "draft_model" else None)


@pytest.mark.parametrize("prompt", PROMPTS.values(), ids=PROMPTS)
@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_every_family_equals_the_oracle(family, row, prompt):
    target = tiny.target(family)
    (seq,) = engine.generate(target, *method(family, row, target), [matrix.request(prompt, COUNT)])
    matrix.expect(seq.output, answer(family, prompt, COUNT), f"{family}, {row}, prompt of {len(prompt)}")


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_a_batch_of_every_family_equals_the_oracle(family):
    target = tiny.target(family)
    seqs = [matrix.request(p, COUNT) for p in PROMPTS.values()]
    engine.generate(target, *method(family, "planted", target), seqs)
    for seq, prompt in zip(seqs, PROMPTS.values(), strict=True):
        matrix.expect(seq.output, answer(family, prompt, COUNT), f"{family}, prompt of {len(prompt)} in a batch")


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_the_texts_are_lively_enough_to_tell_a_fault(family):
    texts = [answer(family, p, COUNT) for p in PROMPTS.values()]
    different = [len(set(t)) for t in texts]
    assert min(different) >= 8, f"the texts of {family} have only {different} different tokens: choose another seed"


_SMALL = {"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48}
_MAMBA = {"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}
_HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
REFUSED = {
    "mamba": ("MambaConfig", _MAMBA, "recurrent state"),
    "mamba2": ("Mamba2Config", {**_MAMBA, "num_heads": 8, "head_dim": 8, "n_groups": 1}, "recurrent state"),
    "jamba": ("JambaConfig", {**_SMALL, **_HEADS, "attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2}, "recurrent state"),
    "qwen3_next": ("Qwen3NextConfig", {**_SMALL, **_HEADS, "num_experts": 2, "moe_intermediate_size": 16}, "linear_attention layers"),
    "recurrent_gemma": ("RecurrentGemmaConfig", {**_SMALL, "num_attention_heads": 4, "num_hidden_layers": 3}, "recurrent"),
    "bloom": ("BloomConfig", {"vocab_size": 61, "hidden_size": 32, "n_layer": 2, "n_head": 4}, "ALiBi"),
}


@pytest.mark.parametrize("family", REFUSED)
def test_a_model_that_cannot_roll_back_is_refused_with_the_reason(family):
    kind, settings, reason = REFUSED[family]
    model = AutoModelForCausalLM.from_config(getattr(transformers, kind)(**settings))
    with pytest.raises(UnsupportedModel, match=reason) as error:
        HFTarget(model)
    assert "choose a model" in str(error.value), f"no remedy in: {error.value}"


def test_an_encoder_decoder_is_refused_with_the_reason():
    config = transformers.T5Config(vocab_size=61, d_model=32, d_ff=48, num_layers=2, num_heads=4, d_kv=8)
    with pytest.raises(UnsupportedModel, match="encoder-decoder"):
        HFTarget(transformers.T5ForConditionalGeneration(config))


def test_a_refusal_leaves_the_model_as_it_was():
    model = AutoModelForCausalLM.from_config(transformers.BloomConfig(vocab_size=61, hidden_size=32, n_layer=2, n_head=4))
    before = model.config._attn_implementation
    with pytest.raises(UnsupportedModel):
        HFTarget(model)
    assert model.config._attn_implementation == before


def test_two_layers_of_different_windows_need_two_masks():
    target = tiny.target("gemma3")
    slot = target.cache.open(64)
    target.prefill([slot], [list(range(20))])
    masks = target._attention_mask([Tree.chain([1, 2])], [0], [20])
    seen = {kind: int((mask[0, 0, 0] == 0).sum()) for kind, mask in masks.items()}
    assert seen == {"full_attention": 21, "sliding_attention": tiny.WINDOW}, f"the root sees {seen} rows"


def test_the_oracle_uses_the_models_own_attention():
    tiny.target("llama")
    assert tiny.plain("llama").config._attn_implementation == "sdpa"
