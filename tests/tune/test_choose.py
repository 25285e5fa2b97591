"""From costs and acceptance to a choice."""

from __future__ import annotations

import pytest

from paceline.cost import CostCurve
from paceline.tune.choose import choose, line, plain

COST = {1: CostCurve((1, 4, 8), (1.0, 1.0, 2.0)), 4: CostCurve((4, 16, 32), (2.0, 4.0, 8.0))}


def candidate(name: str = "lookup", length: float = 2.0, nodes: int = 4, drafting: float = 0.0):
    return line(name, 8, length=length, nodes={nodes: 10}, drafting=dict.fromkeys(COST, drafting), cost=COST)


def test_speed_is_tokens_of_a_round_over_its_seconds():
    found = candidate(drafting=0.25)
    assert found.tokens_per_second == {1: 2.0 / 1.25, 4: 4 * 2.0 / 4.25}
    assert found.speedup == {1: 1.6, 4: pytest.approx(8.0 / 4.25 / 2)}


def test_rounds_of_different_sizes_take_what_each_of_them_takes():
    found = line("lookup", 8, length=2.0, nodes={1: 1, 8: 3}, drafting=dict.fromkeys(COST, 0.0), cost=COST)
    assert (found.nodes_per_round, found.forward_seconds[1]) == (6.25, (1.0 + 3 * 2.0) / 4), "not what 6 nodes take"


def test_a_round_of_a_batch_takes_what_its_drafts_together_take():
    steps = {2: CostCurve((2, 5, 6, 8), (1.0, 1.0, 2.0, 3.0))}
    found = line("lookup", 4, length=2.0, nodes={1: 1, 4: 1}, drafting={2: 0.0}, cost=steps)
    assert found.forward_seconds[2] == pytest.approx((1.0 + 2 * 1.0 + 3.0) / 4), "2, 5, 5 or 8 nodes"


def test_plain_decoding_is_one_node_and_one_token():
    assert (plain(COST).tokens_per_second, plain(COST).speedup) == ({1: 1.0, 4: 2.0}, {1: 1.0, 4: 1.0})


def test_the_quickest_is_chosen_for_each_batch_size():
    wide, narrow = candidate("wide", 2.2, 4), candidate("narrow", 1.8, 2)
    assert choose([plain(COST), wide, narrow], COST, 1).line is wide
    assert choose([plain(COST), wide, narrow], COST, 4).line is narrow


def test_the_reason_names_tokens_nodes_and_time():
    reason = choose([candidate(drafting=0.25)], COST, 1).reason
    assert "2.00 tokens for 4.0 nodes and takes 1.25 plain rounds (1250 ms, 250 of them drafting): 1.60 times" in reason


def test_what_does_not_pay_is_advised_against_with_the_reason():
    found = choose([plain(COST), candidate(length=1.2, drafting=0.5)], COST, 1)
    assert (found.line.method, found.line.options) == ("none", "--method none")
    assert found.reason.startswith("do not speculate: even at its best, a round of lookup brings 1.20 tokens")


def test_a_gain_within_what_can_be_measured_is_not_advised():
    assert choose([candidate(length=1.02)], COST, 1).line.method == "none"


def test_nothing_to_draft_with_is_a_reason():
    assert choose([plain(COST)], COST, 1).reason == "do not speculate: there is nothing to draft with"
