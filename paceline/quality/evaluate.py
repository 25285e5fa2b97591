"""Decode the problems with every method, a few at a time and in turn, then grade the texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
Models = tuple[HFTarget, HFTarget | None]  # target and draft model
Seeds = dict[tuple[int, ...], int | None]  # prompt's tokens -> seed


def unheard(doing: str, done: int, of: int) -> None:
    """Nobody wants to know how far it is."""


class SeededRun(MethodRun):
    """A method whose requests have seeds of their own."""

    def __init__(self, method: str, models: Models, plan: Plan, seeds: Seeds, name: str = "") -> None:
        super().__init__(method, *models, plan.settings, plan.settings.batch_size, name)
        self._seeds = seeds

    def _request(self, tokens: list[int], limit: int) -> Request:
        request = super()._request(tokens, limit)
        if request.params.seed is not None:
            request.restart(tokens, replace(request.params, seed=self._seeds[tuple(tokens)]))
        return request


@dataclass(frozen=True)
class Encoded:
    """The chosen problems as token ids, and the seed of each."""

    problems: Sequence[Problem]
    tokens: list[list[int]]
    seeds: Seeds


def encode_all(target: HFTarget, plan: Plan, chosen: Sequence[Problem]) -> Encoded:
    """Raises InvalidRequest naming a problem that does not fit the context."""
    tokens = run.encode_all(target, prompts_of(plan, chosen), chat=plan.chat, called="problem")
    return Encoded(chosen, tokens, {tuple(e): plan.seed(p) for p, e in zip(chosen, tokens, strict=True)})


def decode_all(plan: Plan, models: Models, chosen: Sequence[Problem], journal: Journal, advance: Advance = unheard) -> Lineup:
    """Make all decode calls that the journal does not hold yet; the methods take turns at each group of problems."""
    encoded = encode_all(models[0], plan, chosen)
    lineup = Lineup(models[0], [SeededRun(m, models, plan, encoded.seeds) for m in plan.settings.methods])
    decode_runs(lineup, plan, encoded, journal, advance)
    return lineup


def decode_runs(lineup: Lineup, plan: Plan, encoded: Encoded, journal: Journal, advance: Advance = unheard) -> None:
    """The same for given runs."""
    total, done = sum(1 for _ in jobs(lineup.runs, len(encoded.tokens), plan.settings.batch_size, 1)), 0

    def count(job: Job) -> None:
        nonlocal done
        done += 1
        advance("decoding", done, total)

    run_all(lineup, plan.settings, prompts_of(plan, encoded.problems), encoded.tokens, journal, count)


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
