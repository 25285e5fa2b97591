"""The cost model of bounded self-drafting: its expectation against simulated rounds, and the bounds it chooses."""

from __future__ import annotations

import random

import pytest

from paceline.errors import InvalidRequest
from paceline.heads.exit_cost import WIDEST, Bounds, Costs, Profile, best_bounds, expected, speedup

UNITS = Costs.in_layers(32, 0.65, 0.0)
PROFILE = Profile((8, 16), (0.5, 0.8), ((0.5, 0.3), (0.3, 0.2)), ((0.3, 0.25), (0.28, 0.19)))


def simulated(shares, width: int, costs: Costs, rounds: int = 40000) -> tuple[float, float]:
    """Mean tokens and cost of rounds in which every position draws its own fate."""
    dice, tokens, cost = random.Random(0), 0.0, 0.0
    for _ in range(rounds):
        drafts, kept, right = 0, 1, True
        while drafts < width:
            point, at = dice.random(), 0.0
            for number, (depth, share, hit) in enumerate(shares):
                if point < at + share:
                    drafts += 1
                    right &= point < at + hit
                    kept += right
                    cost += depth * costs.layer + (number + 1) * costs.head
                    break
                at += share
            else:
                cost += len(shares) * costs.head
                break
        tokens += kept
        cost += costs.verify(drafts + 1)
    return tokens / rounds, cost / rounds


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("depth", [8, 16])
def test_expected_tokens_and_cost_are_those_of_simulated_rounds(width, depth):
    costs = Costs(1.0, 0.65, lambda nodes: 32 + nodes / 2)
    shares = PROFILE.at(0.5, depth)
    for what, got, want in zip(("tokens", "cost"), expected(shares, width, costs), simulated(shares, width, costs), strict=True):
        assert got == pytest.approx(want, rel=0.01), f"{what}: {got:.3f} by the model and {want:.3f} simulated"


def test_the_example_of_the_specification():
    """Four drafts that exit at 12 and are right, then a difficult token: 80 layers for 5 tokens of 32 each."""
    tokens, cost = expected([(12, 1.0, 1.0)], 4, Costs.in_layers(32, 0.0, 0.0))
    assert (tokens, cost) == (5.0, 80.0)
    assert speedup([(12, 1.0, 1.0)], 4, Costs.in_layers(32, 0.0, 0.0)) == 2.0


def test_no_exit_is_plain_decoding_with_heads_on_top():
    assert speedup([(8, 0.0, 0.0)], 4, Costs.in_layers(32, 0.5, 4.0)) == pytest.approx(36 / 36.5)


def test_a_threshold_takes_the_nearest_lower_row():
    assert PROFILE.at(0.7, 8) == [(8, 0.5, 0.3)]
    assert PROFILE.at(0.2, 16) == PROFILE.at(0.5, 16)


def test_layers_left_out_hand_their_exits_on():
    assert PROFILE.only((16,)).exits == ((0.8,), (0.5,))
    assert PROFILE.only((8,)).right == ((0.3,), (0.28,))


@pytest.mark.parametrize("given", [{}, {"threshold": 0.8}, {"depth": 8}, {"width": 2}, {"threshold": 0.5, "depth": 16, "width": 3}])
def test_the_bounds_chosen_are_the_quickest_among_those_not_given(given):
    best = best_bounds(PROFILE, UNITS, **given)
    assert given.items() <= vars(best).items()
    every = [
        speedup(PROFILE.at(t, d), w, UNITS)
        for t in ([given["threshold"]] if "threshold" in given else PROFILE.thresholds)
        for d in ([given["depth"]] if "depth" in given else PROFILE.layers)
        for w in ([given["width"]] if "width" in given else range(1, WIDEST + 1))
    ]
    assert best.speedup == max(every)


def test_dear_heads_and_poor_drafts_want_a_narrow_draft():
    poor = Profile((16,), (0.8,), ((0.9,),), ((0.2,),))
    assert best_bounds(poor, UNITS) == Bounds(0.8, 16, 1, pytest.approx(speedup(poor.at(0.8, 16), 1, UNITS)))


def test_a_depth_above_all_exits_is_refused():
    with pytest.raises(InvalidRequest, match="the exit depth is 4, and the first exit is after 8 layers"):
        best_bounds(PROFILE, UNITS, depth=4)
