"""What drafters claim, checked against what came."""

from __future__ import annotations

import math

import pytest

from paceline.draft import Draft
from paceline.drafters.account import CREDIT, Account
from paceline.drafters.claims import Claims, judged, outcomes, with_claims
from paceline.drafters.part import GUESS, Known, Mean
from paceline.drafters.pool import shared_out
from paceline.tree import Tree

#   0 ─┬─ 1 ── 2 ── 3
#      └─ 4 ── 5
TREE = Tree((9, 1, 2, 3, 4, 5), (-1, 0, 1, 2, 0, 4))


@pytest.mark.parametrize(
    ("known", "found"),
    [
        ([], [True, None, None, None, None, None]),
        ([1], [True, True, None, None, False, False]),
        ([1, 7], [True, True, False, False, False, False]),
        ([1, 2], [True, True, True, None, False, False]),
        ([1, 2, 3, 8], [True, True, True, True, False, False]),
        ([4, 5], [True, False, False, False, True, True]),
    ],
)
def test_the_tokens_that_came_decide_every_node_that_they_reach(known, found):
    assert outcomes(TREE, known) == found


def scored(*probs: float) -> Draft:
    return Draft(TREE, scores=(0.0, *map(math.log, probs)))


def probs(draft: Draft) -> list[float]:
    return [round(math.exp(s), 3) for s in draft.scores[1:]]


def test_undecided_nodes_are_not_counted():
    assert judged(scored(0.5, 0.4, 0.3, 0.2, 0.1), [1]) == [(0.5, True), (0.2, False), (0.1, False)] or [
        (round(p, 6), o) for p, o in judged(scored(0.5, 0.4, 0.3, 0.2, 0.1), [1])
    ] == [(0.5, True), (0.2, False), (0.1, False)]


def test_nothing_seen_leaves_claims_as_they_are():
    assert probs(Claims().correct(scored(0.5, 0.4, 0.3, 0.2, 0.1))) == [0.5, 0.4, 0.3, 0.2, 0.1]


def test_claims_that_never_come_true_are_believed_less_and_less():
    claims, believed = Claims(), []
    for _ in range(3):
        claims.add([(0.6, False)] * 10)
        believed.append(probs(claims.correct(scored(0.6, 0.3, 0.3, 0.3, 0.3)))[0])
    assert believed == [0.24, 0.15, 0.109]


def test_other_claims_are_not_touched():
    claims = Claims()
    claims.add([(0.6, False)] * 10)
    assert probs(claims.correct(scored(0.9, 0.3, 0.3, 0.3, 0.3)))[:2] == [0.9, 0.3]


def test_no_node_is_believed_more_than_its_parent():
    claims = Claims()
    claims.add([(0.6, False)] * 40)
    parent, child, *_ = probs(claims.correct(scored(0.6, 0.4, 0.3, 0.2, 0.2)))
    assert child == parent < 0.1, f"parent {parent}, child {child}"


def test_one_sequence_starts_from_what_holds_for_all():
    everywhere = Claims()
    everywhere.add([(0.6, False)] * 40)
    assert Claims(everywhere).ratio(5) == everywhere.ratio(5) < 0.2


def test_old_counts_fade():
    claims = Claims(most=5)
    claims.add([(0.6, False)] * 100)
    claims.add([(0.6, True)] * 12)
    assert claims.ratio(5) > 0.7, f"accepted over claimed is {claims.ratio(5):.2f} after twelve nodes that came true"


def test_a_drafter_that_claims_nothing_is_given_claims_by_place():
    assert probs(with_claims(Draft(TREE))) == [0.7, 0.49, 0.343, 0.21, 0.147]


def test_claims_that_came_to_nothing_make_all_others_worth_less():
    """Also those in stretches of which nothing was seen, and those of a text for as long as it says nothing itself."""
    known = Claims()
    own = Claims(known)
    assert known.held == own.held == 1.0
    known.add([(0.9, False)] * 8)
    assert known.held == pytest.approx(4.0 / 11.2)
    assert own.held == pytest.approx(known.held)
    own.add([(0.5, True)] * 8)
    assert known.held < 1.0 < own.held


