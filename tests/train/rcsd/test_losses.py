"""The losses in closed form, and what they do to a law of three tokens (spec 4 and 9)."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from paceline.train.rcsd.losses import divergence, policy_gradient, preference, total_variation

TARGET, DRAFT = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64), torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)


def overlap(q):
    return float(torch.minimum(TARGET, q).sum())


@pytest.mark.parametrize("beta", [0.05, 0.1, 1.0])
def test_a_head_that_is_its_reference_loses_log_2_per_pair(beta):
    assert preference(torch.zeros(3), beta).tolist() == pytest.approx([math.log(2)] * 3)


@pytest.mark.parametrize("beta", [0.1, 0.5])
def test_the_margins_gradient_is_one_for_the_chosen_less_one_for_the_refused_logit(beta):
    logits = torch.randn(7, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    logps = logits.log_softmax(-1)
    (beta * (logps[4] - logps[1])).backward()
    want = torch.zeros(7, dtype=torch.float64)
    want[4], want[1] = beta, -beta
    assert torch.allclose(logits.grad, want, atol=1e-12), f"gradient {logits.grad.tolist()}"


def test_soft_labels_are_satisfied_where_the_margin_says_the_targets_odds():
    odds = torch.tensor([0.8])
    margin = torch.logit(odds).requires_grad_()
    preference(margin, 1.0, odds).sum().backward()
    assert abs(float(margin.grad)) < 1e-6, f"gradient {float(margin.grad)} at the odds"
    assert preference(torch.tensor([2.0]), 1.0, torch.ones(1)).item() == pytest.approx(preference(torch.tensor([2.0]), 1.0).item())


def test_total_variation_is_what_speculative_sampling_refuses():
    got = total_variation(TARGET.log()[None], DRAFT.log()[None])
    assert got.tolist() == pytest.approx([1 - overlap(DRAFT)])
    assert overlap(DRAFT) == pytest.approx(0.7)


def test_divergence_is_from_the_reference_to_the_head():
    got = float(divergence(TARGET.log()[None], DRAFT.log()[None]))
    assert got == pytest.approx(float((TARGET * (TARGET / DRAFT).log()).sum()))


def test_the_policy_gradient_moves_towards_what_was_rewarded_above_the_mean():
    logps = torch.tensor([-1.0, -2.0, -3.0], requires_grad=True)
    policy_gradient(logps, torch.tensor([1.0, 1.0, 0.0])).sum().backward()
    assert logps.grad.tolist() == pytest.approx([-1 / 3, -1 / 3, 2 / 3])


# --- the collapse table: full-batch gradient descent on three logits

BETAS = (0.1, 0.5, 1.0)
TABLE = {  # acceptance after one round of 4000 steps, and after six of 800
    (0.1, 0.05): (0.74, 0.84),
    (0.1, 0.5): (0.97, 1.00),
    (0.5, 0.05): (0.59, 0.60),
    (0.5, 0.5): (0.91, 1.00),
    (1.0, 0.05): (0.68, 0.69),
    (1.0, 0.5): (0.91, 0.97),
}


def pair_gradient(logps, reference, beta):
    """Of the loss of all pairs that the reference makes: refused x with mass (q - p)+, chosen from the normed (p - q)+; by the logits."""
    q, p = np.exp(reference), TARGET.numpy()
    refused, wanted = np.maximum(q - p, 0), np.maximum(p - q, 0)
    mass = wanted[:, None] / max(wanted.sum(), 1e-300) * refused[None]  # chosen by row, refused by column
    ratio = logps - reference
    pull = beta * mass / (1 + np.exp(beta * (ratio[:, None] - ratio[None])))
    return pull.sum(0) - pull.sum(1)


def trained(beta, weight, rounds, steps):
    logits = DRAFT.log().numpy().copy()
    for _ in range(rounds):
        reference = log_softmax(logits)
        for _ in range(steps):
            logps = log_softmax(logits)
            logits -= 0.5 * (pair_gradient(logps, reference, beta) + weight * (np.exp(logps) - TARGET.numpy()))
    return torch.from_numpy(np.exp(log_softmax(logits)))


def log_softmax(logits):
    return logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()


def test_the_gradient_of_the_table_is_that_of_the_preference_loss():
    logits = torch.tensor([0.3, -0.2, 0.9], dtype=torch.float64, requires_grad=True)
    reference, ratio = DRAFT.log(), logits.log_softmax(-1) - DRAFT.log()
    refused, wanted = (DRAFT - TARGET).clamp(min=0), (TARGET - DRAFT).clamp(min=0)
    mass = wanted[:, None] / wanted.sum() * refused[None]
    (mass * preference(ratio[:, None] - ratio[None], 0.5)).sum().backward()
    got = pair_gradient(logits.detach().log_softmax(-1).numpy(), reference.numpy(), 0.5)
    assert got.tolist() == pytest.approx(logits.grad.tolist(), abs=1e-12)


@pytest.mark.parametrize(("beta", "weight"), TABLE)
def test_acceptance_with_an_anchor_is_that_of_the_table(beta, weight):
    got = [overlap(trained(beta, weight, rounds, steps)) for rounds, steps in ((1, 4000), (6, 800))]
    assert got == pytest.approx(TABLE[beta, weight], abs=0.02), f"beta {beta}, anchor {weight}: {got}"


@pytest.mark.parametrize("beta", BETAS)
def test_without_an_anchor_acceptance_collapses_to_that_of_one_token(beta):
    q = trained(beta, 0.0, 1, 4000)
    assert overlap(q) < overlap(DRAFT) - 0.15, f"acceptance {overlap(q)}"
    assert float(q.max()) > 0.95, f"the law is {q.tolist()}"
