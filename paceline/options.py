"""What a method may be told, and a line of the table of methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .errors import InvalidRequest


@dataclass(frozen=True)
class Options:
    """What a drafter may be told. None leaves the drafter's own default; an option that a method does not read is an error."""

    num_speculative_tokens: int | None = None
    budget: int | None = None
    draft_model: Any = None  # a Target
    shape: str | None = None  # of a draft model's tree, see `drafters.shapes.FORMS`
    head: Any = None  # a head's folder, or a head
    rule_mode: str | None = None  # of lossy rules: off, shadow or on
    memory: Any = None  # of CSD: a file, a Memory or a SharedMemory
    thresholds: Any = None  # of EASD: a file
    rule_settings: Mapping[str, Any] | None = None  # of lossy rules, as {"csd.tau": 0.1}
    exits: Any = None  # of SpecBound: a folder of exit heads, `lens`, or an object
    exit_settings: Mapping[str, Any] | None = None  # of SpecBound, as {"threshold": 0.8}; see `heads.exit_settings`
    profile: Any = None  # of the adaptive drafter: a file that `paceline tune` wrote

    def given(self) -> set[str]:
        return {name for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class Entry:
    """One line of the table. `siblings` are the kinds of children that a drafter can propose, by their names in `draft.Siblings`;
    `beliefs` drafters can say what they thought; `wraps` rules go around another one; `page` is the one in docs/methods if it has
    another name; `cheap` drafters cost next to nothing; one that `adapts` chooses among the others by itself; those `on_target`
    draft with the target's own layers, and take part in that only if an option of theirs is given."""

    build: Callable[..., Any]
    help: str
    options: frozenset[str] = frozenset()
    siblings: tuple[str, ...] = ("FIXED",)
    page: str | None = None
    beliefs: bool = False
    wraps: bool = False
    cheap: bool = False
    adapts: bool = False
    on_target: bool = False


def named_values(texts: Sequence[str], kind: str, *, like: str) -> dict[str, str] | None:
    """NAME=VALUE texts by name, None if there are none; a name has a dot where `like`, an example, has one. Raises InvalidRequest."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not value or ("." in like.partition("=")[0] and "." not in name):
            raise InvalidRequest(f"{kind} {text!r} is none; write it as {like}")
        if name in found:
            raise InvalidRequest(f"{kind} {name!r} is given twice; give it once")
        found[name] = value
    return found or None
