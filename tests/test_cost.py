"""The cost curve of a target."""

from __future__ import annotations

import itertools
import math
from functools import partial

import pytest
import torch

from paceline.cost import FAR, ROWS, TYPICAL, CostCurve, LiveCost, cost_curve, measure_cost_curve, quick_cost_curve

from . import tiny

CURVE = CostCurve((1, 4, 8), (1.0, 1.0, 3.0))


@pytest.mark.parametrize(("nodes", "seconds"), [(1, 1.0), (3, 1.0), (4, 1.0), (6, 2.0), (8, 3.0), (10, 4.0), (0, 1.0)])
def test_between_and_beyond_the_points_the_curve_is_straight(nodes, seconds):
    assert CURVE(nodes) == seconds


def test_a_smaller_forward_never_costs_more_than_a_larger_one():
    assert CostCurve((1, 2, 4), (5.0, 2.0, 3.0)).seconds == (2.0, 2.0, 3.0)


def test_something_may_be_added_to_every_round():
    assert CURVE.plus(0.5)(6) == 2.5


def test_a_measured_curve_has_the_sizes_asked_for_and_leaves_no_slot_behind():
    target = tiny.target()
    curve = measure_cost_curve(target, (1, 3, 100))
    assert (curve.sizes == tuple(sorted({1, 3, 100, *ROWS})), all(0 < s < 30 for s in curve.seconds), target.cache.nbytes) == (
        True,
        True,
        0,
    )


def test_a_curve_is_measured_with_these_numbers_of_nodes(monkeypatch):
    target, sizes = tiny.target(), []
    run = target.full
    monkeypatch.setattr(target, "full", lambda **given: sizes.append(given["input_ids"].shape[1]) or run(**given))
    measure_cost_curve(target, (2, 7))
    assert sizes[:4] == [2, 7, 2, 7], f"nodes per forward: {sizes}"


def test_a_target_is_measured_once():
    target = tiny.target()
    assert cost_curve(target) is cost_curve(target)
    assert cost_curve(tiny.target()) is not cost_curve(target)


def test_a_plain_round_moves_the_whole_live_curve():
    cost = LiveCost(CostCurve((1, 8), (1.0, 2.0)))
    for _ in range(60):
        cost.add(1, 3.0)
    assert (cost(1), cost(8)) == pytest.approx((3.0, 6.0), rel=0.01)


def test_a_round_with_drafts_moves_its_own_size():
    cost = LiveCost(CostCurve((1, 4, 8), (1.0, 1.5, 2.0)))
    for _ in range(60):
        cost.add(1, 1.0)
        cost.add(6, 1.9)
    assert (cost(1), cost(6)) == pytest.approx((1.0, 1.9), rel=0.02)


def test_a_round_with_drafts_says_what_others_of_about_its_size_cost():
    cost = LiveCost(CostCurve((4, 8, 16, 128), (1.0, 1.0, 2.0, 8.0)), plain=4)
    for _ in range(30):
        cost.add(4, 1.0)
        cost.add(8, 1.5)
    assert (cost(4), cost(8)) == pytest.approx((1.0, 1.5), abs=0.05)
    assert cost(16) > 2.3, "one doubling away"
    assert cost(128) == pytest.approx(8.0, rel=0.25), "four doublings away is another matter"


def test_a_larger_forward_is_thought_to_cost_no_less_than_what_was_seen_of_a_smaller_one():
    cost = LiveCost(CostCurve((1, 8, 512), (1.0, 1.0, 1.0)))
    for _ in range(30):
        cost.add(1, 1.0)
        cost.add(8, 1.5)
    assert (cost(8), cost(512)) == pytest.approx((1.5, 1.5), abs=0.05)


def test_a_few_rounds_with_drafts_say_what_they_cost():
    cost = LiveCost(CostCurve((4, 64), (1.0, 1.0)), plain=4)
    for nodes in (9, 7, 8):
        cost.add(4, 1.0)
        cost.add(nodes, 1.3)
    assert cost(8) > 1.15


def test_a_pause_counts_as_a_slow_round_only():
    paused, slow = (LiveCost(CostCurve((1, 8), (1.0, 2.0))) for _ in range(2))
    paused.add(1, 1000.0)
    slow.add(1, FAR)
    assert paused.curve == slow.curve


def test_if_rounds_with_drafts_are_far_off_it_is_time_for_a_plain_one():
    """The machine has changed, and what is compared with is old."""
    cost = LiveCost(CostCurve((1, 8), (1.0, 1.0)))
    cost.begin(1)
    cost.add(1, 1.0)
    for seconds, since in ((1.1, 1), (0.9, 2), (0.4, 3), (0.4, math.inf)):
        cost.begin(8)
        cost.add(8, seconds)
        assert cost.since_plain == since, f"after {seconds} s"


def test_a_quick_curve_takes_no_longer_than_it_may():
    target, seconds = tiny.target(), itertools.count()
    curve = quick_cost_curve(target, seconds=0.0, clock=lambda: next(seconds))
    assert (curve.sizes, target.cache.nbytes) == ((1, 2, 4, 6, 8, 12, 16, 24, 32, 64), 0)
    assert curve.seconds[-1] == pytest.approx(curve.seconds[0] * TYPICAL["cpu"](64))


def blocks(rows: int) -> float:
    return 1.0 + -(-rows // 6)


@pytest.fixture
def in_blocks(monkeypatch):
    """Whatever is timed: products by blocks of six rows, forwards 28 times that; how many rows forwards had."""
    forwards = []

    def seconds(run):
        rows = run.args[0] if isinstance(run, partial) else forwards.append(len(run())) or forwards[-1]
        return blocks(rows) * (1 if isinstance(run, partial) else 28)

    monkeypatch.setattr("paceline.cost.seconds_of", seconds)
    return forwards


def test_single_layers_tell_where_a_curve_has_steps(in_blocks):
    curve = measure_cost_curve(tiny.target(), (1, 8, 24))
    assert set(in_blocks) == {1, 8, 24}
    assert [curve(n) for n in range(1, 25)] == pytest.approx([28 * blocks(n) for n in range(1, 25)])


def test_a_quick_curve_knows_the_steps_after_one_forward(in_blocks):
    ticks = itertools.count()
    curve = quick_cost_curve(tiny.target(), seconds=2.5, clock=lambda: next(ticks))
    assert in_blocks == [1, 1], "one to warm up, and one that counts"
    assert [curve(n) for n in (1, 6, 7, 12, 13, 64)] == [28 * blocks(n) for n in (1, 6, 7, 12, 13, 64)]


def test_forwards_count_for_more_than_layers(in_blocks, monkeypatch):
    target = tiny.target()
    monkeypatch.setattr(target, "multiply", lambda rows, layer: torch.ones(1))
    monkeypatch.setattr("paceline.cost.seconds_of", lambda run: 1.0 if isinstance(run, partial) else float(len(run())))
    curve = measure_cost_curve(target, (1, 9))
    assert (curve(1), curve(5), curve(9), curve(20)) == (1.0, 5.0, 9.0, 9.0)


def test_a_model_without_linear_layers_is_timed_by_its_forwards():
    target = tiny.target("gpt2")
    assert len(target.multiply(1, 0)) == 0
    assert measure_cost_curve(target, (1, 3)).sizes == (1, 3)


def test_a_curve_of_a_batch_is_over_all_its_nodes():
    target = tiny.target()
    assert measure_cost_curve(target, (1, 30), batch=4).sizes == tuple(sorted({4, 120, *ROWS}))
    assert target.cache.nbytes == 0
