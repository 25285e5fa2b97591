"""Rounds written by hand."""

from __future__ import annotations

from paceline.record.texts import RoundRecord, TextRecord

ROOT = 5


def text_of(answer: list[int], *rounds: RoundRecord) -> TextRecord:
    """A text whose prompt is one token before the root, and then this answer."""
    return TextRecord("text", "domain", 0.0, 2, (1, ROOT, *answer), rounds)


def chain(drafted: list[int], accepted: int, taken: int | None = None, at: int = 1) -> RoundRecord:
    """A chain of which so many tokens were kept; `taken` tokens in all, one more unless it ended there."""
    tokens = (ROOT, *drafted)
    return RoundRecord(at, accepted + 1 if taken is None else taken, tokens, tuple(range(-1, len(drafted))), tuple(range(accepted + 1)))


def tree(
    tokens: list[int], parents: list[int], path: list[int], scores: list[float] | None = None, taken: int | None = None
) -> RoundRecord:
    """A tree below the root at token 1."""
    made = (ROOT, *tokens), (-1, *parents), tuple(path)
    return RoundRecord(1, len(path) if taken is None else taken, *made, None if scores is None else tuple(scores))
