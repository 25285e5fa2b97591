"""What exit heads are: where they sit, how confidence becomes an exit, and which target they belong to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from ..errors import CheckpointMismatch, InvalidRequest
from .exit_cost import Profile
from .fingerprint import fingerprint, tokenizer_hash

ANNEALING, THRESHOLD = 0.5, 0.8  # of heads that were fitted to nothing
KIND = "paceline-exits"


@dataclass(frozen=True)
class ExitConfig:
    """Shapes, settings and origin of exit heads.

    `layers`: depths at which a token may exit, ascending; depth l is after l decoder layers, 1 to L - 1.
    `draft_vocab_size`: tokens that the heads know; None is the target's own vocabulary.
    `annealing`, `threshold`: of the exit rule (`exit.fires`).
    `profile`: what the heads did on held-out text, from which bounds are chosen; None where there was none.
    """

    layers: tuple[int, ...]
    num_target_layers: int
    hidden_size: int
    vocab_size: int
    draft_vocab_size: int | None = None
    annealing: float = ANNEALING
    threshold: float = THRESHOLD
    profile: Profile | None = None
    target_name: str = ""
    target_tokenizer: str = ""  # hash of the target's vocabulary
    target_fingerprint: tuple[float, ...] = ()  # of some rows of its embedding and output matrices

    def __post_init__(self) -> None:
        check_layers(self.layers, self.num_target_layers)
        small = self.draft_vocab_size
        if small is not None and not 0 < small < self.vocab_size:
            raise CheckpointMismatch(f"exit heads with {small} tokens do not fit a target of {self.vocab_size}; get the heads again")

    def as_dict(self) -> dict[str, Any]:
        return {"kind": KIND, **asdict(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ExitConfig:
        """Raises CheckpointMismatch for what is no configuration of exit heads."""
        if values.get("kind") != KIND:
            raise CheckpointMismatch("this folder holds no exit heads; name the one that `paceline train exits` wrote")
        given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items() if k != "kind"}
        if strange := sorted(given.keys() - {f.name for f in fields(cls)}):
            raise CheckpointMismatch(f"the exit heads' configuration has unknown keys {', '.join(strange)}; get the heads again")
        try:
            profile = given.pop("profile", None)
            return cls(**given, profile=None if profile is None else Profile.from_dict(profile))
        except (TypeError, KeyError, InvalidRequest) as error:
            raise CheckpointMismatch(f"the exit heads' configuration does not hold ({error}); get the heads again") from None

    @classmethod
    def for_target(cls, target: Any, layers: Sequence[int] = (), draft_vocab_size: int | None = None) -> ExitConfig:
        """For this target (an HFTarget). No layers are the default ones. Raises InvalidRequest for layers that it does not have."""
        return cls(
            layers=tuple(layers) or default_layers(target.num_layers),
            num_target_layers=target.num_layers,
            hidden_size=target.config.hidden_size,
            vocab_size=target.vocab_size,
            draft_vocab_size=draft_vocab_size,
            target_name=target.name,
            target_tokenizer=tokenizer_hash(target.vocabulary),
            target_fingerprint=fingerprint(target),
        )


def check_layers(layers: Sequence[int], count: int) -> None:
    """Raise InvalidRequest unless these are depths at which a token can exit from so many layers."""
    if not layers or list(layers) != sorted(set(layers)):
        raise InvalidRequest(f"exit layers are {list(layers)}; they must be different and ascending")
    if layers[0] < 1 or layers[-1] > count:
        raise InvalidRequest(f"exit layers are {list(layers)}; in this target an exit is after 1 to {count} layers")


def default_layers(count: int) -> tuple[int, ...]:
    """A quarter of all layers, then every eighth part up to 5/8 (8, 12, 16, 20 of 32; spec 7)."""
    return tuple(sorted({max(1, round(count * eighths / 8)) for eighths in (2, 3, 4, 5)}))
