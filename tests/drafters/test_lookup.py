"""Prompt lookup on short texts, with the trees drawn by hand."""

from __future__ import annotations

import math

import pytest

from paceline.drafters.lookup import CONFIDENT, HIT, THEN, WEAK_BUDGET, LookupDrafter
from paceline.errors import InvalidRequest
from paceline.sampling import SamplingParams
from paceline.sequence import Sequence
from paceline.tree import Tree


def look(tokens, depth: int = 2, budget: int = 8, room: int = 100, **settings) -> Tree:
    seq = Sequence(tokens, SamplingParams(max_new_tokens=room))
    (draft,) = LookupDrafter(depth, budget, **settings).propose([seq])
    return draft.tree


LONGEST = [1, 2, 3, 50, 60, 8, 2, 3, 51, 61, 9, 3, 52, 62, 1, 2, 3]  # 1 2 3 goes on with 50, the later 2 3 with 51, the latest 3 with 52


def test_the_longest_match_wins_over_later_ones():
    assert look(LONGEST, budget=3) == Tree.chain([3, 50, 60])


@pytest.mark.parametrize(("longest", "found"), [(4, 50), (3, 50), (2, 51), (1, 52)])
def test_no_match_is_longer_than_prompt_lookup_max(longest, found):
    assert look(LONGEST, depth=1, budget=2, prompt_lookup_max=longest) == Tree.chain([3, found])


def test_matches_follow_from_long_to_short():
    assert look(LONGEST, depth=1) == Tree((3, 50, 51, 52), (-1, 0, 0, 0))


def test_the_latest_of_equal_matches_comes_first():
    assert look([3, 50, 3, 51, 3, 52, 9, 3], depth=1) == Tree((3, 52, 51, 50), (-1, 0, 0, 0))


def test_disagreeing_continuations_are_merged_into_one_tree():
    #          2
    #          └── 5 ─┬─ 7 (latest)
    #                 └─ 6
    assert look([1, 2, 5, 6, 1, 2, 5, 7, 1, 2]) == Tree((2, 5, 7, 6), (-1, 0, 1, 1))


def test_agreeing_continuations_are_one_chain():
    assert look([1, 2, 5, 6, 1, 2, 5, 6, 9, 2]) == Tree.chain([2, 5, 6])


def repeated(match: int) -> list[int]:
    """A text whose end matches its beginning over this many tokens, followed by 20 fresh ones."""
    return [*range(match), *range(100, 120), *range(match)]


@pytest.mark.parametrize(("match", "nodes"), [(1, WEAK_BUDGET), (CONFIDENT - 1, WEAK_BUDGET), (CONFIDENT, 16), (CONFIDENT + 1, 16)])
def test_only_a_confident_match_gets_the_whole_budget(match, nodes):
    tree = look(repeated(match), depth=20, budget=16)
    assert tree == Tree.chain([match - 1, *range(100, 99 + nodes)]), f"{len(tree)} nodes for a match of {match}"


@pytest.mark.parametrize("budget", [1, 2, 5, 9])
def test_a_tree_has_no_more_nodes_than_its_budget(budget):
    assert len(look(repeated(4), depth=20, budget=budget)) == budget


def test_a_weak_match_keeps_to_a_small_budget():
    assert len(look(repeated(1), depth=20, budget=3)) == 3


@pytest.mark.parametrize("depth", [1, 2, 7])
def test_no_path_is_deeper_than_asked(depth):
    assert max(look(repeated(4), depth=depth, budget=16).depth) == depth


@pytest.mark.parametrize(("room", "depth"), [(1, 0), (2, 1), (4, 3)])
def test_no_path_is_deeper_than_the_room_less_the_targets_own_token(room, depth):
    assert max(look(repeated(4), depth=7, budget=16, room=room).depth) == depth


