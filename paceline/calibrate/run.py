"""Decode prompts with a rule that only watches, one row per finished prompt on disk, so that a run that was stopped goes on."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import api, engine
from ..errors import InvalidRequest
from ..methods import Options, build
from ..origin import Origin, origin_of
from ..sampling import SamplingParams
from ..sequence import Sequence as Request
from ..targets.hf import HFTarget
from ..targets.load import check_same_tokenizer
from ..train.disk import whole_lines, writing
from ..train.prompts import Row

Take = Callable[[Request], dict[str, Any]]  # what is kept of a finished request, as JSON
Say = Callable[[int, int], Any]  # prompts done, of


@dataclass(frozen=True)
class Plan:
    """How the prompts are decoded: greedily, each its first turn in the chat template where the target has one."""

    drafter: str = "draft_model"
    max_new_tokens: int = 256
    batch_size: int = 1
    num_speculative_tokens: int | None = None
    shape: str | None = None

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "batch_size"):
            if getattr(self, name) < 1:
                raise InvalidRequest(f"{name} is {getattr(self, name)}; it must be at least 1")


@dataclass(frozen=True)
class Pair:
    """The models; `draft` is None where the drafter has none."""

    target: HFTarget
    draft: HFTarget | None

    def origin(self, drafter: str) -> Origin:
        return origin_of(self.target, drafter if self.draft is None else self.draft)


class Rows:
    """The finished prompts, in FILE.rows.jsonl, until the result is written. Raises InvalidRequest for rows of another run."""

    def __init__(self, out: Path, fingerprint: str) -> None:
        self.path = out.with_name(f"{out.name}.rows.jsonl")
        self.done: dict[str, dict[str, Any]] = {}
        self._fingerprint = fingerprint
        for number, line in enumerate(whole_lines(self.path), 1):
            try:
                row: Any = json.loads(line)
                mark, key = str(row["run"]), str(row["id"])
            except (ValueError, TypeError, KeyError):
                raise InvalidRequest(f"{self.path}, line {number}: no row of ours; delete the file, or choose another --out") from None
            if mark != fingerprint:
                raise InvalidRequest(f"{self.path} holds rows of other models, prompts or settings; delete it, or choose another --out")
            self.done[key] = row

    def add(self, key: str, task: str, found: dict[str, Any]) -> None:
        row = {"run": self._fingerprint, "id": key, "task": task, **found}
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as out:
                out.write(json.dumps(row) + "\n")
        self.done[key] = row

    def close(self) -> None:
        """The result is written."""
        self.path.unlink(missing_ok=True)


def fingerprint(kind: str, origin: Origin, plan: Plan, prompts: Sequence[Row]) -> str:
    """Equal for two runs whose rows may stand together. The batch size changes nothing."""
    settings = dataclasses.asdict(plan) | {"batch_size": 0}
    text = json.dumps([kind, origin.as_dict(), settings, [(p.id, p.turns[0]) for p in prompts]], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def decode(
    pair: Pair, rule: str, settings: dict[str, Any], plan: Plan, prompts: Sequence[Row], *, rows: Rows, take: Take, say: Say
) -> list[dict[str, Any]]:
    """All rows, those of earlier runs included, in the order of the prompts. The rule is in shadow."""
    if pair.draft is not None:
        check_same_tokenizer(pair.target, pair.draft)
    options = Options(plan.num_speculative_tokens, None, pair.draft, plan.shape, rule_mode="shadow", rule_settings=settings)
    drafter, built = build(f"{plan.drafter}/{rule}", pair.target, options)
    waiting = [p for p in prompts if p.id not in rows.done]
    say(len(prompts) - len(waiting), len(prompts))
    for group in _groups(waiting, 8 * plan.batch_size):
        owners = {id(seq): (p, seq) for p, seq in ((p, _request(pair.target, p, plan)) for p in group)}
        for round_ in engine.stream(pair.target, drafter, built, [seq for _, seq in owners.values()], plan.batch_size):
            if round_.finish_reason:
                prompt, seq = owners[id(round_.sequence)]
                rows.add(prompt.id, prompt.task, take(seq))
                say(len(rows.done), len(prompts))
    return [rows.done[p.id] for p in prompts]


def _groups(prompts: Sequence[Row], size: int) -> Iterable[Sequence[Row]]:
    """Few requests are held at a time, since each keeps what was seen of it."""
    return (prompts[start : start + size] for start in range(0, len(prompts), size))


def _request(target: HFTarget, prompt: Row, plan: Plan) -> Request:
    chat = bool(target.tokenizer is not None and target.tokenizer.chat_template)
    return api.request(target, prompt.turns[0], SamplingParams(max_new_tokens=plan.max_new_tokens), chat)
