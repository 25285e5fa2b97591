"""The adaptive drafter on a scripted clock: what it chooses, and that it does not lose."""

from __future__ import annotations

import random

import pytest

from paceline import engine
from paceline.cost import CostCurve
from paceline.drafters.auto import OPENING, AutoDrafter
from paceline.drafters.none import NoDrafter
from paceline.drafters.part import Known, Part
from paceline.live_cost import LiveCosts
from paceline.rules.match import match
from paceline.sampling import SamplingParams
from paceline.sequence import Sequence as Request

from .. import matrix, tiny
from .clocked import FLAT, PROMPT, STEEP, Right, World, text


@pytest.mark.parametrize("cost", [FLAT, STEEP], ids=["flat", "steep"])
@pytest.mark.parametrize("claims", [None, 0.95], ids=["silent", "boasting"])
@pytest.mark.parametrize("seconds", [0.0, 0.1, 0.5, 2.0])
def test_drafts_that_are_always_wrong_cost_at_most_two_percent(cost, claims, seconds):
    world = World(cost)
    world.run(world.right(0.0, seconds=seconds, claims=claims))
    assert world.slowdown <= 1.02, f"{world.slowdown:.3f} times the seconds of plain decoding"


def test_two_dear_and_useless_drafters_cost_at_most_two_percent():
    world = World()
    world.run(world.right(0.02, seconds=0.4), world.right(0.02, seconds=0.4))
    assert world.slowdown <= 1.02, f"{world.slowdown:.3f} times the seconds of plain decoding"


def test_forwards_that_are_dearer_than_their_curve_says_cost_at_most_two_percent():
    world = World(CostCurve((1, 8), (1.0, 3.0)))
    drafter = world.right(0.1, claims=0.6)
    world.follow(AutoDrafter([Part("a", drafter, Known({1: 0.0}))], LiveCosts({1: FLAT}), clock=world.clock))
    assert world.slowdown <= 1.02, f"{world.slowdown:.3f} times the seconds of plain decoding"


@pytest.mark.parametrize("seed", range(3))
def test_a_noisy_machine_is_no_reason_to_lose(seed):
    lots = random.Random(seed)
    noise = [lots.choice([1.0, 1.0, 1.0, 1.3, 3.0]) for _ in range(1000)]
    world = World(noise=noise.__getitem__)
    world.run(world.right(0.0, seconds=0.3))
    spent = sum(noise[1 : len(world.trees) + 1])
    assert world.clock.now <= 1.03 * spent, f"{world.clock.now:.0f} s, and {spent:.0f} s for as many plain rounds"


@pytest.mark.parametrize("seed", range(3))
def test_a_noisy_machine_is_no_reason_to_stop_drafting(seed):
    lots = random.Random(seed)
    noise = [lots.choice([1.0, 1.0, 1.5, 2.0, 4.0, 8.0]) for _ in range(1000)]
    alone, world = World(), World(noise=noise.__getitem__)
    alone.follow(alone.right(0.7))
    world.run(world.right(0.7))
    assert len(world.trees) <= 1.2 * len(alone.trees), f"{len(world.trees)} rounds, and {len(alone.trees)} of the drafter alone"


@pytest.mark.parametrize("rate", [0.5, 0.9])
@pytest.mark.parametrize("seconds", [0.0, 0.2])
def test_good_drafts_are_used_nearly_as_if_nothing_else_were(rate, seconds):
    alone, world = World(), World()
    alone.follow(alone.right(rate, seconds=seconds))
    world.run(world.right(rate, seconds=seconds))
    assert world.clock.now <= 1.05 * alone.clock.now, f"{world.clock.now:.1f} s, and {alone.clock.now:.1f} s with the drafter alone"


def with_model(world: World, rate: float, seconds: float) -> AutoDrafter:
    """Decode with a draft model of which only the price is known."""
    auto = AutoDrafter([world.model(rate, seconds)], LiveCosts({1: world.cost}), clock=world.clock)
    world.follow(auto)
    return auto


