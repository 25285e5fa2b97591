"""Laws at the edge of what is possible, in float64 and float32, and requests that no rule for several candidates should serve."""

from __future__ import annotations

import pytest
import torch

from paceline.draft import Draft
from paceline.rules import multi
from paceline.sampling import Random
from paceline.tree import Tree

from .exact import ROOT, World
from .several import IID, LOSSLESS, NAMES, PAIRS, PRINTED, TOP, WOR, accepted, emitted, random_law, variation, vector

every_pair = pytest.mark.parametrize(("rule", "kind"), PAIRS, ids=NAMES)
but_naive = pytest.mark.parametrize(
    ("rule", "kind"), [x for x in PAIRS if x[0] is not multi.naive], ids=[n for n in NAMES if not n.startswith("naive")]
)


@but_naive
@pytest.mark.parametrize("k", [1, 2, 3])
def test_a_draft_that_equals_the_target_is_always_accepted(rule, kind, k):
    p = random_law(5, 1)
    assert accepted(rule, kind, p, p, k) == pytest.approx(1, abs=1e-12)


@every_pair
def test_a_draft_without_a_token_of_the_target_is_never_accepted(rule, kind):
    p, q = vector(0.4, 0.6, 0, 0), vector(0, 0, 0.7, 0.3)
    assert accepted(rule, kind, p, q, 2) == 0
    assert variation(emitted(rule, kind, p, q, 2), p) < 1e-12


SPECIAL = {
    "a certain target": (vector(0, 1, 0, 0), vector(0.2, 0.3, 0.4, 0.1)),
    "a certain draft": (vector(0.2, 0.3, 0.4, 0.1), vector(0, 1, 0, 0)),
    "both certain, the same": (vector(0, 1, 0, 0), vector(0, 1, 0, 0)),
    "both certain, different": (vector(0, 1, 0, 0), vector(0, 0, 1, 0)),
    "tokens that are never drafted": (vector(0.2, 0.3, 0.4, 0.1), vector(0.5, 0.5, 0, 0)),
    "tokens that the target never says": (vector(0.5, 0.5, 0, 0), vector(0.2, 0.3, 0.4, 0.1)),
    "masses far apart": (vector(1 - 1e-12, 1e-12, 0, 0), vector(1e-15, 1e-200, 1 - 1e-15, 0)),
}


@every_pair
@pytest.mark.parametrize("case", SPECIAL)
@pytest.mark.parametrize("k", [1, 3])
def test_special_laws_keep_the_targets(rule, kind, case, k):
    p, q = SPECIAL[case]
    off = variation(emitted(rule, kind, p, q, k), p)
    assert off < 1e-12, f"{rule.name}, {case}: off by {off:.2e}"


@pytest.mark.parametrize("rule", [multi.rrs_wor, multi.ramp_wor, multi.greedy_draft], ids=lambda r: r.name)
@pytest.mark.parametrize("tokens", [(1, 1), (1, 0, 0), (1, 2, 3, 0)])
def test_children_that_the_draft_could_not_draw_any_more_are_taken_by_membership_alone(rule, tokens):
    p, q = vector(0.2, 0.3, 0.4, 0.1), vector(0, 1, 0, 0)
    law = multi.emitted(rule, p, q, tokens)
    assert variation(law, p) < 1e-12, f"{rule.name} emits {law.tolist()}"
    assert multi.acceptance(rule, p, q, tokens) == pytest.approx(float(p[list(set(tokens))].sum()), abs=1e-12)


@every_pair
def test_float32_rows_keep_the_law_to_their_precision(rule, kind):
    p, q = random_law(6, 1), random_law(6, 2)
    off = variation(emitted(rule, kind, p.float(), q.float(), 3).double(), p)
    assert off < 1e-6, f"{rule.name}: off by {off:.2e}"


@pytest.mark.parametrize("rule", [*LOSSLESS, PRINTED[0]], ids=lambda r: r.name)
def test_the_given_laws_are_not_changed(rule):
    p, q = random_law(5, 1), random_law(5, 2)
    before = p.clone(), q.clone()
    multi.emitted(rule, p, q, [1, 2, 3])
    assert torch.equal(p, before[0])
    assert torch.equal(q, before[1])


def one_ulp_apart() -> tuple[torch.Tensor, torch.Tensor]:
    """Laws in float32 of which the draft's has, but for rounding, all of the target's mass and a little more at token 0."""
    p = torch.full((4,), 0.25)
    q = p.clone()
    q[0] = torch.nextafter(q[0], torch.tensor(1.0))
    return p, q


but_naive_rules = pytest.mark.parametrize("rule", [r for r in LOSSLESS if r is not multi.naive], ids=lambda r: r.name)


@but_naive_rules
def test_a_residual_without_mass_becomes_a_point_where_the_draft_does_not_exceed_the_target(rule):
    (_, rest) = rule.decide.trials(*one_ulp_apart(), [0])
    assert rest.mass == 0
    assert sorted(rest.law.tolist()) == [0, 0, 0, 1], f"{rest.law.tolist()}"
    assert rest.law[0] == 0, f"{rest.law.tolist()}"


class Unlucky(Random):
    """Every coin says no, which rounding can bring about where the probability is almost 1."""

    def coin(self, prob: float) -> bool:
        return False


@but_naive_rules
def test_residuals_without_mass_are_counted(rule, monkeypatch):
    monkeypatch.setattr(rule.decide, "underflows", 0)
    p, kind = torch.full((4,), 0.25), next(iter(rule.needs))
    laws = World(lambda prefix: p.log(), lambda prefix: p.log()).laws((), Tree((ROOT, 2), (-1, 0)))
    rule(Draft(Tree((ROOT, 2), (-1, 0)), kind, p.log()[None], (0, -1)), laws, Unlucky(1))
    assert rule.decide.underflows == 1


def test_a_node_without_children_ends_with_a_draw_from_the_target():
    p = vector(0, 0, 1.0)
    for rule in LOSSLESS:
        draft = Draft(Tree.chain([ROOT]), next(iter(rule.needs)))
        assert rule(draft, World(lambda prefix: p.log(), lambda prefix: p.log()).laws((), draft.tree), Random(1)) == ([0], 2)


def test_the_kinds_of_children_that_the_rules_need():
    assert {rule.name: rule.needs for rule in LOSSLESS} == {
        "naive": {IID, WOR},
        "rrs": {IID},
        "rrs_wor": {WOR},
        "k_seq": {IID},
        "ramp": {IID},
        "ramp_wor": {WOR},
        "greedy_draft": {TOP},
    }
