"""The target's own answers to prompts, by the one loop, with the batch kept full: when a sequence ends, the next prompt takes its place.

The features that a head will read can be kept on the way, which spares a second pass over prompts and answers.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .. import api, engine, methods
from ..errors import InvalidRequest
from ..replay import Recording
from ..sampling import SamplingParams
from ..sequence import Sequence as Request
from ..targets.hf import HFTarget
from .answers import Answer, AnswerFile
from .prompts import Row, Say, chance
from .recipe import Answers

Keep = Callable[[str, torch.Tensor], Any]  # an answer's key, (T, F) features of all its tokens but the last


@dataclass
class Job:
    """One answer to be made: a turn of a row, with the messages before it."""

    row: Row
    turn: int
    messages: list[dict[str, str]]
    request: Request
    temperature: float


class Regenerator:
    """Answers rows into a file.

    Args:
        target: the model that answers.
        settings: lengths, temperatures and batch size; `method` names a drafter (and rule) of the table.
        seed: of the sampled answers; each prompt has its own random numbers, whatever else is in the batch.
        layer_ids, keep: if given, `keep` gets the features of each finished sequence.
    """

    def __init__(
        self,
        target: HFTarget,
        settings: Answers,
        *,
        seed: int = 0,
        layer_ids: Sequence[int] = (),
        keep: Keep | None = None,
        say: Say = lambda message: None,
        stopped: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.target, self.settings, self.seed, self.keep = target, settings, seed, keep
        self.say, self.stopped, self.clock = say, stopped, clock
        drafter, self.rule = methods.build(settings.method, target)
        self.drafter = Recording(drafter, layer_ids if keep else ())
        self.left_out = self.cut = self.new_tokens = 0
        self.seconds = 0.0

    def run(self, rows: Iterable[Row], file: AnswerFile, *, seconds: float | None = None) -> None:
        """Answer all rows that the file does not hold yet; start no more once the file's stage has taken so many seconds.

        Raises KeyboardInterrupt if `stopped()`, asked in every round. Answers that were finished are in the file then.
        """
        before, began, said = file.elapsed, self.clock(), 0.0
        waiting, queue = iter(rows), deque[Job]()
        live: dict[int, Job] = {}
        seqs: list[Request] = []

        def elapsed() -> float:
            return before + self.clock() - began

        def refill() -> None:
            while len(seqs) < self.settings.batch_size and (seconds is None or elapsed() < seconds):
                job = queue.popleft() if queue else self._next(waiting, file)
                if job is None:
                    return
                live[id(job.request)] = job
                seqs.append(job.request)

        try:
            refill()
            for round_ in engine.rounds(self.target, self.drafter, self.rule, seqs):
                if self.stopped():
                    raise KeyboardInterrupt
                self.new_tokens += len(round_.tokens)
                if round_.finish_reason is None:
                    continue
                job = live.pop(id(round_.sequence))
                seqs.remove(round_.sequence)
                queue.extend(self._finish(job, file, elapsed()))
                engine.release(self.target, round_.sequence)
                refill()
                if elapsed() - said > 5:
                    said = elapsed()
                    self.say(f"{len(file.answers)} answers, {file.tokens / max(elapsed(), 1e-9):.0f} tokens/s")
        finally:
            for seq in seqs:
                engine.release(self.target, seq)
            self.seconds += self.clock() - began

    def _next(self, rows: Iterable[Row], file: AnswerFile) -> Job | None:
        """The first turn that is still to be answered, of the next row that has one."""
        for row in rows:
            messages: list[dict[str, str]] = []
            for turn in range(len(row.turns)):
                done = file.answers.get(Answer.key_of(row.id, turn))
                if done is None:
                    job = self._job(row, turn, messages)
                    if job is not None:
                        return job
                    break
                messages += _exchange(row.turns[turn], done.text)
        return None

    def _finish(self, job: Job, file: AnswerFile, elapsed: float) -> list[Job]:
        """Write the answer; returns the job of the next turn, if there is one."""
        seq = job.request
        text = str(self.target.tokenizer.decode(seq.output, skip_special_tokens=True))
        answer = Answer(
            job.row.id, job.turn, job.row.task, seq.tokens[: seq.prompt_length], seq.output, text, seq.finish_reason or "",
            job.temperature, elapsed, file.settings,
        )  # fmt: skip
        if self.keep is not None and seq.features is not None:
            self.keep(answer.key, seq.features)
        file.add(answer)
        if job.turn + 1 == len(job.row.turns):
            return []
        following = self._job(job.row, job.turn + 1, [*job.messages, {"role": "assistant", "content": text}])
        return [] if following is None else [following]

    def _job(self, row: Row, turn: int, messages: list[dict[str, str]]) -> Job | None:
        """None if the prompt is too long and left out."""
        messages, tokens = self._fit(row, turn, messages)
        if not tokens:
            return None
        choice = chance(self.seed, "temperature", row.id, str(turn)) % len(self.settings.temperatures)
        temperature = self.settings.temperatures[choice]
        params = SamplingParams(
            max_new_tokens=self.settings.max_new_tokens,
            temperature=temperature,
            seed=chance(self.seed, "answer", row.id, str(turn)) % 2**31 if temperature else None,
        )
        request = Request(tokens, params, eos_token_ids=self.target.eos_token_ids, max_length=self.target.max_length)
        return Job(row, turn, messages, request, temperature)

    def _fit(self, row: Row, turn: int, messages: list[dict[str, str]]) -> tuple[list[dict[str, str]], list[int]]:
        """Messages and prompt ids within the limit: the turn's text is cut at its end, or the prompt is left out (no ids)."""
        limit = self.settings.max_prompt_tokens
        if self.target.max_length is not None:
            limit = min(limit, self.target.max_length - 1)
        full = [*messages, {"role": "user", "content": row.turns[turn]}]
        tokens = api.encode(self.target, full)
        over = len(tokens) - limit
        if over <= 0:
            return full, tokens
        if self.settings.on_long_prompt == "stop":
            raise InvalidRequest(
                f"prompt {row.id} has {len(tokens)} tokens, over answers.max_prompt_tokens {limit}; "
                "set answers.on_long_prompt to cut or skip"
            )
        ids = self.target.tokenizer(row.turns[turn], add_special_tokens=False)["input_ids"]
        while over > 0 and self.settings.on_long_prompt == "cut" and len(ids) > over:  # a cut can change how the rest is split
            ids = ids[: len(ids) - over]
            full[-1] = {"role": "user", "content": self.target.tokenizer.decode(ids)}
            tokens = api.encode(self.target, full)
            over = len(tokens) - limit
        if over > 0:
            self.left_out += 1
            return full, []
        self.cut += 1
        return full, tokens


def _exchange(question: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def fingerprint(target_mark: Sequence[Any], settings: Answers, seed: int) -> str:
    """16 hexadecimal digits of all that decides what an answer is. `target_mark` identifies the target and its precision."""
    decisive = settings.model_dump(exclude={"batch_size", "method", "max_minutes", "source"})
    text = json.dumps([list(target_mark), decisive, seed], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
