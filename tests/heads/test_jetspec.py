"""The head itself: what a slot sees, that training and decoding compute the same, and what its parts do."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from paceline.errors import CheckpointMismatch
from paceline.heads.jetspec import Context, JetSpecConfig, JetSpecHead, block_mask
from paceline.targets.hf import HFTarget

from .. import tiny
from .small import config, features, kept_ids, random_head

TOKENS = [(7 * i * i + 3 * i + 1) % tiny.VOCAB for i in range(24)]
ANCHORS = torch.tensor([[0, 3, 11, 19]])
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16,
    "rope_theta": 500.0,
}  # fmt: skip
TARGETS = {
    "grouped heads": {},
    "as many key heads": {"num_key_value_heads": 4},
    "one key head": {"num_key_value_heads": 1},
    "tied embedding": {"tie_word_embeddings": True},
    "rotary scaling": {"rope_parameters": LLAMA3},
}


@cache
def of(name: str = "grouped heads") -> HFTarget:
    return HFTarget(tiny.build(tiny.config("llama", **TARGETS[name]), 3))


def context(head: JetSpecHead, rows: torch.Tensor) -> Context:
    """The head's cache of these feature rows, from position 0 on."""
    made = Context()
    if len(rows):
        fused = head.fuse(rows)
        made.append(head.context_kv(fused, torch.arange(len(rows))), fused[-1])
    return made


def trained(head: JetSpecHead, rows: torch.Tensor, anchors=ANCHORS, valid=None) -> torch.Tensor:
    """(A, depth, Vd) logits of the training path."""
    tokens = torch.tensor([TOKENS])
    return head.logits(head(head.fuse(rows[None]), tokens.gather(1, anchors), anchors, valid))[0]


def decoded(head: JetSpecHead, rows: torch.Tensor, anchor: int, depth: int | None = None) -> torch.Tensor:
    """(depth, Vd) logits of the decoding path behind the tokens before the anchor."""
    return head.draft(torch.tensor([TOKENS[anchor]]), [context(head, rows[:anchor])], depth)[0]


def close(got: torch.Tensor, want: torch.Tensor, what: str, within: float = 1e-5) -> None:
    assert got.shape == want.shape, f"{what}: shape {tuple(got.shape)}, not {tuple(want.shape)}"
    worst = float((got - want).abs().max())
    assert worst < within, f"{what}: off by {worst:.2e}"


@pytest.mark.parametrize(
    "changes", [{}, {"draft_vocab_size": None, "mask_token_id": 60, "markov_rank": 0, "last_feature": False}], ids=["reduced", "whole"]
)
@pytest.mark.parametrize("name", TARGETS)
def test_training_and_decoding_give_the_same_logits(name, changes):
    head = random_head(of(name), **changes)
    rows = features(of(name), TOKENS, head.config.target_layer_ids)
    logits = trained(head, rows)
    for i, anchor in enumerate(ANCHORS[0].tolist()):
        close(decoded(head, rows, anchor), logits[i], f"{name}, anchor at {anchor}")


def test_a_head_that_sees_both_ways_trains_and_decodes_alike():
    head = random_head(causal_target := of())
    head.config = JetSpecConfig.from_dict({**head.config.as_dict(), "causal": False})
    rows = features(causal_target, TOKENS, head.config.target_layer_ids)
    logits = trained(head, rows)
    close(decoded(head, rows, 11), logits[2], "all slots")
    close(decoded(head, rows, 11, 2), logits[2, :2], "a draft of two, which needs the whole block")


def test_seeing_both_ways_changes_the_logits():
    head = random_head(of())
    rows = features(of(), TOKENS, head.config.target_layer_ids)
    causal = trained(head, rows)
    head.config = JetSpecConfig.from_dict({**head.config.as_dict(), "causal": False})
    difference = float((trained(head, rows) - causal).abs().max())
    assert difference > 1e-2, f"both masks give the same within {difference:.1e}"


@pytest.mark.parametrize("slot", range(1, 5))
def test_a_slot_does_not_see_later_slots(monkeypatch, slot):
    head = random_head(of())
    rows = features(of(), TOKENS, head.config.target_layer_ids)
    before, slots = trained(head, rows), JetSpecHead.slots

    def changed(self, *given):
        x = slots(self, *given).clone()
        x[..., slot, :] += 1.0
        return x

    monkeypatch.setattr(JetSpecHead, "slots", changed)
    moved = (trained(head, rows) - before).abs().amax((0, 2))  # (depth,) of slots 1, 2, ...
    assert (moved[: slot - 1] == 0).all(), f"slots before {slot} moved by {moved[: slot - 1].tolist()}"
    assert (moved[slot - 1 :] > 1e-3).all(), f"slot {slot} and those after it moved by {moved[slot - 1 :].tolist()}"


