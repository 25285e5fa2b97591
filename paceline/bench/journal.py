"""Rows on disk as they come, so that a bench that was interrupted goes on where it stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..errors import InvalidRequest, PacelineError

Row = dict[str, Any]


class Journal:
    """The rows of one bench; with a file, kept in `FILE.rows.jsonl` until the report is written. `kept` names a file that stays.

    Raises InvalidRequest if rows of a bench with another fingerprint are there.
    """

    def __init__(self, report: Path | None, fingerprint: str, kept: Path | None = None) -> None:
        self.rows: list[Row] = []
        self.resumed = 0
        self.file = kept or (None if report is None else report.with_name(report.name + ".rows.jsonl"))
        self._stays = kept is not None
        self._fingerprint = fingerprint
        if self.file is not None and self.file.exists():
            self._read(self.file)

    def _read(self, file: Path) -> None:
        text = file.read_text("utf-8", errors="replace")
        whole = text[: text.rfind("\n") + 1]  # a line that was cut short is decoded again
        try:
            head, *rows = [json.loads(line) for line in whole.splitlines()] or [{}]
        except ValueError:
            head, rows = {}, []
        if head.get("fingerprint") != self._fingerprint:
            raise InvalidRequest(
                f"{file} holds rows of a bench with other settings, prompts, versions or code; "
                "delete it, or give --json another file (--bundle another folder)"
            )
        if whole != text:
            file.write_text(whole, "utf-8")
        self.rows, self.resumed = rows, len(rows)

    def add(self, row: Row) -> None:
        self.rows.append(row)
        if self.file is None:
            return
        lines = [row] if self.file.exists() else [{"fingerprint": self._fingerprint}, row]
        try:
            with self.file.open("a", encoding="utf-8") as out:
                out.writelines(json.dumps(line, allow_nan=False) + "\n" for line in lines)
        except OSError as error:
            raise PacelineError(f"cannot write to {self.file} ({error.strerror}); make room, then run the same command again") from None

    def close(self) -> None:
        """The report is written: the rows are in it."""
        if self.file is not None and not self._stays:
            self.file.unlink(missing_ok=True)
