"""EASD's thresholds from what was read: how they are chosen, and the file that carries them."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest

from paceline import methods
from paceline.calibrate.easd import AIM, MOST, N, Reading, calibrate_easd, choose, rate, warnings
from paceline.errors import CheckpointMismatch, InvalidRequest
from paceline.origin import origin_of
from paceline.rules import thresholds
from paceline.rules.thresholds import Thresholds

from .letters import PLAN, pair, prompts

quiet = lambda done, of: None  # noqa: E731


def readings(count: int = 20_000, seed: int = 0) -> list[Reading]:
    draw = random.Random(seed)
    made = []
    for _ in range(count):
        height = draw.expovariate(1.0)
        made.append(Reading(height, height + draw.gauss(0, 0.3), draw.randint(3, 10), draw.random(), draw.random(), draw.random() < 0.7))
    return made


@pytest.mark.parametrize("aim", [0.005, AIM, 0.01])
def test_the_thresholds_flip_as_many_positions_as_was_asked_for(aim):
    found = readings()
    tau, shared = choose(found, aim)
    assert rate(found, tau, shared) == pytest.approx(aim, rel=0.02), f"tau {tau:.3f}, {shared} shared"
    assert shared == 8, "the strict overlap is enough here"


def test_the_overlap_is_lowered_where_too_few_agree_so_closely():
    found = [r._replace(shared=min(r.shared, 6)) for r in readings()]
    tau, shared = choose(found, AIM)
    assert shared == 6
    assert rate(found, tau, shared) == pytest.approx(AIM, rel=0.02)


def test_the_overlap_is_never_below_one_half():
    found = [r._replace(shared=4) for r in readings(1000)]
    tau, shared = choose(found, AIM)
    assert shared == N // 2
    assert rate(found, tau, shared) == 0


def test_flips_that_the_guards_would_block_do_not_count():
    found = [r._replace(top=0.9) for r in readings(1000)]
    assert rate(found, 0.0, 0) == 0


def test_no_positions_are_as_rare_as_few_readings_allow():
    found = readings(60)
    tau, shared = choose(found, AIM)
    assert rate(found, tau, shared) <= max(MOST, 1 / 60), f"{rate(found, tau, shared)}"


@pytest.mark.parametrize(
    ("rates", "said"),
    [({"all": 0.007, "a": 0.008, "b": 0.006}, 0), ({"all": 0.05, "a": 0.05}, 1), ({"all": 0.007, "a": 0.012, "b": 0.002}, 1)],
)
def test_rates_outside_of_what_is_wanted_are_said(rates, said):
    assert len(warnings(rates)) == said, f"{warnings(rates)}"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("easd") / "thresholds.json"
    return calibrate_easd(pair(), PLAN, prompts(), out, aim=MOST, say=quiet), out


def test_the_file_carries_what_was_chosen_with_the_models_and_the_rates(made):
    report, out = made
    found = thresholds.load(out)
    assert found.settings["tau_target"] == report["tau_target"] == found.settings["tau_draft"]
    assert (found.settings["n"], found.origin.target, found.origin.draft) == (N, "big", "small")
    assert set(found.rates["flips_per_position"]) == {"all", "even", "odd"}
    assert [p.name for p in out.parent.iterdir()] == ["thresholds.json"]


def test_every_position_that_was_looked_at_is_read(made):
    assert made[0]["positions"] > 40, f"{made[0]['positions']} positions of {len(prompts()) * PLAN.max_new_tokens} tokens"


def test_with_thresholds_the_rule_is_on_and_without_them_it_watches(made):
    both = pair()
    on = methods.build("draft_model/easd", both.target, methods.Options(draft_model=both.draft, thresholds=made[1]))[1]
    bare = methods.build("draft_model/easd", both.target, methods.Options(draft_model=both.draft))[1]
    assert (on.decide.config.mode, bare.decide.config.mode) == ("on", "shadow")
    assert on.decide.config.tau_target == made[0]["tau_target"]


def test_thresholds_of_another_pair_are_refused(made):
    other = pair(noise=0.3)
    with pytest.raises(CheckpointMismatch, match="the thresholds file belongs to big with small: its draft model is"):
        methods.build("draft_model/easd", other.target, methods.Options(draft_model=other.draft, thresholds=made[1]))


BROKEN = {
    "no JSON": lambda v: "{",
    "another schema": lambda v: json.dumps(v | {"schema": "x"}),
    "a threshold out of range": lambda v: json.dumps(v | {"settings": v["settings"] | {"tau_overlap": 3}}),
    "a threshold missing": lambda v: json.dumps(v | {"settings": {"n": 10}}),
    "another meaning of entropy": lambda v: json.dumps(v | {"meaning": {"log": "2"}}),
    "a list": lambda v: "[]",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_damaged_file_is_refused_in_one_line(tmp_path, name):
    both, file = pair(), tmp_path / "t.json"
    thresholds.save(
        Thresholds({"tau_target": 1.0, "tau_draft": 1.0, "n": 10, "tau_overlap": 0.8}, origin_of(both.target, both.draft)), file
    )
    file.write_text(BROKEN[name](json.loads(file.read_text())))
    with pytest.raises(CheckpointMismatch, match="holds no thresholds that can be used") as error:
        thresholds.load(file)
    assert "\n" not in str(error.value)


def test_an_aim_out_of_range_is_refused(tmp_path):
    with pytest.raises(InvalidRequest, match=r"aim is 0\.5"):
        calibrate_easd(pair(), PLAN, prompts(), tmp_path / "t", aim=0.5, say=quiet)


def test_prompts_without_drafts_cannot_be_calibrated(tmp_path):
    with pytest.raises(InvalidRequest, match="nothing was drafted"):
        calibrate_easd(pair(), replace(PLAN, max_new_tokens=1), prompts(), tmp_path / "t", say=quiet)
