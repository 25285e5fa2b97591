"""Prompts of kinds that the files lack, composed of training prompts and of what the target has already said.

- translate: a sentence of an answer, to be translated to another language.
- translate_back: such a translation, to be translated to English again, so that the source text is in the other language.
- summarize: several answers as one long text.
- answer_from: several answers as passages, and the prompt of one of them as the question.

Each is a function of its ingredients and the seed. A row names its ingredients under `sources`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .answers import Answer
from .disk import put_text
from .prompts import Row, chance
from .recipe import Compose

LANGUAGES = ("German", "German", "French", "Spanish")  # the first counts double
_TO = ("Translate English to {language}: {text}", "Translate the following text into {language}.\n\n{text}")
_BACK = ("Translate {language} to English: {text}", "Translate this {language} text to English.\n\n{text}")
_SUMMARIZE = ("Summarize: {text}", "Summarize the following text.\n\n{text}", "{text}\n\nGive a short summary of this.")
_ANSWER = ("{text}\n{question}", "Answer the question from these passages.\n\n{text}\n\nQuestion: {question}")
_LONG = (900, 3400)  # characters of a long text; about four make a token
_SENTENCE = re.compile(r"(?<=[.!?])\s+")


@dataclass
class Pantry:
    """What can be composed: answers and the rows that they answer, in the order of a seed."""

    rows: dict[str, Row]
    answers: Sequence[Answer]
    seed: int
    prose: list[Answer] = field(init=False)

    def __post_init__(self) -> None:
        ordered = sorted(self.answers, key=lambda a: chance(self.seed, "compose", a.key))
        self.prose = [a for a in ordered if a.finish_reason == "stop" and _is_prose(a.text)]

    def pick(self, options: Sequence[str], *names: str) -> str:
        return options[chance(self.seed, *names) % len(options)]


def compose(kinds: Compose, rows: Sequence[Row], answers: Sequence[Answer], seed: int) -> list[Row]:
    """The prompts of all kinds but translate_back, fewer where ingredients run out."""
    pantry = Pantry({r.id: r for r in rows}, answers, seed)
    makers: tuple[tuple[str, Callable[[Pantry, int], Row | None]], ...] = (
        ("translate", _translate),
        ("summarize", _summarize),
        ("answer_from", _answer_from),
    )
    made = [[row for i in range(getattr(kinds, kind)) if (row := make(pantry, i))] for kind, make in makers]
    return [row for group in made for row in group]


def translate_back(kinds: Compose, translations: Sequence[Answer], seed: int) -> list[Row]:
    """Answers to `translate` prompts, to be translated to English."""
    pantry = Pantry({}, (), seed)
    found = []
    for answer in translations:
        text = answer.text.strip().split("\n\n")[0]
        if answer.task != "composed/translate" or answer.finish_reason != "stop" or not 20 <= len(text) <= 600:
            continue
        _, language, number = answer.id.rsplit("-", 2)
        template = pantry.pick(_BACK, "back", answer.id)
        found.append(_row("translate_back", f"{language}-{number}", template.format(language=language, text=text), [answer.id]))
    return found[: kinds.translate_back]


def _translate(pantry: Pantry, index: int) -> Row | None:
    if not pantry.prose:
        return None
    answer = pantry.prose[index % len(pantry.prose)]
    sentences = [s for s in _SENTENCE.split(answer.text.replace("\n", " ")) if 30 <= len(s) <= 220 and _is_prose(s)]
    if not sentences:
        return None
    number, name = index // len(pantry.prose), f"{index:05d}"
    text = sentences[(chance(pantry.seed, "sentence", answer.id) + number) % len(sentences)]
    language = pantry.pick(LANGUAGES, "language", name)
    template = pantry.pick(_TO, "to", name)
    return _row("translate", f"{language}-{name}", template.format(language=language, text=text), [answer.id])


def _summarize(pantry: Pantry, index: int) -> Row | None:
    passages = _passages(pantry, "summarize", index)
    if not passages:
        return None
    text = "\n\n".join(a.text.strip() for a in passages)
    template = pantry.pick(_SUMMARIZE, "template", str(index))
    return _row("summarize", f"{index:05d}", template.format(text=text), [a.id for a in passages])


def _answer_from(pantry: Pantry, index: int) -> Row | None:
    passages = _passages(pantry, "answer_from", index)
    asked = [a for a in passages if a.turn == 0 and len(pantry.rows[a.id].turns[0]) <= 300]
    if not asked:
        return None
    question = pantry.rows[asked[chance(pantry.seed, "asked", str(index)) % len(asked)].id].turns[0]
    text = "\n".join(" ".join(a.text.split()) for a in passages)
    template = pantry.pick(_ANSWER, "answer", str(index))
    return _row("answer_from", f"{index:05d}", template.format(text=text, question=question), [a.id for a in passages])


def _passages(pantry: Pantry, kind: str, index: int) -> list[Answer]:
    """Answers whose texts together have a random length between the limits; none if there is too little."""
    size = _LONG[0] + chance(pantry.seed, kind, "size", str(index)) % (_LONG[1] - _LONG[0])
    found: list[Answer] = []
    start = chance(pantry.seed, kind, "start", str(index))
    for step in range(min(len(pantry.prose), 40)):
        answer = pantry.prose[(start + step) % len(pantry.prose)]
        if sum(len(a.text) for a in found) + len(answer.text) <= size:
            found.append(answer)
    return found if sum(len(a.text) for a in found) >= _LONG[0] // 2 else []


def _is_prose(text: str) -> bool:
    """Mostly letters and spaces: no code, no formulas, no lists of numbers."""
    return len(text) >= 30 and "```" not in text and sum(c.isalpha() or c.isspace() for c in text) / len(text) > 0.88


def _row(kind: str, name: str, text: str, sources: Sequence[str]) -> Row:
    return Row(f"composed-{kind}-{name}", f"composed/{kind}", (text,), {"sources": list(sources)})


def save(path: Path, rows: Sequence[Row]) -> None:
    """As JSONL, so that a run that goes on asks the same, and a reader can look."""
    lines: list[dict[str, Any]] = [{"id": r.id, "task": r.task, "turns": list(r.turns), "reference": r.reference} for r in rows]
    put_text(path, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
