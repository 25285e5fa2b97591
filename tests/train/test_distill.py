"""The chunked objective against a plain one, alignment with the target, and padding that changes nothing."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy, kl_div

from paceline.train.anchors import draw
from paceline.train.batches import make_batch
from paceline.train.distill import Distillation, dynamic_weights
from paceline.train.recipe import Objective
from paceline.train.teacher import Teacher

from .conftest import new_head, sequences

IDS = torch.arange(2, 300, 3)  # a draft vocabulary that leaves tokens out


def batch_of(taps, examples, *, count=5, blocks=None, depth=3):
    tapped = taps.read([e.tokens for e in examples])
    drawn = [draw(e, count, seed=1, epoch=0) for e in examples]
    return make_batch(examples, tapped, drawn, depth=depth, blocks=blocks)


def gradients(head, objective, batch):
    head.zero_grad()
    loss, sums = objective(head, batch)
    loss.backward()
    return loss.item(), {n: p.grad.clone() for n, p in head.named_parameters()}, sums


def plain(head, batch, settings, teacher):
    """The loss slot by slot, without chunks, selection or vector tricks."""
    hidden = head(head.fuse(batch.features), batch.tokens.gather(1, batch.anchors), batch.anchors, batch.valid)
    total = torch.zeros(())
    weight = 0.0
    for b, a in zip(*torch.where(batch.valid), strict=True):
        anchor = int(batch.anchors[b, a])
        for k in range(1, head.config.block_size):
            if not batch.supervised[b, a, k - 1]:
                continue
            label = int(head.draft_index[batch.tokens[b, anchor + k]])
            z = head.logits(hidden[b, a, k - 1]) + head.markov(batch.tokens[b, anchor + k - 1])
            w = 2.718281828 ** (-(k - 1) / settings.gamma) if settings.depth_weights == "exponential" else 1.0
            share = {"kl": 0.0, "ce": 1.0, "mix": settings.ce_weight}[settings.loss]
            if settings.loss == "ce" and label < 0:
                continue
            loss = torch.zeros(())
            if share and label >= 0:
                loss = loss + share * cross_entropy(z[None], torch.tensor([label]))
            if share < 1:
                heat = settings.temperature or 1.0
                p = torch.softmax(teacher(batch.hidden[b, a, k - 1][None])[0] / heat, -1)
                loss = loss + (1 - share) * heat**2 * kl_div(torch.log_softmax(z / heat, -1), p, reduction="sum")
            if settings.top_weight:
                p = torch.softmax(teacher(batch.hidden[b, a, k - 1][None])[0], -1)
                best = sorted(range(len(p)), key=lambda i: -float(p[i]))[: settings.top_tokens]
                loss = loss - settings.top_weight * sum(p[i] * torch.log_softmax(z, -1)[i] for i in best)
            total = total + w * loss
            weight += w
    return total, weight


@pytest.mark.parametrize(
    "settings",
    [
        {"loss": "ce"},
        {"loss": "kl"},
        {"loss": "kl", "temperature": 2.0},
        {"loss": "mix", "ce_weight": 0.25, "depth_weights": "exponential", "gamma": 2.0},
        {"loss": "kl", "top_weight": 0.5, "top_tokens": 3},
    ],
    ids=["ce", "kl", "kl at temperature 2", "mix with depth weights", "kl with the likeliest tokens again"],
)
@pytest.mark.parametrize("chunk", [1, 4, 1000])
def test_the_chunked_loss_and_its_gradients_are_those_of_the_plain_one(teacher_target, taps, settings, chunk):
    head = new_head(teacher_target, ids=IDS)
    teacher = Teacher(teacher_target, IDS)
    batch = batch_of(taps, sequences(teacher_target))
    settings = Objective(**settings, chunk_blocks=chunk)
    got, grads, sums = gradients(head, Distillation(settings, teacher), batch)
    head.zero_grad()
    want, weight = plain(head, batch, settings, teacher)
    want.backward()
    assert got == pytest.approx(want.item(), rel=1e-5), f"loss {got}, plain {want.item()}"
    assert float(sums["weight"]) == pytest.approx(weight, rel=1e-5), f"weight {float(sums['weight'])}, plain {weight}"
    wrong = {n: float((grads[n] - p.grad).abs().max() / p.grad.abs().max()) for n, p in head.named_parameters()}
    assert max(wrong.values()) < 1e-3, f"gradients differ by {wrong}"


@pytest.mark.parametrize("loss", ["ce", "kl"])
def test_padding_blocks_and_sequences_change_neither_loss_nor_gradients(teacher_target, taps, loss):
    head, objective = new_head(teacher_target), Distillation(Objective(loss=loss), Teacher(teacher_target, None))
    examples = sequences(teacher_target)
    alone = [gradients(head, objective, batch_of(taps, [e])) for e in examples]
    together = gradients(head, objective, batch_of(taps, examples, blocks=9))
    want = sum(loss for loss, _, _ in alone)
    assert together[0] == pytest.approx(want, rel=1e-5), f"padded {together[0]}, alone {want}"
    for name, grad in together[1].items():
        summed = sum(grads[name] for _, grads, _ in alone)
        assert torch.allclose(grad, summed, rtol=1e-3, atol=1e-4 * float(summed.abs().max())), f"gradient of {name} changes with padding"


def test_the_divergence_vanishes_only_if_the_teachers_states_are_taken_one_position_before_the_token(teacher_target, taps):
    """The student is the teacher itself, fed through a head that returns the target's states at anchor + k - 1."""
    (example,) = sequences(teacher_target, 1)
    (tapped,) = taps.read([example.tokens])
    drawn = [draw(example, 5, seed=1, epoch=0)]
    head = new_head(teacher_target, markov_rank=0)
    head.forward = lambda fused, tokens, anchors, valid=None: right.hidden.clone().requires_grad_()
    objective = Distillation(Objective(loss="kl"), Teacher(teacher_target, None))
    right = make_batch([example], [tapped], drawn, depth=3)
    loss = objective(head, right)[0].item()
    shifted = make_batch([example], [type(tapped)(tapped.features, tapped.hidden.roll(-1, 0))], drawn, depth=3)
    other = objective(head, shifted)[0].item()
    assert abs(loss) < 1e-4, f"divergence {loss} under the right gather"
    assert other > 1, f"divergence {other} one position on"


