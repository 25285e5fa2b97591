"""Curves that follow rounds."""

from __future__ import annotations

import math
import random

import pytest

from paceline.cost import CostCurve
from paceline.live_cost import FAR, LiveCost


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
    assert paused.seconds == slow.seconds


def test_if_rounds_with_drafts_are_far_off_it_is_time_for_a_plain_one():
    """The machine has changed, and what is compared with is old."""
    cost = LiveCost(CostCurve((1, 8), (1.0, 1.0)))
    cost.begin(1, 9)
    cost.add(1, 1.0)
    for seconds, since in ((1.1, 1), (0.9, 2), (0.4, 3), (0.4, math.inf)):
        cost.begin(8, 9)
        cost.add(8, seconds)
        assert cost.since_plain == since, f"after {seconds} s"


def test_sizes_that_nobody_asked_about_yet_follow_too():
    cost = LiveCost(CostCurve((1, 8, 512), (1.0, 1.0, 4.0)))
    for _ in range(30):
        cost.add(1, 2.0)
    assert cost(300) == pytest.approx(2 * CostCurve((1, 8, 512), (1.0, 1.0, 4.0))(300), rel=0.01)


def test_a_lucky_round_makes_no_size_dearer_than_a_larger_one():
    lots, cost = random.Random(0), LiveCost(CostCurve((1, 6, 7, 64), (1.0, 1.0, 2.0, 4.0)))
    for _ in range(50):
        nodes, seconds = lots.randint(1, 60), lots.uniform(0.5, 4.0)
        cost.add(nodes, seconds)
        assert cost.seconds == sorted(cost.seconds), f"after a round of {nodes} nodes in {seconds} s"


def test_a_plain_round_on_short_texts_says_little_of_long_ones():
    cost = LiveCost(CostCurve((1, 8), (1.0, 1.0)))
    cost.begin(1, tokens=600)
    cost.begin(8, tokens=5000)
    assert [cost.is_of(n) for n in (299, 300, 1200, 1201)] == [False, True, True, False]
    cost.begin(1, tokens=4)
    assert [cost.is_of(n) for n in (1, 512, 513)] == [True, True, False], "short ones are all alike"


def test_once_it_is_known_what_drafts_cost_plain_rounds_are_thought_to_change_with_them():
    cost = LiveCost(CostCurve((1, 8), (1.0, 1.0)))
    for _ in range(90):
        cost.add(1, 1.0)
        cost.add(8, 1.0)
    for _ in range(5):
        cost.add(8, 1.2)
    assert 1.03 < cost(1) < 1.1, f"{cost(1):.3f}"
