"""`paceline audit` as people call it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.bench import audit

from .conftest import Call, Result
from .test_bad_input import assert_refused, no_loading  # noqa: F401 - a fixture

P, Q = [[0.4, 0.3, 0.3], [0.7, 0.2, 0.1]], [[0.6, 0.3, 0.1], [0.2, 0.5, 0.3]]
PROMPTS = [{"id": f"p{i}", "task": "own", "turns": [text]} for i, text in enumerate(["the rain falls", "the bird sings", "and the lake"])]


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in PROMPTS))
    return str(file)


@pytest.fixture
def laws(tmp_path: Path) -> str:
    file = tmp_path / "laws.npz"
    np.savez(file, p=np.array(P * 20, dtype=np.float32), q=np.array(Q * 20, dtype=np.float32))
    return str(file)


def last_line(result: Result) -> dict[str, Any]:
    assert result.out.count("\n") == 1, result.out
    return dict(json.loads(result.out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON")))


KEYS = {
    "rule", "lossless", "lossless_tests", "power", "acceptance", "bound", "share_of_bound", "total_variation", "acceptance_by_child",
    "tokens_per_round", "greedy_identical", "of", "p_values", "control", "settings", "versions", "commit", "command", "warnings",
}  # fmt: skip


@pytest.mark.slow
def test_a_method_is_audited_on_real_decoding(paceline: Call, model: str, draft_model: str, prompts: str) -> None:
    sizes = ("--max-new-tokens", "12", "--replays", "300", "--dtype", "float32", "--prompts", prompts, "--seed", "5")
    result = paceline(
        "audit", "--model", model, "--draft-model", draft_model, "--rule", "rejection", "--shape", "chain:2", *sizes, "--json", "-"
    )
    made = last_line(result)
    assert result.code == 0, result.err
    assert set(made) >= KEYS | {"hardware", "prompts"}, KEYS - set(made)
    assert (made["method"], made["greedy_identical"], made["of"]) == ("draft_model/rejection", 1, 1)
    assert made["settings"]["seed"] == 5
    assert made["settings"]["dtype"] == "float32"
    assert "rule rejection says it is lossless" in result.err


def test_temperature_0_needs_no_draft_rows(paceline: Call, model: str, prompts: str) -> None:
    options = ("--temperature", "0", "--max-new-tokens", "6", "--limit", "1", "--dtype", "float32")
    result = paceline("audit", "--model", model, "--method", "lookup", "--prompts", prompts, *options, "--json", "-")
    made = last_line(result)
    assert (made["lossless_tests"], made["p_values"], made["of"]) == ("passed", None, 1)
    assert "only greedy equality" in result.err


def test_given_laws_are_audited_and_the_table_goes_to_stderr(paceline: Call, laws: str) -> None:
    result = paceline("audit", "--laws", laws, "--rule", "rejection", "--width", "1", "--replays", "1000", "--json", "-")
    made = last_line(result)
    assert result.code == 0, result.err
    assert set(made) >= KEYS, KEYS - set(made)
    assert made["lossless_tests"] == "passed", made["p_values"]
    assert made["acceptance"] == pytest.approx(0.65, abs=4 * made["acceptance_error"]), "the mean of sum(min(p, q))"
    for word in ("PASSED", "replay_cells", "share of bound", "detects = the total variation"):
        assert word in result.err, result.err


def test_a_lossy_rule_that_fails_is_a_finding_and_no_error(paceline: Call, laws: str) -> None:
    result = paceline("audit", "--laws", laws, "--rule", "resispec_printed", "--width", "2", "--replays", "1000")
    assert result.code == 0, result.err
    assert "LOSSY" in result.out
    assert "FAILED" in result.out


def test_a_lossless_rule_that_fails_is_exit_code_1(paceline: Call, laws: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = audit.audit_laws
    monkeypatch.setattr(audit, "audit_laws", lambda *a, **k: right(*a, **k) | {"lossless_tests": "failed"})
    result = paceline("audit", "--laws", laws, "--rule", "rejection", "--width", "1", "--replays", "200")
    assert result.code == 1, result.err


def test_a_file_holds_the_report_and_nothing_else_is_left(paceline: Call, laws: str, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    file = folder / "audit.json"
    result = paceline("audit", "--laws", laws, "--rule", "rejection", "--width", "1", "--replays", "200", "--json", str(file))
    assert result.code == 0, result.err
    assert os.listdir(folder) == ["audit.json"]
    assert json.loads(file.read_text())["rule"] == "rejection"
    assert result.out.rstrip().endswith(f"written to {file}")


def test_without_scipy_the_way_to_it_is_named(paceline: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.cli.audit.find_spec", lambda name: None)
    assert_refused(paceline("audit", "--method", "lookup"), "scipy", "paceline[bench]")


# --- bad input


def save(tmp_path: Path, **arrays: Any) -> str:
    file = tmp_path / "bad.npz"
    np.savez(file, **arrays)
    return str(file)


BAD_ARRAYS = [
    ({"p": P}, ["no array q"]),
    ({"a": P}, ["no array p and q"]),
    ({"p": P, "q": [[0.6, 0.3, 0.2], [0.2, 0.5, 0.3]]}, ["q, row 0", "sum 1.1"]),
    ({"p": [[0.4, np.nan, 0.3]], "q": [[0.6, 0.3, 0.1]]}, ["p, row 0", "nan"]),
    ({"p": P, "q": Q[:1]}, ["shape (2, 3)", "(1, 3)"]),
    ({"p": np.array(P, dtype=object), "q": Q}, ["no .npz file of numbers"]),
]


@pytest.mark.parametrize(("arrays", "words"), BAD_ARRAYS, ids=[w[0] for _, w in BAD_ARRAYS])
def test_arrays_that_are_no_laws_are_refused(paceline: Call, tmp_path: Path, arrays: dict[str, Any], words: list[str]) -> None:
    assert_refused(paceline("audit", "--laws", save(tmp_path, **arrays), "--rule", "rejection", "--width", "1"), *words)


def test_files_that_are_no_npz_are_refused(paceline: Call, tmp_path: Path) -> None:
    text = tmp_path / "text.npz"
    text.write_text("hello")
    single = tmp_path / "single.npy"
    np.save(single, np.array(P))
    for file, words in ((tmp_path / "nowhere.npz", "No such file"), (text, "no .npz file"), (single, "one array"), (tmp_path, "directory")):
        assert_refused(paceline("audit", "--laws", str(file), "--rule", "rejection", "--width", "1"), str(file), words)


BAD = [
    ([], ["--rule", "--method"]),
    (["--rule", "rejection", "--method", "lookup"], ["--rule", "--method", "one of them"]),
    (["--rule", "rejection"], ["needs a draft model", "--draft-model"]),
    (["--rule", "nonsense", "--draft-model", "d"], ["unknown rule 'nonsense'"]),
    (["--method", "lookup/rejection"], ["rule rejection needs children drawn", "lookup"]),
    (["--method", "lookup", "--draft-model", "d"], ["draft_model"]),
    (["--method", "lookup", "--shape", "2x2"], ["shape"]),
    (["--method", "lookup", "--draft-weights", "int4"], ["--draft-weights", "--draft-model"]),
    (["--method", "lookup", "--width", "2"], ["--width", "--laws"]),
    (["--method", "lookup", "--temperature", "0", "--top-p", "0.9", "--seed", "1"], ["--top-p and --seed have", "temperature 0"]),
    (["--method", "lookup", "--temperature", "-1"], ["temperature is -1"]),
    (["--method", "lookup", "--max-new-tokens", "0"], ["max_new_tokens is 0"]),
    (["--method", "lookup", "--replays", "3"], ["replays is 3"]),
    (["--method", "lookup", "--seed", "-1"], ["seed is -1"]),
    (["--method", "lookup", "--limit", "0"], ["limit is 0"]),
    (["--method", "lookup", "--prompts", "nowhere.jsonl"], ["nowhere.jsonl"]),
    (["--method", "lookup", "--json", "/nowhere/x.json"], ["/nowhere/x.json"]),
    (["--laws", "x.npz", "--rule", "rejection"], ["--laws needs", "--width"]),
    (["--laws", "x.npz", "--width", "1"], ["--laws needs", "--rule"]),
    (["--laws", "x.npz", "--rule", "rejection", "--width", "1", "--model", "m", "--top-p", "0.9"], ["--model and --top-p have", "--laws"]),
]


@pytest.mark.usefixtures("no_loading")
@pytest.mark.parametrize(("options", "words"), BAD, ids=[" ".join(o) for o, _ in BAD])
def test_bad_options_are_refused_before_a_model_is_loaded(paceline: Call, options: list[str], words: list[str]) -> None:
    assert_refused(paceline("audit", *options), *words)
