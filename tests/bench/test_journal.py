"""Rows on disk: kept, resumed, refused, removed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.bench.journal import Journal
from paceline.errors import InvalidRequest


def test_rows_come_back_under_the_same_fingerprint(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    Journal(report, "one").add({"n": 1})
    again = Journal(report, "one")
    again.add({"n": 2})
    assert again.resumed == 1
    assert Journal(report, "one").rows == [{"n": 1}, {"n": 2}]


def test_another_fingerprint_is_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    Journal(report, "one").add({"n": 1})
    with pytest.raises(InvalidRequest, match="delete it, or give --json another file"):
        Journal(report, "two")
    assert Journal(report, "one").rows == [{"n": 1}]


@pytest.mark.parametrize("content", ["", "no JSON\n", '{"n": 1}\n'])
def test_a_file_that_is_no_journal_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "report.json.rows.jsonl").write_text(content)
    with pytest.raises(InvalidRequest, match="holds rows of a bench with other settings"):
        Journal(tmp_path / "report.json", "one")


def test_a_line_that_was_cut_short_is_dropped(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    journal = Journal(report, "one")
    journal.add({"n": 1})
    assert journal.file is not None
    with journal.file.open("a") as out:
        out.write('{"n": 2')
    again = Journal(report, "one")
    again.add({"n": 3})
    assert [json.loads(line) for line in journal.file.read_text().splitlines()[1:]] == [{"n": 1}, {"n": 3}]


def test_nothing_is_written_before_the_first_row_or_without_a_file(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "report.json", "one")
    Journal(None, "one").add({"n": 1})
    assert list(tmp_path.iterdir()) == []
    journal.close()
