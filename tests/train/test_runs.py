"""Training on what several runs have made."""

from __future__ import annotations

import pytest
import torch

from paceline.train.data import Prepared, joined
from paceline.train.examples import Example
from paceline.train.features import Shelf, Store
from paceline.train.prompts import Row
from paceline.train.recipe import Recipe
from paceline.train.setup import _complete

from .conftest import sequences


def example(key: str, last: int = 4) -> Example:
    return Example(key, "t", (1, 2, 3, last), 2)


def part(train: str, held: str = "", last: int = 4, licence: str = "CC0") -> Prepared:
    return Prepared([example(k, last) for k in train], [example(k, last) for k in held], [Row(k, "t", (k,)) for k in held], [licence], 9)


def test_one_run_is_itself_in_an_order_of_the_seed():
    alone = joined([part("abcdef", "xy")], seed=1)
    assert sorted(e.key for e in alone.train) == list("abcdef")
    assert [e.key for e in alone.train] != [e.key for e in joined([part("abcdef", "xy")], seed=2).train]
    assert ({e.key for e in alone.held_out}, {r.id for r in alone.rows}, alone.made) == ({"x", "y"}, {"x", "y"}, 9)


def test_where_two_runs_answered_a_prompt_the_first_counts():
    both = joined([part("ab", last=4), part("bc", last=7)], seed=0)
    assert {e.key: e.tokens[-1] for e in both.train} == {"a": 4, "b": 4, "c": 7}


def test_what_one_run_holds_out_is_not_learnt_from_in_another():
    both = joined([part("ab", "x"), part("xc", "b")], seed=0)
    assert ({e.key for e in both.train}, {e.key for e in both.held_out}) == ({"a", "c"}, {"x", "b"})


def test_figures_licences_and_the_limit_are_those_of_all():
    both = joined([part("ab"), part("cd", licence="MIT")], seed=0, sequences=3)
    assert (both.figures["sequences"], both.figures["sequences_made"], both.licences) == (3, 18, ["CC0", "MIT"])


def test_features_that_are_missing_go_to_the_first_run_that_has_the_text(teacher_target, taps, tmp_path):
    texts = sequences(teacher_target, 3)
    stores = [Store(tmp_path / name, taps, "mark", 1) for name in ("first", "second")]
    parts = [(store, Prepared(own, [], [], [], len(own))) for store, own in zip(stores, (texts[:2], texts[1:]), strict=True)]
    _complete(parts, texts, lambda message: None)
    assert [[e.key in store for e in texts] for store in stores] == [[True, True, False], [False, False, True]]
    shelf = Shelf(stores)
    for text in texts:
        (want,) = taps.read([text.tokens])
        assert torch.equal(shelf.get(text).features, want.features.to(torch.bfloat16)), text.key
    assert [key in shelf for key in ("e0", "e2", "e9")] == [True, True, False]


@pytest.mark.parametrize(("given", "read"), [(None, []), ("a", ["a"]), (["a", "b"], ["a", "b"])], ids=str)
def test_runs_are_named_alone_or_in_a_list(given, read):
    data = {"from_run": given} if given else {"prompts": ["p.jsonl"], "from_run": given}
    assert Recipe.model_validate({"model": "m", "data": data}).data.from_run == read
