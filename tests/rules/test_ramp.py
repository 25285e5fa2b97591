"""The planners: thresholds by hand and by bisection, and what merging costs where a vocabulary is large."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from paceline.rules import multi, ramp
from paceline.rules.ramp import Overlap, Stage

from .several import IID, WOR, random_law, vector
from .test_multi import A, B, C, D, check

LAWS = [(random_law(v, seed), random_law(v, seed + 9)) for v, seed in [(3, 0), (6, 1), (40, 2), (40, 3)]]
COUNTS = [1, 2, 3, 5, 8]


def overlap_of(p, q) -> Overlap:
    found = Overlap.of(p, q)
    assert found is not None
    return found


def overlapping(p, q, s: float) -> float:
    """G(s), from its definition."""
    return float(torch.minimum(p, s * q)[q > 0].sum())


def by_bisection(p, q, k: int) -> list[float]:
    """The thresholds from the definition: h inverted by bisection, f by bisection."""

    def largest(y: float) -> float:
        low, high = 0.0, 1e4
        for _ in range(100):
            s = (low + high) / 2
            low, high = (s, high) if s - overlapping(p, q, s) <= y + 1e-15 else (low, s)
        return low

    def steps(f: float) -> list[float]:
        made = [0.0]
        for _ in range(k):
            made.append(largest(made[-1] + f))
        return made[::-1]

    low, high = 0.0, 1.0
    for _ in range(50):
        f = (low + high) / 2
        low, high = (f, high) if f + overlapping(p, q, steps(f)[0]) < 1 else (low, f)
    return steps(high)


@pytest.mark.parametrize(
    ("laws", "k", "want"),
    [(A, 2, (13 / 7, 6 / 7)), (A, 3, (2.628571, 1.628571, 0.728571)), (B, 2, (1.9, 0.9)),
      (C, 2, (1.8, 0.8)), (C, 3, (2.44, 1.44, 0.64)), (D, 2, (1.75, 0.75)), (D, 3, (2.52, 1.52, 0.62))],
)  # fmt: skip
def test_thresholds_are_those_of_the_table(laws, k, want):
    found = ramp.thresholds(overlap_of(*(vector(*law) for law in laws)), k)
    assert found == pytest.approx([*want, 0], abs=1e-5)


@pytest.mark.parametrize(
    ("laws", "k", "want"), [(A, 2, 1.4), (A, 3, 1.75), (B, 2, 1.584429), (C, 2, 1.614143), (C, 3, 2.086906), (D, 2, 1.5), (D, 3, 1.9395)]
)
def test_spectrs_divisor_is_that_of_the_table(laws, k, want):
    assert ramp.divisor(overlap_of(*(vector(*law) for law in laws)), k) == pytest.approx(want, abs=1e-5)


@pytest.mark.parametrize("laws", LAWS[:2])
@pytest.mark.parametrize("k", [2, 3])
def test_newtons_thresholds_are_those_of_bisection(laws, k):
    assert ramp.thresholds(overlap_of(*laws), k) == pytest.approx(by_bisection(*laws, k), abs=1e-9)


@pytest.mark.parametrize("laws", LAWS)
@pytest.mark.parametrize("k", COUNTS)
def test_what_is_rejected_and_what_overlaps_sum_to_one(laws, k):
    s = ramp.thresholds(overlap_of(*laws), k)
    rejected = s[-2] - overlapping(*laws, s[-2])  # S_k = h^-1(f), as S_(k+1) = 0
    assert rejected + overlapping(*laws, s[0]) == pytest.approx(1, abs=1e-12), f"k = {k}, S = {s}"


@pytest.mark.parametrize("laws", LAWS)
@pytest.mark.parametrize("k", COUNTS)
def test_stages_accept_no_more_than_is_drawn_and_no_more_than_the_target_has(laws, k):
    p, q = laws
    s = ramp.thresholds(overlap_of(p, q), k)
    accepted = [torch.minimum(p, high * q) - torch.minimum(p, low * q) for high, low in itertools.pairwise(s)]
    for i, (high, low) in enumerate(itertools.pairwise(s)):
        assert bool((accepted[i] <= (high - low) * q + 1e-12).all()), f"stage {i + 1} of {k}"
    assert bool((sum(accepted) <= p + 1e-12).all()), f"{k} stages"


def masses(rule, p, q, tokens) -> list[float]:
    return [trial.mass for trial in rule.decide.trials(p, q, tokens)]


@pytest.mark.parametrize("laws", LAWS)
def test_planning_anew_at_each_stage_of_independent_draws_reproduces_the_plan(laws):
    p, q = laws
    anew = multi.Decision(lambda *given: multi.sequential(*given, plan=plan_first(p, q), replace=True))
    once = masses(multi.ramp, p, q, [0, 1, 2, 0])
    assert [t.mass for t in anew.trials(p, q, [0, 1, 2, 0])] == pytest.approx(once, abs=1e-12)


def plan_first(p, q):
    """Stages made one by one: each from the residual that the ones before leave."""

    def plan(_, k):
        stages, residual = [], p
        for left in range(k, 0, -1):
            stages.append(ramp.ramp(overlap_of(residual, q), left)[0])
            residual = residual - stages[-1].accepted(residual, q)
            residual = residual / residual.sum()
        return stages

    return plan


def test_late_acceptance_is_tried_more_often_than_even_and_even_more_often_than_greedy():
    for p, q in LAWS:
        rates = [1 - math.prod(masses(rule, p, q, [0, 1, 2])) for rule in (multi.rrs, multi.k_seq, multi.ramp)]
        assert rates == sorted(rates), f"rrs, k_seq and ramp accept {rates}"


def test_equal_laws_are_accepted_at_the_first_child():
    p = random_law(6, 4)
    assert ramp.ramp(overlap_of(p, p), 4)[0].late == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("stage", [Stage(), Stage(0.4), Stage(0.0, 0.6), Stage(1.1, 0.3)], ids=str)
def test_an_overlap_after_a_rejection_is_that_of_what_is_left(stage):
    p, q = random_law(8, 5), random_law(8, 6)
    left, fewer = p - stage.accepted(p, q), multi.without(q, [3])
    mass = float(left.sum())
    found = overlap_of(p, q).after(stage, float(p[3] / q[3]), float(q[3]), mass)
    want = overlap_of(left / mass, fewer / fewer.sum())
    at = np.linspace(0, 6, 50)
    assert [found.value(s)[0] for s in at] == pytest.approx([want.value(s)[0] for s in at], abs=1e-12)


# large vocabularies


def large(vocab: int, noise: float, seed: int, dtype=torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    """Laws like a language model's: Zipf's law with noise, and the same with more noise."""
    rng = torch.Generator().manual_seed(seed)
    logits = -1.2 * torch.arange(1, vocab + 1).log() + 0.7 * torch.randn(vocab, generator=rng)
    laws = torch.softmax(torch.stack([logits, logits + noise * torch.randn(vocab, generator=rng)]).to(dtype), -1)
    return laws[0], laws[1]


def given(rule, p, q, tokens) -> float:
    """Acceptance: of independent draws on average over all children, of draws without replacement given these."""
    return multi.acceptance(rule, p, q, tokens) if rule is multi.ramp_wor else 1 - math.prod(masses(rule, p, q, tokens))


@pytest.mark.parametrize("rule", [multi.ramp, multi.k_seq, multi.ramp_wor], ids=lambda r: r.name)
@pytest.mark.parametrize("noise", [0.02, 0.5, 1.0])
def test_merging_tokens_costs_less_than_a_thousandth_of_acceptance(rule, noise, monkeypatch):
    for seed in range(3):
        p, q = large(20_000, noise, seed)
        tokens = torch.multinomial(q, 4, generator=torch.Generator().manual_seed(seed)).tolist()
        merged = given(rule, p, q, tokens)
        monkeypatch.setattr(ramp, "MOST_EXACT", 10**6)
        exact = given(rule, p, q, tokens)
        monkeypatch.undo()
        assert merged == pytest.approx(exact, abs=1e-3), f"noise {noise}, seed {seed}"


@pytest.mark.parametrize(
    ("rule", "kind"), [(multi.ramp, IID), (multi.k_seq, IID), (multi.ramp_wor, WOR)], ids=lambda x: getattr(x, "name", "")
)
def test_a_plan_from_merged_tokens_keeps_the_law(rule, kind, monkeypatch):
    monkeypatch.setattr(ramp, "MOST_EXACT", 0)
    for seed in range(3):
        check(rule, kind, random_law(5, seed), random_law(5, seed + 9), 3)


def test_merged_tokens_keep_the_mass_of_both_laws():
    p, q = large(20_000, 1.0, 0)
    p, q = multi.without(p, [5, 6]), multi.without(q, [6, 7])
    p, q = p / p.sum(), q / q.sum()
    found = overlap_of(p, q)
    for s, tolerance in ((0.7, 2e-3), (1.5, 2e-3), (1e9, 1e-6)):
        want = overlapping(p, q, s)
        assert found.value(s)[0] == pytest.approx(want, rel=tolerance), f"G({s}); exactly {want}"


def test_equal_laws_of_a_large_vocabulary_are_accepted_at_the_first_child():
    p, _ = large(20_000, 1.0, 0)
    assert ramp.ramp(overlap_of(p, p), 4)[0].late == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize("tiny", [1e-38, 1e-44])
def test_ratios_beyond_the_largest_float_are_survived(tiny):
    p, q = large(6000, 0.5, 1)
    q[100:200] = tiny
    stages = ramp.ramp(overlap_of(p, q), 3)
    assert all(math.isfinite(s.late) for s in stages), f"{stages}"
