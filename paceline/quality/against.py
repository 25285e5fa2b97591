"""An earlier evaluation, whose first method others are compared with later."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import InvalidRequest
from .plan import Plan
from .problems import Problem

# what decides which text is right, and must be the same for both; the methods and how they draft may differ
_SAME = ("task", "model", "max_new_tokens", "temperature", "seed", "chat", "hub")


@dataclass(frozen=True)
class Earlier:
    """Its first method: which problems it solved, and its tokens to each."""

    method: str
    dtype: str
    right: dict[str, bool]
    tokens: dict[str, list[int]]
    origin: dict[str, Any]  # for the report

    def require_dtype(self, dtype: str) -> None:
        """Raise InvalidRequest if the target has other numbers than then."""
        if dtype != self.dtype:
            raise InvalidRequest(
                f"the evaluation {self.origin['file']} was made in {self.dtype}, and this one would be in {dtype}; give --dtype"
            )


def read(file: Path, plan: Plan, chosen: Sequence[Problem]) -> Earlier:
    """The evaluation in a file that `paceline eval --json` wrote.

    Raises InvalidRequest if it cannot be read, is none, or is one of another task, other problems or other settings.
    """
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        first, settings = found["first"], found["settings"]
        right = {g["problem"]: g["methods"][first]["outcome"] == "correct" for g in found["grades"]}
        tokens = {o["prompt"]: o["tokens"] for row in found["rows"] if row["run"] == first for o in row["outputs"]}
        origin = {"file": file.name, "method": first, "command": found["command"], "commit": found["commit"]}
        then = dict(settings, task=found["task"])
    except OSError as error:
        raise InvalidRequest(f"the evaluation {file} cannot be read: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidRequest(
            f"{file} is no report of paceline eval ({type(error).__name__}: {error}); give one that --json wrote"
        ) from None
    _require_same(file, plan, chosen, then, right)
    return Earlier(first, settings["dtype"], right, tokens, origin)


def _require_same(file: Path, plan: Plan, chosen: Sequence[Problem], then: dict[str, Any], graded: Iterable[str]) -> None:
    now = dataclasses.asdict(plan.settings) | {"task": plan.task, "chat": plan.chat, "hub": plan.hub}
    for name in _SAME:
        before = then.get(name)
        if before != now[name] and not (name == "model" and Path(str(before)).name == Path(now[name]).name):
            raise InvalidRequest(f"the evaluation {file} had {name} {before!r}, and this one has {now[name]!r}; they cannot be compared")
    differing = {p.id for p in chosen} ^ set(graded)
    if differing:
        raise InvalidRequest(
            f"the evaluation {file} and this one differ in {len(differing)} problems, such as {min(differing)}; "
            "give the same --prompts and --limit"
        )
