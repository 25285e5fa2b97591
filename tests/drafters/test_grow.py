"""Trees from a head's scores, against all trees there are; and how many nodes are worth their time."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.cost import CostCurve
from paceline.drafters.grow import BUILDERS, GoesOn, Pace, Scores, all_children, best_first, chain, net_tokens, worthwhile
from paceline.tree import Tree


def shared(*rows: list[float]) -> Scores:
    """One row of probabilities per depth, for all parents; the token with place k at depth d is 10 d + k."""
    return Scores(
        [[10 * (d + 1) + k for k in range(len(row))] for d, row in enumerate(rows)],
        [[[math.log(p) for p in row]] for row in rows],
        [[list(range(len(row)))] for row in rows],
    )


def conditional(seed: int, depth: int = 3, width: int = 3) -> Scores:
    """Random scores in which every parent has its own order of children."""
    draw = random.Random(seed)
    logps, picks = [], []
    for d in range(depth):
        rows = [[draw.random() for _ in range(width)] for _ in range(width if d else 1)]
        orders = [sorted(range(width), key=lambda k, row=row: -row[k]) for row in rows]
        logps.append([[math.log(row[k] / (sum(row) + 0.1)) for k in order] for row, order in zip(rows, orders, strict=True)])
        picks.append(orders)
    return Scores([[10 * (d + 1) + k for k in range(width)] for d in range(depth)], logps, picks)


def paths(scores: Scores) -> dict[tuple[int, ...], float]:
    """Every path of tokens and its log-probability."""
    found: dict[tuple[int, ...], float] = {(): 0.0}
    for length in range(1, len(scores.tokens) + 1):
        for places in itertools.product(*(range(len(t)) for t in scores.tokens[:length])):
            total, parent = 0.0, 0
            for depth, place in enumerate(places):
                row = scores.row(depth, parent)
                if place not in scores.picks[depth][row]:
                    break
                total += scores.logps[depth][row][scores.picks[depth][row].index(place)]
                parent = place
            else:
                found[tuple(scores.tokens[d][p] for d, p in enumerate(places))] = total
    return found


def spelled(tree: Tree) -> list[tuple[int, ...]]:
    return [tuple(tree.tokens[n] for n in tree.path(node)[1:]) for node in range(len(tree))]


def test_the_likeliest_nodes_come_one_by_one():
    #  0 ─┬─ 10 (.6) ─┬─ 20 (.54) ── 30 (.22)
    #     │           └─ 21 (.06)
    #     └─ 11 (.3) ── 20 (.27)
    scores = shared([0.6, 0.3], [0.9, 0.1], [0.4, 0.2])
    assert best_first(0, scores, 6).tree() == Tree((0, 10, 20, 11, 20, 30), (-1, 0, 1, 0, 3, 2))


@pytest.mark.parametrize("budget", [1, 2, 5, 9, 20])
@pytest.mark.parametrize("seed", range(6))
def test_no_tree_of_this_size_has_more_probability(seed, budget):
    scores = conditional(seed)
    growth = best_first(0, scores, budget)
    best = sorted(paths(scores).values(), reverse=True)[:budget]
    got = sorted(growth.scores, reverse=True)
    assert got == pytest.approx(best), f"got {got}, the best {budget} paths have {best}"


@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.parametrize("seed", range(3))
def test_scores_are_those_of_the_paths(name, seed):
    scores, truth = conditional(seed), paths(conditional(seed))
    growth = BUILDERS[name](0, scores, 12)
    want = [truth[path] for path in spelled(growth.tree())]
    assert growth.scores == pytest.approx(want), f"{name}: {growth.scores} for {spelled(growth.tree())}"


@pytest.mark.parametrize("name", BUILDERS)
def test_no_two_nodes_are_the_same_path(name):
    nodes = spelled(BUILDERS[name](0, conditional(4), 25).tree())
    assert len(set(nodes)) == len(nodes), f"{name}: {nodes}"


@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.parametrize("budget", [1, 2, 3, 8, 100])
def test_a_tree_keeps_to_its_budget_and_depth(name, budget):
    tree = BUILDERS[name](0, conditional(1), budget).tree()
    assert (len(tree) <= budget, max(tree.depth) <= 3) == (True, True), f"{name}: {tree}"


def test_a_beginning_of_the_tree_is_the_tree_of_a_smaller_budget():
    whole = best_first(0, conditional(2), 20)
    for nodes in (1, 4, 11):
        assert whole.tree(nodes) == best_first(0, conditional(2), nodes).tree()


def test_all_children_come_at_once_in_the_published_builder():
    #  0 ─┬─ 10 ─┬─ 20
    #     │      └─ 21
    #     └─ 11            30 would be likelier than 21, but 21 comes with its sibling
    scores = shared([0.9, 0.05], [0.9, 0.05], [0.9, 0.05])
    assert all_children(0, scores, 5, width=2).tree() == Tree((0, 10, 11, 20, 21), (-1, 0, 0, 1, 1))


def test_the_published_builder_is_capped_in_depth_by_its_width():
    scores = shared(*[[0.9, *[0.01] * 6]] * 15)
    depths = {budget: max(all_children(0, scores, budget).tree().depth) for budget in (16, 32, 64, 128)}
    assert depths == {16: 3, 32: 5, 64: 9, 128: 15}


def test_one_node_at_a_time_expects_more_tokens_than_all_children():
    scores = shared(*[[0.85 * 0.99**d, *[0.15 / 7] * 6] for d in range(15)])
    expected = [sum(math.exp(s) for s in build(0, scores, 32).scores) for build in (best_first, all_children)]
    assert expected[0] > 1.1 * expected[1], f"one node at a time {expected[0]:.2f}, all children {expected[1]:.2f}"


def test_a_chain_follows_the_best_child_of_each_parent():
    scores = Scores([[10, 11], [20, 21]], [[[-0.1, -2.0]], [[-0.2, -3.0], [-0.3, -1.0]]], [[[1, 0]], [[0, 1], [1, 0]]])
    assert chain(0, scores, 9).tree() == Tree.chain([0, 11, 21])


@pytest.mark.parametrize("name", BUILDERS)
def test_without_scores_the_root_stands_alone(name):
    assert BUILDERS[name](7, Scores([], [], []), 8).tree() == Tree.chain([7])


def test_scores_can_be_cut_to_fewer_depths():
    assert max(best_first(0, conditional(3).cut(1), 50).tree().depth) == 1


# how many nodes are worth it


def test_nodes_are_kept_while_they_bring_more_than_the_rate_they_cost():
    pace = Pace(2.0, 1.0)  # two tokens in each unit of time so far
    assert worthwhile([0.9, 0.5, 0.21, 0.19, 0.1], lambda n: 1 + 0.1 * (n - 1), pace) == 4  # a node must bring 0.2


def test_a_dear_step_is_passed_if_cheap_nodes_behind_it_pay_for_it():
    cost = {1: 1.0, 2: 1.0, 3: 1.5, 4: 1.5, 5: 1.5}.__getitem__
    assert worthwhile([0.5, 0.4, 0.4, 0.35], cost, Pace(1.5, 1.0)) == 5
    assert worthwhile([0.5, 0.2, 0.2, 0.1], cost, Pace(1.5, 1.0)) == 2


def test_the_first_round_maximises_its_own_rate():
    probs, cost = [0.8, 0.6, 0.3, 0.05], lambda n: 1 + 0.2 * (n - 1)
    rates = [(1 + sum(probs[:i])) / cost(i + 1) for i in range(5)]
    assert worthwhile(probs, cost, Pace()) == 1 + rates.index(max(rates)), f"tokens per time {rates}"


def test_a_pace_adds_up_what_was_kept():
    pace = Pace()
    for _ in range(2):
        worthwhile([0.5], lambda n: 1.0, pace)
    assert (pace.tokens, pace.seconds) == (3.0, 2.0)


@given(st.lists(st.lists(st.floats(0.01, 0.99), min_size=1, max_size=8), min_size=2, max_size=4), st.floats(0.02, 0.6))
@settings(deadline=None, max_examples=40)
def test_over_many_rounds_no_fixed_number_of_nodes_is_quicker(kinds, slope):
    """Rounds of a few kinds come again and again; the choice by rate beats every constant budget, up to a little for settling."""
    rounds = [sorted(kind, reverse=True) for kind in kinds] * 60
    cost, pace = (lambda n: 1 + slope * (n - 1)), Pace()
    for probs in rounds:
        worthwhile(probs, cost, pace)
    fixed = [sum(1 + sum(p[:n]) for p in rounds) / sum(cost(1 + min(n, len(p))) for p in rounds) for n in range(9)]
    assert pace.tokens / pace.seconds > 0.985 * max(fixed), f"rate {pace.tokens / pace.seconds:.3f}, fixed budgets {fixed}"


# whether a draft model runs once more


def test_tokens_net_of_their_cost_are_those_of_the_best_number_of_nodes():
    assert net_tokens([0.9, 0.5, 0.1], lambda n: 0.2 * n, rate=2.0) == pytest.approx(0.9 + 0.5 - 2 * 0.4), (
        "the third costs more than it brings"
    )
    assert net_tokens([0.9], lambda n: 0.0, rate=2.0, sequences=3) == 0.9
    assert net_tokens([], lambda n: 1.0, rate=2.0) == 0.0


FREE = CostCurve((1, 64), (1.0, 1.0))
BLOCKS = CostCurve((1, 3, 4, 6), (1.0, 1.0, 2.0, 2.0))  # the fourth node costs a round


@pytest.mark.parametrize(
    ("cost", "rate", "step", "sequences", "best", "goes_on"),
    [
        (FREE, 1.0, 0.4, 1, 0.5, True),
        (FREE, 1.0, 0.4, 1, 0.4, False),
        (FREE, 2.0, 0.4, 1, 0.5, False),
        (FREE, 1.0, 0.6, 1, 0.5, False),
        (BLOCKS, 1.0, 0.4, 1, 0.5, True),
        (BLOCKS, 1.0, 0.4, 2, 0.5, False),
    ],
    ids=["pays", "unlikely", "time is dear", "slow", "within a block", "in a new block"],
)
def test_a_draft_model_runs_once_more_if_its_tokens_are_worth_the_time(cost, rate, step, sequences, best, goes_on):
    """A chain of one node so far; with another sequence its next node would be the fourth of all."""
    assert GoesOn(cost, rate, step, sequences)([0.0, math.log(best)], math.log(best)) == goes_on