@pytest.mark.parametrize(
    ("tokens", "copied"),
    [
        ([1, 2, 3, 1, 2, 3], [1, 2, 3, 1, 2, 3, 1]),
        ([9, 4, 4, 4, 4], [4, 4, 4, 4, 4, 4, 4]),
        ([1, 2, 7, 8, 1, 2], [7, 8, 1, 2, 7]),  # two tokens match: weak
    ],
)
def test_a_copy_that_reaches_the_end_of_the_text_goes_on_with_itself(tokens, copied):
    assert look(tokens, depth=len(copied), budget=len(copied) + 1) == Tree.chain([tokens[-1], *copied])


@pytest.mark.parametrize("tokens", [[1], [1, 2], [1, 2, 3, 4]])
def test_where_nothing_is_found_the_root_stands_alone(tokens):
    assert look(tokens) == Tree.chain(tokens[-1:])


@pytest.mark.parametrize(("shortest", "nodes"), [(1, 2), (2, 2), (3, 1)])
def test_matches_shorter_than_prompt_lookup_min_do_not_count(shortest, nodes):
    assert len(look([1, 2, 5, 6, 1, 2], depth=1, prompt_lookup_min=shortest)) == nodes


def test_matches_are_found_across_prompt_and_output():
    seq = Sequence([1, 2, 3], SamplingParams(max_new_tokens=50))
    seq.extend([1, 2], 3)
    (draft,) = LookupDrafter(2, 3).propose([seq])
    assert draft.tree == Tree.chain([3, 1, 2])


def test_each_sequence_gets_its_own_draft():
    seqs = [Sequence(t, SamplingParams()) for t in ([1, 5, 1], [2, 6, 2])]
    assert [d.tree for d in LookupDrafter(1, 4).propose(seqs)] == [Tree.chain([1, 5]), Tree.chain([2, 6])]


@pytest.mark.parametrize(("shortest", "longest"), [(3, 2), (0, 2), (-1, 4)])
def test_impossible_lengths_are_refused_with_their_values(shortest, longest):
    with pytest.raises(InvalidRequest, match=f"prompt_lookup_min is {shortest} and prompt_lookup_max {longest}"):
        LookupDrafter(prompt_lookup_min=shortest, prompt_lookup_max=longest)


def probs(tokens, **settings) -> dict[int, float]:
    """How likely the drafter holds each token of a tree without repetition."""
    (draft,) = LookupDrafter(**{"num_speculative_tokens": 2, "budget": 8, **settings}).propose([Sequence(tokens, SamplingParams())])
    return {token: math.exp(score) for token, score in zip(draft.tree.tokens, draft.scores, strict=True)}


@pytest.mark.parametrize("match", [1, 2, 3, 4])
def test_a_longer_match_is_likelier_to_go_on(match):
    found = probs(repeated(match))
    assert found[100] == pytest.approx(HIT[match - 1]), f"after a match of {match}"
    assert found[101] == pytest.approx(HIT[match - 1] * THEN[match - 1])


def test_occurrences_that_agree_add_up():
    once, twice = probs([3, 50, 9, 3])[50], probs([3, 50, 8, 3, 50, 9, 3])[50]
    assert (once, twice) == (pytest.approx(HIT[0]), pytest.approx(1 - (1 - HIT[0]) ** 2))


def test_occurrences_that_disagree_share_what_there_is():
    found = probs([3, 50, 3, 51, 9, 3], num_speculative_tokens=1)
    assert (found[51], found[50]) == (pytest.approx(HIT[0]), pytest.approx((1 - HIT[0]) * HIT[0]))


@pytest.mark.parametrize("tokens", [LONGEST, [9, 4, 4, 4, 4], [1, 2] * 30], ids=["branches", "one token", "two tokens"])
def test_scores_never_rise_along_a_path_nor_exceed_one_among_siblings(tokens):
    (draft,) = LookupDrafter(6, 16).propose([Sequence(tokens, SamplingParams())])
    shares = [math.exp(draft.scores[n] - draft.scores[p]) for n, p in enumerate(draft.tree.parents) if n]
    assert max(shares, default=0) <= 1 + 1e-9, f"parts of the parent {shares}"
    for node in range(len(draft.tree)):
        total = sum(math.exp(draft.scores[c] - draft.scores[node]) for c in draft.tree.children(node))
        assert total <= 1 + 1e-9, f"the children of node {node} claim {total}"
