"""What pairs a round gives (spec 3 and test 4), on rounds written by hand."""

from __future__ import annotations

import pytest

from paceline.errors import InvalidRequest
from paceline.record.pairs import Pair, branch, check_pairs, pairs

from .scripted import chain, text_of, tree


def found(answer, round_):
    return list(pairs(text_of(answer, round_), round_))


def test_a_chain_pairs_its_first_refusal_with_what_the_target_said():
    assert found([10, 11, 99, 12], chain([10, 11, 20, 21], accepted=2)) == [Pair(3, 99, 20, 3)]


def test_a_chain_of_which_nothing_was_kept_is_paired_at_its_first_token():
    assert found([99, 12], chain([10, 11], accepted=0)) == [Pair(1, 99, 10, 1)]


def test_a_chain_that_was_kept_whole_gives_no_pair():
    assert found([10, 11, 12], chain([10, 11], accepted=2)) == []


def test_nothing_behind_the_first_refusal_is_a_label():
    answer = [99, 20, 21, 22]
    one, other = (found(answer, chain([10, *tail], accepted=0)) for tail in ([20, 21], [30, 31]))
    assert one == other == [Pair(1, 99, 10, 1)]
    assert found([99, 40, 41, 42], chain([10, 20, 21], accepted=0)) == one


def test_a_text_that_ended_inside_the_draft_gives_no_pair_behind_its_end():
    assert found([10, 2], chain([10, 2, 20], accepted=2, taken=2)) == []


def test_where_the_draft_had_no_child_nothing_was_refused():
    assert found([10, 11, 12], tree([10, 30], [0, 0], path=[0, 1])) == []


def test_in_a_tree_the_child_ranked_first_is_refused_also_if_another_one_was_accepted():
    drafted = tree([30, 10, 31, 32], [0, 0, 2, 2], path=[0, 2], scores=[0, -0.5, -1.0, -1.5, -1.6])
    assert found([10, 99], drafted) == [Pair(1, 10, 30, 1), Pair(2, 99, 31, 3)]


def test_scores_rank_siblings_and_without_them_their_order_does():
    tokens, parents, path = [30, 31], [0, 0], [0]
    assert found([99], tree(tokens, parents, path, scores=[0, -2.0, -1.0])) == [Pair(1, 99, 31, 2)]
    assert found([99], tree(tokens, parents, path)) == [Pair(1, 99, 30, 1)]


def test_equal_siblings_count_once_and_are_never_chosen_and_refused_at_once():
    assert found([10, 99], tree([10, 10, 40], [0, 0, 2], path=[0, 2])) == [Pair(2, 99, 40, 3)]
    assert found([99], tree([30, 30], [0, 0], path=[0])) == [Pair(1, 99, 30, 1)]


def test_the_branch_of_a_refused_node_follows_its_likeliest_children():
    drafted = tree([30, 31, 32, 33], [0, 1, 1, 3], path=[0], scores=[0, -0.1, -0.9, -0.3, -0.4])
    assert branch(drafted, 1) == [30, 32, 33]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([], "holds no round"),
        ([text_of([10])], "holds no round"),
        ([text_of([10, 11], chain([], accepted=0))], "1 rounds without a draft"),
        ([text_of([10, 11, 12], chain([10, 11], accepted=2))], "one-sided: in 1 rounds nothing was refused"),
        ([text_of([99, 12], chain([10, 11], accepted=0))], "one-sided: in 1 rounds nothing was accepted"),
    ],
    ids=["empty", "no round", "no draft", "nothing refused", "nothing accepted"],
)
def test_records_from_which_nothing_can_be_learnt_are_refused(texts, message):
    with pytest.raises(InvalidRequest, match=message):
        check_pairs(texts, "records")


def test_pairs_are_counted():
    assert check_pairs([text_of([10, 99], chain([10, 11], accepted=1)), text_of([99], chain([10], accepted=0))], "records") == 2
