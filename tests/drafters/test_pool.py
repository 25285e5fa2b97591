"""The drafts of one round."""

from __future__ import annotations

import math

import pytest

from paceline.cost import CostCurve
from paceline.draft import Draft
from paceline.drafters.pool import Pool
from paceline.sampling import SamplingParams
from paceline.sequence import Sequence as Request
from paceline.tree import Tree

FLAT = CostCurve((1, 64), (1.0, 1.0))


def drafted(claims: list[float], budget: int) -> Draft:
    """A single draft of the root 3, whose children claim so much, on a target for which nodes cost nothing."""
    pool = Pool([Request([1, 2, 3], SamplingParams())], budget, FLAT, rate=1.0)
    children = range(10, 10 + len(claims))
    pool.add({0: Draft(Tree((3, *children), (-1, *[0] * len(claims))), scores=(0.0, *map(math.log, claims)))})
    return pool.best()[0]


def test_what_is_likeliest_comes_first_whatever_the_order_of_a_draft():
    found = drafted([0.3, 0.6, 0.4], budget=8)
    assert found.tree.tokens == (3, 11, 12, 10)
    assert [math.exp(s) for s in found.scores] == pytest.approx([1.0, 0.6, 0.4, 0.0], abs=1e-9), "siblings share what there is"


def test_a_draft_gets_no_more_nodes_than_the_budget():
    assert drafted([0.4, 0.3, 0.2], budget=3).tree.tokens == (3, 10, 11)
