"""Rules for several candidates are lossless, and accept what the tables say. All ways to draw are enumerated in float64."""

from __future__ import annotations

import math

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

from paceline import methods
from paceline.draft import Draft
from paceline.errors import InvalidRequest
from paceline.rules import multi
from paceline.rules.match import match
from paceline.rules.ramp import Stage
from paceline.tree import Tree

from .exact import ROOT, World, outcomes, sampled_tree, table
from .several import IID, LOSSLESS, NAMES, PAIRS, PRINTED, TOP, WOR, accepted, emitted, random_law, variation, vector

EXACT, VISIBLE = 1e-9, 1e-3
BUSH = (-1, 0, 0, 2)  # two children, and one below the second
every_pair = pytest.mark.parametrize(("rule", "kind"), PAIRS, ids=NAMES)


def check(rule, kind, p, q, k) -> None:
    off = variation(emitted(rule, kind, p, q, k), p)
    assert off < EXACT, f"{rule.name}, k = {k}, p = {p.tolist()}, q = {q.tolist()}: off by {off:.2e} in total variation"


@every_pair
@pytest.mark.parametrize(("vocab", "k"), [(3, 1), (3, 2), (3, 3), (4, 4), (5, 3), (6, 2)])
def test_the_emitted_law_is_the_targets(rule, kind, vocab, k):
    for seed in range(3 if k < 4 else 1):
        q = random_law(vocab, seed)
        check(rule, kind, random_law(vocab, seed + 50), q, k)
        check(rule, kind, random_law(vocab, seed + 50, 0.3, near=q), q, k)


weights = st.floats(0, 1) | st.sampled_from([0.0, 0.0, 1e-12, 1e-200])
pairs_of_laws = st.integers(2, 5).flatmap(lambda v: st.tuples(*[st.lists(weights, min_size=v, max_size=v)] * 2))


@every_pair
@hypothesis.settings(max_examples=15)
@hypothesis.given(pairs_of_laws, st.integers(1, 3))
def test_any_two_laws_keep_the_targets(rule, kind, pair, k):
    p, q = (vector(*w) for w in pair)
    hypothesis.assume(float(p.sum()) > 0.1 and float(q.sum()) > 0)
    check(rule, kind, p / p.sum(), q / q.sum(), k)


numbers = st.floats(0, 5), st.floats(0, 1)


@hypothesis.settings(max_examples=25)
@hypothesis.given(st.integers(0, 10**6), st.lists(st.builds(Stage, *numbers), min_size=3, max_size=3), st.sampled_from([IID, WOR]))
def test_any_numbers_that_a_planner_may_give_keep_the_law(seed, stages, kind):
    rule = multi.Rule(
        "any plan",
        multi.Decision(lambda *given: multi.sequential(*given, plan=lambda overlap, left: stages[-left:], replace=kind is IID)),
        frozenset([kind]),
        lossless=True,
    )
    check(rule, kind, random_law(4, seed), random_law(4, seed + 1), 3)


@pytest.mark.parametrize(("rule", "kind"), [(multi.rrs, IID), (multi.ramp_wor, WOR), (multi.greedy_draft, TOP)])
def test_two_tokens_of_a_tree_have_the_targets_joint_law(rule, kind):
    world = World(table(3, 5), table(3, 6))
    off = world.error(rule, sampled_tree(world, BUSH, kind), 2)
    assert off < EXACT, f"{rule.name}: the joint law is off by {off:.2e} in total variation"


def decided(rule, kind, p, q, tokens) -> tuple[float, torch.Tensor]:
    """Acceptance and (V,) emitted law from every outcome of the rule's own decisions."""
    world = World(lambda prefix: p.log(), lambda prefix: q.log())
    children = len(tokens)
    draft = Draft(Tree((ROOT, *tokens), (-1, *[0] * children)), kind, q.log()[None], (0, *[-1] * children))
    kept, law = 0.0, torch.zeros_like(p)
    for (path, token), prob in outcomes(lambda rng: rule(draft, world.laws((), draft.tree), rng)):
        law[draft.tree.tokens[path[1]] if len(path) > 1 else token] += prob
        kept += prob * (len(path) > 1)
    return kept, law


