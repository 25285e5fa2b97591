"""Bounds from optimal transport against linear programs, brute force and recursion, and every lossless rule below them."""

from __future__ import annotations

import itertools

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from scipy.optimize import linprog

from paceline.errors import InvalidRequest
from paceline.rules import multi, transport
from paceline.rules.match import match

from .several import IID, NAMES, PAIRS, PRINTED, TOP, WOR, Siblings, accepted, random_law, vector, ways
from .test_multi import A, C, D

KINDS = [IID, WOR, TOP]


def by_program(siblings, p, q, k) -> float:
    """The largest chance of emitting a child, over all joint laws of the set of children and the token: a linear program."""
    sets: dict[frozenset, float] = {}
    for tokens, prob in ways(siblings, q, k):
        sets[frozenset(tokens)] = sets.get(frozenset(tokens), 0.0) + prob
    cells = [(drawn, token) for drawn in sets for token in range(len(p))]
    gain = [-float(token in drawn) for drawn, token in cells]
    rows = [[float(drawn == s) for drawn, _ in cells] for s in sets] + [[float(token == t) for _, token in cells] for t in range(len(p))]
    found = linprog(gain, A_eq=np.array(rows), b_eq=[*sets.values(), *p.tolist()])
    return -float(found.fun)


def by_brute_force(siblings, p, q, k) -> float:
    """The minimum over all sets H, not only over those in the order of p / q."""
    drawn = [(set(tokens), prob) for tokens, prob in ways(siblings, q, k)]
    sets = itertools.chain.from_iterable(itertools.combinations(range(len(p)), size) for size in range(len(p) + 1))
    return min(1 - float(p[list(h)].sum()) + sum(prob for tokens, prob in drawn if tokens & set(h)) for h in sets)


@pytest.mark.parametrize("siblings", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_a_bound_is_the_optimum_of_the_linear_program(siblings, seed):
    p, q = random_law(4, seed), random_law(4, seed + 20)
    assert transport.bound(siblings, p, q, 2) == pytest.approx(by_program(siblings, p, q, 2), abs=1e-9)


@pytest.mark.parametrize("siblings", KINDS)
@pytest.mark.parametrize(("vocab", "k"), [(5, 2), (5, 3), (6, 2)])
def test_a_bound_is_the_minimum_over_all_sets(siblings, vocab, k):
    for seed in range(3):
        p, q = random_law(vocab, seed), random_law(vocab, seed + 30)
        assert transport.bound(siblings, p, q, k) == pytest.approx(by_brute_force(siblings, p, q, k), abs=1e-9), f"seed {seed}"


@pytest.mark.parametrize(
    ("laws", "k", "iid", "without"),
    [(A, 1, 0.8, 0.8), (A, 2, 0.89, 0.992857), (A, 3, 0.971, 1), (C, 2, 0.66, 0.785714),
     (C, 3, 0.788, 1), (D, 2, 0.79, 0.834524), (D, 3, 0.871, 1)],
)  # fmt: skip
def test_bounds_are_those_of_the_table(laws, k, iid, without):
    p, q = (vector(*law) for law in laws)
    assert (transport.bound_iid(p, q, k), transport.bound_without_replacement(p, q, k)) == pytest.approx((iid, without), abs=1e-5)


def by_recursion(q, k) -> list[float]:
    """Entry i: the probability that k draws without replacement reach a token after the i-th, draw by draw."""

    def missed(left: torch.Tensor, draws: int, last: int) -> float:
        if not draws or not float(left.sum()) > 0:
            return 1.0
        return sum(float(left[x] / left.sum()) * missed(multi.without(left, [x]), draws - 1, last) for x in range(last + 1) if left[x] > 0)

    return [1 - missed(q, k, last) for last in range(len(q))]


spreads = st.lists(st.floats(-25, 0), min_size=2, max_size=6)


@hypothesis.settings(max_examples=40)
@hypothesis.given(spreads, st.integers(1, 5))
def test_the_exponential_race_is_the_recursion_over_draws(logits, k):
    q = torch.softmax(vector(*logits), 0)
    assert transport.meets(q, k).tolist() == pytest.approx(by_recursion(q, k), abs=1e-9)


@pytest.mark.parametrize("k", [2, 4, 8])
def test_two_equal_halves_are_met_as_the_hypergeometric_law_says(k):
    vocab = 20_000
    met = transport.meets(torch.full((vocab,), 1 / vocab), k)[vocab // 2 - 1]
    missed = np.prod([(vocab / 2 - i) / (vocab - i) for i in range(k)])
    assert float(met) == pytest.approx(1 - missed, abs=1e-9)


def test_a_law_with_two_heavy_tokens_loses_no_digits_at_a_large_vocabulary():
    q = torch.full((10_000,), 1e-12, dtype=torch.float64)
    q[[10, 5000]] = vector(0.7, 0.3) * (1 - float(q.sum()))
    q /= q.sum()
    met = float(transport.meets(q, 3)[5000])
    assert met == pytest.approx(0.5, abs=1e-9), "the third draw is one of 9998 equal ones, half of which come later"


@pytest.mark.parametrize(("rule", "kind"), PAIRS, ids=NAMES)
@pytest.mark.parametrize("k", [1, 2, 3])
def test_no_lossless_rule_accepts_more_than_the_bound(rule, kind, k):
    for seed in range(6):
        p, q = random_law(5, seed), random_law(5, seed + 40)
        got, most = accepted(rule, kind, p, q, k), transport.bound(kind, p, q, k)
        assert got <= most + 1e-9, f"{rule.name}, k = {k}, seed {seed}: {got} of at most {most}"


def test_the_printed_rule_accepts_more_than_any_lossless_rule_could():
    p, q = (vector(*law) for law in C)
    assert accepted(*PRINTED, p, q, 2) > transport.bound_iid(p, q, 2) + 0.1


@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_greedy_draft_attains_its_bound(k):
    for seed in range(4):
        p, q = random_law(6, seed), random_law(6, seed + 40)
        assert accepted(multi.greedy_draft, TOP, p, q, k) == pytest.approx(transport.bound_top_and_draw(p, q, k), abs=1e-12)


def test_match_attains_the_bound_of_fixed_children():
    p, q = random_law(6, 1), random_law(6, 2)
    top = q.topk(3).indices.tolist()
    assert match.needs >= {Siblings.FIXED}
    assert transport.bound(Siblings.FIXED, p, q, 3) == pytest.approx(float(p[top].sum()), abs=1e-12)
    assert transport.bound_fixed(p, [*top, top[0]]) == pytest.approx(float(p[top].sum()), abs=1e-12)


@pytest.mark.parametrize("siblings", KINDS)
def test_bounds_of_float32_laws_with_gaps_are_those_in_float64(siblings):
    p, q = multi.without(random_law(50, 1), [3, 4, 5]), multi.without(random_law(50, 2), [5, 6, 7])
    p, q = p / p.sum(), q / q.sum()
    assert transport.bound(siblings, p.float(), q.float(), 3) == pytest.approx(transport.bound(siblings, p, q, 3), abs=1e-6)


def test_more_candidates_than_the_bound_is_known_for_are_refused():
    with pytest.raises(InvalidRequest, match="at most 8 candidates, got 9"):
        transport.bound(WOR, random_law(20, 0), random_law(20, 1), 9)
