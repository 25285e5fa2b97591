"""The sweep of a lossy rule: what it decodes, and how points, anchor and controls are told apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.bench.settings import Settings
from paceline.cli import main
from paceline.errors import InvalidRequest
from paceline.quality.plan import Plan
from paceline.quality.sweep import Sweep, passed_of_rejections, plan_at, plan_of_anchor, plan_of_control, wanted_of_open
from paceline.quality.sweep_report import price, remarks
from paceline.quality.sweep_table import plot

from ..cli.conftest import save_model
from .conftest import LENGTH, SENTENCES

CSD = Sweep.parse("draft_model/rejection+csd", "csd.tau=0.5, 0.1")
EASD = Sweep.parse("draft_model/easd", "easd.tau_target=1")


def plan(method: str, **settings: Any) -> Plan:
    return Plan("gsm8k", Settings(draft_model="d", methods=(method,), peers=(), **settings))


def test_anchor_and_control_are_the_method_without_the_rule_and_with_its_control() -> None:
    assert (CSD.anchor, CSD.control_method) == ("draft_model/rejection", "draft_model/rejection+random_rescue")
    assert (EASD.anchor, EASD.control_method) == ("draft_model", "draft_model/random_veto")


def test_a_point_differs_from_the_plan_in_the_setting_alone() -> None:
    made = plan_at(plan(CSD.method, rule_settings={"csd.streak": "3"}), CSD, "0.1").settings
    assert (made.rule_mode, made.rule_settings) == ("on", {"csd.streak": "3", "csd.tau": "0.1"})


def test_a_control_has_the_rate_and_the_guards_of_the_rule_and_nothing_else_of_it() -> None:
    settings = {"csd.preset": "published", "csd.min_count": "0", "csd.streak": "3"}
    made = plan_of_control(plan(CSD.method, rule_settings=settings), CSD, 0.25).settings
    assert made.methods == ("draft_model/rejection+random_rescue",)
    assert made.rule_settings == {"random_rescue.rate": "0.25", "random_rescue.preset": "published", "random_rescue.streak": "3"}


def test_the_anchor_is_told_nothing_of_the_rule() -> None:
    made = plan_of_anchor(plan(CSD.method, rule_settings={"csd.streak": "3"}), CSD).settings
    assert (made.methods, made.rule_mode, made.rule_settings) == (("draft_model/rejection",), None, None)


@pytest.mark.parametrize(
    ("method", "text", "says"),
    [
        ("draft_model", "csd.tau=0.1", "one of the rules csd, easd"),
        ("draft_model/csd+easd", "csd.tau=0.1", "one of the rules csd, easd"),
        ("draft_model/random_veto", "random_veto.rate=0.1", "one of the rules csd, easd"),
        ("draft_model/csd", "easd.n=3", "name a setting of csd"),
        ("draft_model/csd", "csd.mode=on,off", "other than its mode"),
        ("draft_model/csd", "csd.tau", "write it as"),
        ("draft_model/csd", "tau=0.1", "write it as"),
        ("draft_model/csd", "csd.tau=0.1,0.1", "a value twice"),
    ],
)
def test_a_sweep_that_is_none_is_refused(method: str, text: str, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        Sweep.parse(method, text)


def test_a_value_that_the_rule_refuses_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequest, match="tau is 7"):
        plan_at(plan(CSD.method), CSD, "7")


ROWS = [
    {
        "run": "csd.tau=0.5",
        "outputs": [
            {"tokens": [1] * 30, "rules": {"csd": {"altered": 3, "nats": 1.5, "total_variation": 0.2}}},
            {"tokens": [1] * 10, "rules": {"csd": {"altered": 1, "nats": 0.5, "total_variation": 0.6}}},
        ],
    },
    {"run": "csd.tau=0.1", "outputs": [{"tokens": [1] * 10}]},
]


def test_a_control_vetoes_as_large_a_share_of_open_places_as_the_rule_wanted() -> None:
    told = {"altered": 3, "refused": {"guard:cooldown": 2}, "seen": {"scanned": 90, "open": 16, "triggered": 9, "no-op": 4}}
    none = {"altered": 0, "refused": {}, "seen": {"open": 4}}
    rows = [{"run": "a", "outputs": [{"rules": {"easd": told}}, {"rules": {"easd": none}}, {}]}]
    assert wanted_of_open(rows, "a") == 5 / 20, "a guard comes after the wish, and a place that nothing would change is none"
    assert wanted_of_open(rows, "b") == 0


def test_a_control_rescues_as_large_a_share_as_passed_the_tests() -> None:
    told = {"altered": 3, "refused": {"frequency": 4, "gate": 1, "guard:number": 2}}
    rows = [{"run": "a", "outputs": [{"rules": {"csd": told}}, {"rules": {"csd": {"altered": 0, "refused": {"frequency": 5}}}}, {}]}]
    assert passed_of_rejections(rows, "a") == 5 / 15, "a guard comes after the tests"
    assert passed_of_rejections(rows, "b") == 0


def test_prices_are_per_token_of_all_outputs() -> None:
    found = price(ROWS[0]["outputs"], CSD.method, CSD)  # type: ignore[arg-type]
    assert found == pytest.approx({"altered_per_1k": 100, "nats_per_1k": 50, "total_variation": 0.3})


def pair(difference: float, p: float) -> dict[str, Any]:
    return {"difference": difference, "difference_interval": [difference - 0.05, difference + 0.05], "p_value": p}


@pytest.mark.parametrize(
    ("versus", "says"), [(pair(0.1, 0.01), "beats its control"), (pair(0.1, 0.2), "does NOT beat"), (pair(-0.1, 0.01), "does NOT beat")]
)
def test_a_method_that_does_not_beat_its_control_is_told_so(versus: dict[str, Any], says: str) -> None:
    (found,) = remarks(EASD, [{"value": "1", "vs_anchor": pair(0, 1), "vs_control": versus}])
    assert says in found


@pytest.fixture(scope="module")
def near(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A draft model that mostly agrees with the target: the target itself would leave nothing to rescue."""
    return save_model(tmp_path_factory.mktemp("near"), seed=2, sentences=SENTENCES, noise=0.03)