def test_siblings_share_out_what_their_parent_claims():
    tree = Tree((9, 1, 2, 3), (-1, 0, 0, 2))
    draft = shared_out(Draft(tree, scores=(0.0, math.log(0.8), math.log(0.6), math.log(0.3))))
    assert probs(draft) == [0.8, 0.2, 0.1]


def test_losses_are_allowed_up_to_the_credit_and_forgotten():
    account = Account(1.0)
    account.add(1.0 + CREDIT + 0.5, 1.0)
    assert account.slack < 0, f"slack {account.slack:.2f} s after a loss of {CREDIT + 0.5} plain rounds"
    for _ in range(200):
        account.add(1.0, 1.0)
    assert account.slack > 0, f"slack {account.slack:.2f} s after 200 plain rounds"


def test_a_price_that_was_not_measured_is_that_of_the_nearest_for_each():
    known = Known({1: 2.0, 4: 3.0})
    assert [known.price(n) for n in (1, 2, 3, 4, 8)] == [2.0, 4.0, 3.0, 3.0, 6.0]


def test_reading_a_prompt_is_no_part_of_the_price_of_a_draft():
    known = Known({1: 2.0})
    known.paid(1, 100, 52.0)
    assert (known.price(1), known.catch_up, known.price(1, 200)) == (2.0, 0.5, 102.0)


def test_a_pause_does_not_make_a_drafter_dear_for_good():
    known = Known({1: 1.0})
    known.paid(1, 1, 1000.0)
    assert known.price(1) == pytest.approx(2.5), "as if it had taken four times as long"
    for _ in range(30):
        known.paid(1, 1, 1.0)
    assert known.price(1) == pytest.approx(1.0, abs=0.1)


def test_price_and_gain_of_a_drafter_follow_alike():
    """A sure draft takes twice as long and brings twice as much: neither may be remembered longer than the other."""
    known = Known({1: 1.0}, gains=[Mean(1.0) for _ in GUESS])
    for value in [1.0] * 10 + [2.0] * 5:
        known.paid(1, 1, value)
        known.learn(0.0, value)
    assert known.price(1) == pytest.approx(known.gain(0.0).value)


def test_what_reading_costs_is_measured_by_the_tokens_that_were_read():
    known = Known({1: 0.5}, catch_up=0.005)
    known.paid(1, 192, 0.5 + 192 * 0.001)
    assert known.catch_up == pytest.approx((64 * 0.005 + 192 * 0.001) / 256), "the guess counts as 64 tokens"
    for _ in range(20):
        known.paid(1, 500, 0.5 + 500 * 0.002)
    assert known.catch_up == pytest.approx(0.002, rel=0.01), "older readings are forgotten"


def test_what_is_recorded_is_what_is_known_later():
    known = Known({1: 2.0, 4: 3.0}, catch_up=0.1)
    known.claims.add([(0.6, False)] * 10)
    known.gains[2].add(3.0)
    again = Known.of(known.record)
    assert (again.seconds, again.catch_up) == ({1: 2.0, 4: 3.0}, 0.1)
    assert [g.value for g in again.gains] == [g.value for g in known.gains]
    assert again.claims.ratio(5) == known.claims.ratio(5) < 0.5


def test_a_mean_settles_at_a_steady_pace():
    mean = Mean(0.0)
    for _ in range(200):
        mean.add(1.0)
    mean.add(0.0)
    assert mean.value == pytest.approx(1 - 1 / 30, abs=0.01)


def test_trials_become_rarer_until_a_drafter_is_asked_on_its_merits():
    known = Known()
    pauses = []
    for on_trial in (True, True, True, False):
        known.asked(on_trial=on_trial)
        pauses.append(known.pause)
    assert pauses == [16, 32, 64, 8]


def test_what_a_draft_adds_in_one_context_says_something_of_the_others():
    known = Known(gains=[Mean(2.0, 2.0) for _ in range(4)])
    assert not known.tried
    known.learn(0.0, 3.0)
    assert known.tried
    assert [g.value for g in known.gains] == pytest.approx([2.0 + 1.0 / 3, *[2.0 * (1 + 0.7 * 0.5 / 3)] * 3])
    before = known.gains[0].value
    known.learn(5.0, 0.0)
    assert known.gains[1].value < 2.0 < before == known.gains[0].value, "more is known of the first"
