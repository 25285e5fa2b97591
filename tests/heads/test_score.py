"""From logits to shortlists: which tokens, how likely, after which parent."""

from __future__ import annotations

import dataclasses
from functools import cache

import pytest
import torch

from paceline.heads.jetspec import JetSpecHead
from paceline.heads.score import shortlists

from .. import tiny
from .small import random_head

ANCHORS = torch.tensor([5, 10, 3])  # the last is outside the draft vocabulary


@cache
def head(rank: int = 4) -> JetSpecHead:
    return random_head(tiny.target(), markov_rank=rank)


@cache
def logits() -> torch.Tensor:
    torch.manual_seed(2)
    return 2 * torch.randn(3, 4, 48)


def lists(made: JetSpecHead, *, tokens: int = 48, children: int = 48):
    return list(shortlists(made, ANCHORS, logits(), tokens=tokens, children=children))


def expected(made: JetSpecHead, b: int, depth: int, parent: int, heat: float = 1.0) -> torch.Tensor:
    """(48,) log-probabilities after this parent token, over the whole draft vocabulary."""
    corrected = logits()[b, depth] + (made.markov(torch.tensor(parent)) if made.config.markov_rank else 0)
    return torch.log_softmax(corrected / heat, -1)


def check(made: JetSpecHead, b: int, depth: int, row: int, parent: int, heat: float = 1.0) -> None:
    ids, logps, picks = lists(made)[b]
    want = expected(made, b, depth, parent, heat)
    order = [int(made.draft_index[ids[depth][p]]) for p in picks[depth][row]]
    worst = float((torch.tensor(logps[depth][row]) - want[order]).abs().max())
    assert worst < 1e-4, f"sequence {b}, depth {depth}, parent {parent}: off by {worst:.1e}"
    assert sorted(order) == list(range(48)), "not every token is there once"


@pytest.mark.parametrize("b", range(3))
def test_without_a_markov_term_scores_are_log_probabilities_for_all_parents(b):
    made = head(0)
    for depth in range(4):
        check(made, b, depth, 0, 0)
    assert [len(rows) for rows in lists(made)[b][1]] == [1, 1, 1, 1], "more than one parent"


@pytest.mark.parametrize("b", range(3))
def test_with_a_markov_term_each_parent_has_its_own_scores(b):
    made = head()
    ids = lists(made)[b][0]
    check(made, b, 0, 0, int(ANCHORS[b]))
    for depth in (1, 2, 3):
        for row in (0, 7, 47):
            check(made, b, depth, row, ids[depth - 1][row])


def test_temperatures_are_applied_per_depth_and_to_the_correction_too():
    made = random_head(tiny.target())
    made.config = dataclasses.replace(made.config, temperatures=(2.0, 0.5, 1.5, 1.0))
    ids = lists(made)[1][0]
    check(made, 1, 0, 0, int(ANCHORS[1]), 2.0)
    check(made, 1, 1, 3, ids[0][3], 0.5)
    check(made, 1, 2, 3, ids[1][3], 1.5)


@pytest.mark.parametrize("rank", [0, 4])
def test_children_are_the_likeliest_in_order(rank):
    _, logps, picks = lists(head(rank), tokens=12, children=5)[0]
    for depth in range(4):
        count = 5 if rank and depth else 12
        for row, pick in zip(logps[depth], picks[depth], strict=True):
            assert (len(row), row) == (count, sorted(row, reverse=True)), f"depth {depth}: {row}"
            assert len(set(pick)) == count, f"depth {depth} picks {pick}"


def test_a_shortlist_holds_the_likeliest_tokens_of_each_depth():
    made = head(0)
    want = made.draft_vocab_ids[logits()[0].topk(6).indices].tolist()
    assert lists(made, tokens=6)[0][0] == want


def test_what_a_shortlist_leaves_out_keeps_its_mass():
    made = head()
    small, whole = lists(made, tokens=12, children=12)[0], lists(made)[0]
    for depth in (1, 2, 3):
        short = torch.tensor(small[1][depth]).exp().sum(-1)  # per parent, over 12 of 48 tokens
        assert bool((short < 1).all()), f"depth {depth}: {float(short.max())} of the mass is inside"
    right = [whole[1][1][p][whole[2][1][p].index(small[2][1][p][0])] for p in range(12)]  # the true log-probability of each first child
    worst = max(abs(a - b[0]) for a, b in zip(right, small[1][1], strict=True))
    assert worst < 0.5, f"off by {worst} where the tail is a guess"


def test_scores_of_a_batch_are_those_of_each_alone():
    made = head()
    for b in range(3):
        (alone,) = shortlists(made, ANCHORS[b : b + 1], logits()[b : b + 1], tokens=10, children=4)
        together = lists(made, tokens=10, children=4)[b]
        assert (together[0], together[2]) == (alone[0], alone[2])
