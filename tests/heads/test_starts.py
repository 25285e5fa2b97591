"""Where attention looks and what the Markov term says before any training."""

from __future__ import annotations

import pytest
import torch

from paceline.heads.bigrams import Bigrams
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
    hook = target.decoder_layers[1].self_attn.k_proj.register_forward_hook(lambda m, a, out: rows.append(out[0]))
    for text in texts:
        slot = target.cache.open()
        target.prefill([slot], [text])
        target.cache.free(slot)
    hook.remove()
    size = torch.cat(rows).unflatten(-1, (-1, head.config.head_dim)).square().mean(-1).sqrt().mean()
    got = head.layers[1].self_attn.k_norm.weight
    assert torch.allclose(got, size.expand_as(got), rtol=1e-4), f"{got[0].item()}, and the target's keys have {size.item()}"


def laws(count: int, size: int, seed: int = 0) -> torch.Tensor:
    return torch.softmax(3 * torch.randn(count, size, generator=torch.Generator().manual_seed(seed)), -1)


def bigrams(head: JetSpecHead, counts: torch.Tensor | None = None, seen: int = 400) -> tuple[Bigrams, torch.Tensor, torch.Tensor]:
    """A table of some laws, with the draft rows of the tokens before and the laws."""
    ids = head.draft_vocab_ids
    made = Bigrams(ids, torch.ones(head.draft_index.shape[0]) if counts is None else counts)
    rows = torch.randint(len(ids), (seen,), generator=torch.Generator().manual_seed(1))
    drawn = laws(seen, len(ids))
    made.add(ids[rows], drawn)
    return made, rows, drawn


def test_a_markov_term_of_full_rank_begins_as_the_mean_laws_behind_each_token():
    head = fresh(markov_rank=48)
    made, rows, drawn = bigrams(head)
    assert made.start(head) == pytest.approx(1, abs=1e-4)
    with torch.no_grad():
        table = head.markov(head.draft_vocab_ids).double()
    mean = drawn.double().mean(0)
    for row in (0, 5, 17):
        own = drawn[rows == row].double()
        want = ((own.sum(0) + mean) / (len(own) + 1)).log() - mean.log()
        assert torch.allclose(table[row], want, atol=1e-3), f"row {row} differs by {float((table[row] - want).abs().max())}"


def test_tokens_that_came_count_as_laws_that_are_sure():
    head = fresh()
    ids, size = head.draft_vocab_ids, len(head.draft_vocab_ids)
    pairs = [(0, 1), (0, 1), (3, 2), (5, 5)]
    sure, came = (Bigrams(ids, torch.ones(head.draft_index.shape[0])) for _ in range(2))
    sure.add(ids[[a for a, _ in pairs]], torch.eye(size)[[b for _, b in pairs]])
    came.add_pairs(ids[[a for a, _ in pairs]], ids[[b for _, b in pairs]])
    for one, other in zip(sure.table(), came.table(), strict=True):
        assert torch.allclose(one, other)


def test_tokens_outside_the_draft_vocabulary_are_left_out():
    head = fresh()
    made, _, _ = bigrams(head)
    before = [t.clone() for t in made.table()]
    outside = next(t for t in range(head.draft_index.shape[0]) if head.draft_index[t] < 0)
    made.add(torch.tensor([outside]), laws(1, len(head.draft_vocab_ids)))
    made.add_pairs(torch.tensor([outside, int(head.draft_vocab_ids[0])]), torch.tensor([int(head.draft_vocab_ids[0]), outside]))
    for one, other in zip(before, made.table(), strict=True):
        assert torch.equal(one, other)


def test_a_low_rank_holds_frequent_tokens_best():
    errors = []
    for frequent in ([0, 1], [2, 3]):
        low, full = fresh(markov_rank=2), fresh(markov_rank=48)
        size = len(low.draft_vocab_ids)
        made, _, _ = bigrams(low)
        often = laws(2, size, seed=7) * 0.02
        often[:, frequent] += 0.49
        made.add(low.draft_vocab_ids[frequent].repeat(5000), often.repeat(5000, 1))
        made.start(low)
        made.start(full)
        with torch.no_grad():
            off = (low.markov(low.draft_vocab_ids) - full.markov(full.draft_vocab_ids)).square()
        errors.append(float(off[frequent][:, frequent].mean() / off.mean()))
    assert max(errors) < 0.05, f"squared error of pairs of frequent tokens, relative to all: {errors}"


def test_tokens_beyond_the_table_are_not_corrected(monkeypatch):
    from paceline.heads import bigrams as module

    monkeypatch.setattr(module, "_LARGEST", 10)
    head = fresh()
    counts = torch.zeros(head.draft_index.shape[0])
    counts[head.draft_vocab_ids[5:15]] = 3
    made, _, _ = bigrams(head, counts)
    made.start(head)
    used = head.markov_prev.abs().sum(1).nonzero().flatten().tolist()
    assert used == list(range(5, 15))