@pytest.mark.parametrize("number", range(3))
def test_a_good_draft_model_is_used_from_the_start_though_a_draft_costs_more_than_a_round(number):
    alone, world = (World(texts=[text(64, number)]) for _ in range(2))
    alone.follow(alone.right(0.9, seconds=1.1))
    with_model(world, 0.9, 1.1)
    assert world.clock.now <= 1.15 * alone.clock.now, f"{world.clock.now:.1f} s, and {alone.clock.now:.1f} s with the draft model alone"


@pytest.mark.parametrize("cost", [FLAT, STEEP], ids=["flat", "steep"])
@pytest.mark.parametrize("seconds", [0.6, 1.1, 1.5, 2.0])
def test_to_find_out_that_a_draft_model_is_useless_costs_at_most_two_percent(cost, seconds):
    world = World(cost)
    with_model(world, 0.0, seconds)
    assert world.slowdown <= 1.02, f"{world.slowdown:.3f} times the seconds of plain decoding"


@pytest.mark.parametrize("wrong", [10, 16, 24])
def test_after_a_bad_beginning_a_free_drafter_may_win_it_back(wrong):
    """A short answer that repeats itself from some place on. By then wrong drafts and a useless dear drafter have used up the credit."""
    world = World(CostCurve((1, 5, 64), (1.0, 1.4, 16.0)), texts=[text(70)])
    world.run(world.right(lambda place: 0.0 if place < 4 + wrong else 1.0), world.right(0.0, seconds=0.3))
    assert world.slowdown < 0.72, f"{world.slowdown:.2f} times the seconds of plain decoding"


@pytest.mark.parametrize(("depth", "drafts"), [(1, False), (2, True)])
def test_however_large_a_loss_a_free_draft_that_promises_enough_is_verified(depth, drafts):
    """1.7 tokens of two nodes are enough, 0.9 of one are not."""
    world = World()
    auto = AutoDrafter([Part("a", world.right(1.0, claims=0.9, depth=depth), Known({1: 0.0}))], LiveCosts({1: FLAT}), clock=world.clock)
    seq = Request(list(world.texts[0].tokens[:PROMPT]), SamplingParams(max_new_tokens=50))
    seq.slot = 0
    auto._costs.of(1).plain_rounds, auto._costs.of(1).since_plain = OPENING, 0
    auto._account.spent += 10.0
    assert (len(auto.propose([seq])[0].tree) > 1) == drafts


def later(world: World, before: AutoDrafter, *drafters: Right) -> None:
    """Decode a world's texts with what an earlier request has learnt of drafters like these."""
    parts = [Part(old.name, drafter, old.known) for old, drafter in zip(before.parts, drafters, strict=True)]
    world.follow(AutoDrafter(parts, before._costs, before._earlier, clock=world.clock))


@pytest.mark.parametrize("seconds", [0.0, 1.1])
def test_a_short_later_request_drafts_from_its_first_round(seconds):
    before = with_model(World(texts=[text(150)]), 0.9, seconds)
    alone, world = (World(texts=[text(24, 1)]) for _ in range(2))
    alone.follow(alone.right(0.9, seconds=seconds))
    later(world, before, world.right(0.9, seconds=seconds))
    assert len(world.trees[0][0]) > 1, "its first round is plain"
    assert world.clock.now <= 1.02 * alone.clock.now, f"{world.clock.now:.1f} s, and {alone.clock.now:.1f} s with the drafter alone"


def test_an_unlucky_beginning_is_no_reason_to_stop():
    before = with_model(World(texts=[text(150)]), 0.9, 0.3)
    alone, world = (World(texts=[text(60, 1)]) for _ in range(2))
    unlucky = [w.right(lambda place: 0.9 if place > PROMPT + 2 else 0.0, seconds=0.3) for w in (alone, world)]
    alone.follow(unlucky[0])
    later(world, before, unlucky[1])
    ratio = world.clock.now / alone.clock.now
    assert ratio <= 1.05, f"{ratio:.2f} times the seconds of the draft model alone"


