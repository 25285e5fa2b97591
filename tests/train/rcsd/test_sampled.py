"""The expected length of a drawn chain, against all texts there could be."""

from __future__ import annotations

import pytest
import torch

from paceline.train.batches import make_batch
from paceline.train.distill import slot_logits, slot_states
from paceline.train.examples import Example
from paceline.train.rcsd.sampled import expected_kept
from paceline.train.teacher import Teacher

from ..conftest import new_head

PROMPT = (5, 9, 2, 30)
IDS = torch.arange(0, 300, 3)


@pytest.mark.parametrize("ids", [None, IDS], ids=["whole vocabulary", "reduced vocabulary"])
def test_the_mean_over_the_targets_texts_is_the_sum_over_all_drafts(teacher_target, taps, ids):
    head, teacher = new_head(teacher_target, ids=ids, block_size=3), Teacher(teacher_target, None)
    every = [Example(str(y), "t", (*PROMPT, y, 0), len(PROMPT)) for y in range(teacher_target.vocab_size)]
    tapped = taps.read([e.tokens for e in every])
    p = teacher(tapped[0].hidden[3:4]).softmax(-1)[0]
    batches = [make_batch([e], [t], [torch.tensor([3])], depth=2) for e, t in zip(every, tapped, strict=True)]
    got = sum(float(p[y] * expected_kept(head, b, teacher)) for y, b in enumerate(batches))

    def draft_law(batch, depth):
        logits = slot_logits(head, slot_states(head, batch)[0, :, depth], batch.blocks[0, :, depth])
        whole = torch.zeros(teacher_target.vocab_size)
        whole[head.draft_vocab_ids] = logits.softmax(-1)[0]
        return whole

    with torch.no_grad():
        first = torch.minimum(p, draft_law(batches[0], 0))
        second = [torch.minimum(teacher(t.hidden[4:5]).softmax(-1)[0], draft_law(b, 1)).sum() for b, t in zip(batches, tapped, strict=True)]
        want = float(first.sum() + (first * torch.stack(second)).sum())
    assert got == pytest.approx(want, rel=1e-4), f"{got} over texts, {want} over drafts"


def test_temperatures_of_the_head_are_put_on(teacher_target, taps):
    import dataclasses

    head, teacher = new_head(teacher_target), Teacher(teacher_target, None)
    example = Example("e", "t", (*PROMPT, 7, 8, 9, 10, 11), len(PROMPT))
    batch = make_batch([example], taps.read([example.tokens]), [torch.tensor([4, 5])], depth=3)
    plain = expected_kept(head, batch, teacher)
    head.config = dataclasses.replace(head.config, temperatures=(2.0, 2.0, 2.0))
    assert plain.shape == (2,)
    assert not torch.allclose(plain, expected_kept(head, batch, teacher))


def test_a_token_is_reached_if_all_before_it_were_kept(teacher_target, taps):
    head, teacher = new_head(teacher_target), Teacher(teacher_target, None)
    tokens = (*PROMPT, 7, 8, 9, 10)
    batch = make_batch([Example("e", "t", tokens, len(PROMPT))], taps.read([tokens]), [torch.tensor([3])], depth=3)
    states = slot_states(head, batch)[0, 0].detach()
    want, reach = 0.0, 1.0
    for k in range(3):
        p = teacher(batch.hidden[0, 0, k][None]).softmax(-1)[0]
        q = slot_logits(head, states[k][None], torch.tensor([tokens[3 + k]])).softmax(-1)[0].detach()
        want += reach * torch.minimum(p, q).sum().item()
        reach *= min(1.0, (q[tokens[4 + k]] / p[tokens[4 + k]]).item())
    assert expected_kept(head, batch, teacher).item() == pytest.approx(want, rel=1e-4)
