"""The profile file: written whole, read back, and refused elsewhere."""

from __future__ import annotations

import dataclasses
import json
import logging

import pytest
import torch

from paceline import methods
from paceline.cost import CostCurve
from paceline.drafters.part import GUESS_MODEL, GUESS_WEIGHT
from paceline.errors import CheckpointMismatch, InvalidRequest, PacelineError
from paceline.origin import origin_of
from paceline.tune import profile as profiles
from paceline.tune.assemble import assemble, available, model_of
from paceline.tune.profile import Profile, Tuned

from .. import tiny
from ..heads.small import random_head

KNOWN = {"seconds": {"1": 0.0}, "catch_up": 0.0, "claims": [(10.0, 1.0)] * 9, "gains": [(0.25, 3.0)] * 4}


def made(target, **changes) -> Profile:
    whole = Profile(
        origin_of(target, "none"),
        "float32",
        profiles.machine(target.device),
        {"paceline": "0"},
        "2026-01-01T00:00:00+00:00",
        {1: CostCurve((1, 8), (1.0, 2.0)), 4: CostCurve((4, 32), (2.0, 4.0))},
        {"lookup": Tuned("", KNOWN)},
        {"1": {"options": "--method lookup", "reason": "it pays"}},
    )
    return dataclasses.replace(whole, **changes)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    return tmp_path


def test_what_is_written_is_read_back(tmp_path, target):
    profiles.write(made(target), tmp_path / "new" / "p.json")
    again = profiles.read_for(tmp_path / "new" / "p.json", target)
    assert (again.cost, again.machine, again.choice) == (made(target).cost, made(target).machine, made(target).choice)


def test_an_interrupted_write_leaves_the_old_file_and_no_other(tmp_path, target, monkeypatch):
    file = tmp_path / "p.json"
    profiles.write(made(target), file)
    before = file.read_text()

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("pathlib.Path.replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        profiles.write(made(target, made="later"), file)
    assert (file.read_text(), [f.name for f in tmp_path.iterdir()]) == (before, ["p.json"])


def test_a_place_that_cannot_be_written_is_named(tmp_path, target):
    (tmp_path / "file").write_text("")
    with pytest.raises(PacelineError, match=r"cannot be written to .*file/p.json"):
        profiles.write(made(target), tmp_path / "file" / "p.json")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"machine": {"cpu": "another"}}, ["its cpu is another and here it is", "paceline tune --model llama"]),
        ({"dtype": "bfloat16"}, ["its dtype is bfloat16 and here it is float32"]),
    ],
)
def test_a_profile_of_another_machine_or_dtype_is_refused_with_the_remedy(tmp_path, target, changes, words):
    if "machine" in changes:
        changes = {"machine": {**profiles.machine(target.device), **changes["machine"]}}
    profiles.write(made(target, **changes), tmp_path / "p.json")
    with pytest.raises(CheckpointMismatch) as error:
        methods.build("auto", target, methods.Options(profile=tmp_path / "p.json"))
    for word in words:
        assert word in str(error.value), f"{word!r} is not in {error.value}"


def test_a_profile_of_other_weights_is_refused(tmp_path, target):
    profiles.write(made(tiny.draft(noise=0.3)), tmp_path / "p.json")
    with pytest.raises(CheckpointMismatch, match="with other weights"):
        profiles.read_for(tmp_path / "p.json", target)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"format": 99}', '{"format": 1, "cost": 3}'])
def test_a_file_that_is_no_profile_is_refused(tmp_path, text):
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(InvalidRequest, match="is no profile of this version"):
        profiles.read(tmp_path / "p.json")


def test_a_file_that_is_not_there_is_refused_with_the_command_that_makes_it(tmp_path):
    with pytest.raises(InvalidRequest, match=r"cannot be read .*paceline tune --out"):
        profiles.read(tmp_path / "p.json")


def test_auto_starts_from_the_profile_in_the_cache(cache, target):
    profiles.write(made(target), profiles.default_file(target))
    start = assemble(target, methods.Options())
    assert start.basis == "the profile of 2026-01-01T00:00:00+00:00"
    (lookup,) = start.parts
    assert [g.value for g in lookup.known.gains] == [0.25] * 4
    assert lookup.known.tried
    assert lookup.known.claims.ratio(0) == pytest.approx(5 / 14)
    assert start.costs.of(4)(32) == 4.0


def test_a_stale_profile_in_the_cache_is_ignored_with_a_warning(cache, target, caplog):
    profiles.write(made(target, dtype="float16"), profiles.default_file(target))
    with caplog.at_level(logging.WARNING):
        starts = [assemble(target, methods.Options()) for _ in range(2)]
    assert [s.basis for s in starts] == ["a short measurement", "a short measurement, and 1 earlier request"]
    assert len(caplog.records) == 1, [r.getMessage() for r in caplog.records]
    assert "dtype is float16" in caplog.text


def test_what_a_profile_says_of_another_draft_model_is_not_believed(cache, target):
    profiles.write(made(target, drafters={"draft_model": Tuned("another one", KNOWN)}), profiles.default_file(target))
    parts = assemble(target, methods.Options(draft_model=tiny.draft())).parts
    (draft,) = [p for p in parts if p.name == "draft_model"]
    assert draft.known.gains[0].value != 0.25


