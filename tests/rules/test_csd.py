"""CSD's decisions: the two tests, the guards and the budgets, one divergence at a time."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from paceline.errors import InvalidRequest
from paceline.rules.csd import csd
from paceline.rules.csd_config import PUBLISHED, SAFE, CsdConfig
from paceline.rules.match import match
from paceline.rules.memory import Memory, pack
from paceline.rules.spelling import Spelling
from paceline.sampling import SamplingParams
from paceline.tree import Tree

from .lossy import GREEDY, SAMPLED, context, decide, everything

ROWS = [[3.0, 2.0, 1.0, -6.0], [0.0, 5.0, 0.0, 0.0]]  # token 0 wins after the root, token 1 after the child
CHAIN, DRAFTED = Tree.chain((5, 1)), 1
KNOWN = everything(4)
TEXTS = {0: "7", 1: "8", 2: " word", 3: "<="}


def rule(config: CsdConfig = SAFE, memory: Memory = KNOWN, spelling: Spelling | None = None):
    return csd(match, memory, config, spelling)


def book(of):
    return of.ledgers["csd"]


def refusal(config: CsdConfig, tree: Tree = CHAIN, rows=ROWS, of=None, **given) -> str | None:
    verdict, of = decide(rule(config, **given), rows, tree, of)
    event = book(of).events[0]
    assert (len(verdict.path) > 1) == (event.refusal is None), f"path {verdict.path} and refusal {event.refusal}"
    return event.refusal


def test_a_frequent_and_plausible_token_is_kept_and_the_walk_goes_on():
    verdict, of = decide(rule(), ROWS, CHAIN)
    assert verdict == ([0, 1], 1)
    assert (book(of).acted, book(of).spent) == ([4], pytest.approx(1.0))


def test_without_rescue_the_round_ends_with_the_targets_token():
    verdict, of = decide(rule(memory=Memory()), ROWS, CHAIN)
    assert verdict == ([0], 0)
    assert book(of).events[0].refusal == "frequency"


@pytest.mark.parametrize(("seen", "kept"), [(6, False), (7, True)])
def test_a_pair_must_be_seen_more_often_than_the_threshold(seen, kept):
    memory = Memory.calibration({pack(1, 0): seen})
    assert (refusal(PUBLISHED, memory=memory) is None) is kept


@pytest.mark.parametrize(("config", "kept"), [(SAFE, True), (replace(SAFE, symmetric=False), False), (PUBLISHED, False)])
def test_sightings_of_the_reverse_pair_count_unless_switched_off(config, kept):
    memory = Memory.calibration({pack(1, 0): 4, pack(0, 1): 3})
    assert (refusal(config, memory=memory) is None) is kept


@pytest.mark.parametrize(("symmetric", "reason"), [(True, None), (False, "frequency")])
def test_a_requests_own_sighting_of_the_reverse_counts_in_later_rounds(symmetric, reason):
    config = replace(SAFE, min_count=0, symmetric=symmetric)
    _, of = decide(rule(config, Memory()), ROWS, CHAIN)  # 1 was drafted and 0 said
    of.tokens.append(0)
    decide(rule(config, Memory()), [[2.0, 3.0, 0, 0], [0.0] * 4], Tree.chain((0, 0)), of)
    assert [event.refusal for event in book(of).events] == ["frequency", reason]


@pytest.mark.parametrize(("tau", "kept"), [(math.exp(-1.0) - 1e-9, True), (math.exp(-1.0) + 1e-9, False)])
def test_the_gate_compares_two_target_logits(tau, kept):
    assert (refusal(replace(PUBLISHED, tau=tau)) is None) is kept


@pytest.mark.parametrize("temperature", [0.2, 1.0, 3.0])
def test_the_gate_does_not_move_with_the_temperature(temperature):
    params = SamplingParams(temperature=temperature, seed=1)
    config = replace(PUBLISHED, tau=math.exp(-1.0) - 1e-9)

    class Zero:
        def pick(self, probs):
            return 0

    verdict, _ = decide(rule(config), ROWS, Tree.chain((5, 1)), context(params=params), rng=Zero())
    assert verdict.path == [0, 1], f"temperature {temperature}: {verdict}"


def test_tau_one_admits_exact_ties_only():
    config = replace(PUBLISHED, tau=1.0)
    assert refusal(config) == "gate"
    assert refusal(config, rows=[[3.0, 3.0, 0.0, 0.0], ROWS[1]]) is None


@pytest.mark.parametrize(("tests", "memory", "rows"), [("gate", Memory(), ROWS), ("memory", KNOWN, [[30.0, 2.0, 1.0, 0.0], ROWS[1]])])
def test_an_ablation_leaves_one_test_out(tests, memory, rows):
    assert refusal(replace(PUBLISHED, tests=tests), memory=memory, rows=rows) is None
    assert refusal(PUBLISHED, memory=memory, rows=rows) in ("frequency", "gate")


def test_a_banned_token_is_never_kept_not_even_without_the_gate():
    params = SamplingParams(bad_words=((1,),))
    assert refusal(replace(PUBLISHED, tests="memory"), of=context(params=params)) == "gate"


def test_nothing_happens_where_the_targets_token_was_drafted():
    verdict, of = decide(rule(), [*ROWS, ROWS[1]], Tree((5, 1, 0), (-1, 0, 0)))
    assert verdict.path == [0, 2]
    assert not of.ledgers


def test_the_top_token_rejected_by_chance_is_no_divergence():
    class One:
        def pick(self, probs):
            return 2

    verdict, of = decide(rule(), ROWS, Tree.chain((5, 0)), context(params=SAMPLED), rng=One())
    assert verdict == ([0], 2)
    assert book(of).events == []


def test_in_a_tree_the_child_with_the_largest_margin_that_passes_is_kept():
    memory = Memory.calibration({pack(2, 0): 50})
    rows = [ROWS[0], ROWS[1], ROWS[1]]
    verdict, of = decide(rule(replace(SAFE, recent=False), memory), rows, Tree((5, 1, 2), (-1, 0, 0)))
    assert verdict.path == [0, 2], f"{verdict}: token 1 has the larger margin and is not known, token 2 is"
    assert book(of).events[0].drafted == 2


def test_several_rescues_in_one_block_are_counted_at_their_places():
    rows = [[3.0, 2.0, 0, 0], [3.0, 2.0, 0, 0], [0, 0, 0, 3.0]]
    verdict, of = decide(rule(), rows, Tree.chain((5, 1, 1)))
    assert verdict == ([0, 1, 2], 3)
    assert (book(of).acted, book(of).spent) == ([4, 5], pytest.approx(2.0))


def test_a_round_decides_on_the_memory_that_it_began_with():
    rows = [[3.0, 2.0, 0, 0], [3.0, 2.0, 0, 0], [0, 0, 0, 3.0]]
    _, of = decide(rule(), rows, Tree.chain((5, 1, 1)))
    assert book(of).total == 0, f"pairs of the same round were counted: {book(of).own}"
    of.tokens += [1, 1, 3]
    book(of).count(len(of.tokens))
    assert book(of).own == {pack(1, 0): 2}


GUARDS = {
    "special token": ({"spelling": Spelling(frozenset([1]))}, "guard:special"),
    "special target": ({"spelling": Spelling(frozenset([0]))}, "guard:special"),
    "digits": ({"spelling": Spelling(decode=TEXTS.__getitem__)}, "guard:number"),
    "first token": ({"of": context(prompt_length=4)}, "guard:first"),
}


@pytest.mark.parametrize("name", GUARDS)
def test_a_guard_refuses_and_the_published_preset_has_none(name):
    given, reason = GUARDS[name]
    assert refusal(SAFE, **{**given, "of": given.get("of") and context(prompt_length=4)}) == reason
    assert refusal(PUBLISHED, **{**given, "of": given.get("of") and context(prompt_length=4)}) is None


@pytest.mark.parametrize(
    ("one", "other", "conflict"),
    [
        ("1", "2", "number"),
        ("+", "-", "number"),
        ("<", "<=", "comparison"),
        ("(", "[", "bracket"),
        (" 12", "１２", None),  # the same digits in full width
        ("$", "\\(", None),
        ("so", "thus", None),
        ("2", "two", None),
    ],
)
def test_numbers_comparisons_and_brackets_do_not_stand_for_each_other(one, other, conflict):
    assert Spelling(decode=[one, other].__getitem__).conflict(0, 1) == conflict


@pytest.mark.parametrize(
    ("one", "other", "kind"),
    [
        (" So", "so", "case or space"),
        ("so", "thus", "word"),
        ("so", "2", "number"),
        ("12", "13", "number"),
        ("+", "×", "sign"),
        (",", " and", "word for sign"),
    ],
)
def test_a_table_says_in_what_two_tokens_differ(one, other, kind):
    spelling = Spelling(decode=[one, other].__getitem__)
    assert [spelling.kind(0, 1), spelling.kind(1, 0), Spelling().kind(0, 1)] == [kind, kind, "unknown"]


def test_at_most_two_rescues_follow_each_other_across_rounds():
    rows = [[3.0, 2.0, 0, 0]] * 4
    of = context()
    first, _ = decide(rule(), rows[:2], Tree.chain((5, 1)), of)
    assert first.path == [0, 1]
    of.tokens += [1]  # as if the round's last token were still to come
    verdict, _ = decide(rule(), rows[:3], Tree.chain((1, 1, 1)), of)
    assert verdict.path == [0, 1], f"a third rescue in a row: {verdict}"
    assert book(of).events[-1].refusal == "guard:streak"


def test_the_budget_ends_rescuing():
    rows = [[3.0, 2.0, 0, 0]] * 3
    verdict, of = decide(rule(replace(SAFE, max_nats=1.5)), rows, Tree.chain((5, 1, 1)))
    assert verdict.path == [0, 1]
    assert [e.refusal for e in book(of).events] == [None, "budget"]
    assert book(of).spent == pytest.approx(1.0)


def test_a_token_that_the_request_cuts_off_is_not_rescued():
    class Zero:
        def pick(self, probs):
            return 0

    params = SamplingParams(temperature=1.0, top_k=1)
    _, of = decide(rule(PUBLISHED), ROWS, CHAIN, context(params=params), rng=Zero())
    assert book(of).events[0].refusal == "guard:support"


def test_a_token_that_the_draft_overrates_by_far_is_not_rescued():
    class Zero:
        def pick(self, probs):
            return 0

    rows = [[3.0, 0.0, 1.0, 0.0], ROWS[1]]  # p(1) is 0.04; it was chosen, so q is 1
    refusals = []
    for config in (SAFE, PUBLISHED):
        _, of = decide(rule(config), rows, CHAIN, context(params=SAMPLED), rng=Zero())
        refusals.append(book(of).events[0].refusal)
    assert refusals == ["guard:overshoot", None]


def test_shadow_counts_what_would_have_happened_and_changes_nothing():
    verdict, of = decide(rule(replace(SAFE, mode="shadow")), ROWS, CHAIN)
    assert verdict == ([0], 0)
    of.tokens += [0]
    found = book(of).summary(of)
    assert (found["altered"], found["would_alter"], found["nats"]) == (0, 1, pytest.approx(1.0))


def test_off_is_the_base_rule_itself():
    assert rule(replace(SAFE, mode="off")) is match


def test_a_rescue_behind_the_end_of_the_sequence_is_not_reported():
    _, of = decide(rule(), ROWS, CHAIN)
    assert book(of).summary(of)["altered"] == 0, "the token at 4 was not kept"
    of.tokens += [1]
    assert book(of).summary(of)["altered"] == 1


@pytest.mark.parametrize(
    ("setting", "value"),
    [("tau", 0.0), ("tau", 1.5), ("tau", math.nan), ("min_count", -1), ("overshoot", 2), ("streak", 0), ("mode", "maybe"),
     ("tests", "none"), ("max_nats", -1.0), ("guards", "yes")],
)  # fmt: skip
def test_a_threshold_out_of_range_is_refused_by_name(setting, value):
    with pytest.raises(InvalidRequest, match=f"{setting} is"):
        CsdConfig(**{setting: value})


def test_only_the_active_rule_is_declared_lossy():
    declared = [csd(match, None, replace(SAFE, mode=mode)).lossless for mode in ("off", "shadow", "on")]
    assert declared == [True, True, False]


def test_greedy_and_sampled_requests_are_told_apart_in_the_price():
    class Zero:
        def pick(self, probs):
            return 0

    moved = []
    for params in (GREEDY, SAMPLED):
        _, of = decide(rule(PUBLISHED), ROWS, CHAIN, context(params=params), rng=Zero())
        moved.append(book(of).events[0].moved)
    assert moved == [0.0, 1.0], "a rescue is worth a total variation of 1 where a token would have been drawn"