def test_what_an_earlier_request_found_useless_is_not_tried_at_once_again():
    first = World()
    before = first.run(first.right(0.0, seconds=0.5))
    world = World(texts=[text(40, 1)])
    drafter = world.right(0.0, seconds=0.5)
    later(world, before, drafter)
    assert len(drafter.asked) <= 2, f"asked at {drafter.asked}"
    assert world.clock.now <= world.plain + 1.0


@pytest.mark.parametrize("seed", range(3))
def test_if_the_target_has_become_quicker_since_a_later_request_loses_little(seed):
    """By the old price of a plain round drafts pay that do not pay any more."""
    first = World(CostCurve((1, 8), (1.0, 1.0)))
    before = first.run(first.right(0.6, seconds=0.7))
    world = World(CostCurve((1, 8), (0.35, 0.35)), texts=[text(300, seed)])
    later(world, before, world.right(0.6, seconds=0.7))
    assert world.slowdown <= 1.03, f"{world.slowdown:.3f} times the seconds of plain decoding"


def test_of_two_drafters_of_one_price_the_better_is_asked():
    world = World()
    good, poor = world.right(0.8, seconds=0.1), world.right(0.2, seconds=0.1)
    auto = world.run(poor, good)
    assert len(good.asked) > 5 * len(poor.asked), f"the good one {len(good.asked)} times, the poor one {len(poor.asked)} times"
    assert auto.report["drafters"]["b"]["rounds"] == len(good.asked)


