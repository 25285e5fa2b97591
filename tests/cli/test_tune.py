"""`paceline tune`, and what `generate` makes of its profile."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline import cost

from .conftest import Call
from .test_bad_input import assert_refused

ROWS = [
    {"id": "rain", "task": "own/chat", "turns": ["the rain falls on the lake, the rain falls on the lake"]},
    {"id": "bird", "task": "own/qa", "turns": ["a small bird sings on the wall"]},
]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return str(file)


@pytest.fixture
def tune(paceline: Call, model: str, prompts: str) -> Call:
    def call(*args: str) -> object:
        return paceline("tune", "--model", model, "--dtype", "float32", "--prompts", prompts, "--max-new-tokens", "16", *args)

    return call  # type: ignore[return-value]


def test_the_last_line_is_json_with_choices_candidates_and_costs(tune: Call, draft_model: str, cache: Path) -> None:
    found = tune("--draft-model", draft_model, "--json", "-").json
    assert [c["batch_size"] for c in found["choices"]] == [1, 4, 8]
    assert {line["method"] for line in found["candidates"]} == {"none", "lookup", "draft_model", "lookup+draft_model"}
    assert set(found["lacking"]) == {"jetspec", "specbound"}
    assert found["cost"]["4"]["nodes"] == sorted({4, 8, 16, 32, *cost.ROWS})
    assert found["prompts"] == ["rain", "bird"]
    assert found["auto"]["speedup"] > 0


def test_generate_starts_from_the_profile_that_was_written(tune: Call, generate: Call, cache: Path) -> None:
    err = tune().err
    (file,) = (cache / "profiles").iterdir()
    assert f"profile written to {file}" in err
    told = generate("the rain", "--max-new-tokens", "8", "--stats").err
    assert "started from the profile of 20" in " ".join(told.split()), told


def test_a_profile_is_written_where_out_says_and_can_be_named(tune: Call, generate: Call, tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    tune("--out", str(file))
    found = generate("the rain", "--max-new-tokens", "8", "--profile", str(file), "--json").json
    assert found["auto"]["basis"].startswith("the profile of")
    assert found["method"] == "auto"


def test_an_interrupted_tune_leaves_no_profile(tune: Call, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("paceline.tune.run.counted", interrupted)
    assert tune().code == 130
    assert not (cache / "profiles").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--limit", "0"], ["--limit", "1"]),
        (["--max-new-tokens", "0"], ["max_new_tokens is 0"]),
        (["--budget", "0"], ["--budget"]),
        (["--prompts", "nowhere.jsonl"], ["nowhere.jsonl"]),
        (["--json", "/nowhere/x.json"], ["/nowhere/x.json"]),
        (["--draft-weights", "int4"], ["--draft-weights", "--draft-model"]),
    ],
)
def test_bad_options_are_refused(paceline: Call, options: list[str], words: list[str]) -> None:
    assert_refused(paceline("tune", *options), *words)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--profile", "nowhere.json"], ["nowhere.json", "cannot be read", "paceline tune"]),
        (["--method", "lookup", "--profile", "p.json"], ["--profile", "method lookup"]),
        (["--method", "auto+lookup"], ["name auto alone"]),
        (["--method", "auto/csd"], ["auto is always lossless", "lookup/csd"]),
        (["--rule", "csd"], ["auto is always lossless", "lookup/csd"]),
    ],
)
def test_what_does_not_go_with_auto_is_refused(paceline: Call, options: list[str], words: list[str]) -> None:
    assert_refused(paceline("generate", "hello", *options), *words)
