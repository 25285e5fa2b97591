"""The emitted law is the target's, to rounding: no sampling, all outcomes are enumerated in float64."""

from __future__ import annotations

import math

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

from paceline.draft import Draft, Siblings
from paceline.rules.match import match
from paceline.rules.rejection import rejection
from paceline.sampling import SamplingParams
from paceline.tree import Tree

from .exact import ROOT, Table, World, outcomes, sampled_tree, table, top_tree

CHAIN = (-1, 0, 1)  # two candidates, one after the other
BUSH = (-1, 0, 0, 1)  # two children, and one below the first
DRAWN = [Siblings.IID, Siblings.WITHOUT_REPLACEMENT]
EXACT, VISIBLE = 1e-12, 1e-3


def methods(world: World):
    """Name -> rule and drafter, all that pair."""
    made = {"match, nothing drafted": (match, lambda prefix, rng: Draft(Tree.chain([ROOT])))}
    for shape, parents in (("chain", CHAIN), ("bush", BUSH)):
        made[f"match, top {shape}"] = (match, top_tree(world, parents))
        for kind in DRAWN:
            made[f"match, {shape} drawn {kind.value}"] = (match, sampled_tree(world, parents, kind))
    for kind in DRAWN:
        made[f"rejection, chain drawn {kind.value}"] = (rejection, sampled_tree(world, CHAIN, kind))
    return made


METHODS = list(methods(World(table(3, 0), table(3, 1))))
every_method = pytest.mark.parametrize("method", METHODS)
SETTINGS = {
    "plain": {"temperature": 1.0},
    "warm and cut": {"temperature": 0.7, "top_p": 0.8},
    "penalised": {"temperature": 1.3, "repetition_penalty": 1.7, "presence_penalty": 0.4},
    "top 2": {"temperature": 1.0, "top_k": 2},
}


def check(world: World, method: str, count: int) -> None:
    rule, propose = methods(world)[method]
    error = world.error(rule, propose, count)
    assert error < EXACT, f"{method}: the law of the first {count} tokens is off by {error:.3e} in total variation"


def always(row: list[float]) -> Table:
    """The same logits after every prefix."""
    logits = torch.tensor(row, dtype=torch.float64)
    return lambda prefix: logits


@every_method
@pytest.mark.parametrize("vocab", [3, 4, 5, 6])
def test_the_first_token_has_the_targets_law(method, vocab):
    for seed in range(3 if vocab < 5 else 1):
        check(World(table(vocab, seed), table(vocab, seed + 100)), method, 1)


@every_method
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_the_first_two_tokens_have_the_targets_joint_law(method, settings):
    check(World(table(3, 5), table(3, 6), SamplingParams(**settings)), method, 2)


@every_method
def test_tokens_of_probability_zero_never_come(method):
    for seed in range(3):
        check(World(table(4, seed, zeros=0.5), table(4, seed + 50, zeros=0.4)), method, 1)


@every_method
def test_a_draft_that_equals_the_target_keeps_the_law(method):
    check(World(table(4, 7), table(4, 7)), method, 1)


@every_method
def test_a_draft_with_disjoint_support_keeps_the_law(method):
    halves = [0.3, -0.2, -math.inf, -math.inf], [-math.inf, -math.inf, 0.1, 0.5]
    check(World(*map(always, halves)), method, 1)


rows = st.integers(3, 5).flatmap(lambda v: st.tuples(*[st.lists(st.floats(-6, 6) | st.just(-math.inf), min_size=v, max_size=v)] * 2))


@every_method
@hypothesis.settings(max_examples=12)
@hypothesis.given(rows)
def test_any_pair_of_laws_keeps_the_targets(method, pair):
    hypothesis.assume(all(max(row) > -math.inf for row in pair))
    check(World(*map(always, pair)), method, 1)


@pytest.mark.parametrize("method", [m for m in METHODS if m.startswith("rejection")])
def test_rejection_accepts_the_overlap_of_the_two_laws(method):
    world = World(table(5, 1), table(5, 2))
    rule, propose = methods(world)[method]

    def kept(rng) -> bool:
        draft = propose((), rng)
        return len(rule(draft, world.laws((), draft.tree), rng).path) > 1

    accepted = sum(prob for yes, prob in outcomes(kept) if yes)
    overlap = float(torch.minimum(world.law(()), torch.softmax(world.draft_logits(()), -1)).sum())
    assert accepted == pytest.approx(overlap, abs=EXACT)


def test_match_accepts_the_targets_mass_on_fixed_children():
    world = World(table(5, 1), table(5, 2))
    draft = top_tree(world, (-1, 0, 0))((), None)
    accepted = sum(prob for path, prob in outcomes(lambda rng: match(draft, world.laws((), draft.tree), rng).path) if len(path) > 1)
    assert accepted == pytest.approx(float(world.law(())[list(draft.tree.tokens[1:])].sum()), abs=EXACT)


# Negative controls: the same check on a rule that is fed a lie must fail.


@pytest.mark.parametrize("temperature", [0.7, 1.5])
def test_a_residual_from_a_draft_at_a_wrong_temperature_is_caught(temperature):
    world = World(table(4, 3), table(4, 4))
    error = world.error(rejection, sampled_tree(world, CHAIN, Siblings.IID, temperature), 1)
    assert error > VISIBLE, f"the check sees only {error:.3e}"


def test_rejection_over_top_children_is_caught():
    errors = []
    for seed in range(20):
        world = World(table(5, seed), table(5, seed + 100))
        errors.append(world.error(rejection, top_tree(world, CHAIN, Siblings.WITHOUT_REPLACEMENT), 1))
    assert min(errors) > VISIBLE, f"the check sees only {min(errors):.3e}"
    assert max(errors) > 0.3, f"the worst of 20 pairs is off by {max(errors):.2f}; over 600 pairs it was 0.70"


def test_a_wrong_second_token_is_seen_by_the_joint_law_only():
    world = World(table(3, 5), table(3, 6))

    def at_root(draft, laws, rng):
        verdict = match(draft, laws, rng)
        return type(verdict)(verdict.path, laws.draw(0, rng)) if len(verdict.path) > 1 else verdict

    errors = [world.error(at_root, top_tree(world, CHAIN), count) for count in (1, 2)]
    assert errors[0] < EXACT, f"first token {errors[0]:.3e}"
    assert errors[1] > VISIBLE, f"joint law {errors[1]:.3e}"


@pytest.mark.parametrize("method", METHODS)
def test_a_greedy_request_gets_the_likeliest_tokens_whatever_is_drafted(method):
    for seed in range(3):
        world = World(table(3, seed), table(3, seed + 9), SamplingParams())
        first = int(world.target(()).argmax())
        want = (first, int(world.target((first,)).argmax()))
        rule, propose = methods(world)[method]
        got = {tokens for tokens, prob in outcomes(lambda rng, w=world, r=rule, p=propose: w.emitted(r, p, 2, rng)) if prob > 0}
        assert got == {want}, f"{method}, seed {seed}: {got} instead of {want}"


def test_all_probabilities_of_an_experiment_sum_to_one():
    world = World(table(4, 0), table(4, 1))
    total = sum(prob for _, prob in outcomes(lambda rng: world.emitted(rejection, sampled_tree(world, CHAIN, Siblings.IID), 2, rng)))
    assert total == pytest.approx(1, abs=EXACT)
