"""The adaptive drafter on a scripted clock, where a drafter must read the prompt first: for whom it is worth that."""

from __future__ import annotations

import math
from collections import deque

import pytest

from paceline.cost import CostCurve
from paceline.drafters.auto import OPENING, USUAL, AutoDrafter
from paceline.drafters.earlier import Answer, Earlier
from paceline.drafters.part import GUESS_MODEL, Known, Mean, Part
from paceline.drafters.pool import Pool
from paceline.live_cost import LiveCosts
from paceline.sampling import SamplingParams
from paceline.sequence import Sequence as Request

from .clocked import FLAT, PROMPT, World, text


def test_a_prompt_that_must_be_read_first_makes_a_drafter_dearer():
    world = World()
    drafter = world.right(0.5)
    part = Part("a", drafter, Known({1: 0.05}, catch_up=0.5))
    auto = AutoDrafter([part], LiveCosts({1: FLAT}), clock=world.clock)
    short, long = (Request(list(range(n)), SamplingParams(max_new_tokens=20)) for n in (10, 400))
    net = [auto._plan(part, [seq], [0.0], 0.0, 1.0)[0] for seq in (short, long)]
    assert net[0] > 0 == net[1], f"net {net} tokens after 10 and 400 tokens of prompt"


READS = 0.012  # seconds for a token of the prompt: 1000 of them cost as much as 12 plain rounds


def reader(world: World, rate: float, known: Known | None = None, earlier: Earlier | None = None) -> AutoDrafter:
    """Decode with a draft model that has to read the prompt first."""
    known = known or Known({1: 0.5}, catch_up=READS, gains=[Mean(guess) for guess in GUESS_MODEL])
    part = Part("a", world.right(rate, seconds=known.seconds[1], reads=known.catch_up), known)
    auto = AutoDrafter([part], LiveCosts({1: world.cost}), earlier, clock=world.clock)
    world.follow(auto)
    return auto


@pytest.mark.parametrize("rate", [0.0, 0.9])
@pytest.mark.parametrize("length", [12, 30, 100])
def test_a_long_prompt_is_not_read_for_a_drafter_that_was_never_tried(rate, length):
    world = World(texts=[text(length, prompt=1000)])
    reader(world, rate)
    assert world.clock.now <= world.plain + 1.0, f"{world.slowdown:.3f} times the seconds of plain decoding"


@pytest.mark.parametrize("length", [12, 30, 100])
def test_a_long_prompt_is_not_read_at_once_for_a_good_drafter_either(length):
    """However well it drafted before: the answer may end soon."""
    known = reader(World(texts=[text(300, prompt=60)]), 0.9).parts[0].known
    world = World(texts=[text(length, 1, prompt=1000)])
    reader(world, 0.9, known)
    assert world.clock.now <= 1.02 * world.plain + 1.0, f"{world.slowdown:.3f} times the seconds of plain decoding"


def test_what_another_drafter_has_gained_may_be_spent_on_reading():
    known = reader(World(texts=[text(300, prompt=60)]), 0.9).parts[0].known
    world = World(texts=[text(300, 1, prompt=2000)])
    free = Part("free", world.right(lambda place: 0.9 if place < 2060 else 0.0), Known({1: 0.0}))
    dear = Part("a", world.right(0.9, seconds=0.5, reads=READS), known)
    world.follow(AutoDrafter([free, dear], LiveCosts({1: world.cost}), Earlier(deque([Answer(300)])), clock=world.clock))
    assert dear.drafter.asked, "it was never asked"
    assert dear.drafter.asked[0] >= 2010, f"asked at {dear.drafter.asked[0]}, before anything was gained"


@pytest.mark.parametrize("prompt", [60, 100])
def test_a_short_prompt_is_read_at_once(prompt):
    alone, world = (World(texts=[text(150, prompt=prompt)]) for _ in range(2))
    alone.follow(alone.right(0.9, seconds=0.5, reads=READS))
    reader(world, 0.9)
    assert world.clock.now <= 1.1 * alone.clock.now, f"{world.clock.now:.1f} s, and {alone.clock.now:.1f} s with the draft model alone"


