"""A rule that cannot verify what a drafter proposes is refused before the first token, with the way out."""

from __future__ import annotations

import pytest

from paceline import engine, methods
from paceline.draft import Draft, Siblings
from paceline.drafters.draft_model import DraftModelDrafter
from paceline.drafters.lookup import LookupDrafter
from paceline.errors import IncompatibleRule
from paceline.rules.match import match
from paceline.rules.rejection import rejection
from paceline.tree import Tree

from .. import matrix, tiny
from ..drafts import Scripted


def first_round(target, drafter, rule):
    return next(engine.rounds(target, drafter, rule, [matrix.request((5, 6, 5), temperature=1.0)]))


DETERMINISTIC = {
    "lookup": lambda: LookupDrafter(),
    "top-k draft model": lambda: DraftModelDrafter(tiny.draft(), tiny.VOCAB),
    "none": lambda: methods.build("none", tiny.target())[0],
}


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_rejection_of_chosen_candidates_is_refused_before_any_forward(name, monkeypatch):
    target = tiny.target()
    monkeypatch.setattr(target, "base", pytest.fail)
    monkeypatch.setattr(target, "full", pytest.fail)
    with pytest.raises(IncompatibleRule, match="use rule match, or a drafter that samples"):
        first_round(target, DETERMINISTIC[name](), rejection)


def test_rejection_of_merged_trees_is_refused_when_the_method_is_built():
    with pytest.raises(IncompatibleRule, match="cannot be merged"):
        methods.build("lookup+draft_model/rejection", tiny.target(), methods.Options(draft_model=tiny.draft()))


class Liar(Scripted):
    """Declares draws, and proposes something else."""

    def __init__(self, draft: Draft) -> None:
        self.siblings, self._draft = Siblings.WITHOUT_REPLACEMENT, draft

    def propose(self, seqs):
        return [self._draft]


LIES = {
    "fixed candidates": (Draft(Tree.chain([5, 6])), "fixed children"),
    "a tree for a rule of chains": (Draft(Tree((5, 6, 7), (-1, 0, 0)), Siblings.WITHOUT_REPLACEMENT), "chains only"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_draft_that_is_not_what_its_drafter_declared_is_refused(lie):
    draft, reason = LIES[lie]
    with pytest.raises(IncompatibleRule, match=reason):
        first_round(tiny.target(), Liar(draft), rejection)


@pytest.mark.parametrize("size", [1, 3, 5])
def test_a_refused_draft_leaves_the_sequence_whole_for_another_drafter(size):
    target, seq = tiny.target(), matrix.request(matrix.PROMPTS["short"])
    with pytest.raises(IncompatibleRule):
        next(engine.rounds(target, Liar(Draft(Tree.chain([seq.root, *range(size)]), Siblings.TOP_AND_DRAW)), rejection, [seq]))
    engine.generate(target, *matrix.method("draft_model", target), [seq])
    matrix.expect(seq.tokens, matrix.plain(matrix.PROMPTS["short"], 40), f"after a refused draft of {size} tokens")


def test_fixed_candidates_are_right_for_a_greedy_request_under_any_rule():
    target, seq = tiny.target(), matrix.request(matrix.PROMPTS["short"])
    right = matrix.plain(matrix.PROMPTS["short"], 40)[len(seq.tokens) :]
    round_ = next(engine.rounds(target, Liar(Draft(Tree.chain([seq.root, *right[:3], right[0]]))), rejection, [seq]))
    assert (round_.num_accepted, round_.tokens) == (3, right[:4])


def test_match_takes_every_kind_of_candidates():
    assert match.needs == frozenset(Siblings)


def test_both_rules_are_declared_lossless():
    assert (match.lossless, rejection.lossless) == (True, True)
