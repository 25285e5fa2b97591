"""Every method, one matrix: what no drafter and no rule may change."""

from __future__ import annotations

import itertools

import pytest

from paceline import engine, methods
from paceline.draft import Siblings
from paceline.errors import IncompatibleRule, InvalidRequest
from paceline.rules.match import match

from . import matrix, tiny
from .drafts import Planted
from .matrix import DRAWN, LONGEST, PROMPTS, ROWS

every_row = pytest.mark.parametrize("row", ROWS)
every_method = pytest.mark.parametrize("row", [*ROWS, *DRAWN])
deterministic = pytest.mark.parametrize("row", [r for r in ROWS if "/" not in r])


@every_row
@pytest.mark.parametrize("count", [1, 2, LONGEST])
@pytest.mark.parametrize("prompt", PROMPTS.values(), ids=PROMPTS)
def test_greedy_text_is_the_oracles(row, prompt, count):
    matrix.greedy(row, prompt, count)


@every_row
@pytest.mark.parametrize("offset", range(9))
def test_an_end_of_sequence_id_inside_a_block_ends_the_output(row, offset):
    matrix.stop_id(row, offset)


@every_row
@pytest.mark.parametrize("offset", range(9))
def test_a_stop_string_inside_a_block_ends_the_output(row, offset):
    matrix.stop_string(row, offset)


@pytest.mark.parametrize("offset", range(7))
@pytest.mark.parametrize("check", [matrix.stop_id, matrix.stop_string])
def test_a_stop_at_every_place_of_one_accepted_path_ends_the_output(monkeypatch, check, offset):
    monkeypatch.setattr(matrix, "method", lambda row, target: (Planted(keep=lambda seq: 7), match))
    check("planted, seven right tokens", offset)


@every_row
@pytest.mark.parametrize("other", ["planted", "lookup", "draft_model", "none"])
@pytest.mark.parametrize("after", [1, 3])
def test_a_reader_may_stop_and_another_drafter_go_on(row, other, after):
    matrix.resume(row, other, after)


@every_row
@pytest.mark.parametrize("shared", [None, 8, 6, 2, 0])
def test_a_second_turn_keeps_what_is_shared_and_equals_a_fresh_request(row, shared):
    matrix.second_turn(row, shared)


@every_row
@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4), (4, 3, 2, 1, 0), (2, 0, 3, 1, 4)])
def test_a_ragged_batch_equals_each_row_alone_in_any_order(row, order):
    matrix.batch(row, order)


@every_row
def test_rows_that_join_and_leave_between_rounds_do_not_disturb_others(row):
    matrix.company(row)


@pytest.mark.parametrize("prompt", PROMPTS.values(), ids=PROMPTS)
@pytest.mark.parametrize("row", DRAWN)
def test_greedy_text_is_the_oracles_under_every_rule(row, prompt):
    matrix.greedy(row, prompt, LONGEST)


@pytest.mark.parametrize("row", DRAWN)
def test_a_ragged_batch_equals_each_row_alone_under_every_rule(row):
    matrix.batch(row, (2, 0, 3, 1, 4))


@every_method
def test_sampling_from_one_possible_token_is_greedy(row):
    matrix.one_possible(row)


@every_method
@pytest.mark.parametrize("beside", [(), (1, 2), (None, 7, 3)], ids=["alone", "seeded", "mixed"])
def test_a_seed_gives_the_same_text_in_every_company(row, beside):
    matrix.seeded(row, beside)


@every_method
def test_requests_without_a_seed_differ(row):
    matrix.unseeded(row)


@deterministic
@pytest.mark.parametrize("seed", [1, 2])
def test_under_target_match_the_drafter_does_not_change_a_seeded_text(row, seed):
    matrix.expect(matrix.sampled(row, seed), matrix.sampled("none", seed), f"{row} against none, seed {seed}")


@pytest.mark.parametrize("keep", [1, 4, 7])
def test_right_tokens_planted_under_sampling_do_not_change_a_seeded_text(monkeypatch, keep):
    want = matrix.sampled("none", 3)
    monkeypatch.setattr(matrix, "method", lambda row, target: (Planted(lambda prompt: want, lambda seq: keep), match))
    matrix.expect(matrix.sampled("planted", 3), want, f"{keep} right tokens in each draft")


def test_every_method_of_the_table_is_in_the_matrix():
    named = {name for row in (*ROWS, *DRAWN) if row in methods.DRAFTERS or row != "planted" for name in methods.parse(row)[0]}
    rules = {rule for row in (*ROWS, *DRAWN) if row != "planted" for rule in methods.parse(row)[1].split("+")}
    missing = (set(methods.DRAFTERS) - named) | (set(methods.RULES) - rules)
    assert not missing, f"no row of the matrix runs {sorted(missing)}: add it to ROWS in tests/matrix.py"


@pytest.mark.parametrize(("drafter", "rule"), itertools.product(methods.DRAFTERS, methods.RULES))
def test_every_pair_of_the_table_is_in_the_matrix_or_refused_before_the_first_token(drafter, rule):
    name = drafter if rule == "match" else f"{drafter}/{rule}"
    if name in (*ROWS, *DRAWN):
        return
    target = tiny.target()
    with pytest.raises((IncompatibleRule, InvalidRequest)):
        next(engine.rounds(target, *matrix.method(name, target), [matrix.request((1, 2))]))


def test_the_planted_drafter_offers_no_draft_and_paths_of_many_lengths():
    target, seqs = tiny.target(), [matrix.request(p) for p in PROMPTS.values()]
    rounds = list(engine.stream(target, Planted(), match, seqs))
    lengths = {r.num_accepted for r in rounds if len(r.draft.tree) > 1}
    assert lengths >= {0, 1, 2, 3, 4, 5}, f"accepted lengths were only {sorted(lengths)}"
    assert any(len(r.draft.tree) == 1 for r in rounds), "no round went without a draft"


def test_the_planted_path_is_hidden_behind_wrong_branches():
    (draft,) = Planted(keep=lambda seq: 3).propose([matrix.request(PROMPTS["short"])])
    path = draft.tree.follow([10, *matrix.answer("llama", PROMPTS["short"], LONGEST)])
    assert path != list(range(4)), f"the right path {path} is the first rows, which tests nothing"
    assert len(path) == 4, f"the right path {path} is not three tokens long"


def test_rows_of_fixed_candidates_are_those_that_match_verifies():
    target = tiny.target()
    rows = (*ROWS, *DRAWN)
    fixed = {row: matrix.method(row, target)[0].siblings is Siblings.FIXED for row in rows}
    around = {name for name, entry in methods.RULES.items() if entry.wraps}  # match, unless a rule inside is named
    assert fixed == {row: {*row.partition("/")[2].split("+")} <= around | {""} for row in rows}
