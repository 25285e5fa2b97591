"""The lossy rules on the command line: what a reply says of itself, calibration from prompts to use, and mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import Call
from .test_bad_input import assert_refused
from .test_generate import PROMPT, words

LOOSE = ["--rule-settings", "csd.preset=published", "--rule-settings", "csd.tests=gate", "--rule-settings", "csd.tau=0.001"]
VETO = [
    arg
    for setting in ("easd.preset=published", "easd.tau_target=0.1", "easd.tau_draft=0.1", "easd.tau_overlap=0.2")
    for arg in ("--rule-settings", setting)
]


@pytest.fixture
def lossy(generate: Call, draft_model: str) -> Call:
    def call(rule: str, *args: str) -> object:
        return generate(PROMPT, "--method", "draft_model", "--draft-model", draft_model, "--rule", rule, "--max-new-tokens", "24", *args)

    return call


def test_a_reply_says_whether_it_was_altered_how_often_and_why(lossy: Call) -> None:
    found = lossy("csd", "--json", *LOOSE).json
    rules = found["rules"]["csd"]
    assert (found["lossless"], found["method"], rules["mode"]) == (False, "draft_model/csd", "on")
    assert found["altered"] == rules["altered"] == len(rules["positions"]) > 0
    assert 0 < rules["nats"] <= rules["altered"] * 6.91
    assert sum(count for _, _, count in rules["pairs"]) <= rules["altered"]


def test_stats_print_the_rescues_and_their_nats(lossy: Call) -> None:
    err = words(lossy("csd", "--stats", *LOOSE).err)
    assert "draft_model/csd, rule csd: LOSSY" in err, err
    assert "csd rescued" in err, err
    assert "nats" in err, err


def test_shadow_counts_and_gives_the_targets_own_text(lossy: Call, generate: Call) -> None:
    plain = generate(PROMPT, "--method", "none", "--max-new-tokens", "24", "--json").json
    found = lossy("csd", "--json", "--rule-mode", "shadow", *LOOSE).json
    assert found["tokens"] == plain["tokens"]
    assert (found["lossless"], found["altered"]) == (True, 0)
    assert found["rules"]["csd"]["would_alter"] > 0


def test_off_is_the_rule_inside(lossy: Call, generate: Call) -> None:
    plain = generate(PROMPT, "--method", "none", "--max-new-tokens", "24", "--json").json
    found = lossy("csd+easd", "--json", "--rule-mode", "off").json
    assert (found["tokens"], found["altered"], found["rules"]) == (plain["tokens"], 0, {})


def test_a_veto_is_reported_like_a_rescue(generate: Call, model: str) -> None:
    own = ["--method", "draft_model", "--draft-model", model]  # so that both agree
    found = generate(PROMPT, *own, "--rule", "easd", "--rule-mode", "on", "--max-new-tokens", "24", "--json", *VETO).json
    assert found["altered"] == found["rules"]["easd"]["altered"] > 0
    assert found["rules"]["easd"]["seen"]["scanned"] > 0


def test_a_veto_without_thresholds_only_watches(lossy: Call) -> None:
    assert lossy("easd", "--json", *VETO).json["rules"]["easd"]["mode"] == "shadow"


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    texts = ["the rain falls on the quiet lake", "a small bird sings", "user and assistant talk"]
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"id": t[:6], "task": "toys", "turns": [t]}) + "\n" for t in texts))
    return file


@pytest.mark.parametrize(("rule", "option"), [("csd", "--memory"), ("easd", "--thresholds")])
def test_what_was_calibrated_is_used(
    paceline: Call, lossy: Call, model: str, draft_model: str, prompts: Path, tmp_path: Path, rule: str, option: str
) -> None:
    out, models = tmp_path / "made", ["--model", model, "--draft-model", draft_model, "--dtype", "float32"]
    found = paceline("calibrate", rule, *models, "--prompts", str(prompts), "--out", str(out), "--max-new-tokens", "24", "--json").json
    assert found["rejections" if rule == "csd" else "positions"] > 0
    told = lossy(rule, "--json", option, str(out)).json
    assert told["lossless"] is False, "it is on"
    assert rule in told["rules"]


def test_a_memory_of_other_models_is_refused(
    paceline: Call, generate: Call, model: str, draft_model: str, prompts: Path, tmp_path: Path
) -> None:
    out = tmp_path / "made"
    made = paceline(
        "calibrate", "csd", "--model", draft_model, "--draft-model", model, "--dtype", "float32",
        "--prompts", str(prompts), "--out", str(out), "--max-new-tokens", "4",
    )  # fmt: skip
    assert made.code == 0, made.err
    args = [PROMPT, "--method", "draft_model", "--draft-model", draft_model, "--rule", "csd", "--memory", str(out)]
    assert_refused(generate(*args), "the memory belongs to", "its target is")


@pytest.fixture
def no_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a model was loaded before the options were checked")

    monkeypatch.setattr("paceline.targets.load.load", refuse)


DRAFT = ["--method", "draft_model", "--draft-model", "small"]
BAD = [
    (["--rule", "csd", "--method", "lookup/match"], ["--rule csd", "both name a rule"]),
    (["--method", "lookup", "--rule", "easd"], ["rule easd", "lookup hands none over", "draft_model"]),
    (["--rule", "csd", "--method", "none"], ["rule csd", "none does not propose"]),
    (["--rule-mode", "on"], ["--rule-mode has no effect", "method auto"]),
    (["--memory", "somewhere"], ["--memory has no effect"]),
    ([*DRAFT, "--rule", "csd", "--thresholds", "somewhere"], ["--thresholds has no effect"]),
    ([*DRAFT, "--rule", "easd", "--memory", "somewhere"], ["--memory has no effect"]),
    ([*DRAFT, "--rule", "csd", "--rule-mode", "maybe"], ["mode is 'maybe'", "off, shadow, on"]),
    ([*DRAFT, "--rule", "csd", "--rule-mode", "off", "--rule-settings", "csd.tau=0.1"], ["rule_settings has no effect with rule_mode off"]),
    ([*DRAFT, "--rule", "csd", "--rule-settings", "csd.tau=2"], ["tau is 2", "at most 1"]),
    ([*DRAFT, "--rule", "csd", "--rule-settings", "csd.tau=low"], ["csd.tau is 'low'"]),
    ([*DRAFT, "--rule", "csd", "--rule-settings", "csd.temperature=2"], ["no setting 'temperature'", "min_count"]),
    ([*DRAFT, "--rule", "csd", "--rule-settings", "csd.preset=bold"], ["csd.preset is 'bold'", "safe, published"]),
    ([*DRAFT, "--rule", "csd", "--rule-settings", "easd.n=4"], ["'easd.n' is of no rule in csd"]),
    ([*DRAFT, "--rule", "csd", "--rule-settings", "tau"], ["'tau' is none", "csd.tau=0.05"]),
    ([*DRAFT, "--rule", "csd", "--rule-mode", "on", "--rule-settings", "csd.mode=on"], ["both say the mode"]),
    ([*DRAFT, "--rule", "csd+match+rrs"], ["joins what cannot be joined"]),
    ([*DRAFT, "--rule", "csd", "--memory", "no-such-file"], ["there is no memory no-such-file", "paceline calibrate csd"]),
    ([*DRAFT, "--rule", "easd", "--thresholds", "no-such-file"], ["there is no thresholds file no-such-file"]),
]


@pytest.mark.usefixtures("no_loading")
@pytest.mark.parametrize(("args", "said"), BAD, ids=[" ".join(args) for args, _ in BAD])
@pytest.mark.parametrize("command", ["generate", "chat"])
def test_a_mistake_is_refused_before_a_model_is_loaded(paceline: Call, command: str, args: list[str], said: list[str]) -> None:
    assert_refused(paceline(command, *(["hello"] if command == "generate" else []), *args), *said)


@pytest.mark.usefixtures("no_loading")
def test_a_damaged_memory_is_refused_before_a_model_is_loaded(paceline: Call, tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(b"garbage")
    assert_refused(paceline("generate", "hello", *DRAFT, "--rule", "csd", "--memory", str(tmp_path / "m")), "is no memory that can be used")


CALIBRATE = [
    (["csd", *DRAFT[2:]], ["--prompts FILE and --out FILE"]),
    (["csd", "--prompts", "p", "--out", "o"], ["needs a draft model"]),
    (["csd", *DRAFT[2:], "--method", "draft_model/csd", "--prompts", "p", "--out", "o"], ["names a rule"]),
    (["csd", *DRAFT[2:], "--prompts", "no-such.jsonl", "--out", "o"], ["no-such.jsonl", "cannot be read"]),
    (["csd", *DRAFT[2:], "--prompts", "p", "--out", "o", "--add-to", "no-such"], ["there is no memory no-such"]),
    (["csd", *DRAFT[2:], "--prompts", "p", "--out", "o", "--add-to", "./o"], ["--add-to and --out are both o", "count twice"]),
    (["csd", *DRAFT[2:], "--prompts", "p", "--out", "."], ["is a folder"]),
    (["csd", *DRAFT[2:], "--method", "lookup", "--prompts", "p", "--out", "o"], ["--draft-model has no effect"]),
]


@pytest.mark.usefixtures("no_loading")
@pytest.mark.parametrize(("args", "said"), CALIBRATE, ids=[" ".join(args) for args, _ in CALIBRATE])
def test_a_calibration_that_cannot_be_is_refused(paceline: Call, args: list[str], said: list[str]) -> None:
    assert_refused(paceline("calibrate", *args), *said)


def test_a_bench_has_the_rules_beside_each_other(paceline: Call, model: str, draft_model: str, prompts: Path) -> None:
    found = paceline(
        "bench", "--model", model, "--draft-model", draft_model, "--dtype", "float32", "--prompts", str(prompts), "--peers", "",
        "--methods", "none,draft_model,draft_model/csd,draft_model/easd", "--max-new-tokens", "16", "--json", "-", *LOOSE, *VETO,
    ).json  # fmt: skip
    lines = {line["run"]: line for line in found["runs"]}
    assert [lines[m]["lossless"] for m in ("draft_model", "draft_model/csd", "draft_model/easd")] == [True, False, True]
    rescued = [o["rules"]["csd"]["altered"] for r in found["rows"] if r["run"] == "draft_model/csd" for o in r["outputs"] if "rules" in o]
    assert sum(rescued) > 0


@pytest.mark.usefixtures("no_loading")
def test_a_setting_for_a_rule_that_no_method_of_a_bench_has_is_refused(paceline: Call) -> None:
    args = ["--draft-model", "small", "--methods", "none,draft_model/csd", "--rule-settings", "easd.n=4"]
    assert_refused(paceline("bench", *args), "'easd.n' is of no rule of none, draft_model/csd")