def test_the_drafters_are_those_that_can_be_built_with_what_is_at_hand(target):
    found, lacking = available(target, methods.Options())
    assert list(found) == ["lookup"]
    assert "give one with --draft-model" in lacking["draft_model"]
    assert "no JetSpec head is shipped" in lacking["jetspec"]
    assert "specbound" in lacking
    assert list(available(target, methods.Options(draft_model=tiny.draft(), exits="lens"))[0]) == ["lookup", "draft_model", "specbound"]


def test_an_option_of_one_drafter_that_cannot_be_used_is_an_error(target, tmp_path):
    with pytest.raises(CheckpointMismatch, match="holds no head"):
        available(target, methods.Options(head=str(tmp_path)))


def test_a_start_without_a_profile_knows_what_a_draft_model_costs(cache, target):
    lookup, draft = assemble(target, methods.Options(draft_model=tiny.draft())).parts
    assert lookup.known.seconds == {1: 0.0}
    draft.prepare(1)
    assert (draft.known.price(1) > 0, draft.known.catch_up > 0) == (True, True)
    assert [gain.value for gain in draft.known.gains] == [*GUESS_MODEL], "it is thought worth a trial though it may cost more than a round"
    assert {gain.weight for gain in draft.known.gains} == {GUESS_WEIGHT}, "and one bad draft does not say that it is not"
    assert not draft.known.tried
    assert (lookup.steps, draft.steps.drafter) == (None, draft.drafter), "a draft of several forwards may be ended early"
    assert draft.known.price(1) == pytest.approx(draft.drafter.depth * draft.steps.seconds(1))


def test_what_drafts_for_several_sequences_cost_is_measured_when_there_are_so_many(cache, target):
    _, draft, head = assemble(target, methods.Options(draft_model=tiny.draft(), head=random_head(target))).parts
    for part in (draft, head):
        guesses = [gain.value for gain in part.known.gains]
        assert guesses == sorted(set(guesses), reverse=True), "where others promise much, one more adds little"
        seen = [part.known.seconds.copy() for batch in (1, 3, 4) if part.prepare(batch) is None]
        assert [set(seconds) for seconds in seen] == [{1}, {1, 2, 4}, {1, 2, 4}]
        part.known.seconds[2] = 99.0
        part.prepare(8)
        assert (part.known.seconds[2], set(part.known.seconds)) == (99.0, {1, 2, 4, 8}), "nothing is measured twice"
    assert head.known.price(8) < 8 * head.known.price(1), "one forward drafts for all of them"


def test_what_a_profile_says_of_a_drafter_is_not_measured_again(cache, target):
    draft = tiny.draft()
    _, unprofiled = assemble(target, methods.Options(draft_model=draft)).parts
    tuned = Tuned(model_of(unprofiled.drafter), KNOWN | {"seconds": {"1": 5.0}})
    profiles.write(made(target, drafters={"draft_model": tuned}), cache / "p.json")
    _, part = assemble(target, methods.Options(draft_model=draft), cache / "p.json").parts
    part.prepare(8)
    assert part.known.seconds == {1: 5.0}
    assert part.steps.seconds(1) == 5.0 / part.drafter.depth, "nor what one of its forwards takes"


def test_later_requests_begin_with_what_earlier_ones_of_the_same_kind_have_shown(cache, target):
    draft, options = tiny.draft(), {"num_speculative_tokens": 3}
    first, again, deeper, other = (
        assemble(target, methods.Options(draft_model=model, **told))
        for model, told in ((draft, options), (draft, options), (draft, {}), (tiny.draft(noise=0.5), options))
    )
    assert (again.basis, again.costs) == ("a short measurement, and 1 earlier request", first.costs)
    lookups, models = zip(*(start.parts for start in (first, again, deeper, other)), strict=True)
    assert [part.known is models[0].known for part in models] == [True, True, False, False]
    assert lookups[1].known is lookups[0].known
    assert first.parts[1].drafter is not again.parts[1].drafter, "what it holds of a text is its own"


def test_targets_and_profiles_share_nothing(cache, target):
    profiles.write(made(target), cache / "p.json")
    starts = [assemble(target, methods.Options()), assemble(target, methods.Options(), cache / "p.json")]
    starts.append(assemble(tiny.target(), methods.Options()))
    assert len({id(start.costs) for start in starts}) == 3
    assert not any("earlier" in start.basis for start in starts)


def test_the_default_place_depends_on_target_and_dtype(cache, target):
    half = tiny.draft()
    half.model = type("Half", (), {"dtype": torch.float16})
    assert profiles.default_file(target) == cache / "profiles" / "llama-float32.json"
    assert profiles.default_file(half).name == "llama-float16.json"


def test_a_profile_is_strict_json(tmp_path, target):
    profiles.write(made(target), tmp_path / "p.json")
    assert json.loads((tmp_path / "p.json").read_text())["format"] == profiles.FORMAT
