"""Where attention looks and what the Markov term says before any training."""

from __future__ import annotations

import pytest
import torch

from paceline.heads.bigrams import start_from_bigrams
from paceline.heads.init import init_from_target
from paceline.heads.jetspec import JetSpecHead
from paceline.heads.local import start_local
from paceline.heads.rope import rotate

from .. import tiny
from .small import config, features, kept_ids

TEXT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]


def fresh(**changes) -> JetSpecHead:
    target = tiny.target()
    made = config(target, **changes)
    torch.manual_seed(0)
    head = JetSpecHead.for_target(target, made, kept_ids(made))
    init_from_target(head, target, [TEXT])
    return head


def scores(head: JetSpecHead, context: torch.Tensor) -> torch.Tensor:
    """(heads, T) of the first layer: a mask right behind the context against its rows."""
    attention, config = head.layers[0].self_attn, head.config
    here = torch.tensor([len(context)])
    keys, _ = head.context_kv(head.fuse(context), torch.arange(len(context)))[0]
    masks = head.layers[0].input_layernorm(head.slots(torch.zeros(1, dtype=torch.long), 2)[:, 1])
    query = rotate(attention.q_norm(attention._heads(attention.q_proj(masks))), head.rotary(here))
    keys = keys.repeat_interleave(config.num_attention_heads // config.num_key_value_heads, 0)
    return (query @ keys.transpose(-2, -1))[:, 0]


def test_each_head_of_the_first_layer_looks_its_own_distance_back():
    head = fresh(block_size=3)
    rows = features(tiny.target(), TEXT, head.config.target_layer_ids)
    with torch.no_grad():
        before = (len(TEXT) - scores(head, rows).argmax(-1)).tolist()
        start_local(head, rows)
        found = scores(head, rows)
    want = [h % 4 + 1 for h in range(head.config.num_attention_heads)]
    assert (len(TEXT) - found.argmax(-1)).tolist() == want, f"before the start they looked {before} back"


def test_content_does_not_move_where_they_look():
    head = fresh(block_size=3)
    rows = features(tiny.target(), TEXT, head.config.target_layer_ids)
    start_local(head, rows)
    with torch.no_grad():
        one, other = (scores(head, rows[order]) for order in (torch.arange(12), torch.arange(11, -1, -1)))
    assert torch.allclose(one, other, atol=1e-3), f"differs by {float((one - other).abs().max())}"


@pytest.mark.parametrize("texts", [[TEXT], [TEXT[:5], TEXT[5:]]], ids=["one text", "two texts"])
def test_queries_and_keys_begin_as_large_as_those_of_the_target(texts):
    target = tiny.target()
    head = JetSpecHead.for_target(target, made := config(target), kept_ids(made))
    init_from_target(head, target, texts)
    rows = []
    hook = target.layers[1].self_attn.k_proj.register_forward_hook(lambda m, a, out: rows.append(out[0]))
    for text in texts:
        slot = target.cache.open()
        target.prefill([slot], [text])
        target.cache.free(slot)
    hook.remove()
    size = torch.cat(rows).unflatten(-1, (-1, head.config.head_dim)).square().mean(-1).sqrt().mean()
    got = head.layers[1].self_attn.k_norm.weight
    assert torch.allclose(got, size.expand_as(got), rtol=1e-4), f"{got[0].item()}, and the target's keys have {size.item()}"


def after(target, first: int, token: int, ids: torch.Tensor) -> torch.Tensor:
    slot = target.cache.open()
    target.prefill([slot], [[first]])
    from paceline.tree import Tree

    logits = target.verify([Tree.chain([token])], [slot]).logits[0, ids]
    target.cache.free(slot)
    return logits.log_softmax(-1)


def test_a_markov_term_of_full_rank_begins_as_the_targets_bigrams():
    target = tiny.target()
    head = fresh(markov_rank=48)
    ids = head.draft_vocab_ids
    counts = torch.arange(target.vocab_size) % 7
    assert start_from_bigrams(head, target, counts, 2) == pytest.approx(1, abs=1e-4)
    with torch.no_grad():
        table = head.markov(ids).double()
    want = torch.stack([after(target, 2, t, ids) for t in ids.tolist()]).double()
    often = counts[ids].double() + 2
    want = want - (often[:, None] * want).sum(0) / often.sum()
    want = want - (often * want).sum(1, keepdim=True) / often.sum()
    assert torch.allclose(table, want, atol=1e-3), f"differs by {float((table - want).abs().max())}"


def test_a_low_rank_holds_frequent_tokens_best():
    target, errors = tiny.target(), []
    for frequent in ([0, 1], [2, 3]):
        head = fresh(markov_rank=2)
        ids = head.draft_vocab_ids
        counts = torch.zeros(target.vocab_size, dtype=torch.long)
        counts[ids[frequent]] = 10_000
        start_from_bigrams(head, target, counts, 2)
        full = fresh(markov_rank=48)
        start_from_bigrams(full, target, counts, 2)
        with torch.no_grad():
            off = (head.markov(ids) - full.markov(ids)).square()
        errors.append(float(off[frequent][:, frequent].mean() / off.mean()))
    assert max(errors) < 0.05, f"squared error of pairs of frequent tokens, relative to all: {errors}"


def test_tokens_beyond_the_table_are_not_corrected(monkeypatch):
    from paceline.heads import bigrams

    monkeypatch.setattr(bigrams, "_LARGEST", 10)
    target, head = tiny.target(), fresh()
    counts = torch.zeros(target.vocab_size, dtype=torch.long)
    counts[head.draft_vocab_ids[5:15]] = 3
    start_from_bigrams(head, target, counts, 2)
    used = head.markov_prev.abs().sum(1).nonzero().flatten().tolist()
    assert used == list(range(5, 15))