def test_a_block_sees_the_context_strictly_before_its_anchor():
    head = random_head(of())
    rows = features(of(), TOKENS, head.config.target_layer_ids)
    before = trained(head, rows)
    for place, moves in ((10, True), (11, False), (12, False)):
        other = rows.clone()
        other[place] += 1.0
        moved = float((trained(head, other) - before)[2].abs().max())
        assert (moved > 1e-3) == moves, f"the block at 11 moved by {moved:.1e} when row {place} changed"


def test_blocks_do_not_see_each_other():
    head = random_head(of())
    rows = features(of(), TOKENS, head.config.target_layer_ids)
    close(trained(head, rows, torch.tensor([[3, 19]])), trained(head, rows)[[1, 3]], "blocks 3 and 19 without the others")


def test_the_mask_of_two_small_blocks_is_as_drawn():
    #                      context  block 0  block 1
    drawn = [
        "1 0 0  1 0  0 0",
        "1 0 0  1 1  0 0",
        "1 1 0  0 0  1 0",
        "1 1 0  0 0  1 1",
    ]  # fmt: skip
    want = torch.tensor([[int(c) for c in row.split()] for row in drawn]).bool()
    assert torch.equal(block_mask(torch.tensor([[1, 2]]), 3, 2)[0, 0], want)


def test_a_padding_block_sees_only_itself():
    drawn = block_mask(torch.tensor([[1, 2]]), 3, 2, valid=torch.tensor([[True, False]]))[0, 0]
    assert drawn[2:].int().tolist() == [[0, 0, 0, 0, 0, 1, 0], [0, 0, 0, 0, 0, 1, 1]]


def test_padding_blocks_change_no_other_and_give_numbers():
    head = random_head(of())
    rows = features(of(), TOKENS, head.config.target_layer_ids)
    padded, valid = torch.tensor([[3, 0, 19, 0]]), torch.tensor([[True, False, True, False]])
    logits = trained(head, rows, padded, valid)
    close(logits[[0, 2]], trained(head, rows)[[1, 3]], "valid blocks")
    assert bool(logits.isfinite().all()), "a padding block gives NaN, which would spread in the backward pass"


def test_padding_blocks_give_no_gradient():
    head = random_head(of()).requires_grad_(True)
    rows = features(of(), TOKENS, head.config.target_layer_ids)
    gradients = []
    for anchors, valid in (([[3, 19]], [[True, True]]), ([[3, 0, 19]], [[True, False, True]])):
        head.zero_grad()
        weight = torch.tensor(valid)[0, :, None, None]
        (trained(head, rows, torch.tensor(anchors), torch.tensor(valid)).masked_fill(~weight, 0) ** 2).sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for n, p in head.named_parameters() if "markov" not in n]))
    close(gradients[1], gradients[0], "gradients with a padding block", 1e-3)


def test_right_padding_of_a_shorter_sequence_changes_nothing():
    head = random_head(of())
    rows = features(of(), TOKENS, head.config.target_layer_ids)
    longer = torch.cat([rows[:12], 100 * torch.ones(12, rows.shape[1])])
    close(trained(head, longer)[:3], trained(head, rows)[:3], "blocks up to 11 with 12 rows of padding")


def test_a_context_that_grows_equals_one_computed_at_once():
    head = random_head(of())
    rows = features(of(), TOKENS, head.config.target_layer_ids)
    grown, start = Context(), 0
    for end in (1, 2, 9, 10, 24):
        fused = head.fuse(rows[start:end])
        grown.append(head.context_kv(fused, torch.arange(start, end)), fused[-1])
        head.draft(torch.tensor([5]), [grown])  # leaves scratch rows behind
        close(head.draft(torch.tensor([7]), [grown]), head.draft(torch.tensor([7]), [context(head, rows[:end])]), f"{end} rows")
        start = end


def test_a_context_keeps_its_rows_when_its_memory_grows():
    grown, parts = Context(), [torch.randn(2, 30, 8) for _ in range(12)]
    for part in parts:
        grown.append([(part, -part), (2 * part, part)], part[0, 0])
    key, value = grown.write(1, parts[0], parts[0], of=2)
    want = torch.cat(parts, 1)
    assert torch.equal(key[:, :360], 2 * want)
    assert torch.equal(value[:, :360], want)


def test_a_context_cut_back_equals_a_shorter_one():
    head = random_head(of())
    rows = features(of(), TOKENS, head.config.target_layer_ids)
    cut = context(head, rows)
    cut.truncate(5)
    fused = head.fuse(rows[5:6])
    cut.append(head.context_kv(fused, torch.arange(5, 6)), fused[-1])
    close(head.draft(torch.tensor([7]), [cut]), head.draft(torch.tensor([7]), [context(head, rows[:6])]), "cut to 6 of 24")


