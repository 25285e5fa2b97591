"""Which pair of models something was measured on, so that it is not used with another one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from .errors import CheckpointMismatch

Marks = tuple[float, ...]


@dataclass(frozen=True)
class Origin:
    """Names for people, and for the comparison the tokenizer's hash, the vocabulary and some numbers of each model's embedding.

    `draft` is the draft model's name, or the drafter's where there is none.
    """

    target: str
    draft: str
    tokenizer: str
    vocab_size: int
    target_marks: Marks = ()
    draft_marks: Marks = ()

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Origin:
        """Raises KeyError, TypeError or ValueError for what is no origin."""
        target, draft = (tuple(float(x) for x in values[name]) for name in ("target_marks", "draft_marks"))
        size = int(values["vocab_size"])
        return cls(str(values["target"]), str(values["draft"]), str(values["tokenizer"]), size, target, draft)


def origin_of(target: Any, draft: Any) -> Origin:
    """Of these models; `draft` is a draft model or the name of a drafter without one."""
    from .heads.fingerprint import tokenizer_hash

    named = isinstance(draft, str)
    return Origin(
        target.name,
        draft if named else draft.name,
        tokenizer_hash(target.vocabulary),
        target.vocab_size,
        _marks(target),
        () if named else _marks(draft),
    )


def _marks(model: Any) -> Marks:
    """The sums of some rows of the embedding, under fixed signs."""
    import torch

    from .heads.borrow import embedding_weight

    weight = embedding_weight(model)
    rows = weight[torch.linspace(0, len(weight) - 1, 16).round().long().to(weight.device)].double().cpu()
    return tuple(float(f"{x:.5g}") for x in (rows @ (1.0 - 2.0 * (torch.arange(rows.shape[1]) // 3 % 2).double())).tolist())


def check_origin(what: str, made: Origin, used: Origin) -> None:
    """Raise CheckpointMismatch, with both values, for the first thing in which the two pairs differ. Marks may differ by rounding."""
    for name, ours, theirs, same in _comparison(made, used):
        if not same:
            raise CheckpointMismatch(
                f"{what} belongs to {made.target} with {made.draft}: its {name} is {ours} and here it is {theirs}; "
                "use it with that pair, or make one for this pair with paceline calibrate"
            )


def _comparison(made: Origin, used: Origin) -> list[tuple[str, object, object, bool]]:
    found: list[tuple[str, object, object, bool]] = [
        ("tokenizer", made.tokenizer or "unknown", used.tokenizer or "unknown", made.tokenizer == used.tokenizer),
        ("vocabulary size", made.vocab_size, used.vocab_size, made.vocab_size == used.vocab_size),
        ("target", made.target, used.target, _alike(made.target_marks, used.target_marks)),
    ]
    if not made.draft_marks or not used.draft_marks:
        return [*found, ("drafter", made.draft, used.draft, (made.draft, made.draft_marks) == (used.draft, used.draft_marks))]
    return [*found, ("draft model", made.draft, used.draft, _alike(made.draft_marks, used.draft_marks))]


def _alike(ours: Marks, theirs: Marks) -> bool:
    """Up to the rounding of a 16-bit format."""
    from .heads.fingerprint import differs

    return differs(ours, theirs) < 0.01
