"""What a request for self-drafting may say of its exits. Imports nothing heavy: a wrong setting is refused before the model is loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from ..errors import InvalidRequest
from ..options import named_values


@dataclass(frozen=True)
class ExitSettings:
    """None leaves what the exits were fitted to, or what their cost says.

    `layers`: where a token may exit; of trained heads some of theirs. `depth`: the depth bound, in layers. `threshold`, `annealing`: of
    the exit rule. Raises InvalidRequest for what cannot be.
    """

    layers: tuple[int, ...] | None = None
    depth: int | None = None
    threshold: float | None = None
    annealing: float | None = None

    def __post_init__(self) -> None:
        if self.layers is not None and (not self.layers or list(self.layers) != sorted(set(self.layers)) or self.layers[0] < 1):
            raise InvalidRequest(f"exit layers are {list(self.layers)}; they must be different, ascending and at least 1")
        if self.depth is not None and self.depth < (self.layers or (1,))[0]:
            raise InvalidRequest(f"the exit depth is {self.depth}, above which there is no exit layer; raise it")
        if self.threshold is not None and not 0 <= self.threshold <= 1:
            raise InvalidRequest(
                f"the exit threshold is {self.threshold:g}; no probability is above 1, so it would never fire; it must be between 0 and 1 "
                "(method none drafts nothing)"
            )
        if self.annealing is not None and not self.annealing >= 0:
            raise InvalidRequest(f"the exit annealing is {self.annealing:g}; it must be at least 0, which switches it off")

    @classmethod
    def read(cls, values: Mapping[str, Any] | None) -> ExitSettings:
        """From names and values, which may be text. Raises InvalidRequest."""
        kinds: dict[str, Callable[[Any], Any]] = {"layers": _layers, "depth": int, "threshold": float, "annealing": float}
        found = {}
        for name, value in (values or {}).items():
            if name not in kinds:
                raise InvalidRequest(f"exit setting {name!r} is unknown; there are {', '.join(f.name for f in fields(cls))}")
            try:
                found[name] = kinds[name](value)
            except (TypeError, ValueError):
                raise InvalidRequest(f"exit setting {name} is {value!r}; write it as layers=8,12 or threshold=0.8") from None
        return cls(**found)


def _layers(value: str | Sequence[int]) -> tuple[int, ...]:
    return tuple(int(part) for part in (value.split(",") if isinstance(value, str) else value))


def parsed(texts: Sequence[str]) -> dict[str, str] | None:
    """Settings from NAME=VALUE texts, None if there are none. Raises InvalidRequest."""
    return named_values(texts, "exit setting", like="threshold=0.8")
