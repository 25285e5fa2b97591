"""Problems with their reference answers: from JSONL files in our fields, or with the package `datasets`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..bench import suites
from ..errors import InvalidRequest, PacelineError
from ..train import prompts
from .tasks import TASKS, Reference

Say = Callable[[str], Any]


@dataclass(frozen=True)
class Problem:
    """One question and what its answer is compared with."""

    id: str
    task: str  # may have sub-tasks
    question: str
    reference: Reference


@dataclass(frozen=True)
class Source:
    """Where a task is on the hub, and how a row of it becomes a reference."""

    name: str
    config: str | None
    question: Callable[[dict[str, Any]], str]
    reference: Callable[[dict[str, Any]], Reference]


SOURCES = {
    "gsm8k": Source("openai/gsm8k", "main", lambda r: r["question"], lambda r: {"answer": r["answer"].rpartition("####")[2].strip()}),
    "math500": Source("HuggingFaceH4/MATH-500", None, lambda r: r["problem"], lambda r: {"answer": r["answer"]}),
    "humaneval": Source(
        "openai/openai_humaneval", None, lambda r: r["prompt"], lambda r: {"entry_point": r["entry_point"], "test": r["test"]}
    ),
    "mbpp": Source(
        "google-research-datasets/mbpp",
        "full",
        lambda r: r["text"] + "\n\nYour code should pass these tests:\n" + "\n".join(r["test_list"]),
        lambda r: {name: r[name] for name in ("code", "test_list", "test_setup_code")},
    ),
}


def read(task: str, file: Path, *, on_bad_line: str, say: Say) -> list[Problem]:
    """The problems of a task in a JSONL file (also .gz).

    A line that is no prompt, or has no reference answer that this task could use, stops with its fault, or with `skip` is told to
    `say` and left out. Raises InvalidRequest too if the file has no problem of this task.
    """
    rows = [r for r in prompts.read([file], on_bad_line=on_bad_line, say=say) if r.task.split("/")[0] == task]
    if not rows:
        raise InvalidRequest(f"{file} has no row of task {task}; give the file of that task, or another --task")
    found = [Problem(r.id, r.task, r.turns[0], r.reference) for r in rows]
    return _with_reference(task, found, on_bad_line, say)


def _with_reference(task: str, found: Iterable[Problem], on_bad_line: str, say: Say) -> list[Problem]:
    kept = []
    for problem in found:
        lacks = TASKS[task].missing(problem.reference)
        if lacks is None:
            kept.append(problem)
        elif on_bad_line == "skip":
            say(f"left out: problem {problem.id} has no reference {lacks}")
        else:
            raise InvalidRequest(
                f"problem {problem.id} has no reference {lacks}, without which task {task} cannot be graded "
                "(--on-bad-line skip leaves such problems out)"
            )
    if not kept:
        raise InvalidRequest(f"no problem of task {task} has the reference that it needs ({', '.join(TASKS[task].needs)})")
    return kept


def require_datasets() -> None:
    """Raise PacelineError if the package is not installed."""
    if find_spec("datasets") is None:
        raise PacelineError("--hub needs the package datasets, which is not installed; pip install 'paceline[hub]', or give --prompts FILE")


def load(task: str, *, on_bad_line: str, say: Say) -> list[Problem]:
    """The test split of a task's data set on the hub, or in the cache of `datasets`."""
    require_datasets()
    from datasets import load_dataset

    source = SOURCES[task]
    try:
        rows = load_dataset(source.name, source.config, split="test")
    except Exception as error:  # the package raises what its network library raises
        raise PacelineError(
            f"data set {source.name} cannot be loaded ({type(error).__name__}: {str(error)[:200]}); give --prompts FILE"
        ) from None
    return from_rows(task, list(rows), on_bad_line=on_bad_line, say=say)


def from_rows(task: str, rows: Sequence[dict[str, Any]], *, on_bad_line: str, say: Say) -> list[Problem]:
    """Problems of rows as the data set has them."""
    source = SOURCES[task]
    try:
        found = [Problem(f"{task}-{i}", task, source.question(row), source.reference(row)) for i, row in enumerate(rows)]
    except (KeyError, TypeError, AttributeError) as error:
        raise PacelineError(f"data set {source.name} has other fields than expected ({error!r}); give --prompts FILE") from None
    return _with_reference(task, found, on_bad_line, say)


def choose(found: Sequence[Problem], limit: int | None) -> list[Problem]:
    """At most `limit` problems, spread evenly over the file, as the bench does."""
    by_id = {p.id: p for p in found}
    return [by_id[p.id] for p in suites.choose([suites.Prompt(p.id, p.task, (p.question,)) for p in found], limit)]
