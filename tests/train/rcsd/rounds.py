"""Texts with rounds written by hand, and what batches are made of."""

from __future__ import annotations

from typing import Any

from paceline.record.texts import RoundRecord, TextRecord
from paceline.train.examples import Example
from paceline.train.features import Taps
from paceline.train.rcsd.batches import RoundBatch, example_of, make_rounds

from ..conftest import sequences

DEPTH = 3


def drafted(example: Example, at: int, accepted: int, tail: tuple[int, ...] = (7, 8), above: int | None = None) -> RoundRecord:
    """A round that kept `accepted` tokens of the text, refused the first of `tail`, and ranked `above` over the first accepted one."""
    tokens, parents, path = [example.tokens[at]], [-1], [0]
    if above is not None:
        tokens, parents = [*tokens, above], [*parents, 0]
    for token in example.tokens[at + 1 : at + 1 + accepted]:
        tokens, parents = [*tokens, token], [*parents, path[-1]]
        path.append(len(tokens) - 1)
    parent = path[-1]
    for token in tail:
        tokens, parents = [*tokens, token], [*parents, parent]
        parent = len(tokens) - 1
    return RoundRecord(at, accepted + 1, tuple(tokens), tuple(parents), tuple(path))


def record(example: Example, *rounds: RoundRecord) -> TextRecord:
    return TextRecord(example.key, "d", 0.0, example.prompt_length, example.tokens, rounds)


def texts_of(target: Any, count: int = 3) -> list[TextRecord]:
    """Random texts, each with a round that kept nothing, one token and two."""
    made = []
    for e in sequences(target, count):
        p = e.prompt_length
        made.append(record(e, drafted(e, p, 0), drafted(e, p + 1, 1, above=9), drafted(e, p + 4, 2, tail=(5,))))
    return made


def batch_of(taps: Taps, texts: list[TextRecord], replayed: bool = False, depth: int = DEPTH) -> RoundBatch:
    tapped = taps.read([t.tokens for t in texts])
    return make_rounds(texts, tapped, [t.rounds for t in texts], [replayed] * len(texts), depth=depth)


def with_features_of(taps: Taps, texts: list[TextRecord], others: list[TextRecord]) -> RoundBatch:
    """The batch of `others` with the features of `texts`: what was read of the target stays, whatever the labels say."""
    return make_rounds(
        others, taps.read([example_of(t).tokens for t in texts]), [t.rounds for t in others], [False] * len(texts), depth=DEPTH
    )
