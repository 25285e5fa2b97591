"""The table: what a method's name and options build, and which of them are refused before any model is there."""

from __future__ import annotations

import itertools

import pytest

from paceline import api, lossy, methods
from paceline.draft import Siblings
from paceline.drafters.shapes import chain, complete
from paceline.errors import IncompatibleRule, InvalidRequest

from . import tiny

RULES = {name: entry.build() for name, entry in methods.RULES.items()}


def drafter(method: str, **options):
    """What the method builds on tiny models."""
    return methods.build(method, tiny.target(), methods.Options(draft_model=tiny.draft(), **options))[0]


@pytest.mark.parametrize("rule", RULES)
def test_a_draft_model_draws_what_the_rule_needs(rule):
    kinds = [Siblings.FIXED, Siblings.WITHOUT_REPLACEMENT, Siblings.IID, Siblings.TOP_AND_DRAW]
    first = next(kind for kind in kinds if kind in RULES[rule].needs)
    assert drafter(f"draft_model/{rule}").siblings is first


def test_fixed_children_grow_if_no_shape_is_told():
    assert drafter("draft_model").shape is None


def test_a_rule_of_chains_gets_a_chain_of_the_default_depth():
    assert drafter("draft_model/rejection").shape == chain(6)


@pytest.mark.parametrize("rule", [name for name, rule in RULES.items() if Siblings.FIXED not in rule.needs and not rule.chain_only])
def test_a_rule_of_several_children_gets_a_small_complete_tree(rule):
    assert drafter(f"draft_model/{rule}").shape == complete(2, 2)


@pytest.mark.parametrize("method", ["draft_model", "draft_model/rrs_wor"])
def test_a_shape_that_is_told_is_drafted(method):
    assert drafter(method, shape="3x1").shape == complete(3, 1)


@pytest.mark.parametrize(
    ("options", "depth"),
    [({"num_speculative_tokens": 3}, 3), ({"budget": 4}, 3), ({"shape": "chain", "budget": 3}, 2), ({"shape": "1x4"}, 4)],
)
def test_a_chain_reads_depth_and_budget(options, depth):
    assert drafter("draft_model/rejection", **options).shape == chain(depth)


def test_sequoia_reads_depth_and_budget():
    shape = drafter("draft_model/rrs_wor", shape="sequoia:0.5,0.3", budget=9, num_speculative_tokens=3).shape
    assert (len(shape), shape.depth) == (9, 3)


def test_a_shape_leaves_the_budget_to_the_drafter_it_is_merged_with():
    merged = drafter("lookup+draft_model", shape="2x2", budget=5)
    assert (merged.budget, merged.drafters[0].budget, merged.drafters[1].shape) == (5, 5, complete(2, 2))


def test_a_shape_is_merged_whole_if_no_budget_is_told():
    assert drafter("lookup+draft_model", shape="2x3").budget == 15


def test_a_shape_is_told_in_python_too():
    built, _ = api.method_for(tiny.target(), "draft_model/rejection", tiny.draft(), shape="chain:2")
    assert built.shape == chain(2)


@pytest.mark.parametrize(
    ("method", "options", "complaint"),
    [
        ("lookup", {"shape": "2x2"}, "method 'lookup' does not use shape"),
        ("draft_model", {"shape": "bush"}, "shape 'bush' is none; the forms are chain, chain:LENGTH"),
        ("draft_model/rejection", {"shape": "2x2"}, "rule rejection verifies chains only, and shape 2x2 is none"),
        ("draft_model", {"shape": "2x2", "budget": 4}, "shape 2x2 has 7 nodes whatever budget 4 says"),
        ("draft_model/rrs_wor", {"budget": 40}, "shape 2x2 has 7 nodes whatever budget 40 says"),
        ("draft_model/rejection", {"shape": "chain:3", "num_speculative_tokens": 5}, "whatever num_speculative_tokens 5 says"),
        ("draft_model", {"shape": "sequoia:0.5,0.6"}, "sum to at most 1"),
        ("draft_model", {"shape": "chain", "num_speculative_tokens": 5000}, "more than 1024 nodes"),
    ],
)
def test_options_that_do_not_fit_are_refused_without_a_model(method, options, complaint):
    with pytest.raises(InvalidRequest) as error:
        methods.check(method, methods.Options(**options))
    assert complaint in str(error.value)


