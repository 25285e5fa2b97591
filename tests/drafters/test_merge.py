"""Several drafters under one budget, with the merged trees drawn by hand."""

from __future__ import annotations

import math

import pytest

from paceline.cost import CostCurve
from paceline.draft import Draft, Siblings
from paceline.drafters.lookup import LookupDrafter
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


class Scored(Scripted):
    """Proposes a tree whose paths are accepted with these probabilities."""

    def __init__(self, tree: Tree, probs: list[float]) -> None:
        super().__init__(lambda _: tree)
        self.scores = tuple(map(math.log, probs))

    def propose(self, seqs):
        return [Draft(d.tree, scores=self.scores) for d in super().propose(seqs)]


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


@pytest.mark.parametrize(("prob", "asked"), [(0.9, []), (0.2, [[1]])], ids=["likely", "guesses"])
def test_a_full_draft_spares_the_others_only_if_it_is_likely(prob, asked):
    second = Counted(lambda _: [9])
    MergedDrafter([Scored(Tree.chain([1, 2, 3]), [1, prob, prob]), second], 3).propose([Sequence([1], SamplingParams())])
    assert second.asked == asked


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


# drafts with scores


HEAD = Scored(Tree((1, 2, 3, 4), (-1, 0, 0, 1)), [1, 0.15, 0.1, 0.05])
COPY = Scored(Tree((1, 3, 5, 6), (-1, 0, 1, 2)), [1, 0.2, 0.12, 0.08])


def both(budget: int, cost=None, first=HEAD, second=COPY) -> Draft:
    (draft,) = MergedDrafter([first, second], budget, cost).propose([Sequence([1], SamplingParams())])
    return draft


def test_scored_trees_are_merged_likeliest_nodes_first():
    #  1 ─┬─ 3 (.2) ── 5 (.12) ── 6 (.08)
    #     └─ 2 (.15) ── 4 (.05)
    merged = both(8)
    assert merged.tree == Tree((1, 3, 2, 5, 6, 4), (-1, 0, 0, 1, 3, 2))
    assert [math.exp(s) for s in merged.scores] == pytest.approx([1, 0.2, 0.15, 0.12, 0.08, 0.05])


@pytest.mark.parametrize("budget", range(1, 7))
def test_a_scored_merge_of_any_budget_keeps_the_likeliest_nodes(budget):
    merged, whole = both(budget), both(6)
    assert merged.tree == Tree(whole.tree.tokens[:budget], whole.tree.parents[:budget])


def test_a_path_that_both_propose_counts_once_with_the_better_score():
    assert [math.exp(s) for s in both(8, second=HEAD).scores] == pytest.approx([1, 0.15, 0.1, 0.05])


def test_what_one_drafter_adds_below_the_others_path_is_kept_there():
    deeper = Scored(Tree((1, 2, 9), (-1, 0, 1)), [1, 0.1, 0.02])
    merged = both(8, second=deeper)
    assert merged.tree.tokens[merged.tree.parents[merged.tree.tokens.index(9)]] == 2
    assert math.exp(merged.scores[merged.tree.tokens.index(2)]) == pytest.approx(0.15), "the better score of the shared node is kept"


def test_a_drafter_without_scores_takes_turns():
    plain = Scripted(lambda _: [7, 8])
    assert both(4, first=plain).tree == Tree((1, 7, 3, 8), (-1, 0, 0, 1))


def test_a_scored_merge_ends_where_a_node_is_not_worth_its_time():
    assert [len(both(8, CostCurve((1, 2), (1.0, 1 + slope))).tree) for slope in (0.0, 0.13, 0.99)] == [6, 3, 1]


def test_lookup_joins_a_scored_merge():
    seq = Sequence([1, 3, 8, 9, 1], SamplingParams())
    (draft,) = MergedDrafter([HEAD, LookupDrafter(2, 8)], 8).propose([seq])
    assert set(draft.tree.tokens) == {1, 2, 3, 4, 8}
    assert draft.tree.tokens[draft.tree.parents[draft.tree.tokens.index(8)]] == 3, "what followed 3 comes below the 3 that both propose"
