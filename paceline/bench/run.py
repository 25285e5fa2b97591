"""Run everything: for each group of prompts all runs, in an order that rotates, so that drift of the machine hits all alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .. import api
from ..errors import InvalidRequest
from ..targets.hf import HFTarget
from . import memory, quiet, recording
from .journal import Journal, Row
from .lineup import Lineup, reason
from .peer_run import PeerRun
from .runs import Decoded, MethodRun, Run, decode_in_step
from .settings import Settings
from .suites import Prompt, in_turns

WARM_UP_TOKENS = 8
BATCHES = 3  # prompts of a group, in batches: as one prompt of a batch ends, the next of the group joins


def encode_all(target: HFTarget, prompts: Sequence[Prompt], *, chat: bool = True, called: str = "prompt") -> list[list[int]]:
    """Token ids of each prompt, in the chat template or raw. Raises InvalidRequest naming a prompt that does not fit the context."""
    encoded = [api.encode(target, p.asked if p.answers else p.turns[0], chat) for p in prompts]
    for prompt, tokens in zip(prompts, encoded, strict=True):
        if target.max_length is not None and len(tokens) >= target.max_length:
            raise InvalidRequest(
                f"{called} {prompt.id} has {len(tokens)} tokens and the context of {target.name} is {target.max_length}; "
                "take it out of the prompts file"
            )
    return encoded


@dataclass(frozen=True)
class Job:
    """One decode call to be made: a run on some of the prompts (their indices). `part` counts the calls of a run within a group."""

    repeat: int
    group: int
    run: Run
    part: int
    members: tuple[int, ...]

    @property
    def key(self) -> tuple[int, int, str, int]:
        return self.repeat, self.group, self.run.name, self.part


def jobs(runs: Sequence[Run], prompts: int, batch_size: int, repeat: int, tasks: Sequence[str] | None = None) -> Iterator[Job]:
    """All decode calls in order. A group is one prompt, or several batches of them, which runs at batch size 1 decode one by one,
    taking turns. `tasks`, one for each prompt, keep prompts of different ones apart."""
    size = 1 if batch_size == 1 else batch_size * BATCHES
    for again in range(repeat):
        for group, members in enumerate(_groups(tasks or [""] * prompts, size)):
            for part, first in enumerate(members):
                turn = (group + again + part) % len(runs)
                for run in (*runs[turn:], *runs[:turn]):
                    if run.batch_size == 1:
                        yield Job(again, group, run, part, (first,))
                    elif part == 0:
                        yield Job(again, group, run, part, members)


def _groups(tasks: Sequence[str], size: int) -> list[tuple[int, ...]]:
    """At most `size` places of one task each; the tasks take turns."""
    places: dict[str, list[int]] = {}
    for place, task in enumerate(tasks):
        places.setdefault(task, []).append(place)
    return in_turns([[tuple(own[start : start + size]) for start in range(0, len(own), size)] for own in places.values()])


def plan(lineup: Lineup, prompts: Sequence[Prompt], settings: Settings) -> list[Job]:
    """All decode calls of a lineup, its largest batch setting the size of groups."""
    tasks = [prompt.group for prompt in prompts] if settings.batch_by_task else None
    return list(jobs(tuple(lineup.runs), len(prompts), max(run.batch_size for run in lineup.runs), settings.repeat, tasks))


def run_all(
    lineup: Lineup,
    settings: Settings,
    prompts: Sequence[Prompt],
    encoded: Sequence[list[int]],
    journal: Journal,
    advance: Callable[[Job], Any] = lambda job: None,
    records: Path | None = None,
) -> None:
    """Warm each run up, then make all decode calls that the journal does not hold yet, and keep their rounds in a folder if there is one.
    A peer that fails is skipped from there on."""
    context = lineup.target.max_length
    room = [settings.max_new_tokens if context is None else context - len(e) for e in encoded]

    def given(job: Job, most: int) -> tuple[list[list[int]], list[int]]:
        return [encoded[i] for i in job.members], [min(most, room[i]) for i in job.members]

    def decode(job: Job, most: int) -> Decoded | None:
        try:
            return job.run.decode(*given(job, most))
        except Exception as error:
            if not isinstance(job.run, PeerRun):
                raise
            lineup.skipped[job.run.name] = reason(error)
            return None

    def decode_all(todo: Sequence[Job]) -> Sequence[Decoded | None]:
        """What is done at once: one job, or several of our methods with the same prompts."""
        if len(todo) == 1:
            return [decode(todo[0], settings.max_new_tokens)]
        runs = [job.run for job in todo if isinstance(job.run, MethodRun)]
        return decode_in_step(runs, *given(todo[0], settings.max_new_tokens))

    done = {(r["repeat"], r["group"], r["run"], r["part"]) for r in journal.rows}
    planned = plan(lineup, prompts, settings)
    open_jobs = [job for job in planned if job.key not in done]
    for job in {j.run.name: j for j in reversed(open_jobs)}.values():  # the first one of each run, a batch of it
        decode(replace(job, members=job.members[: job.run.batch_size]), min(WARM_UP_TOKENS, settings.max_new_tokens))
    if records is not None:
        recording.begin(lineup.runs, records)
    for together in _in_step(planned) if settings.lockstep else ([job] for job in planned):
        todo = [job for job in together if job.key not in done and job.run.name not in lineup.skipped]
        if todo:
            with quiet.watch() as others, memory.watch() as peak:
                results = decode_all(todo)
            for job, result in zip(todo, results, strict=True):
                if result is not None:
                    if result.peak_rss_mb is None:
                        result.cores_used_by_others, result.peak_rss_mb = others.cores, peak.mb
                    journal.add(_row(job, result, [prompts[i] for i in job.members]))
        for job in together:
            advance(job)


def _in_step(planned: Sequence[Job]) -> Iterator[list[Job]]:
    """The jobs of our methods on the same prompts together, those of peers alone."""
    sets: dict[Any, list[Job]] = {}
    for job in planned:
        alone = None if isinstance(job.run, MethodRun) else job.run.name
        sets.setdefault((job.repeat, job.group, job.part, job.members, alone), []).append(job)
    yield from sets.values()


def _row(job: Job, result: Decoded, prompts: Sequence[Prompt]) -> Row:
    outputs = []
    for i, (prompt, tokens) in enumerate(zip(prompts, result.outputs, strict=True)):
        output: Row = {"prompt": prompt.id, "task": prompt.group, "tokens": tokens}
        if result.stats:
            stats = result.stats[i]
            output |= {"rounds": stats.rounds, "accepted": stats.accepted, "depth_offered": stats.depth_offered, "nodes": stats.nodes}
            output["histogram"] = {str(kept): stats.histogram[kept] for kept in sorted(stats.histogram)}
        if result.rules and result.rules[i]:
            output["rules"] = result.rules[i]
        outputs.append(output)
    return {
        "repeat": job.repeat,
        "group": job.group,
        "run": job.run.name,
        "part": job.part,
        "seconds": result.seconds,
        "target_forwards": result.target_forwards,
        "prefill_forwards": result.prefill_forwards,
        "draft_forwards": result.draft_forwards,
        "target_seconds": result.target_seconds,
        "prefill_seconds": result.prefill_seconds,
        "draft_seconds": result.draft_seconds,
        "cores_used_by_others": result.cores_used_by_others,
        "peak_rss_mb": result.peak_rss_mb,
        "outputs": outputs,
    }