def test_the_teacher_gives_the_targets_own_logits(teacher_target, taps):
    from paceline.tree import Tree

    tokens = sequences(teacher_target, 1)[0].tokens
    want = teacher_target.verify([Tree.chain(tokens)], [teacher_target.cache.open()]).logits[:-1]
    got = Teacher(teacher_target, None)(taps.read([tokens])[0].hidden)
    assert torch.allclose(got, want, atol=1e-3), f"logits differ by {float((got - want).abs().max())}"


def test_dynamic_weights_are_the_suffix_sums_of_the_running_product():
    q = torch.tensor([[0.8, 0.4, 0.0], [0.2, 0.6, 0.5]])
    trained = torch.tensor([[True, True, True], [True, True, False]])
    logits = torch.stack([q[trained], 1 - q[trained]], -1).log()
    got = dynamic_weights(logits, torch.zeros(5, dtype=torch.long), trained)
    first = [0.9, 0.9 * 0.7, 0.9 * 0.7 * 0.5]
    second = [0.6, 0.6 * 0.8]
    want = [sum(first), sum(first[1:]), first[2], sum(second), second[1]]
    assert got.tolist() == pytest.approx(want), f"weights {got.tolist()}, want {want}"


def test_accuracy_counts_the_targets_own_tokens_and_acceptance_their_leading_run(teacher_target, taps):
    head = new_head(teacher_target)
    batch = batch_of(taps, sequences(teacher_target))
    _, sums = Distillation(Objective(loss="ce"), None)(head, batch)
    hidden = head(head.fuse(batch.features), batch.blocks[..., 0], batch.anchors, batch.valid)
    best = (head.logits(hidden) + head.markov(batch.blocks[..., :-1])).argmax(-1)
    right = (best == batch.blocks[..., 1:]) & batch.supervised
    want = right.flatten(0, 1).sum(0).tolist(), int(right.cumprod(-1).sum())
    assert (sums["correct"].tolist(), int(sums["accepted"])) == want
