"""A target's decoder layers, some at a time: the numbers of the whole model, no hole in a layer's cache, and nothing shared is touched."""

from __future__ import annotations

import copy
import types
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from paceline import engine
from paceline.draft import HeadStart
from paceline.errors import UnsupportedModel
from paceline.rules.match import match
from paceline.targets.hf import HFTarget
from paceline.targets.pack import can_pack, pack
from paceline.tree import Tree

from .. import tiny
from ..drafters.climbing import LAYERS, answer, deep, deep_model, drafter
from ..matrix import PROMPTS, expect, request

PROMPT = [5, 9, 2, 7, 3, 11, 30, 4, 4, 8, 17, 20]
TREE = Tree.chain([1, 2, 3, 4])


def opened(target, capacity: int = 64) -> int:
    slot = target.cache.open(capacity)
    target.prefill([slot], [PROMPT])
    return slot


def whole(target, slot) -> torch.Tensor:
    """The logits of the tree by an ordinary forward, which leaves nothing behind."""
    logits = target.verify([TREE], [slot]).logits
    target.cache.truncate(slot, len(PROMPT))
    return logits


def staircase(target, slot) -> HeadStart:
    """Two tokens at depth 2, one at depth 1 and one at none; the first lags behind and is taken along."""
    one, two = target.num_layers // 3, 2 * target.num_layers // 3
    first = target.layers(range(one), [Tree.chain(TREE.tokens[:1])], [slot])
    second = target.layers(range(one), [Tree.chain(TREE.tokens[:2])], [slot])
    both = target.layers(range(one, two), [Tree.chain(TREE.tokens[:2])], [slot], torch.cat([first, second]))
    third = target.layers(range(one), [Tree.chain(TREE.tokens[:3])], [slot])
    return HeadStart((two, two, one, 0), torch.cat([both, third, torch.zeros_like(third)]))


@pytest.mark.parametrize("family", [f for f in tiny.FAMILIES if f not in ("mixtral", "qwen3_moe")])
def test_layers_in_parts_give_the_logits_of_the_whole_model(family):
    target = deep(family)
    slot = opened(target)
    want = whole(target, slot)
    got = target.verify([TREE], [slot], (), [staircase(target, slot)]).logits
    far = float((got - want).abs().max())
    assert far < 1e-4, f"{family}: logits are off by {far:.1e}"
    target.cache.commit(slot, [0, 1])
    assert target.cache.length(slot) == len(PROMPT) + 2


def test_sequences_at_different_depths_are_finished_together():
    target = deep()
    slots = [opened(target), opened(target)]
    want = [whole(target, slot) for slot in slots]
    got = target.verify([TREE, TREE], slots, (), [staircase(target, slots[0]), None])
    for i in (0, 1):
        far = float((got.logits[got.span(i)] - want[i]).abs().max())
        assert far < 1e-4, f"sequence {i} is off by {far:.1e}"


def test_a_slot_that_grows_keeps_rows_that_are_half_way():
    target = deep()
    slot = opened(target, capacity=0)
    want = whole(target, slot)
    start = staircase(target, slot)
    before = target.cache._slots[slot].slab
    target.cache._reserve([(target.cache._slots[slot], 4 * before.capacity)])
    assert target.cache._slots[slot].slab is not before
    far = float((target.verify([TREE], [slot], (), [start]).logits - want).abs().max())
    assert far < 1e-4, f"logits are off by {far:.1e}"


def test_features_are_those_of_a_whole_forward_despite_a_head_start():
    target = deep()
    slot = opened(target)
    want = target.verify([TREE], [slot], (0, 3))
    target.cache.truncate(slot, len(PROMPT))
    got = target.verify([TREE], [slot], (0, 3), [staircase(target, slot)])
    assert torch.equal(got.features, want.features)
    assert torch.equal(got.logits, want.logits)


def test_the_logits_of_a_state_are_the_models_own():
    target = deep()
    slot = opened(target)
    want = whole(target, slot)
    states = target.layers(range(LAYERS), [TREE], [slot])
    far = float((target.logits(states) - want).abs().max())
    assert far < 1e-5, f"logits are off by {far:.1e}"


# what is made once


def passes(target) -> list[int]:
    """Grows by one with each pass through the model from its embedding on."""
    made, base = [], target.runner._base

    def counted(**given):
        made.append(given["input_ids"].shape[1])
        return base(**given)

    target.runner._base = counted
    return made


def test_rows_that_go_on_need_no_pass_through_the_model_again():
    target = deep()
    slot = opened(target)
    want, made = whole(target, slot), passes(target)
    first = target.layers(range(2), [TREE], [slot])
    start = HeadStart((4,) * len(TREE), target.layers(range(2, 4), [TREE], [slot], first))
    got = target.verify([TREE], [slot], (), [start]).logits
    assert made == [len(TREE)], f"passes with {made} rows"
    assert float((got - want).abs().max()) < 1e-4


def test_rows_that_others_join_need_one():
    target = deep()
    slot = opened(target)
    made = passes(target)
    target.verify([TREE], [slot], (), [staircase(target, slot)])
    assert made == [1, 1, 2, 1, 1, 2, 4], f"passes with {made} rows: three entries and a join, then an entry and two joins"


