"""Answers on disk: one JSON line each, appended as they come, so that an interrupted run goes on where it stopped."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import InvalidRequest
from .disk import whole_lines, writing


@dataclass(frozen=True)
class Answer:
    """What the target said to a prompt. `ids` include an end-of-sequence token; `elapsed` counts seconds of its stage."""

    id: str
    turn: int
    task: str
    prompt_ids: list[int]
    ids: list[int]
    text: str
    finish_reason: str
    temperature: float
    elapsed: float
    settings: str  # of the run that made it, see `regenerate.fingerprint`

    @property
    def key(self) -> str:
        return self.key_of(self.id, self.turn)

    @staticmethod
    def key_of(row: str, turn: int) -> str:
        return f"{row}#{turn}" if turn else row


class AnswerFile:
    """The answers of one stage. Raises InvalidRequest if there are some that were made with other settings."""

    def __init__(self, path: Path, settings: str) -> None:
        self.path, self.settings = path, settings
        self.answers: dict[str, Answer] = {}
        for number, line in enumerate(whole_lines(path), 1):
            answer = _answer(line, f"{path}, line {number}")
            if answer.settings != settings:
                raise InvalidRequest(f"{path} holds answers of another target or other settings; delete it, or choose another --out")
            self.answers[answer.key] = answer

    @property
    def elapsed(self) -> float:
        """Seconds spent so far, over all runs."""
        return max((a.elapsed for a in self.answers.values()), default=0.0)

    @property
    def tokens(self) -> int:
        return sum(len(a.ids) for a in self.answers.values())

    def add(self, answer: Answer) -> None:
        line = json.dumps(asdict(answer), ensure_ascii=False) + "\n"
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as out:
                out.write(line)
        self.answers[answer.key] = answer


def _answer(line: str, where: str) -> Answer:
    try:
        values: Any = json.loads(line)
        return Answer(**values)
    except (ValueError, TypeError):
        raise InvalidRequest(f"{where}: no answer of ours; delete the file, or choose another --out") from None
