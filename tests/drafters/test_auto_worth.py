"""What the adaptive drafter thinks a dear drafter is worth, from request to request."""

from __future__ import annotations

import pytest

from paceline.cost import LiveCosts
from paceline.drafters.auto import AutoDrafter
from paceline.drafters.earlier import Earlier

from .clocked import FLAT, World, text


@pytest.mark.parametrize("seconds", [0.6, 1.1, 1.5])
def test_a_useless_draft_model_is_left_alone_after_a_few_drafts(seconds):
    """Beside lookup that gains, which would pay for many."""
    costs, earlier, known, asked = LiveCosts({1: FLAT}), Earlier(), None, []
    for number in range(6):
        world = World(texts=[text(64, number)])
        model = world.model(0.0, seconds, weight=2.0)
        model.known = known = known or model.known
        world.follow(AutoDrafter([world.part("free", world.right(0.5)), model], costs, earlier, clock=world.clock))
        asked.append(len(model.drafter.asked))
    assert sum(asked[1:]) <= 3 < 6 >= sum(asked), f"asked so often in each of six answers: {asked}"


def test_what_a_drafter_claims_beyond_its_usual_is_not_hidden_by_what_is_believed_of_it():
    """Half of what it says is true, always: the usual stays what it says."""
    world = World()
    model = world.model(0.5, 0.2, weight=2.0)
    model.drafter.claims = lambda place: 0.9
    world.follow(AutoDrafter([model], LiveCosts({1: FLAT}), clock=world.clock))
    claimed = sum(0.9**depth for depth in range(1, 5))
    assert model.known.gain(0.0).value == pytest.approx(claimed, rel=0.15), f"of {claimed:.2f} tokens that it claims in each draft"
    assert model.known.claims.held < 0.6