def test_a_dear_drafter_is_asked_only_where_the_cheap_one_is_at_a_loss():
    world = World()
    easy = lambda place: 0.95 if place // 50 % 2 else 0.05  # noqa: E731
    cheap = world.right(easy, claims=easy)
    dear = world.right(0.7, seconds=0.3)
    world.run(cheap, dear)
    lost = sum(place // 50 % 2 == 0 for place in dear.asked)
    assert lost > 0.7 * len(dear.asked), f"{lost} of {len(dear.asked)} times"


def test_a_drafter_that_becomes_good_is_tried_again_and_used():
    world = World(texts=[text(600)])
    late = world.right(lambda place: 0.0 if place < 250 else 0.9, seconds=0.3)
    world.run(late)
    after = sum(len(row[0]) > 1 for row in world.trees[-60:])
    assert after > 40, f"it drafted in {after} of the last 60 rounds"


def test_a_drafter_that_becomes_useless_is_dropped():
    world = World(texts=[text(600)])
    early = world.right(lambda place: 0.9 if place < 250 else 0.0, seconds=0.3)
    world.run(early)
    asked = sum(place > 400 for place in early.asked)
    assert asked < 10, f"asked {asked} times for the last 200 tokens"


def test_a_dearer_forward_gets_fewer_nodes():
    flat, steep = World(FLAT), World(CostCurve((1, 8), (1.0, 3.0)))
    for world in (flat, steep):
        world.run(world.right(0.6, depth=6))
    sizes = [sum(len(row[0]) for row in world.trees) / len(world.trees) for world in (flat, steep)]
    assert sizes[0] > 1.5 * sizes[1], f"{sizes[0]:.1f} and {sizes[1]:.1f} nodes a round"


def test_in_a_batch_each_sequence_gets_the_nodes_that_it_is_worth():
    world = World(texts=[text(150, 0), text(150, 1)], cost=CostCurve((1, 4, 16), (1.0, 1.2, 4.0)))
    mixed, easy = world.right(0.05), world.right(0.9)
    hard = mixed._draft
    mixed._draft = lambda seq: (easy._draft if seq.slot == 0 else hard)(seq)
    world.run(mixed)
    paired = [row for row in world.trees[20:] if len(row) == 2]
    sizes = [sum(len(row[i]) for row in paired) / len(paired) for i in (0, 1)]
    assert sizes[0] > sizes[1] + 1, f"{sizes[0]:.1f} nodes for the easy text and {sizes[1]:.1f} for the hard one"


def test_a_draft_that_the_target_has_begun_with_stays_whole():
    world = World(STEEP)
    world.run(world.right(0.3, claims=0.5), world.right(0.9, seconds=0.1, starts=True))
    sizes = {len(row[0]) for row in world.trees if len(row[0]) > 1}
    assert 5 in sizes, f"trees of {sorted(sizes)} nodes"
    assert {tree.is_chain for row in world.trees for tree in row} == {True}


def test_a_long_pause_between_rounds_is_not_taken_for_a_slow_round():
    world = World(noise=lambda number: 1000.0 if number == 30 else 1.0)
    auto = world.run(world.right(0.8))
    speedup = auto.report["speedup_by_own_clock"]
    assert speedup > 2, f"by its own clock {speedup:.2f} times plain decoding"


def test_a_long_pause_in_a_plain_round_is_no_licence_to_lose():
    world = World(noise=lambda number: 1e5 if number == 30 else 1.0)
    auto = world.run(world.right(0.0, seconds=0.5))
    assert auto._account.slack < 5, f"{auto._account.slack:.0f} s may be lost"


def test_what_comes_in_the_next_turn_says_nothing_of_the_last_round():
    world = World()
    part = Part("a", world.right(0.5), Known({1: 0.0}))
    auto, seq = AutoDrafter([part], LiveCosts({1: FLAT}), clock=world.clock), Request([1, 2, 3], SamplingParams())
    seq.slot = 0
    sizes = [len(auto.propose([seq])[0].tree) for _ in range(OPENING + 1)]
    assert [size > 1 for size in sizes] == [False] * OPENING + [True], f"trees of {sizes} nodes"
    seq.restart(list(range(40)), SamplingParams())
    auto.propose([seq])
    assert (sum(map(sum, part.known.claims.counts)), auto.report["speedup_by_own_clock"]) == (0, None)


def test_drafts_of_a_request_that_was_taken_out_are_forgotten():
    """Before what they claim could be decided, and for good: nothing holds the request any longer."""
    world = World()
    auto = AutoDrafter([Part("a", world.right(0.5), Known({1: 0.0}))], LiveCosts({1: FLAT}), clock=world.clock)
    left, stays = (Request([1, 2, 3], SamplingParams()) for _ in range(2))
    left.slot = stays.slot = 0
    auto.propose([left, stays])
    assert {asked.seq for asked in auto._open} == {left, stays}
    auto.propose([stays])
    assert {asked.seq for asked in auto._open} == {stays}


def test_a_drafter_that_is_always_asked_is_said_to_be_cheap():
    world = World()
    assert any("so cheap that it is always asked" in why for why in world.run(world.right(0.8)).report["reasons"])


def test_the_report_names_what_was_asked_and_why():
    world = World()
    report = world.run(world.right(0.8, seconds=0.1), names=["good"]).report
    assert report["rounds"] == len(world.trees)
    assert any("good: 100.0 ms a draft, 0.10 plain rounds" in why for why in report["reasons"]), report["reasons"]
    assert any("times plain decoding" in why for why in report["reasons"]), report["reasons"]


def test_the_clock_of_the_report_is_that_of_the_world():
    world = World()
    report = world.run(world.right(0.7, seconds=0.1)).report
    true = world.plain / world.clock.now
    assert report["speedup_by_own_clock"] == pytest.approx(true, rel=0.05), f"really {true:.2f}"


@pytest.mark.parametrize("scale", [1e-4, 1e-3, 1e-2])
def test_whatever_the_clock_says_the_text_is_the_same(scale):
    """Greedy and sampled: only when tokens come depends on time."""
    target, prompt = tiny.target(), matrix.PROMPTS["short"]
    drafter = matrix.adaptive(target, matrix.Fitful(scale))
    for params in ({}, {"seed": 5, **matrix.SAMPLED}):
        texts = [engine.generate(target, d, match, [matrix.request(prompt, **params)])[0].tokens for d in (drafter, NoDrafter())]
        matrix.expect(texts[0], texts[1], f"a clock of scale {scale}, {params}")
    asked = {name: one["rounds"] for name, one in drafter.report["drafters"].items()}
    assert scale > 1e-4 or all(asked.values()), f"a quick clock and yet not all were asked: {asked}"