def test_what_reading_has_cost_does_not_stop_a_good_drafter_afterwards():
    """Read for an answer that was thought to get longer: until the end of this one it drafts."""
    known = reader(World(texts=[text(300, prompt=60)]), 0.9).parts[0].known
    world = World(texts=[text(100, 1, prompt=200)])
    drafter = world.right(0.9, seconds=0.5, reads=READS)
    auto = AutoDrafter([Part("a", drafter, known)], LiveCosts({1: world.cost}), Earlier(deque([Answer(300)])), clock=world.clock)
    world.follow(auto)
    alone = World(texts=[text(100, 1, prompt=200)])
    alone.follow(alone.right(0.9, seconds=0.5, reads=READS))
    assert world.clock.now <= 1.1 * alone.clock.now, f"{world.clock.now:.1f} s, and {alone.clock.now:.1f} s with the draft model alone"


@pytest.mark.parametrize(("length", "reads"), [(10, False), (600, True)])
def test_what_was_gained_is_spent_on_reading_only_if_the_answer_still_gets_long_enough(length, reads):
    world = World()
    part = Part("a", world.right(0.9), Known({1: 0.5}, catch_up=READS, gains=[Mean(2.0, 8.0) for _ in GUESS_MODEL]))
    auto = AutoDrafter([part], LiveCosts({1: FLAT}), Earlier(deque([Answer(length)])), clock=world.clock)
    auto._account.plain += 50.0
    seq = Request(list(range(1000)), SamplingParams(max_new_tokens=300))
    assert (auto._plan(part, [seq], [0.0], 0.0, 1.0)[1] == [0]) == reads


def test_how_long_answers_got_decides_whether_a_prompt_is_read():
    known, first = reader(World(texts=[text(300, prompt=60)]), 0.9).parts[0].known, []
    for length in (20, 600):
        auto = reader(World(texts=[text(200, 1, prompt=250)]), 0.9, known, Earlier(deque([Answer(length)] * 4)))
        first.append(next(iter(auto.parts[0].drafter.asked), math.inf) - 250)
    assert first[0] > 20 > 3 > first[1], f"read after {first} tokens of the answer"


def test_reading_for_a_drafter_that_then_says_nothing_makes_no_debt():
    world = World(texts=[text(60, prompt=150)])
    known = Known({1: 0.5}, catch_up=READS, gains=[Mean(3.0, 8.0) for _ in GUESS_MODEL])
    part = Part("a", world.right(1.0, seconds=0.5, reads=READS, depth=0), known)
    auto = AutoDrafter([part], LiveCosts({1: FLAT}), Earlier(deque([Answer(300)])), clock=world.clock)
    world.follow(auto)
    assert part.rounds > 0
    assert auto._account.slack > -1.0, f"{auto._account.slack:.1f} s, of which {150 * READS:.1f} s are reading"


def test_a_batch_reads_at_first_for_one_sequence_only():
    """A prompt that one request may read for is too long for each of eight, as long as nothing is known of the drafter."""
    world = World(CostCurve((1, 64), (1.0, 1.0)), texts=[text(150, n, prompt=100) for n in range(8)])
    reader(world, 0.9, Known({1: 0.1, 8: 0.1}, catch_up=READS * 3 / 4, gains=[Mean(guess) for guess in GUESS_MODEL]))
    drafted = [sum(len(tree) > 1 for tree in row) for row in world.trees]
    drafted = [count for count in drafted if count]
    assert drafted[0] == 1, f"drafts by round: {drafted}"
    assert max(drafted) == 8, "once it has shown what it adds, it drafts for all"


def test_a_request_begins_another_answer_with_each_turn():
    world, earlier = World(), Earlier(deque())
    auto, seq = AutoDrafter([world.part("a", world.right(0.0))], LiveCosts({1: FLAT}), earlier), Request([1, 2, 3], SamplingParams())
    for tokens, prompt_length in ((3, 3), (8, 3), (20, 20), (21, 20)):
        seq.tokens, seq.prompt_length = list(range(tokens)), prompt_length
        auto.propose([seq])
    assert [answer.tokens for answer in earlier.answers] == [5, 1]


