"""The tasks: what is asked, and when an answer is right. To add one: a Task, and a line in TASKS."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from . import figures, latex, programs, sandbox

Reference = dict[str, Any]
_KEPT = 300  # characters of an answer in the report


@dataclass(frozen=True)
class Grade:
    """What an answer is worth. `answer` is what was found in the text, `detail` says why it is not right.

    `outcome` is correct, wrong, no_answer, undecided, or for code how the program ended (see `sandbox.Outcome`). Only correct counts.
    """

    outcome: str
    answer: str | None = None
    detail: str = ""

    @property
    def correct(self) -> bool:
        return self.outcome == "correct"


Grader = Callable[[str, Reference, str], Grade]  # question, reference, the model's text -> its grade


@dataclass(frozen=True)
class Task:
    """One task. `chat` and `raw` put a question into a prompt, for a chat template and for a model that continues text."""

    help: str
    chat: str
    raw: str
    needs: dict[str, type]  # of a reference
    grader: Callable[[bool], AbstractContextManager[Grader]]  # whether prompts were chats -> a grader
    code: bool = False

    def prompt(self, question: str, chat: bool) -> str:
        return (self.chat if chat else self.raw).replace("{question}", question)

    def missing(self, reference: Reference) -> str | None:
        """The first field of a reference that is not what it must be; None if all are."""
        return next((name for name, kind in self.needs.items() if not isinstance(reference.get(name), kind)), None)


@contextmanager
def _numbers(chat: bool) -> Iterator[Grader]:
    def grade(question: str, reference: Reference, text: str) -> Grade:
        text = text if chat else text.split("\nQuestion:")[0]  # where a model goes on with a question of its own
        found = figures.extract(text)
        if found is None:
            return Grade("no_answer")
        return Grade("correct" if figures.equal(reference["answer"], found) else "wrong", found[:_KEPT])

    yield grade


@contextmanager
def _formulas(chat: bool) -> Iterator[Grader]:
    with latex.Judge() as judge:

        def grade(question: str, reference: Reference, text: str) -> Grade:
            text = text if chat else text.split("\nProblem:")[0]
            found = latex.extract(text)
            if found is None:
                return Grade("no_answer")
            same = judge.equal(reference["answer"], found, figures.last_box(text) is not None)
            return Grade({True: "correct", False: "wrong", None: "undecided"}[same], found[:_KEPT])

        yield grade


def _run(parts: list[str] | None, tests: str) -> Grade:
    if parts is None:
        return Grade("no_answer")
    found = sandbox.run([*parts, tests])
    kind = {"passed": "correct", "failed": "wrong"}.get(found.kind, found.kind)
    return Grade(kind, parts[-1][:_KEPT], found.detail)


@contextmanager
def _stubs(chat: bool) -> Iterator[Grader]:
    def grade(question: str, reference: Reference, text: str) -> Grade:
        name = reference["entry_point"]
        return _run(programs.completed(question, name, text, chat), f"{reference['test']}\ncheck({name})\n")

    yield grade


@contextmanager
def _functions(chat: bool) -> Iterator[Grader]:
    def grade(question: str, reference: Reference, text: str) -> Grade:
        tests = reference["test_list"]
        code = programs.extract(text, programs.tested_names(str(reference.get("code", "")), tests))
        setup = str(reference.get("test_setup_code") or "")
        return _run(None if code is None else [setup, code], "\n".join(tests))

    yield grade


TASKS = {
    "gsm8k": Task(
        "word problems with a number for an answer",
        "{question}\n\nThink step by step. End with one last line `#### N`, where N is the answer as a plain number.",
        "Question: {question}\nAnswer:",
        {"answer": str},
        _numbers,
    ),
    "math500": Task(
        "competition problems with an answer in LaTeX",
        "{question}\n\nThink step by step, and put the final answer into \\boxed{}.",
        "Problem: {question}\nSolution:",
        {"answer": str},
        _formulas,
    ),
    "humaneval": Task(
        "Python functions to be completed, with tests",
        "Complete this Python function. Answer with the whole function in one fenced block of Python.\n\n```python\n{question}\n```",
        "{question}",
        {"entry_point": str, "test": str},
        _stubs,
        code=True,
    ),
    "mbpp": Task(
        "short Python functions to be written, with tests",
        "{question}\n\nAnswer with the function in one fenced block of Python.",
        '"""\n{question}\n"""\n',
        {"test_list": list},
        _functions,
        code=True,
    ),
}
