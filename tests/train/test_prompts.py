"""Prompt files: what a bad line does, which rows are held out, and orders that outlive a change of the file."""

from __future__ import annotations

import gzip
import json

import pytest

from paceline.errors import InvalidRequest
from paceline.train.prompts import Row, read, shuffled, split

GOOD = json.dumps({"id": "a", "task": "t", "turns": ["hello\u2028there"]}, ensure_ascii=False)
BAD = {
    "not json": ("{", "line 3: no JSON"),
    "not an object": ("[1]", "line 3: list instead of a JSON object"),
    "no id": ('{"task": "t", "turns": ["x"]}', "line 3: id is None"),
    "no turns": ('{"id": "b", "task": "t", "turns": []}', "line 3: turns must be"),
    "an empty turn": ('{"id": "b", "task": "t", "turns": [" "]}', "line 3: turns must be"),
    "an id twice": (GOOD, "line 3: id 'a' is there twice"),
}


@pytest.mark.parametrize(("line", "message"), BAD.values(), ids=BAD)
def test_a_bad_line_stops_and_is_named_with_its_number_blank_lines_counted(tmp_path, line, message):
    file = tmp_path / "p.jsonl"
    file.write_text(f"{GOOD}\n\n{line}\n")
    with pytest.raises(InvalidRequest) as caught:
        read([file], on_bad_line="stop", say=print)
    assert message in str(caught.value), str(caught.value)
    assert "--on-bad-line skip" in str(caught.value), str(caught.value)


@pytest.mark.parametrize(("line", "message"), BAD.values(), ids=BAD)
def test_with_skip_a_bad_line_is_said_and_left_out(tmp_path, line, message):
    file = tmp_path / "p.jsonl"
    file.write_text(f"{GOOD}\n\n{line}\n")
    said = []
    assert [r.id for r in read([file], on_bad_line="skip", say=said.append)] == ["a"]
    assert len(said) == 1, said
    assert message in said[0], said


def test_bytes_that_are_not_utf8_are_a_bad_line(tmp_path):
    file = tmp_path / "p.jsonl"
    file.write_bytes(GOOD.encode() + b'\n{"id": "\xff"}\n')
    with pytest.raises(InvalidRequest, match="line 2: no JSON in UTF-8"):
        read([file], on_bad_line="stop", say=print)


def test_a_gzipped_file_is_read(tmp_path):
    file = tmp_path / "p.jsonl.gz"
    file.write_bytes(gzip.compress(GOOD.encode() + b"\n"))
    (row,) = read([file], on_bad_line="stop", say=print)
    assert row.turns == ("hello\u2028there",)


@pytest.mark.parametrize("content", [b"", b"plain text", gzip.compress(GOOD.encode())[:-9]], ids=["empty", "no gzip", "cut short"])
def test_a_broken_gzip_file_is_one_clear_line(tmp_path, content):
    file = tmp_path / "p.jsonl.gz"
    file.write_bytes(content)
    with pytest.raises(InvalidRequest, match=r"p\.jsonl\.gz"):
        read([file], on_bad_line="stop", say=print)


def rows(count, task="t"):
    return [Row(f"{task}{i}", task, ("x",)) for i in range(count)]


def test_the_order_of_rows_stays_when_others_are_added():
    few, many = shuffled(rows(20), seed=1), shuffled(rows(40), seed=1)
    kept = [r for r in many if r in few]
    assert kept == few
    assert few != rows(20)


def test_held_out_rows_are_taken_from_each_task_in_turn_and_are_a_fifth_at_most():
    train, held = split([*rows(30, "a"), *rows(3, "b"), *rows(7, "c")], 6)
    assert [r.task for r in held] == ["a", "a", "b", "b", "c", "c"]
    assert len(train) == 34
    assert len(split(rows(10), 24)[1]) == 2