def test_rows_of_a_slot_that_has_moved_get_a_new_pass():
    target = deep()
    slot = opened(target, capacity=0)
    want, made = whole(target, slot), passes(target)
    start = HeadStart((2,) * len(TREE), target.layers(range(2), [TREE], [slot]))
    state = target.cache._slots[slot]
    target.cache._reserve([(state, 4 * state.slab.capacity)])
    far = float((target.verify([TREE], [slot], (), [start]).logits - want).abs().max())
    assert made == [len(TREE)] * 2, f"passes with {made} rows"
    assert far < 1e-4, f"logits are off by {far:.1e}"


def test_other_tokens_at_the_same_positions_get_new_passes():
    target = deep()
    slot = opened(target)
    made = passes(target)
    staircase(target, slot)
    first = list(made)
    target.cache.truncate(slot, len(PROMPT))
    both = Tree.chain([9, 9])
    rows = [target.layers(range(2), [Tree.chain([9] * n)], [slot]) for n in (1, 2)]
    target.layers(range(2, 4), [both], [slot], torch.cat(rows))
    assert (first, made[len(first) :]) == ([1, 1, 2, 1], [1, 1, 2]), f"passes with {made} rows"


def test_nothing_is_kept_of_rows_that_have_arrived():
    target = deep()
    slot = opened(target)
    target.verify([TREE], [slot], (), [staircase(target, slot)])
    assert not target.runner._known


@pytest.mark.parametrize(("family", "straight"), [("llama", True), ("gpt_neox", True), ("gemma2", False)])
def test_norm_and_output_layer_are_called_straight_where_nothing_else_follows(family, straight):
    target = deep(family)
    assert (target.runner._tail is not None) is straight, f"{family}: Gemma 2 caps its logits, and the others do nothing more"


# what may not be


def test_a_token_may_not_enter_a_layer_before_those_in_front_of_it():
    target = deep()
    slot = opened(target)
    target.layers(range(2), [Tree.chain([1])], [slot])
    with pytest.raises(AssertionError, match=r"rows enter layers range\(0, 4\) before \[2\] are through"):
        target.layers(range(4), [Tree.chain([1, 2])], [slot])


def test_a_token_may_not_enter_in_the_middle():
    target = deep()
    slot = opened(target)
    with pytest.raises(AssertionError, match="1 rows enter layer 2, and 0 are there"):
        target.layers(range(2, 4), [Tree.chain([1])], [slot], torch.zeros(1, 32))


def test_a_token_that_goes_on_may_not_leave_out_a_layer():
    target = deep()
    slot = opened(target)
    hidden = target.layers(range(2), [TREE], [slot])
    with pytest.raises(AssertionError, match=r"rows that enter layer 3 have been through \[2, 2, 2, 2\] layers"):
        target.layers(range(3, 4), [TREE], [slot], hidden)


def test_rows_that_are_half_way_are_not_scratch():
    target = deep()
    slot = opened(target)
    target.layers(range(2), [Tree.chain([1])], [slot])
    with pytest.raises(AssertionError, match="rows are scratch after 6 layers"):
        target.cache.settle(slot, LAYERS)


def test_a_model_that_works_between_its_layers_is_refused():
    model = copy.deepcopy(deep_model())

    def forward(self, input_ids, **given):
        hidden = self.embed_tokens(input_ids)
        positions = self.rotary_emb(hidden, position_ids=given["position_ids"])
        cache = given.get("cache") or given["past_key_values"]
        for layer in self.layers:
            hidden = 1.5 * layer(hidden, attention_mask=given["attention_mask"], position_embeddings=positions, cache=cache)
        return types.SimpleNamespace(last_hidden_state=self.norm(hidden))

    kind = type(model.model)
    model.model.__class__ = type("Between", (kind,), {"forward": forward})
    target = HFTarget(model, name="between")
    with pytest.raises(UnsupportedModel, match=r"the layers of between cannot be run one by one .*; use another method"):
        _ = target.runner


# what is shared


def test_two_threads_that_draft_and_decode_on_one_model_get_their_own_texts():
    model = copy.deepcopy(deep_model())
    before = model.config.to_dict()

    def run(prompt) -> list[int]:
        target = HFTarget(model)
        return engine.generate(target, drafter(target, (2, 4)), match, [request(prompt, 12)])[0].tokens

    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(run, [PROMPTS["short"], PROMPTS["one"]] * 2))
    for got, prompt in zip(found, [PROMPTS["short"], PROMPTS["one"]] * 2, strict=True):
        expect(got, answer(12, prompt), f"a prompt of {len(prompt)} in a thread")
    assert {**model.config.to_dict()} == before, "the configuration was changed"
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules()), "a hook was left behind"
    assert type(model.model.layers[0]).__name__ == "LlamaDecoderLayer", "the model's own layers were replaced"


@pytest.mark.skipif(not can_pack(torch.float32, torch.device("cpu")), reason="this build of torch does not pack")
def test_packed_weights_are_run_in_parts_too():
    target = HFTarget(copy.deepcopy(deep_model()))
    pack(target.model, torch.float32)
    slot = opened(target)
    want = whole(target, slot)
    far = float((target.verify([TREE], [slot], (), [staircase(target, slot)]).logits - want).abs().max())
    assert far < 1e-4, f"logits are off by {far:.1e}"
