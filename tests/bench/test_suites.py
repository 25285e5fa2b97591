"""Suites: what is refused, and which prompts a limit chooses."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from paceline.bench.suites import BUILT_IN, Prompt, as_line, choose, named, read
from paceline.errors import InvalidRequest

GOOD = '{"id": "a", "task": "t", "turns": ["hello"]}'


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{oops", "not JSON"),
        ("[1]", "list instead of a JSON object"),
        ('{"task": "t", "turns": ["x"]}', "id is None"),
        ('{"id": "b", "task": " ", "turns": ["x"]}', "task is ' '"),
        ('{"id": "b", "task": "t"}', "turns must be"),
        ('{"id": "b", "task": "t", "turns": []}', "turns must be"),
        ('{"id": "b", "task": "t", "turns": "hello"}', "turns must be"),
        ('{"id": "b", "task": "t", "turns": ["x", " "]}', "turns must be"),
        (GOOD, "id 'a' is there twice"),
    ],
)
def test_a_bad_line_is_named_with_its_file_and_number(tmp_path: Path, line: str, complaint: str) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(f"{GOOD}\n\n{line}\n")
    with pytest.raises(InvalidRequest) as error:
        read(file)
    assert f"{file}, line 3" in str(error.value)
    assert complaint in str(error.value)


def test_bad_lines_are_passed_over_and_told_if_that_is_wanted(tmp_path: Path) -> None:
    file, told = tmp_path / "rows.jsonl", []
    file.write_text(f"oops\n{GOOD}\n{GOOD}\n[1]\n")
    assert [p.id for p in read(file, told.append)] == ["a"]
    assert [t.partition(":")[0] for t in told] == [f"skipped {file}, line {n}" for n in (1, 3, 4)]
    file.write_text("oops\n")
    with pytest.raises(InvalidRequest, match="has no rows"):
        read(file, told.append)


def test_a_row_with_answers_asks_for_the_turn_behind_them(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"id": "a", "task": "t", "turns": ["one", "two", "three"], "answers": ["1"]}\n')
    (prompt,) = read(file)
    assert [(m["role"], m["content"]) for m in prompt.asked] == [("user", "one"), ("assistant", "1"), ("user", "two")]
    file.write_text(as_line(prompt))
    assert read(file) == [prompt]
    file.write_text('{"id": "a", "task": "t", "turns": ["one"], "answers": ["1"]}\n')
    with pytest.raises(InvalidRequest, match="answers must be"):
        read(file)


def test_a_file_that_is_missing_empty_or_no_text_is_refused(tmp_path: Path) -> None:
    empty, binary = tmp_path / "empty.jsonl", tmp_path / "binary.jsonl"
    empty.write_text("\n")
    binary.write_bytes(b"\x1f\x8b\xff")
    for file, complaint in ((tmp_path / "none.jsonl", "cannot be read"), (empty, "has no rows"), (binary, "not UTF-8")):
        with pytest.raises(InvalidRequest, match=complaint):
            read(file)


def suite() -> list[Prompt]:
    """Eight sub-tasks of seven rows, as in Spec-Bench's MT-bench, and a task of 56."""
    sub = [Prompt(f"mt-{s}-{i}", f"spec/mt/{s}", ("x",)) for s in "abcdefgh" for i in range(7)]
    return sub + [Prompt(f"qa-{i}", "spec/qa", ("x",)) for i in range(56)]


def test_a_limit_counts_per_task_and_sub_tasks_count_as_their_task() -> None:
    assert Counter(p.group for p in choose(suite(), 4)) == {"spec/mt": 4, "spec/qa": 4}


def test_a_limit_spreads_over_the_sub_tasks_and_over_the_file() -> None:
    chosen = choose(suite(), 8)
    assert {p.task for p in chosen if p.group == "spec/mt"} == {f"spec/mt/{s}" for s in "abcdefgh"}
    places = [int(p.id.split("-")[1]) for p in chosen if p.group == "spec/qa"]
    assert [b - a for a, b in pairwise(places)] == [7] * 7


def test_sub_tasks_that_alternate_in_the_file_are_spread_alike() -> None:
    rows = [Prompt(f"{s}{i}", f"spec/mt/{s}", ("x",)) for i in range(10) for s in "ab"]
    assert [p.task[-1] for p in choose(rows, 4)] == ["a", "a", "b", "b"]


def test_tasks_take_turns() -> None:
    assert [p.group for p in choose(suite(), 2)] == ["spec/mt", "spec/qa"] * 2


def test_no_limit_and_a_limit_beyond_the_rows_keep_every_prompt_once() -> None:
    for limit in (None, 1000):
        assert sorted(p.id for p in choose(suite(), limit)) == sorted(p.id for p in suite())


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="limit is 0"):
        choose(suite(), 0)


def test_the_built_in_prompts_cover_six_kinds_eight_times_each() -> None:
    kinds = Counter(p.task for p in read())
    assert set(kinds) == {f"builtin/{k}" for k in ("translation", "summarization", "qa", "math_reasoning", "rag", "chat")}
    assert min(kinds.values()) >= 8, f"{kinds}"
    assert all(p.id.startswith("builtin-") for p in read())


def test_the_built_in_rows_have_the_fields_of_our_data_and_long_passages_where_they_need_them() -> None:
    for line in BUILT_IN.read_text("utf-8").splitlines():
        row = json.loads(line)
        assert set(row) == {"id", "task", "source", "turns", "reference", "licence"}
        assert row["licence"] == "Apache-2.0"
        if row["task"] in ("builtin/summarization", "builtin/rag"):
            assert len(row["turns"][0].split()) >= 120, row["id"]


def test_a_suite_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.jsonl").write_text("")
    assert [named("builtin", None), named("mine", None), named(None, Path("x"))] == [None, Path("mine.jsonl"), Path("x")]


@pytest.mark.parametrize(("suite", "file", "words"), [("none", None, "no none.jsonl in the current folder"), ("builtin", "x", "leave one")])
def test_a_suite_that_is_not_there_or_one_too_many_is_refused(suite: str, file: str | None, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        named(suite, None if file is None else Path(file))
