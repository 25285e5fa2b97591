"""Decode the problems with every method, a few at a time and in turn, then grade the texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ..bench import run
from ..bench.journal import Journal, Row
from ..bench.lineup import Lineup
from ..bench.run import Job, jobs, run_all
from ..bench.runs import MethodRun
from ..sequence import Sequence as Request
from ..targets.hf import HFTarget
from .plan import Plan, prompts_of
from .problems import Problem
from .tasks import Grade

Grades = dict[str, dict[str, Grade]]  # method -> problem id -> grade
Advance = Callable[[str, int, int], Any]  # what is being done, how much of it is done, of how much
Seeds = dict[tuple[int, ...], int | None]  # prompt's tokens -> seed


def unheard(doing: str, done: int, of: int) -> None:
    """Nobody wants to know how far it is."""


class SeededRun(MethodRun):
    """A method whose requests have seeds of their own."""

    def __init__(self, method: str, target: HFTarget, draft: HFTarget | None, plan: Plan, seeds: Seeds) -> None:
        super().__init__(method, target, draft, plan.settings, plan.settings.batch_size)
        self._seeds = seeds

    def _request(self, tokens: list[int], limit: int) -> Request:
        request = super()._request(tokens, limit)
        if request.params.seed is not None:
            request.restart(tokens, replace(request.params, seed=self._seeds[tuple(tokens)]))
        return request


def encode_all(target: HFTarget, plan: Plan, chosen: Sequence[Problem]) -> list[list[int]]:
    """Token ids of each prompt. Raises InvalidRequest naming a problem that does not fit the context."""
    return run.encode_all(target, prompts_of(plan, chosen), chat=plan.chat, called="problem")


def decode_all(
    plan: Plan, models: tuple[HFTarget, HFTarget | None], chosen: Sequence[Problem], journal: Journal, advance: Advance = unheard
) -> Lineup:
    """Make all decode calls that the journal does not hold yet; the methods take turns at each group of problems."""
    target, draft = models
    encoded = encode_all(target, plan, chosen)
    seeds: Seeds = {tuple(e): plan.seed(p) for p, e in zip(chosen, encoded, strict=True)}
    lineup = Lineup(target, [SeededRun(m, target, draft, plan, seeds) for m in plan.settings.methods])
    total, done = sum(1 for _ in jobs(lineup.runs, len(chosen), plan.settings.batch_size, 1)), 0

    def count(job: Job) -> None:
        nonlocal done
        done += 1
        advance("decoding", done, total)

    run_all(lineup, plan.settings, prompts_of(plan, chosen), encoded, journal, count)
    return lineup


def texts(rows: Sequence[Row], target: HFTarget) -> dict[str, dict[str, str]]:
    """method -> problem id -> the model's answer, without special tokens."""
    found: dict[str, dict[str, str]] = {}
    for row in rows:
        for output in row["outputs"]:
            assert target.tokenizer is not None, "prompts were encoded with it"
            text = target.tokenizer.decode(output["tokens"], skip_special_tokens=True)
            found.setdefault(row["run"], {})[output["prompt"]] = str(text)
    return found


def grade_all(plan: Plan, chosen: Sequence[Problem], answers: dict[str, dict[str, str]], advance: Advance = unheard) -> Grades:
    """The grade of every answer. Equal texts to a problem are graded once."""
    grades: Grades = {method: {} for method in answers}
    known: dict[tuple[str, str], Grade] = {}
    with plan.kind.grader(plan.chat) as grade:
        for done, problem in enumerate(chosen, 1):
            for method, by_problem in answers.items():
                text = by_problem[problem.id]
                if (problem.id, text) not in known:
                    known[problem.id, text] = grade(problem.question, problem.reference, text)
                grades[method][problem.id] = known[problem.id, text]
            advance("grading", done, len(chosen))
    return grades
