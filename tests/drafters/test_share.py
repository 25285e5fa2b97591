"""How a batch shares its nodes."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.cost import TYPICAL, CostCurve
from paceline.draft import Draft
from paceline.drafters.grow import Pace, share
from paceline.tree import Tree

FREE = CostCurve((1, 100), (1.0, 1.0))
DEAR = CostCurve((1, 2), (1.0, 2.0))


def chain(*probs: float) -> Draft:
    """A chain whose nodes are accepted with these probabilities, each given its parent."""
    scores = [0.0]
    for p in probs:
        scores.append(scores[-1] + math.log(p))
    return Draft(Tree.chain(range(len(scores))), scores=tuple(scores))


def sizes(drafts, cost) -> list[int]:
    return [len(d.tree) for d in share(drafts, cost, Pace())]


def test_nodes_that_cost_nothing_are_all_kept():
    assert sizes([chain(0.5, 0.1), chain(0.2)], FREE) == [3, 2]


def test_where_a_node_costs_as_much_as_a_round_only_roots_are_left():
    assert sizes([chain(0.9, 0.9), chain(0.8)], DEAR) == [1, 1]


def test_a_batch_gives_its_nodes_to_the_likeliest_sequence():
    cost = CostCurve((1, 2, 100), (1.0, 1.0, 1.0 + 98 * 0.3))
    assert sizes([chain(0.1, 0.1), chain(0.95, 0.95, 0.9)], cost) == [1, 4]


def test_a_fuller_batch_drafts_less_for_each():
    one = chain(0.5, 0.6, 0.7, 0.8)
    alone, eight = (sum(sizes([one] * n, TYPICAL["cpu"])) / n for n in (1, 8))
    assert (alone, eight) == (5, 2), f"nodes for each sequence: {alone} alone, {eight} among eight"


def test_a_rate_that_has_been_low_makes_nodes_worth_more():
    weak, cost = chain(0.25), CostCurve((1, 2), (1.0, 1.3))
    slow, quick = Pace(1.0, 2.0), Pace(2.0, 1.0)
    assert [len(share([weak], cost, pace)[0].tree) for pace in (slow, quick)] == [2, 1]


def test_what_is_left_of_a_tree_is_a_tree_with_its_scores():
    tree = Tree((9, 1, 2, 3, 4), (-1, 0, 0, 1, 2))
    draft = Draft(tree, scores=tuple(math.log(p) for p in (1, 0.05, 0.9, 0.01, 0.8)))
    (left,) = share([draft], CostCurve((1, 2), (1.0, 1.2)), Pace())
    assert left.tree == Tree((9, 2, 4), (-1, 0, 1))
    assert left.scores == pytest.approx([0, math.log(0.9), math.log(0.8)])


@given(st.lists(st.lists(st.floats(0.01, 1), max_size=6), min_size=1, max_size=5), st.floats(0, 1))
@settings(deadline=None, max_examples=60)
def test_no_other_share_brings_more_tokens_per_second_in_the_first_round(batch, slope):
    drafts = [chain(*probs) for probs in batch]
    cost = CostCurve((1, 2), (1.0, 1.0 + slope))
    kept = sizes(drafts, cost)
    probs = [[math.exp(s) for s in d.scores] for d in drafts]

    def rate(nodes) -> float:
        return sum(sum(p[:n]) for p, n in zip(probs, nodes, strict=True)) / cost(sum(nodes))

    for i, draft in enumerate(drafts):
        for other in range(1, len(draft.tree) + 1):
            nodes = [*kept[:i], other, *kept[i + 1 :]]
            assert rate(nodes) <= rate(kept) + 1e-9, f"{nodes} nodes bring {rate(nodes)}, {kept} bring {rate(kept)}"
