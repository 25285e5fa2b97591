"""The objectives on a small head: identities, masks, gradients, and that nothing frozen moves (spec 9)."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from paceline import methods
from paceline.record.texts import RoundRecord, record_round
from paceline.replay import Text, replay
from paceline.train.distill import Distillation, slot_logits, slot_states
from paceline.train.rcsd.batches import make_rounds
from paceline.train.rcsd.losses import policy_gradient
from paceline.train.rcsd.objective import Distilled, Preferred, Rewarded, log_probs, margins
from paceline.train.rcsd.recipe import Preference
from paceline.train.recipe import Objective, Optimizer
from paceline.train.step import Stepper
from paceline.train.teacher import Teacher

from ..conftest import new_head, sequences
from .rounds import DEPTH, batch_of, drafted, record, texts_of, with_features_of

IDS = torch.arange(0, 300, 2)


def distillation(target, ids=None):
    return Distillation(Objective(), Teacher(target, ids))


def preferred(target, reference, ids=None, **settings):
    return Preferred(Preference(**settings), distillation(target, ids), Teacher(target, ids), reference)


def gradients(head, objective, batch):
    head.zero_grad()
    loss, sums = objective(head, batch)
    loss.backward()
    return loss.item(), {n: p.grad.clone() for n, p in head.named_parameters() if p.grad is not None}, sums


ALONE = {"anchor": 0.0, "stay": 0.0}


@pytest.mark.parametrize("markov_rank", [0, 4])
def test_a_head_that_is_its_reference_loses_log_2_for_each_pair_by_its_depth(teacher_target, taps, markov_rank):
    head = new_head(teacher_target, markov_rank=markov_rank)
    loss, _, sums = gradients(
        head,
        preferred(teacher_target, new_head(teacher_target, markov_rank=markov_rank), **ALONE),
        batch_of(taps, texts_of(teacher_target)),
    )
    weights = 3 * (1 + (1 + 0.8) + 0.8**2)  # of three texts: nothing kept; one kept below a better-ranked sibling; two kept
    assert loss == pytest.approx(weights * math.log(2), rel=1e-5)
    assert float(sums["weight"]) == 9, "the loss is per round"


def test_slots_behind_the_first_refusal_get_no_gradient_and_those_of_the_pair_get_their_difference(teacher_target, taps):
    head = new_head(teacher_target)
    (example,) = sequences(teacher_target, 1)
    batch = batch_of(taps, [record(example, drafted(example, 4, 1))])
    states = slot_states(head, batch.blocks).detach().requires_grad_()
    margin, _ = margins(head, new_head(teacher_target), batch, states, states.detach(), whole=False)
    (gradient,) = torch.autograd.grad(margin.sum(), states)
    want = head.output_weight[example.tokens[6]] - head.output_weight[7]
    assert torch.allclose(gradient[0, 0, 1], want, atol=1e-5), "not the chosen row less the refused one"
    assert float(gradient[0, 0, 2].abs().max()) == 0, "the slot behind the refusal has a gradient"
    assert float(gradient[0, 0, 0].abs().max()) == 0, "the slot of the shared prefix has a gradient"


@pytest.mark.parametrize("settings", [ALONE, {"overlap": 1.0}, {"soft": True}], ids=["preference", "all terms", "soft"])
def test_what_stands_behind_the_first_refusal_changes_nothing(teacher_target, taps, settings):
    head, objective = new_head(teacher_target), preferred(teacher_target, new_head(teacher_target, seed=1), **settings)
    (example,) = sequences(teacher_target, 1)
    text = record(example, drafted(example, 3, 0, tail=(7, 8, 9)))
    other = dataclasses.replace(example, tokens=(*example.tokens[:5], *(t + 1 for t in example.tokens[5:-1]), example.tokens[-1]))
    changed = record(other, drafted(example, 3, 0, tail=(7, 20, 21)))
    one, two = gradients(head, objective, batch_of(taps, [text])), gradients(head, objective, with_features_of(taps, [text], [changed]))
    assert one[0] == two[0], f"loss {one[0]} and {two[0]}"
    moved = [n for n in one[1] if not torch.equal(one[1][n], two[1][n])]
    assert not moved, f"gradients of {moved} changed"


def test_without_the_mask_what_stands_there_counts(teacher_target, taps):
    head, objective = new_head(teacher_target), preferred(teacher_target, new_head(teacher_target, seed=1), mask="none", **ALONE)
    (example,) = sequences(teacher_target, 1)
    losses = [
        gradients(head, objective, batch_of(taps, [record(example, drafted(example, 3, 0, tail=t))]))[0] for t in ((7, 8, 9), (7, 20, 21))
    ]
    assert abs(losses[0] - losses[1]) > 1e-4, f"losses {losses}"


def test_without_the_mask_a_side_is_the_mean_over_its_tokens(teacher_target, taps):
    head, reference = new_head(teacher_target), new_head(teacher_target, seed=1)
    (example,) = sequences(teacher_target, 1)
    batch = batch_of(taps, [record(example, drafted(example, 3, 0, tail=(7, 8, 9)))])
    states, old = (slot_states(h, batch.blocks) for h in (head, reference))

    def ratio(tokens):
        said = [example.tokens[3], *tokens]
        rows = [
            [
                slot_logits(h, s[0, 0, k][None], torch.tensor([said[k]])).log_softmax(-1)[0, said[k + 1]]
                for h, s in ((head, states), (reference, old))
            ]
            for k in range(DEPTH)
        ]
        return sum((own - base).item() for own, base in rows) / DEPTH

    margin, _ = margins(head, reference, batch, states, old, whole=True)
    assert margin.detach().item() == pytest.approx(ratio(example.tokens[4:7]) - ratio((7, 8, 9)), abs=1e-5)


def test_a_token_that_cannot_be_drafted_is_never_chosen(teacher_target, taps):
    head = new_head(teacher_target, ids=IDS)
    (example,) = sequences(teacher_target, 1)
    tokens = list(example.tokens)
    tokens[4] = 1  # outside
    example = dataclasses.replace(example, tokens=tuple(tokens))
    loss, _, sums = gradients(
        head, preferred(teacher_target, head, IDS, **ALONE), batch_of(taps, [record(example, drafted(example, 3, 0, tail=(8,)))])
    )
    assert (loss, float(sums["mean/pairs"])) == (0.0, 0.0)


@pytest.mark.parametrize("objective", ["pref", "all", "whole", "pg", "distill"])
def test_the_gradient_is_that_of_finite_differences(teacher_target, taps, objective):
    head, reference = new_head(teacher_target), new_head(teacher_target, seed=1)
    made = {
        "pref": preferred(teacher_target, reference, beta=1.0, **ALONE),
        "all": preferred(teacher_target, reference, overlap=1.0, stay=1.0, soft=True),
        "whole": preferred(teacher_target, reference, beta=1.0, mask="none", **ALONE),
        "pg": Rewarded(Preference(objective="pg"), distillation(teacher_target)),
        "distill": Distilled(distillation(teacher_target)),
    }[objective]
    batch = batch_of(taps, texts_of(teacher_target), replayed=True)
    _, grads, _ = gradients(head, made, batch)
    direction = {n: g / g.norm() for n, g in grads.items() if g.norm() > 0}
    slope, step, losses = sum(float(grads[n].norm()) for n in direction), 1e-3, []
    for sign in (1, -1):
        shifted = new_head(teacher_target)
        with torch.no_grad():
            for n, p in shifted.named_parameters():
                p += sign * step * direction.get(n, torch.zeros_like(p))
            losses.append(float(made(shifted, batch)[0]))
    got = (losses[0] - losses[1]) / (2 * step)
    assert got == pytest.approx(slope, rel=0.02), f"finite difference {got}, gradient {slope}"


def test_padding_changes_neither_loss_nor_gradients(teacher_target, taps):
    head, objective = new_head(teacher_target), preferred(teacher_target, new_head(teacher_target, seed=1), overlap=1.0)
    texts = texts_of(teacher_target)
    together = gradients(head, objective, batch_of(taps, texts, replayed=True))
    alone = [gradients(head, objective, batch_of(taps, [t], replayed=True)) for t in texts]
    assert together[0] == pytest.approx(sum(loss for loss, _, _ in alone), rel=1e-5)
    for name, grad in together[1].items():
        summed = sum(grads[name] for _, grads, _ in alone)
        assert torch.allclose(grad, summed, rtol=1e-3, atol=1e-4 * float(summed.abs().max())), f"gradient of {name} changes with padding"


def test_training_moves_the_head_and_nothing_else(teacher_target, taps):
    head, reference = new_head(teacher_target), new_head(teacher_target).requires_grad_(False)
    frozen = {"embedding": head.embed_weight, "output": head.output_weight} | dict(reference.named_parameters())
    before = {n: p.clone() for n, p in frozen.items()}
    began = head.fc.weight.clone()
    stepper = Stepper(head, preferred(teacher_target, reference), Optimizer(lr=1e-2))
    for _ in range(3):
        stepper.step([batch_of(taps, texts_of(teacher_target))], 1e-2)
    assert not torch.equal(head.fc.weight, began)
    assert not [n for n, p in frozen.items() if not torch.equal(p, before[n])]


def test_staying_near_the_reference_costs_only_on_replayed_texts(teacher_target, taps):
    head, objective = new_head(teacher_target), preferred(teacher_target, new_head(teacher_target, seed=1))
    sums = [gradients(head, objective, batch_of(taps, texts_of(teacher_target), replayed=r))[2] for r in (False, True)]
    assert "mean/stay" not in sums[0]
    assert float(sums[1]["mean/stay"]) > 0


def test_what_stands_below_a_sibling_that_was_passed_over_is_not_refused(teacher_target, taps):
    (example,) = sequences(teacher_target, 1)
    root, first, second = example.tokens[3:6]
    passed = RoundRecord(3, 3, (root, 9, 11, first, second), (-1, 0, 1, 0, 3), (0, 3, 4))  # 9 and 11 rank above what was accepted
    batch = batch_of(taps, [record(example, passed)])
    assert batch.refused[0, 0].tolist() == [9, -1, -1]
    assert batch.reached[0, 0].tolist() == [True, True, True]
    assert batch.accepted[0, 0].tolist() == [True, True, False]


def test_the_policy_gradient_scores_what_was_accepted_and_the_first_refusal(teacher_target, taps):
    head = new_head(teacher_target)
    (example,) = sequences(teacher_target, 1)
    batch = batch_of(taps, [record(example, drafted(example, 3, 2, tail=(7,), above=9))])
    hidden = slot_states(head, batch.blocks)
    logps = [
        log_probs(head, hidden, tokens, batch.before, slots)
        for tokens, slots in ((batch.labels, batch.accepted), (batch.refused, batch.reached & ~batch.accepted))
    ]
    assert [len(x) for x in logps] == [2, 1], "two tokens were kept and one refused"
    want = -logps[0].sum() + 0.2 * policy_gradient(torch.cat(logps), torch.tensor([1.0, 1.0, 0.0])).sum()
    got, _ = Rewarded(Preference(objective="pg", anchor=0.0), distillation(teacher_target))(head, batch)
    assert got.item() == pytest.approx(want.item(), rel=1e-5)


def test_scores_of_the_decoded_draft_are_the_log_probabilities_that_training_computes(teacher_target, taps):
    """The drafting context in training is that of decoding (spec 9, test 9)."""
    head = new_head(teacher_target, markov_rank=0)
    (example,) = sequences(teacher_target, 1)
    (tapped,) = taps.read([example.tokens])
    drafter, _ = methods.build("jetspec", teacher_target, methods.Options(budget=12, head=head))
    text = Text("e", "d", example.tokens, example.prompt_length, tapped.features)
    rounds = [record_round(round_) for _, round_ in replay(drafter, [text])][:3]
    batch = make_rounds([record(example, *rounds)], [tapped], [rounds], [False], depth=DEPTH)
    logps = slot_logits(head, slot_states(head, batch.blocks)[0], batch.before[0]).log_softmax(-1).detach()  # (A, D, V)
    for a, round_ in enumerate(rounds):
        for node in range(1, len(round_.tokens)):
            path = round_.tree.path(node)[1:]
            want = sum(float(logps[a, k, round_.tokens[n]]) for k, n in enumerate(path))
            assert round_.scores[node] == pytest.approx(want, abs=1e-4), f"round {a}, node {node}"
