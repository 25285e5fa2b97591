"""Run everything: for each group of prompts all runs, in an order that rotates, so that drift of the machine hits all alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .. import api
from ..errors import InvalidRequest
from ..targets.hf import HFTarget
from .journal import Journal, Row
from .lineup import Lineup, peak_rss_mb, reason
from .peers import PeerRun
from .quiet import watch
from .runs import Decoded, Run
from .settings import Settings
from .suites import Prompt

WARM_UP_TOKENS = 8
BATCHES = 3  # prompts of a group, in batches: as one prompt of a batch ends, the next of the group joins


def encode_all(target: HFTarget, prompts: Sequence[Prompt], *, chat: bool = True, called: str = "prompt") -> list[list[int]]:
    """Token ids of each first turn, in the chat template or raw. Raises InvalidRequest naming a prompt that does not fit the context."""
    encoded = [api.encode(target, p.turns[0], chat) for p in prompts]
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


def jobs(runs: Sequence[Run], prompts: int, batch_size: int, repeat: int) -> Iterator[Job]:
    """All decode calls in order. A group is one prompt, or several batches of them, which runs at batch size 1 decode one by one."""
    size = 1 if batch_size == 1 else batch_size * BATCHES
    for again in range(repeat):
        for group, start in enumerate(range(0, prompts, size)):
            members = tuple(range(start, min(start + size, prompts)))
            turn = (group + again) % len(runs)
            for run in (*runs[turn:], *runs[:turn]):
                step = 1 if run.batch_size == 1 else size
                for part, first in enumerate(range(0, len(members), step)):
                    yield Job(again, group, run, part, members[first : first + step])


def run_all(
    lineup: Lineup,
    settings: Settings,
    prompts: Sequence[Prompt],
    encoded: Sequence[list[int]],
    journal: Journal,
    advance: Callable[[Job], Any] = lambda job: None,
) -> None:
    """Warm each run up, then make all decode calls that the journal does not hold yet. A peer that fails is skipped from there on."""
    context = lineup.target.max_length
    room = [settings.max_new_tokens if context is None else context - len(e) for e in encoded]

    def decode(job: Job, most: int) -> Decoded | None:
        try:
            return job.run.decode([encoded[i] for i in job.members], [min(most, room[i]) for i in job.members])
        except Exception as error:
            if not isinstance(job.run, PeerRun):
                raise
            lineup.skipped[job.run.name] = reason(error)
            return None

    done = {(r["repeat"], r["group"], r["run"], r["part"]) for r in journal.rows}
    planned = list(jobs(tuple(lineup.runs), len(prompts), settings.batch_size, settings.repeat))
    open_jobs = [job for job in planned if job.key not in done]
    for job in {j.run.name: j for j in reversed(open_jobs)}.values():  # the first one of each run
        decode(job, min(WARM_UP_TOKENS, settings.max_new_tokens))
    for job in planned:
        if job.key not in done and job.run.name not in lineup.skipped:
            with watch() as others:
                result = decode(job, settings.max_new_tokens)
            if result is not None:
                journal.add(_row(job, result, [prompts[i] for i in job.members], others.cores))
        advance(job)


def _row(job: Job, result: Decoded, prompts: Sequence[Prompt], others: float | None) -> Row:
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
        "cores_used_by_others": others,
        "peak_rss_mb": peak_rss_mb(),
        "outputs": outputs,
    }