def test_anchor_points_and_controls_come_out_of_the_command(
    model: str, near: str, problems: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "sweep.svg"
    given = [
        "--model", model, "--draft-model", near, "--method", "draft_model/csd", "--sweep", "csd.tau=1,0.001", "--task", "gsm8k",
        "--rule-settings", "csd.tests=gate", "--rule-settings", "csd.preset=published", "--prompts", str(problems), "--limit", "4",
        "--dtype", "float32", "--max-new-tokens", str(LENGTH), "--batch-size", "2", "--plot", str(picture), "--json", "-",
    ]  # fmt: skip
    with pytest.raises(SystemExit) as ended:
        main(["audit", *given])
    out, err = capsys.readouterr()
    assert not ended.value.code, err
    found = json.loads(out)
    strict, loose = found["points"]
    assert (found["anchor"]["run"], found["anchor"]["lossless"], found["problems"]) == ("draft_model", True, 4)
    assert (strict["method"]["altered_per_1k"], strict["control"]) == (0, None), "tau 1 rescues nothing"
    assert strict["method"]["tokens"] == found["anchor"]["tokens"]
    assert loose["method"]["altered_per_1k"] > 0
    assert 0.3 < loose["control"]["altered_per_1k"] / loose["method"]["altered_per_1k"] < 2, loose
    assert loose["method"]["rounds_saved"] == pytest.approx(loose["method"]["tokens_per_round"] / found["anchor"]["tokens_per_round"] - 1)
    assert len(found["grades"]) == 4
    assert "<svg" in picture.read_text()
    assert "random_rescue as often as csd.tau=0.001" in err


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--sweep", "csd.tau=0.1"], "--task"),
        (["--sweep", "csd.tau=0.1", "--task", "gsm8k", "--replays", "500"], "--replays has no effect with --sweep"),
        (["--task", "gsm8k"], "--task has no effect without --sweep"),
        (["--plot", "a.png"], "--plot has no effect without --sweep"),
    ],
)
def test_options_without_effect_are_refused(more: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["audit", "--draft-model", "d", "--method", "draft_model/csd", *more])
    assert (ended.value.code, says in capsys.readouterr().err) == (2, True)


def test_a_plot_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    from paceline.errors import PacelineError

    line = {"run": "a", "accuracy": 0.5, "interval": [0.4, 0.6], "tokens_per_round": 2.0, "altered_per_1k": 1.0}
    report = {"method": "m", "setting": "csd.tau", "task": "gsm8k", "problems": 2, "anchor": line, "points": []}
    with pytest.raises(PacelineError, match="cannot be written"):
        plot(report, tmp_path / "no" / "sweep.png")
