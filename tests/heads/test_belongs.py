"""A head of another target is an error that says what differs."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch

from paceline.errors import CheckpointMismatch
from paceline.heads.belongs import check_belongs, comparison
from paceline.heads.fingerprint import fingerprint, same_target, tokenizer_hash
from paceline.targets.hf import HFTarget
from paceline.targets.pack import pack

from .. import tiny
from ..folders import WORDS, tokenizer
from .small import config


def speaking(words=WORDS, **changes) -> HFTarget:
    """The tiny Llama with a tokenizer, or another model of its shape."""
    model = tiny.ours("llama") if not changes else tiny.build(tiny.config("llama", **changes), 1)
    return HFTarget(model, tokenizer(list(words)))


def of(target: HFTarget):
    return config(target, taps=(0,))


def test_a_head_belongs_to_the_target_it_was_made_for():
    check_belongs(of(speaking()), speaking())


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"hidden_size": 16}, "its hidden size is 32 and the target's 16"),
        ({"vocab_size": 64}, "its vocabulary size is 61 and the target's 64"),
        ({"num_hidden_layers": 3}, "its number of target layers is 2 and the target's 3"),
        ({"num_attention_heads": 2}, "its fingerprint of embedding and output rows"),
    ],
)
def test_another_model_is_refused_with_both_values(changes, says):
    with pytest.raises(CheckpointMismatch, match=says):
        check_belongs(of(speaking()), speaking(**changes))


def test_another_tokenizer_is_refused():
    with pytest.raises(CheckpointMismatch, match="its tokenizer is"):
        check_belongs(of(speaking()), speaking([*WORDS[:5], WORDS[6], WORDS[5], *WORDS[7:]]))


def test_a_head_that_says_nothing_about_its_target_is_judged_by_shapes_alone():
    silent = dataclasses.replace(of(speaking()), target_tokenizer="", target_fingerprint=())
    check_belongs(silent, speaking(num_attention_heads=2))
    assert [same for *_, same in comparison(silent, speaking())] == [True, True, True, None, None]


def test_a_target_without_a_tokenizer_is_judged_by_the_rest():
    check_belongs(of(speaking()), tiny.target())


def test_the_hash_of_a_vocabulary_depends_on_every_token():
    words = {w: i for i, w in enumerate(WORDS)}
    swapped = words | {WORDS[3]: 4, WORDS[4]: 3}
    assert len({tokenizer_hash(words), tokenizer_hash(swapped), tokenizer_hash({**words, "more": 61}), ""}) == 4
    assert tokenizer_hash(dict(reversed(words.items()))) == tokenizer_hash(words)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_the_fingerprint_is_the_same_for_packed_and_rounded_weights(tied):
    model = tiny.build(tiny.config("llama", tie_word_embeddings=tied), 5)
    plain = fingerprint(HFTarget(model))
    packed = fingerprint(HFTarget(pack(copy.deepcopy(model), torch.float32)))
    rounded = fingerprint(HFTarget(copy.deepcopy(model).to(torch.bfloat16)))
    assert (same_target(plain, packed), same_target(plain, rounded)) == (True, True)


@pytest.mark.parametrize("layer", ["model.embed_tokens", "lm_head"])
def test_the_fingerprint_sees_a_change_of_either_matrix(layer):
    model = copy.deepcopy(tiny.plain("llama"))
    before = fingerprint(HFTarget(model))
    with torch.no_grad():
        weight = model.get_submodule(layer).weight
        weight += 0.1 * weight.std() * torch.randn_like(weight)
    assert not same_target(before, fingerprint(HFTarget(model))), f"10 % of noise on {layer} went unseen"