def test_the_lengths_of_answers_are_remembered():
    world, earlier = World(texts=[text(30), text(50, 1)]), Earlier(deque())
    auto = AutoDrafter([world.part("a", world.right(0.0))], LiveCosts({1: FLAT}), earlier, clock=world.clock)
    world.follow(auto)
    assert [a.tokens for a in earlier.answers] == pytest.approx([29, 49], abs=1), "the last round is not looked back on"


# a draft model whose worth and price differ from request to request


def test_where_drafts_are_quick_they_may_gain_less():
    """A draft model that is unsure of a text gives up early there."""
    world = World()
    part = world.model(0.5, 1.9)
    auto = AutoDrafter([part], LiveCosts({1: FLAT}), clock=world.clock)
    seqs = [Request([1, 2, 3], SamplingParams(max_new_tokens=20)) for _ in range(2)]
    for _ in range(20):
        auto._requests.price(part, seqs[0]).add(0.4)
    net = [auto._plan(part, [seq], [0.0], 0.0, 1.0)[0] for seq in seqs]
    assert (net[0], net[1]) == (pytest.approx(GUESS_MODEL[0] - 0.4 * 1.9, abs=0.2), pytest.approx(GUESS_MODEL[0] - 1.9))


def test_the_price_of_drafts_is_learnt_for_each_request():
    world = World(texts=[text(60, n) for n in range(2)])
    part = world.model(0.9, 0.5)
    auto = AutoDrafter([part], LiveCosts({1: FLAT}), clock=world.clock)
    seq = Request(list(world.texts[0].tokens[:PROMPT]), SamplingParams(max_new_tokens=50))
    seq.slot = 0
    part.known.seconds[1] = 1.0  # half of that is what it takes here
    auto._ask(part, [seq], [0])
    part.known.seconds[1] = 1.0
    auto._ask(part, [seq], [0])
    assert auto._requests.price(part, seq).value < 0.85


@pytest.mark.parametrize(("weight", "both"), [(1.0, False), (USUAL, True)])
def test_one_bad_draft_does_not_count_twice_while_little_is_known(weight, both):
    world = World()
    part = world.model(0.0, 0.5, weight)
    auto = AutoDrafter([part], LiveCosts({1: FLAT}), clock=world.clock)
    seq = Request(list(world.texts[0].tokens[:PROMPT]), SamplingParams(max_new_tokens=50))
    seq.slot = 0
    part.drafter.claims = lambda place: 0.3
    auto._ask_dear([part], [seq], Pool([seq], 8, FLAT, 1.0))
    assert part.known.gain(0.0).value < GUESS_MODEL[0], "its first draft promises little"
    assert (auto._requests.gain(part, seq).value < 1.0) == both


def test_one_bad_draft_does_not_forbid_the_next():
    world = World(texts=[text(60)])
    part = world.model(lambda place: 0.0 if place < PROMPT + 4 else 1.0, 1.5, weight=20.0)
    costs = LiveCosts({1: FLAT})
    costs.of(1).plain_rounds, costs.of(1).since_plain = OPENING, 0
    world.follow(AutoDrafter([part], costs, clock=world.clock))
    asked = part.drafter.asked
    assert asked[1] <= asked[0] + 3, f"asked at {asked}"


@pytest.mark.parametrize(("prompt", "tried"), [(50, True), (1000, False)])
def test_what_others_have_gained_does_not_buy_long_reading_for_a_trial(prompt, tried):
    """A drafter that adds too little for its price is tried again now and then, but only where that is soon done."""
    world = World()
    part = Part("a", world.right(0.9), Known({1: 0.5}, catch_up=READS, gains=[Mean(0.1, 8.0) for _ in GUESS_MODEL], tried=True, idle=99))
    auto = AutoDrafter([part], LiveCosts({1: FLAT}), Earlier(deque([Answer(100)])), clock=world.clock)
    auto._account.plain += 50.0
    seq = Request(list(range(prompt)), SamplingParams(max_new_tokens=300))
    auto._ask_dear([part], [seq], Pool([seq], 8, FLAT, 1.0))
    assert (part.rounds == 1) == tried
