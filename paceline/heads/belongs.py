"""Does this head belong to this target? What differs is an error: it would show as acceptance 1.00 and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from ..errors import CheckpointMismatch
from .fingerprint import differs, fingerprint, same_target, tokenizer_hash


class Origin(Protocol):
    """What every kind of head says of its target."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def num_target_layers(self) -> int: ...
    @property
    def target_name(self) -> str: ...
    @property
    def target_tokenizer(self) -> str: ...
    @property
    def target_fingerprint(self) -> tuple[float, ...]: ...


def check_belongs(config: Origin, target: Any) -> None:
    """Raise CheckpointMismatch, with both values, for the first thing in which head and target (an HFTarget) differ.

    Heads from elsewhere carry neither a tokenizer's hash nor a fingerprint; then shapes are all that can be compared.
    """
    for what, ours, theirs in differences(config, target):
        raise CheckpointMismatch(
            f"the head does not belong to {target.name}: its {what} is {ours} and the target's {theirs}; "
            f"use it with {config.target_name or 'the target it was trained on'}, or train one for this target"
        )


def differences(config: Origin, target: Any) -> list[tuple[str, object, object]]:
    """What differs, as (what, the head's, the target's); the plainest first."""
    return [(what, ours, theirs) for what, ours, theirs, same in comparison(config, target) if same is False]


def comparison(config: Origin, target: Any) -> Iterator[tuple[str, object, object, bool | None]]:
    """What a head says of its target: (what, the head's, the target's, whether they agree; None if one of them does not say)."""
    own, hash_ = target.config, tokenizer_hash(target.vocabulary)
    yield "hidden size", config.hidden_size, own.hidden_size, config.hidden_size == own.hidden_size
    yield "vocabulary size", config.vocab_size, target.vocab_size, config.vocab_size == target.vocab_size
    layers = config.num_target_layers
    yield "number of target layers", layers, own.num_hidden_layers, layers == own.num_hidden_layers
    known = bool(config.target_tokenizer and hash_)
    yield "tokenizer", config.target_tokenizer or "unknown", hash_ or "unknown", config.target_tokenizer == hash_ if known else None
    ours = config.target_fingerprint
    if not ours:
        yield "fingerprint of embedding and output rows", "unknown", "known", None
    else:
        theirs = fingerprint(target)
        yield "fingerprint of embedding and output rows", "its own", f"off by {differs(ours, theirs):.1%}", same_target(ours, theirs)
