"""Training prompts: JSONL files, also gzipped, with id, task and turns on each line; what else is on a line stays readable."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import InvalidRequest

Say = Callable[[str], Any]


@dataclass(frozen=True)
class Row:
    """One prompt: the user's turns in order. `reference` may hold an answer that somebody else wrote."""

    id: str
    task: str
    turns: tuple[str, ...]
    reference: dict[str, Any] = field(default_factory=dict)
    licence: str = ""


def read(files: Sequence[str | Path], *, on_bad_line: str, say: Say) -> list[Row]:
    """All rows. A bad line stops with its file, number and fault, or with `skip` is told to `say` and left out."""
    rows: dict[str, Row] = {}
    for file in map(Path, files):
        for number, line in _lines(file):
            where = f"{file}, line {number}"
            try:
                row = _row(line, where)
                if row.id in rows:
                    raise InvalidRequest(f"{where}: id {row.id!r} is there twice; ids must differ")
            except InvalidRequest as error:
                if on_bad_line == "stop":
                    raise InvalidRequest(f"{error} (--on-bad-line skip leaves such lines out)") from None
                say(f"left out: {error}")
                continue
            rows[row.id] = row
    if not rows:
        raise InvalidRequest(f"there is no prompt in {', '.join(map(str, files))}; give a JSONL file with id, task and turns")
    return list(rows.values())


def _lines(file: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as lines:
            yield from ((number, line) for number, line in enumerate(lines, 1) if line.strip())
    except (OSError, EOFError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidRequest(f"prompts file {file} cannot be read ({reason}); give a JSONL file, or one packed with gzip") from None


def _row(line: bytes, where: str) -> Row:
    try:
        values: Any = json.loads(line.decode("utf-8"))
    except ValueError as error:
        raise InvalidRequest(f"{where}: no JSON in UTF-8 ({error}); each line must be one JSON object") from None
    if not isinstance(values, dict):
        raise InvalidRequest(f"{where}: {type(values).__name__} instead of a JSON object with id, task and turns")
    for name in ("id", "task"):
        if not isinstance(values.get(name), str) or not values[name].strip():
            raise InvalidRequest(f"{where}: {name} is {values.get(name)!r}; it must be a non-empty string")
    turns = values.get("turns")
    if not isinstance(turns, list) or not turns or not all(isinstance(t, str) and t.strip() for t in turns):
        raise InvalidRequest(f"{where}: turns must be a non-empty list of non-empty strings")
    reference = values.get("reference")
    return Row(values["id"], values["task"], tuple(turns), reference if isinstance(reference, dict) else {}, str(values.get("licence", "")))


def chance(seed: int, *names: str) -> int:
    """A number from 0 to 2**63 - 1 that depends on these names only: for orders and choices that outlive an interruption."""
    digest = hashlib.sha256("\0".join((str(seed), *names)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def shuffled(rows: Sequence[Row], seed: int) -> list[Row]:
    """An order that stays the same when rows are added or taken away."""
    return sorted(rows, key=lambda row: chance(seed, row.id))


def split(rows: Sequence[Row], held_out: int, at_most: float = 0.2) -> tuple[list[Row], list[Row]]:
    """The other rows, and at most `held_out` and this share of all for evaluation, taken from each task in turn."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.task, []).append(row)
    turns = [group[i] for i in range(max(map(len, groups.values()))) for group in groups.values() if i < len(group)]
    kept = {row.id for row in turns[: min(held_out, int(at_most * len(rows)))]}
    return [r for r in rows if r.id not in kept], [r for r in rows if r.id in kept]