def test_sequences_of_a_batch_are_each_drafted_as_alone():
    head = random_head(of())
    rows = features(of(), TOKENS, head.config.target_layer_ids)
    lengths, anchors = [0, 5, 23], torch.tensor([9, 8, 7])
    together = head.draft(anchors, [context(head, rows[:n]) for n in lengths])
    for i, length in enumerate(lengths):
        close(together[i], head.draft(anchors[i : i + 1], [context(head, rows[:length])])[0], f"behind {length} rows")


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_shallower_draft_has_the_same_logits(depth):
    head = random_head(of())
    rows = features(of(), TOKENS, head.config.target_layer_ids)
    close(decoded(head, rows, 11, depth), decoded(head, rows, 11)[:depth], f"depth {depth}")


def test_logits_are_those_of_the_draft_vocabulary():
    whole, ids = random_head(of(), draft_vocab_size=None, markov_rank=0), kept_ids(config(of()))
    small = random_head(of(), markov_rank=0)
    hidden = torch.randn(3, 32)
    close(small.logits(hidden), whole.logits(hidden)[:, ids], "rows of the reduced vocabulary")


def test_the_markov_term_of_candidates_is_that_of_the_whole_vocabulary():
    head, prev = random_head(of()), torch.tensor([[4, 5, 10], [11, 2, 0]])
    rows = torch.tensor([[[0, 7], [3, 3], [47, 1]], [[8, 9], [1, 2], [5, 6]]])
    close(head.markov(prev, rows), head.markov(prev).gather(-1, rows), "candidates")


def test_the_markov_table_has_a_row_for_each_token_that_may_come_before():
    head, before, rows = random_head(of()), torch.tensor([[4, 5, 10], [11, 2, 0]]), torch.tensor([[0, 7], [3, 47]])
    each = [[head.markov(head.draft_vocab_ids[row], cs) for row in rs] for rs, cs in zip(before, rows, strict=True)]
    close(head.markov_table(before, rows), torch.stack([torch.stack(row) for row in each]), "table")


def test_the_markov_term_is_the_product_of_its_factors():
    head = random_head(of())
    token, candidate = int(head.draft_vocab_ids[9]), 4
    got = float(head.markov(torch.tensor(token))[candidate])
    assert got == pytest.approx(float(head.markov_prev[9] @ head.markov_next[candidate]), rel=1e-5)


def test_a_token_outside_the_draft_vocabulary_corrects_nothing():
    assert float(random_head(of()).markov(torch.tensor([3, 8])).abs().max()) == 0


def test_a_new_head_starts_without_a_correction():
    made = config(of())
    head = JetSpecHead.for_target(of(), made, kept_ids(made))
    assert not head.markov(torch.tensor([1, 2])).any()


def test_borrowed_matrices_are_neither_saved_nor_trained():
    head = random_head(of(), markov_rank=0, mask_token_id=5, draft_vocab_size=40)
    sizes = {p.shape[0] for p in head.state_dict().values()} | {p.shape[0] for p in head.parameters()}
    assert not sizes & {tiny.VOCAB, 40}, f"a tensor has as many rows as a vocabulary: {sorted(sizes)}"


def test_the_rotary_table_stays_in_float32_when_the_head_is_cast():
    head = random_head(of())
    far = torch.tensor([9000.0])
    want = head.rotary(far)[0]
    assert torch.equal(head.to(torch.bfloat16).rotary(far)[0], want)


def test_a_head_in_bfloat16_drafts_in_bfloat16():
    head = random_head(of()).to(torch.bfloat16)
    rows = features(of(), TOKENS, head.config.target_layer_ids)
    got = decoded(head, rows, 11)
    want = decoded(random_head(of()), rows, 11)
    assert float((got.float() - want).abs().max()) < 0.1 * float(want.abs().max()), "bfloat16 is far from float32"


@pytest.mark.parametrize("ids", [[5, 4, 3], [1, 1, 2], [1, 2]], ids=["descending", "twice", "too few"])
def test_a_draft_vocabulary_that_is_none_is_refused(ids):
    with pytest.raises(CheckpointMismatch, match="3 ascending token ids"):
        JetSpecHead.for_target(of(), config(of(), draft_vocab_size=3), torch.tensor(ids))


@pytest.mark.parametrize(("size", "ids"), [(3, None), (None, torch.tensor([1, 2]))])
def test_size_and_ids_of_a_draft_vocabulary_come_together(size, ids):
    with pytest.raises(CheckpointMismatch, match="give both or neither"):
        JetSpecHead.for_target(of(), config(of(), draft_vocab_size=size), ids)


def test_matrices_of_another_width_are_refused_with_both_shapes():
    with pytest.raises(CheckpointMismatch, match=r"embedding is \[61, 16\] and the head needs \[61, 32\]"):
        JetSpecHead(config(of(), draft_vocab_size=None), torch.zeros(61, 16), torch.zeros(61, 32))
