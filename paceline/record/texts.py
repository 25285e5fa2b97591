"""A decoded text with its rounds, as one line of JSON.

Axes: N nodes of a draft, T tokens of a text, M known log-probabilities of a row.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..engine import Round
from ..sequence import Sequence as Request
from ..tree import Tree

Row = tuple[tuple[int, float], ...]  # (M,) likeliest tokens with their raw log-probabilities


@dataclass(frozen=True)
class RoundRecord:
    """One round. Its root is token `at` of the text; the `taken` tokens behind it are those that the round brought."""

    at: int
    taken: int
    tokens: tuple[int, ...]  # (N,) of the draft, the root first
    parents: tuple[int, ...]  # (N,)
    path: tuple[int, ...]  # accepted nodes from the root down
    scores: tuple[float, ...] | None = None  # (N,) the drafter's log-probability of the path down to each node

    @property
    def tree(self) -> Tree:
        return Tree(self.tokens, self.parents)

    @property
    def accepted(self) -> int:
        """Drafted tokens that were kept."""
        return min(len(self.path) - 1, self.taken)


@dataclass(frozen=True)
class TextRecord:
    """A text that the target finished: `tokens[prompt_length:]` are its answer. `rows` (one per answer token) are the target's
    likeliest tokens there, if the request asked for log-probabilities."""

    key: str
    domain: str
    temperature: float
    prompt_length: int
    tokens: tuple[int, ...]  # (T,)
    rounds: tuple[RoundRecord, ...]
    rows: tuple[Row, ...] | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, line: str) -> TextRecord:
        """Raises ValueError, TypeError or KeyError for a line that is no record."""
        values: dict[str, Any] = json.loads(line)
        rounds = tuple(RoundRecord(**{k: _frozen(v) for k, v in r.items()}) for r in values.pop("rounds"))
        return cls(**{k: _frozen(v) for k, v in values.items()}, rounds=rounds)


def text_key(tokens: Sequence[int]) -> str:
    """16 hexadecimal digits that name a text."""
    return hashlib.sha256(json.dumps(list(tokens)).encode()).hexdigest()[:16]


def record_round(round_: Round) -> RoundRecord:
    """What is kept of a round. Call it before the sequence goes on."""
    tree, taken = round_.draft.tree, len(round_.tokens)
    at = len(round_.sequence.tokens) - taken - 1
    scores = None if round_.draft.scores is None else tuple(round(s, 5) for s in round_.draft.scores)
    return RoundRecord(at, taken, tree.tokens, tree.parents, tuple(round_.path), scores)


def record_text(seq: Request, rounds: Sequence[RoundRecord], domain: str, key: str | None) -> TextRecord:
    """A finished sequence and its rounds."""
    known = seq.logprobs if len(seq.logprobs) == len(seq.output) else []
    rows = tuple(tuple((token, round(logp, 4)) for token, logp in ((p.token, p.logprob), *p.top)) for p in known)
    tokens = tuple(seq.tokens)
    return TextRecord(key or text_key(tokens), domain, seq.params.temperature, seq.prompt_length, tokens, tuple(rounds), rows or None)


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
