"""Suites of prompts: our JSONL rows, checked, and a fair choice among them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ..errors import InvalidRequest

T = TypeVar("T")

BUILT_IN = Path(__file__).with_name("prompts.jsonl")


@dataclass(frozen=True)
class Prompt:
    """One row of a suite. `task` may have sub-tasks, as in `spec_bench/mt_bench/writing`.

    What is decoded is the turn behind the `answers`: the first one without any.
    """

    id: str
    task: str
    turns: tuple[str, ...]
    answers: tuple[str, ...] = ()

    @property
    def asked(self) -> list[dict[str, str]]:
        """The conversation up to the turn that is to be answered."""
        last = {"role": "user", "content": self.turns[len(self.answers)]}
        pairs = zip(self.turns, self.answers, strict=False)
        said = [{"role": role, "content": text} for pair in pairs for role, text in zip(("user", "assistant"), pair, strict=True)]
        return [*said, last]

    @property
    def group(self) -> str:
        """The task that reports count: the first two parts, without sub-tasks."""
        return "/".join(self.task.split("/")[:2])


def named(suite: str | None, file: Path | None) -> Path | None:
    """The file of a suite: `builtin` is None, our own prompts; another name is NAME.jsonl in the current folder. Without a name, `file`.

    Raises InvalidRequest if both are given, or there is no such file.
    """
    if suite is None:
        return file
    if file is not None:
        raise InvalidRequest(f"--suite {suite} and --prompts {file} both say what to decode; leave one of them out")
    if suite == "builtin":
        return None
    found = Path(f"{suite}.jsonl")
    if not found.is_file():
        raise InvalidRequest(f"there is no suite {suite!r}: no {found} in the current folder; use builtin, or give a file with --prompts")
    return found


def read(file: Path | None = None, skipped: Callable[[str], Any] | None = None) -> list[Prompt]:
    """All rows of a JSONL file, or the built-in ones. Raises InvalidRequest naming file, line and what is wrong; with `skipped` a bad line
    is told to it and passed over."""
    file = file or BUILT_IN
    try:
        lines = file.read_text("utf-8").splitlines()
    except OSError as error:
        raise InvalidRequest(f"prompts file {file} cannot be read ({error.strerror}); give a JSONL file, or leave --prompts out") from None
    except UnicodeDecodeError:
        raise InvalidRequest(f"prompts file {file} is not UTF-8 text; give JSONL, unpacked if it was compressed") from None
    prompts: dict[str, Prompt] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            prompt = _prompt(line, f"{file}, line {number}")
            if prompt.id in prompts:
                raise InvalidRequest(f"{file}, line {number}: id {prompt.id!r} is there twice; ids must differ")
            prompts[prompt.id] = prompt
        except InvalidRequest as error:
            if skipped is None:
                raise
            skipped(f"skipped {error}")
    if not prompts:
        raise InvalidRequest(f"prompts file {file} has no rows; give at least one")
    return list(prompts.values())


def _prompt(line: str, where: str) -> Prompt:
    try:
        row: Any = json.loads(line)
    except ValueError as error:
        raise InvalidRequest(f"{where}: not JSON ({error}); each line must be one JSON object") from None
    if not isinstance(row, dict):
        raise InvalidRequest(f"{where}: {type(row).__name__} instead of a JSON object with id, task and turns")
    for field in ("id", "task"):
        if not isinstance(row.get(field), str) or not row[field].strip("/ "):
            raise InvalidRequest(f"{where}: {field} is {row.get(field)!r}; it must be a non-empty string")
    turns = row.get("turns")
    if not isinstance(turns, list) or not turns or not all(isinstance(t, str) and t.strip() for t in turns):
        raise InvalidRequest(f"{where}: turns must be a non-empty list of non-empty strings")
    answers = row.get("answers") or []
    if not isinstance(answers, list) or len(answers) >= len(turns) or not all(isinstance(a, str) for a in answers):
        raise InvalidRequest(f"{where}: answers must be a list of strings, fewer than the turns, the last of which is to be answered")
    return Prompt(row["id"], row["task"], tuple(turns), tuple(answers))


def as_line(prompt: Prompt) -> str:
    """The row of a prompt, as `read` takes it."""
    row: dict[str, Any] = {"id": prompt.id, "task": prompt.task, "turns": prompt.turns}
    return json.dumps(row | ({"answers": prompt.answers} if prompt.answers else {}), ensure_ascii=False)


def choose(prompts: Sequence[Prompt], limit: int | None) -> list[Prompt]:
    """At most `limit` prompts of each task, spread evenly over its sub-tasks and the file; the tasks take turns, so that a run that is
    cut short has seen all of them. The same arguments choose the same prompts."""
    if limit is not None and limit < 1:
        raise InvalidRequest(f"limit is {limit}; it must be at least 1")
    groups: dict[str, dict[str, list[Prompt]]] = {}
    for prompt in prompts:
        groups.setdefault(prompt.group, {}).setdefault(prompt.task, []).append(prompt)
    chosen = [_spread([p for rows in tasks.values() for p in rows], limit) for tasks in groups.values()]
    return in_turns(chosen)


def in_turns(lists: Sequence[Sequence[T]]) -> list[T]:
    """The first of each, the second of each, and so on."""
    longest = max(map(len, lists), default=0)
    return [items[i] for i in range(longest) for items in lists if i < len(items)]


def _spread(rows: list[Prompt], limit: int | None) -> list[Prompt]:
    """The middles of `limit` equal stretches."""
    if limit is None or limit >= len(rows):
        return rows
    return [rows[(2 * i + 1) * len(rows) // (2 * limit)] for i in range(limit)]