PAIRS = list(itertools.product(methods.DRAFTERS, RULES))


def fits(drafter: str, rule: str) -> bool:
    entry = methods.DRAFTERS[drafter]
    if rule == "match":  # takes all that there is, also nothing
        return True
    return any(Siblings[kind] in RULES[rule].needs for kind in entry.siblings) and entry.beliefs >= RULES[rule].reads_beliefs


@pytest.mark.parametrize(("name", "rule"), [pair for pair in PAIRS if not fits(*pair)])
def test_a_rule_and_a_drafter_that_do_not_fit_are_refused_by_their_names(name, rule):
    with pytest.raises(IncompatibleRule) as error:
        methods.parse(f"{name}/{rule}")
    for word in (f"rule {rule}", name, "use rule match"):
        assert word in str(error.value), f"{word!r} is not in: {error.value}"


@pytest.mark.parametrize(("name", "rule"), [pair for pair in PAIRS if fits(*pair)])
def test_a_rule_and_a_drafter_that_fit_are_read(name, rule):
    assert methods.parse(f"{name}/{rule}") == ([name], rule)


@pytest.mark.parametrize("name", methods.DRAFTERS)
def test_the_kinds_that_the_table_gives_a_drafter_exist(name):
    assert {*methods.DRAFTERS[name].siblings} <= {kind.name for kind in Siblings}


def test_trees_of_draws_are_not_merged():
    with pytest.raises(IncompatibleRule, match="cannot be merged; use rule match"):
        methods.parse("lookup+draft_model/rejection")


# rules around another one


def test_the_rules_that_go_around_another_one_are_those_of_the_table():
    assert {name for name, entry in methods.RULES.items() if entry.wraps} == set(lossy.AROUND)


@pytest.mark.parametrize(
    ("name", "inside", "around"),
    [
        ("csd", "match", ["csd"]),
        ("easd+csd", "match", ["csd", "easd"]),
        ("csd+rejection+easd", "rejection", ["csd", "easd"]),
        ("rrs", "rrs", []),
    ],
)
def test_a_veto_goes_outside_of_a_rescue_in_whatever_order_they_are_named(name, inside, around):
    assert methods.split_rule(name) == (inside, around)


@pytest.mark.parametrize("name", ["csd+csd", "match+rejection", "rejection+csd+rrs"])
def test_rules_that_cannot_be_joined_are_refused(name):
    with pytest.raises(InvalidRequest, match="joins what cannot be joined"):
        methods.split_rule(name)


def test_a_rule_around_another_one_takes_what_that_one_takes():
    built = methods.build_rule("rejection+csd+easd")
    assert (built.needs, built.chain_only, built.reads_beliefs) == (RULES["rejection"].needs, True, True)
    assert drafter("draft_model/rejection+csd").shape == chain(6)


@pytest.mark.parametrize("mode", ["shadow", "on"])
def test_settings_reach_the_rule(mode):
    options = methods.Options(rule_mode=mode, rule_settings={"csd.tau": 0.5, "easd.n": "7"})
    built = methods.build_rule("csd+easd", options)
    assert (built.decide.config.n, built.decide.config.mode) == (7, mode)
    assert (built.decide.base.config.tau, built.decide.base.config.mode) == (0.5, mode)


def test_off_leaves_the_rule_inside():
    assert methods.build_rule("rejection+csd+easd", methods.Options(rule_mode="off")) is RULES["rejection"]