@pytest.mark.parametrize(("rule", "kind"), [*PAIRS, PRINTED], ids=[*NAMES, "resispec_printed"])
@pytest.mark.parametrize("tokens", [(2,), (1, 2), (2, 0), (3, 1, 2)])
def test_acceptance_and_emitted_law_are_those_of_the_decisions(rule, kind, tokens):
    p, q = random_law(4, 3), random_law(4, 4)
    kept, law = decided(rule, kind, p, q, tokens)
    want = multi.acceptance(rule, p, q, tokens), multi.emitted(rule, p, q, tokens)
    assert kept == pytest.approx(want[0], abs=1e-12), f"{rule.name} after {tokens}"
    assert torch.allclose(law, want[1], rtol=0, atol=1e-12), f"{rule.name} after {tokens}: {law.tolist()} against {want[1].tolist()}"


# p, q, k: naive, rrs, k_seq, ramp, rrs_wor, ramp_wor
A, B, C, D = (
    ((0.4, 0.3, 0.3), (0.6, 0.3, 0.1)),
    ((0.5, 0.5), (0.9, 0.1)),
    ((0.7, 0.2, 0.1), (0.2, 0.5, 0.3)),
    ((0.1, 0.2, 0.3, 0.4), (0.4, 0.3, 0.2, 0.1)),
)
TABLE = [
    (A, 1, 0.36, 0.8, 0.8, 0.8, 0.8, 0.8),
    (A, 2, 0.546, 0.82, 0.84, 0.885714, 0.85, 0.976735),
    (A, 3, 0.6528, 0.838, 0.875, 0.962857, None, None),
    (B, 2, 0.59, 0.64, 0.658443, 0.69, None, None),
    (C, 2, 0.453, 0.6, 0.622829, 0.66, 0.677143, 0.785714),
    (C, 3, 0.5823, 0.68, 0.717381, 0.788, None, None),
    (D, 2, 0.35, 0.72, 0.75, 0.775, 0.764286, 0.815774),
    (D, 3, 0.4646, 0.768, 0.79395, 0.852, 0.840298, 0.994241),
]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row[0]}, k = {row[1]}")
def test_acceptance_is_that_of_the_table(row):
    laws, k, *want = row
    rules = [(multi.naive, IID), (multi.rrs, IID), (multi.k_seq, IID), (multi.ramp, IID), (multi.rrs_wor, WOR), (multi.ramp_wor, WOR)]
    got = [accepted(*rule, *(vector(*law) for law in laws), k) for rule in rules]
    wrong = {rule.name: (g, w) for (rule, _), g, w in zip(rules, got, want, strict=True) if w is not None and abs(g - w) > 1e-5}
    assert not wrong, f"k = {k}, {laws}: got and expected {wrong}"


def test_a_final_draw_that_equals_a_rejected_child_goes_on_at_that_child():
    p, q, tokens = vector(*C[0]), vector(*C[1]), (1, 2)
    (*trials, rest) = multi.ramp_wor.decide.trials(p, q, tokens)
    rejected = math.prod(1 - trial.prob for trial in trials)
    alone = sum(t.prob * math.prod(1 - s.prob for s in trials[:i]) for i, t in enumerate(trials))
    member = rejected * float(rest.law[list(tokens)].sum())
    assert member > 0.01, "membership has nothing to do here"
    assert multi.acceptance(multi.ramp_wor, p, q, tokens) == pytest.approx(alone + member, abs=1e-12)


def test_nothing_of_a_stage_is_computed_before_the_one_before_it_rejected():
    planned = []

    def plan(overlap, left):
        planned.append(left)
        return [Stage()] * left

    trials = multi.sequential(random_law(5, 1), random_law(5, 2), [0, 1, 2, 3], plan=plan, replace=False)
    assert (next(trials).child, planned) == (0, [4])
    assert (next(trials).child, planned) == (1, [4, 3])


@pytest.mark.parametrize("rule", [r for r in LOSSLESS if IID in r.needs], ids=lambda r: r.name)
def test_a_child_drawn_twice_keeps_its_two_trials(rule):
    p, q = vector(*A[0]), vector(*A[1])
    kept, law = decided(rule, IID, p, q, (0, 0))
    assert kept == pytest.approx(multi.acceptance(rule, p, q, (0, 0)), abs=1e-12)
    assert kept <= 1 + 1e-12, f"{rule.name} counts the child twice: {kept}, law {law.tolist()}"


def test_every_lossless_rule_of_the_table_but_those_tested_elsewhere_is_tested_here():
    lossless = {name for name, entry in methods.RULES.items() if entry.build().lossless and not entry.wraps}
    assert lossless - {rule.name for rule in LOSSLESS} == {"match", "rejection"}


def test_a_rule_of_another_kind_is_refused_with_what_to_use_instead():
    with pytest.raises(InvalidRequest, match="rule match is not made of trials; naive and"):
        multi.acceptance(match, vector(0.5, 0.5), vector(0.5, 0.5), [0])
