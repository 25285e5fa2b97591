"""What the adaptive drafter thinks a dear drafter is worth, from request to request."""

from __future__ import annotations

import pytest

from paceline.drafters.auto import AutoDrafter
from paceline.drafters.earlier import Earlier
from paceline.drafters.part import GUESS_MODEL, Known, Mean, Part, Steps
from paceline.live_cost import LiveCosts
from paceline.sampling import SamplingParams
from paceline.sequence import Sequence as Request

from .clocked import FLAT, PROMPT, World, text


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


def test_after_a_lucky_draft_a_drafter_that_pays_is_asked_again():
    """Beside the speed that luck has made it promises too little; beside plain rounds it pays."""
    world = World()
    part = Part("a", world.right(0.5), Known({1: 1.2}, gains=[Mean(1.6, 8.0) for _ in GUESS_MODEL]))
    auto = AutoDrafter([part], LiveCosts({1: FLAT}), clock=world.clock)
    seq = Request(list(range(PROMPT)), SamplingParams(max_new_tokens=300))
    for rate, asked in ((1.0, [0]), (2.0, [0]), (9.0, [0])):
        assert auto._plan(part, [seq], [0.0], 0.0, rate)[1] == asked, f"at {rate} tokens a plain round"
    assert auto._plan(part, [seq], [1.0], 1.0, 2.0)[1] == [], "not where lookup promises a token more: then it does not add enough"


def test_a_draft_model_is_told_what_its_forwards_cost():
    """Whether one more pays depends on the rate at which tokens come, on how many it drafts for at once, and on what nodes cost."""
    world, told = World(), []
    model = world.model(0.9, 0.5)
    model.steps = Steps(model.drafter, lambda count: told.append(count) or 0.1 * count)
    world.follow(AutoDrafter([model], LiveCosts({1: FLAT}), clock=world.clock))
    assert told
    assert set(told) == {1}
    goes_on = model.drafter.goes_on
    assert (goes_on.step, goes_on.sequences, goes_on.cost(8)) == (0.1, 1, pytest.approx(1.0, rel=0.05))
    assert goes_on.rate > 1.5, "tokens a second"
