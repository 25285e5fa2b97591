"""Several drafters under one budget, with the merged trees drawn by hand."""

from __future__ import annotations

import pytest

from paceline.draft import Siblings
from paceline.drafters.merge import MergedDrafter
from paceline.errors import IncompatibleRule
from paceline.sampling import SamplingParams
from paceline.sequence import Sequence
from paceline.tree import Tree

from ..drafts import Scripted


class Counted(Scripted):
    """Remembers the roots of the sequences it was asked about."""

    def __init__(self, script) -> None:
        super().__init__(script)
        self.asked = []

    def propose(self, seqs):
        self.asked.append([s.root for s in seqs])
        return super().propose(seqs)


def merged(first, second, budget: int) -> Tree:
    seq = Sequence([1], SamplingParams())
    (draft,) = MergedDrafter([Scripted(lambda _: first), Scripted(lambda _: second)], budget).propose([seq])
    return draft.tree


def test_two_chains_take_turns_until_the_budget_is_spent():
    #  1 ─┬─ 2 ─── 3
    #     └─ 5 ─── 6      4 and 7 find no place
    assert merged([2, 3, 4], [5, 6, 7], 5) == Tree((1, 2, 5, 3, 6), (-1, 0, 0, 1, 2))


def test_an_odd_place_goes_to_the_first_drafter():
    assert merged([2, 3], [5, 6], 4) == Tree((1, 2, 5, 3), (-1, 0, 0, 1))


def test_a_common_start_is_shared():
    #  1 ─── 2 ─┬─ 3
    #           └─ 4
    assert merged([2, 3], [2, 4], 8) == Tree((1, 2, 3, 4), (-1, 0, 1, 1))


def test_equal_drafts_are_one():
    assert merged([2, 3], [2, 3], 8) == Tree.chain([1, 2, 3])


def test_trees_keep_their_branches():
    #  first: 1 ─┬─ 2 ─── 4     second: 1 ─── 3 ─┬─ 5
    #            └─ 3                            └─ 6
    first, second = Tree((1, 2, 3, 4), (-1, 0, 0, 1)), Tree((1, 3, 5, 6), (-1, 0, 1, 1))
    # in turns: 2, 3 | 3 (there already), 5 under 3 | 4 under 2, 6 under 3
    assert merged(first, second, 8) == Tree((1, 2, 3, 5, 4, 6), (-1, 0, 0, 2, 1, 2))


def test_nodes_below_one_that_found_no_place_are_left_out():
    assert merged([2, 3], [5, 6, 7], 4) == Tree((1, 2, 5, 3), (-1, 0, 0, 1))


@pytest.mark.parametrize(("first", "second"), [([], [2, 3]), ([2, 3], [])])
def test_a_drafter_without_a_guess_leaves_the_budget_to_the_other(first, second):
    assert merged(first, second, 3) == Tree.chain([1, 2, 3])


def test_without_any_guess_the_root_stands_alone():
    assert merged([], [], 8) == Tree.chain([1])


def test_a_full_first_draft_spares_the_second_drafter_its_call():
    second = Counted(lambda _: [9])
    (draft,) = MergedDrafter([Scripted(lambda _: [2, 3]), second], 3).propose([Sequence([1], SamplingParams())])
    assert (draft.tree, second.asked) == (Tree.chain([1, 2, 3]), [])


def test_only_sequences_with_room_in_their_budget_are_passed_on():
    second = Counted(lambda _: [9])
    first = Scripted(lambda seq: [2, 3] if seq.root == 1 else [4])
    drafts = MergedDrafter([first, second], 3).propose([Sequence([root], SamplingParams()) for root in (1, 7, 8)])
    assert second.asked == [[7, 8]]
    assert [d.tree for d in drafts] == [Tree.chain([1, 2, 3]), Tree((7, 4, 9), (-1, 0, 0)), Tree((8, 4, 9), (-1, 0, 0))]


def test_a_draft_larger_than_the_budget_is_cut():
    assert merged([2, 3, 4, 5], [9], 3) == Tree.chain([1, 2, 3])


@pytest.mark.parametrize("siblings", [Siblings.IID, Siblings.WITHOUT_REPLACEMENT])
def test_drafters_that_sample_are_refused_by_name(siblings):
    with pytest.raises(IncompatibleRule, match="Scripted samples its candidates"):
        MergedDrafter([Counted(lambda _: []), Scripted(lambda _: [], siblings)], 8)


def test_a_merged_drafter_reads_the_layers_of_all():
    drafters = [Scripted(lambda _: []) for _ in range(2)]
    drafters[0].target_layer_ids, drafters[1].target_layer_ids = (3, 1), (1, 2)
    assert MergedDrafter(drafters, 8).target_layer_ids == (1, 2, 3)
