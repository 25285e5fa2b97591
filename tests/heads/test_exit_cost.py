"""The cost model of bounded self-drafting: its expectation against simulated rounds, and the bounds it chooses."""

from __future__ import annotations

import random

import pytest

from paceline import engine
from paceline.errors import InvalidRequest
from paceline.heads.exit_cost import WIDEST, Bounds, Costs, Profile, best_bounds, expected, speedup
from paceline.rules.match import match

from ..drafters.climbing import Scripted, deep, drafter
from ..matrix import PROMPTS, request

UNITS = Costs.in_layers(32, 0.65, 0.0)
PROFILE = Profile((8, 16), (0.5, 0.8), ((0.5, 0.3), (0.3, 0.2)), ((0.3, 0.25), (0.28, 0.19)))


DEAR = Costs(6, 12.0, 3.0, lambda rows: 1 + (rows - 1) / 8, 0.7, lambda rows: 5 + rows / 2)


class Metered:
    """What a target's rounds cost by such prices, from what it is really asked: each pass through the model, layer, head and output."""

    def __init__(self, target, built, costs: Costs) -> None:
        runner, exits = target.runner, built.exits
        self.spent, base, run, tail, read = 0.0, runner._base, runner.run, runner.logits, exits.logits

        def pay(cost, what, *given, **named):
            self.spent += cost
            return what(*given, **named)

        def through(span, trees, slots, hidden=None):
            found = run(span, trees, slots, hidden)
            return pay(len(span) * costs.layer(len(found)), lambda: found)

        def lens(depth, hidden):
            before, found = self.spent, read(depth, hidden)
            self.spent = before + len(hidden) * costs.head  # the lens reads by the output layer, which a head does not
            return found

        runner.run, runner._base = through, lambda **given: pay(costs.call, base, **given)
        runner.logits, exits.logits = lambda hidden: pay(costs.tail(len(hidden)), tail, hidden), lens


def spent_on(gate, shares, width: int, count: int) -> float:
    """The mean price of a round with this gate, as it is paid."""
    target = deep()
    built = drafter(target, [depth for depth, _, _ in shares], width=width, kind=Scripted)
    built.gate = gate
    meter, seq, prices = Metered(target, built, DEAR), request(PROMPTS["short"], count), []
    for _ in engine.rounds(target, built, match, [seq]):
        if seq.room > width:  # a draft near the end is cut short
            prices.append(meter.spent)
        meter.spent = 0.0
    return sum(prices) / len(prices)


@pytest.mark.parametrize("width", [1, 2, 5])
@pytest.mark.parametrize(("shares", "depth"), [([(2, 0.0, 0.0)], 9), ([(2, 1.0, 0.0)], 2), ([(2, 0.0, 0.0), (4, 1.0, 0.0)], 4)])
def test_the_model_prices_scripted_rounds_as_they_are_paid(shares, depth, width):
    got = spent_on(lambda token, at: at == depth, shares, width, 24)
    assert expected(shares, width, DEAR)[1] == pytest.approx(got), f"exits {shares}, width {width}"


@pytest.mark.parametrize("width", [1, 3])
def test_the_model_prices_random_rounds_as_they_are_paid_on_average(width):
    shares, dice = [(1, 0.3, 0.0), (3, 0.3, 0.0), (5, 0.2, 0.0)], random.Random(0)
    chances = {1: 0.3, 3: 0.3 / 0.7, 5: 0.5}
    got = spent_on(lambda token, at: dice.random() < chances[at], shares, width, 300)
    assert expected(shares, width, DEAR)[1] == pytest.approx(got, rel=0.04), f"width {width}: paid {got:.2f} a round"


@pytest.mark.parametrize("width", [1, 4])
def test_tokens_of_a_round_are_those_of_simulated_rounds(width):
    dice, kept = random.Random(0), 0
    for _ in range(20000):
        kept += 1 + next((n for n in range(width) if dice.random() >= 0.55), width)
    tokens = expected(PROFILE.at(0.5, 16), width, UNITS)[0]
    assert tokens == pytest.approx(kept / 20000, rel=0.02)


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


def test_a_round_without_drafts_is_a_plain_one():
    assert expected(PROFILE.at(0.8, 16), 0, UNITS) == (1.0, UNITS.plain)
