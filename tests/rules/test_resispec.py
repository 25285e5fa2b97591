"""The rule as printed: its own numbers, and the proof by counterexample that it is not lossless."""

from __future__ import annotations

import pytest
import torch

from paceline import methods
from paceline.rules.resispec import resispec_printed

from .several import IID, PRINTED, accepted, emitted, random_law, variation, vector
from .test_multi import EXACT, VISIBLE, A, B, C, D

# p and q, k: acceptance, the emitted law if the specification prints it, total variation
TABLE = [
    (A, 1, 0.8, (0.4, 0.415385, 0.184615), 0.115385),
    (A, 2, 0.88, (0.4, 0.433603, 0.166397), 0.133603),
    (A, 3, 0.928, (0.4, 0.442233, 0.157767), 0.142233),
    (B, 2, 0.64, (0.5, 0.5), 0),
    (C, 2, 0.79, (0.410357, 0.338874, 0.250769), 0.289643),
    (C, 3, 0.907, None, 0.31266),
    (D, 2, 0.85, None, 0.225605),
    (D, 3, 0.943, None, 0.233715),
]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row[0]}, k = {row[1]}")
def test_the_printed_rule_does_what_the_table_says(row):
    laws, k, rate, law, off = row
    p, q = (vector(*one) for one in laws)
    got = emitted(*PRINTED, p, q, k)
    assert (accepted(*PRINTED, p, q, k), variation(got, p)) == pytest.approx((rate, off), abs=1e-5), f"it emits {got.tolist()}"
    assert law is None or got.tolist() == pytest.approx(law, abs=1e-5)


def test_the_standard_residual_after_the_last_rejection_repairs_one_candidate_only():
    p, q = (vector(*one) for one in C)
    assert variation(emitted(*PRINTED, p, q, 1), p) == pytest.approx(0.2002, abs=1e-4)


def test_the_printed_rule_fails_the_check_that_the_lossless_rules_pass():
    errors = [variation(emitted(*PRINTED, random_law(4, seed), random_law(4, seed + 30), 2), random_law(4, seed)) for seed in range(20)]
    assert min(errors) > VISIBLE, f"the least error is {min(errors):.2e}"
    assert max(errors) > 0.1, f"the worst error is {max(errors):.2f}"


def test_two_tokens_cannot_show_the_error():
    for seed in range(10):
        p = random_law(2, seed)
        off = variation(emitted(*PRINTED, p, random_law(2, seed + 30), 3), p)
        assert off < EXACT, f"seed {seed}: off by {off:.2e}"


def test_a_rejected_token_has_no_residual_and_the_reserve_fits_into_the_target():
    p, q = random_law(6, 3), random_law(6, 4)
    for token in (p < q).nonzero().flatten().tolist():
        (_, rest) = resispec_printed.decide.trials(p, q, [token])
        reserve = rest.law * (q[token] - p[token])
        assert float(rest.law[token]) == 0
        assert float(rest.law.sum()) == pytest.approx(1, abs=1e-12)
        assert bool((reserve <= p + 1e-12).all()), f"token {token}: {reserve.tolist()} of {p.tolist()}"


@pytest.mark.parametrize("seed", range(3))
def test_float32_laws_of_a_large_vocabulary_are_reserved_without_complaint(seed):
    p, q = (random_law(50_000, s, 3.0).float() for s in (seed, seed + 9))
    (*_, rest) = resispec_printed.decide.trials(p, q, torch.multinomial(q, 4).tolist())
    assert float(rest.law.sum()) == pytest.approx(1, abs=1e-4)


def test_the_printed_rule_is_declared_lossy_wherever_it_is_shown():
    assert (resispec_printed.lossless, resispec_printed.needs) == (False, frozenset({IID}))
    assert "LOSSY" in methods.RULES["resispec_printed"].help
