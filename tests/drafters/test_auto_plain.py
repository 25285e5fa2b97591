"""When the adaptive drafter decodes plainly to see what that takes."""

from __future__ import annotations

import itertools

import pytest

from paceline.cost import CostCurve
from paceline.drafters.auto import OPENING, STALE, AutoDrafter
from paceline.drafters.part import Known, Part
from paceline.live_cost import LiveCosts
from paceline.sampling import SamplingParams
from paceline.sequence import Sequence as Request

from .clocked import FLAT, World, text


@pytest.mark.parametrize("slower", [0.8, 1.3])
def test_what_a_plain_round_takes_is_known_before_anything_is_compared_with_it(slower):
    world = World(CostCurve((1, 8), (slower, slower)), texts=[text(OPENING + 2)])
    auto = AutoDrafter([Part("a", world.right(0.9), Known({1: 0.0}))], LiveCosts({1: FLAT}), clock=world.clock)
    world.follow(auto)
    sizes = [len(row[0]) for row in world.trees[: OPENING + 1]]
    assert [size > 1 for size in sizes] == [False] * OPENING + [True], f"trees of {sizes} nodes"
    assert auto._costs.of(1)(1) == pytest.approx(slower, rel=0.12), f"{auto._costs.of(1)(1):.2f} s for {slower} s"


def test_what_a_plain_round_takes_is_seen_anew_for_each_batch_size():
    world = World(texts=[text(12, 0), text(40, 1), text(80, 2)])
    auto = AutoDrafter([Part("a", world.right(0.9), Known({1: 0.0}))], LiveCosts({1: FLAT}), clock=world.clock)
    world.follow(auto)
    sizes = {batch: [sum(map(len, row)) for row in world.trees if len(row) == batch] for batch in (3, 2, 1)}
    assert all(rounds[0] == batch < max(rounds) for batch, rounds in sizes.items()), f"nodes of the rounds by batch size: {sizes}"


def test_now_and_then_a_round_is_plain_however_well_drafting_goes():
    world = World(texts=[text(2000)])
    world.run(world.right(0.9))
    plain = [i for i, row in enumerate(world.trees) if len(row[0]) == 1]
    assert len(plain) > OPENING
    assert max(b - a for a, b in itertools.pairwise(plain)) <= 4 * STALE + 1, f"plain were {plain}"


def test_texts_of_another_length_begin_with_a_plain_round():
    """A round takes longer on long texts, and rounds with drafts would seem quick or slow beside a plain one on others."""
    world, known = World(texts=[text(900)]), Known({1: 0.0})
    costs = LiveCosts({1: FLAT})

    def first(length: int) -> int:
        auto = AutoDrafter([Part("a", world.right(0.9), known)], costs, clock=world.clock)
        auto.rounds = OPENING  # as one that has been at work
        seq = Request([1] * length, SamplingParams())
        seq.slot = 0
        return len(auto.propose([seq])[0].tree)

    drafts = {length: first(length) > 1 for length in (20, 40, 200, 600, 620, 100)}
    assert drafts == {20: False, 40: True, 200: True, 600: False, 620: True, 100: False}
