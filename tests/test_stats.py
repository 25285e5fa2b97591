"""Statistics: figures worked out by hand, and identities that hold for every stream of rounds."""

from __future__ import annotations

import pytest

from paceline import engine
from paceline.draft import Draft
from paceline.engine import Round
from paceline.rules.match import match
from paceline.stats import Stats
from paceline.tree import Tree

from . import matrix, tiny
from .drafts import Planted

CHAIN = Tree.chain([1, 2, 3, 4])  # depth 3, 4 nodes
BUSH = Tree((1, 2, 3, 4, 5), (-1, 0, 0, 1, 2))  # depth 2, 5 nodes
ROOT = Tree.chain([1])  # depth 0, 1 node


def read(*rounds: tuple[Tree, int]) -> Stats:
    """Statistics of rounds, given as a tree and how many of its tokens were kept."""
    stats = Stats()
    for tree, kept in rounds:
        stats.add(Round(None, [9] * (kept + 1), kept, Draft(tree), list(range(kept + 1)), None))
    return stats


@pytest.fixture(scope="module")
def run() -> tuple[Stats, int]:
    """Statistics of a run with many lengths of accepted path, and the tokens that came out."""
    target, stats = tiny.target(), Stats()
    seqs = [matrix.request(p) for p in matrix.PROMPTS.values()]
    for round_ in engine.stream(target, Planted(), match, seqs):
        stats.add(round_)
    return stats, sum(len(s.output) for s in seqs)


FIGURES = {
    "rounds": 4,
    "tokens": 4 + 1 + 3 + 1,
    "accepted": 3 + 0 + 2 + 0,
    "depth_offered": 3 + 3 + 2 + 0,
    "nodes": 4 + 4 + 5 + 1,
    "mean_acceptance_length": 1 + 5 / 4,
    "acceptance_rate": 5 / 8,
    "histogram": {0: 2, 2: 1, 3: 1},
}


@pytest.mark.parametrize(("name", "value"), FIGURES.items())
def test_figures_of_four_rounds(name, value):
    assert getattr(read((CHAIN, 3), (CHAIN, 0), (BUSH, 2), (ROOT, 0)), name) == value


@pytest.mark.parametrize(("depth", "share"), [(0, 1.0), (1, 0.5), (2, 0.5), (3, 0.25), (4, 0.0)])
def test_acceptance_at_a_depth_is_the_share_of_rounds_that_got_there(depth, share):
    assert read((CHAIN, 3), (CHAIN, 0), (BUSH, 2), (ROOT, 0)).acceptance_at(depth) == share


@pytest.mark.parametrize(("stats", "when"), [(Stats(), "nothing ran"), (read((ROOT, 0), (ROOT, 0)), "nothing was drafted")])
def test_without_a_draft_the_figures_are_those_of_plain_decoding(stats, when):
    figures = (stats.mean_acceptance_length, stats.acceptance_rate, stats.acceptance_at(1))
    assert figures == (1.0, 0.0, 0.0), f"when {when}: {figures}"


def test_two_readers_do_not_share_a_histogram():
    read((CHAIN, 3))
    assert Stats().histogram == {}


def test_a_run_has_rounds_of_many_lengths(run):
    stats, _ = run
    assert len(stats.histogram) >= 4, f"the run accepted only {dict(stats.histogram)}: the identities prove little"


def test_the_tokens_counted_are_the_tokens_that_came_out(run):
    stats, output = run
    assert stats.tokens == output


def test_each_round_gives_its_accepted_tokens_and_one_more(run):
    stats, _ = run
    assert stats.tokens == stats.accepted + stats.rounds, f"{stats.tokens} tokens, {stats.accepted} accepted, {stats.rounds} rounds"


def test_the_histogram_sums_to_the_rounds(run):
    stats, _ = run
    assert sum(stats.histogram.values()) == stats.rounds


def test_the_histogram_weighs_the_accepted_tokens(run):
    stats, _ = run
    assert sum(kept * n for kept, n in stats.histogram.items()) == stats.accepted


def test_no_more_is_accepted_than_the_depth_offered(run):
    stats, _ = run
    assert 0 < stats.accepted < stats.depth_offered, f"{stats.accepted} accepted of {stats.depth_offered}"


def test_acceptance_over_all_depths_sums_to_the_mean(run):
    stats, _ = run
    total = sum(stats.acceptance_at(depth) for depth in range(1, 20))
    assert 1 + total == pytest.approx(stats.mean_acceptance_length), f"1 + {total} and {stats.mean_acceptance_length}"
