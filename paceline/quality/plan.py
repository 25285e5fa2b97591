"""What an evaluation was asked for, checked before any model is loaded."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..bench.settings import Settings
from ..errors import InvalidRequest, PacelineError
from . import latex, problems, sandbox
from .problems import Problem
from .tasks import TASKS, Task


@dataclass(frozen=True)
class Plan:
    """One evaluation: a task, where its problems come from, and how the methods decode (`settings`, without peers)."""

    task: str
    settings: Settings
    hub: bool = False
    chat: bool = True
    on_bad_line: str = "stop"

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise InvalidRequest(f"unknown task {self.task!r}; the tasks are {', '.join(TASKS)}")
        if self.on_bad_line not in ("stop", "skip"):
            raise InvalidRequest(f"on_bad_line is {self.on_bad_line!r}; it must be stop or skip")
        if self.hub and self.settings.prompts is not None:
            raise InvalidRequest("--hub and --prompts both say where the problems come from; give one of them")
        if self.settings.repeat != 1 or self.settings.peers or self.settings.batch_by_task or self.settings.lockstep:
            raise InvalidRequest(
                "an evaluation decodes each problem of one task once, with methods of Paceline, and times nothing; leave repeat, peers, "
                "batch_by_task and lockstep out"
            )

    @property
    def kind(self) -> Task:
        return TASKS[self.task]

    def require(self) -> tuple[str, ...]:
        """Raise PacelineError if something that grading needs is not installed or does not work. Returns the sandbox's layers."""
        if find_spec("scipy") is None:
            raise PacelineError("an evaluation needs scipy for its intervals; pip install 'paceline[eval]'")
        if self.task == "math500":
            latex.require()
        if self.hub:
            problems.require_datasets()
        return sandbox.check() if self.kind.code else ()

    def problems(self, say: problems.Say) -> list[Problem]:
        """The chosen ones. Without --prompts and --hub they are in `TASK.jsonl` in the current folder."""
        if self.hub:
            found = problems.load(self.task, on_bad_line=self.on_bad_line, say=say)
        else:
            file = Path(self.settings.prompts or f"{self.task}.jsonl")
            if self.settings.prompts is None and not file.is_file():
                raise InvalidRequest(
                    f"there is no {file} in the current folder; give the problems with --prompts FILE, "
                    "or --hub to load them with the package datasets"
                )
            found = problems.read(self.task, file, on_bad_line=self.on_bad_line, say=say)
        return problems.choose(found, self.settings.limit)

    def seed(self, problem: Problem) -> int | None:
        """Of one problem, if anything is drawn. Each has its own: equal seeds would make their draws depend on each other."""
        if self.settings.temperature == 0:
            return None
        digest = hashlib.sha256(f"{self.settings.seed or 0}\0{problem.id}".encode()).digest()
        return int.from_bytes(digest[:4], "big")

    def fingerprint(self, chosen: Sequence[Problem], **more: Any) -> str:
        """Equal for two evaluations whose rows may stand in one report."""
        return self.settings.fingerprint(prompts_of(self, chosen), evaluation=[self.task, self.hub, self.chat], **more)


def prompts_of(plan: Plan, chosen: Sequence[Problem]) -> list[Any]:
    """The problems as prompts of the bench: questions with the task's words around them."""
    from ..bench.suites import Prompt

    return [Prompt(p.id, p.task, (plan.kind.prompt(p.question, plan.chat),)) for p in chosen]
