"""Problems from files and from data sets: what is taken, what is refused and what is left out."""

from __future__ import annotations

import gzip
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import InvalidRequest, PacelineError
from paceline.quality import problems
from paceline.quality.problems import Problem

from .conftest import rows, write


def silent(message: str) -> None:
    raise AssertionError(f"nothing was to be said, and this was: {message}")


def test_the_rows_of_the_task_are_taken_with_their_references(tmp_path: Path) -> None:
    lines = [*rows([{"answer": "1"}, {"answer": "2"}]), {"id": "other", "task": "mbpp", "turns": ["x"], "reference": None}]
    lines[1]["task"] = "gsm8k/hard"
    found = problems.read("gsm8k", write(tmp_path / "a.jsonl", lines), on_bad_line="stop", say=silent)
    assert [(p.id, p.task, p.reference["answer"]) for p in found] == [("p0", "gsm8k", "1"), ("p1", "gsm8k/hard", "2")]


def test_a_packed_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl.gz"
    file.write_bytes(gzip.compress(json.dumps(rows([{"answer": "1"}])[0]).encode()))
    assert len(problems.read("gsm8k", file, on_bad_line="stop", say=silent)) == 1


def test_a_file_without_the_task_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="has no row of task mbpp"):
        problems.read("mbpp", write(tmp_path / "a.jsonl", rows([{"answer": "1"}])), on_bad_line="stop", say=silent)


@pytest.mark.parametrize("reference", [None, {}, {"answer": 5}, {"solution": "5"}])
def test_a_problem_without_reference_stops_or_is_left_out(tmp_path: Path, reference: Any) -> None:
    file, said = write(tmp_path / "a.jsonl", rows([{"answer": "1"}, reference])), list[str]()
    with pytest.raises(InvalidRequest, match=r"problem p1 has no reference answer, .*--on-bad-line skip"):
        problems.read("gsm8k", file, on_bad_line="stop", say=silent)
    found = problems.read("gsm8k", file, on_bad_line="skip", say=said.append)
    assert [p.id for p in found] == ["p0"]
    assert said == ["left out: problem p1 has no reference answer"]


def test_a_file_of_which_all_is_left_out_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"no problem of task humaneval has the reference that it needs \(entry_point, test\)"):
        problems.read(
            "humaneval", write(tmp_path / "a.jsonl", rows([{"test": "x"}], "humaneval")), on_bad_line="skip", say=list[str]().append
        )


def test_a_bad_line_stops_with_its_number_or_is_left_out(tmp_path: Path) -> None:
    file, said = write(tmp_path / "a.jsonl", rows([{"answer": "1"}])), list[str]()
    file.write_text(file.read_text() + "{broken\n")
    with pytest.raises(InvalidRequest, match="line 2"):
        problems.read("gsm8k", file, on_bad_line="stop", say=silent)
    assert len(problems.read("gsm8k", file, on_bad_line="skip", say=said.append)) == 1
    assert "line 2" in said[0]


def test_the_same_limit_chooses_the_same_problems_spread_over_the_file() -> None:
    found = [Problem(f"p{i}", "gsm8k", "?", {}) for i in range(10)]
    assert [p.id for p in problems.choose(found, 2)] == ["p2", "p7"]
    assert problems.choose(found, None) == found
    with pytest.raises(InvalidRequest, match="limit is 0"):
        problems.choose(found, 0)


HUB = {
    "gsm8k": ({"question": "q", "answer": "16 - 3 = 13\n#### 1,300"}, "q", {"answer": "1,300"}),
    "math500": ({"problem": "q", "answer": "\\frac12", "solution": "s", "level": 2}, "q", {"answer": "\\frac12"}),
    "humaneval": ({"prompt": "q", "entry_point": "f", "test": "t", "task_id": "HumanEval/0"}, "q", {"entry_point": "f", "test": "t"}),
    "mbpp": (
        {"text": "q", "code": "c", "test_list": ["a", "b"], "test_setup_code": "", "task_id": 11},
        "q\n\nYour code should pass these tests:\na\nb",
        {"code": "c", "test_list": ["a", "b"], "test_setup_code": ""},
    ),
}


@pytest.mark.parametrize("task", HUB)
def test_a_row_of_a_data_set_becomes_a_problem(task: str) -> None:
    row, question, reference = HUB[task]
    (found,) = problems.from_rows(task, [row], on_bad_line="stop", say=silent)
    assert found == Problem(f"{task}-0", task, question, reference)


@pytest.mark.parametrize("task", HUB)
def test_a_data_set_with_other_fields_is_refused(task: str) -> None:
    with pytest.raises(PacelineError, match="has other fields than expected"):
        problems.from_rows(task, [{"text": None}], on_bad_line="stop", say=silent)


@pytest.mark.skipif(find_spec("datasets") is not None, reason="the package is installed")
def test_without_the_package_datasets_the_error_names_the_extra() -> None:
    with pytest.raises(PacelineError, match=r"not installed; pip install 'paceline\[hub\]', or give --prompts FILE"):
        problems.load("gsm8k", on_bad_line="stop", say=silent)


needs_datasets = pytest.mark.skipif(find_spec("datasets") is None, reason="needs the package datasets")
CARD = "---\nconfigs:\n- config_name: main\n  data_files:\n  - split: test\n    path: test.jsonl\n---\n"


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with an empty cache."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@needs_datasets
def test_a_data_set_is_loaded_with_the_package(offline: Path) -> None:
    folder = offline / "openai" / "gsm8k"  # a folder of that name stands for the one on the hub
    folder.mkdir(parents=True)
    (folder / "README.md").write_text(CARD)
    write(folder / "test.jsonl", [{"question": "q", "answer": "so\n#### 5"}])
    assert problems.load("gsm8k", on_bad_line="stop", say=silent) == [Problem("gsm8k-0", "gsm8k", "q", {"answer": "5"})]


@needs_datasets
@pytest.mark.usefixtures("offline")
def test_a_data_set_that_cannot_be_loaded_is_one_line() -> None:
    with pytest.raises(PacelineError, match="data set openai/gsm8k cannot be loaded"):
        problems.load("gsm8k", on_bad_line="stop", say=silent)
