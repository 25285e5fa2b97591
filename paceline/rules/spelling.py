"""What tokens say, for guards that keep a lossy rule away from numbers, brackets and special tokens."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

_CLASSES = {
    "number": frozenset("0123456789+-\u2212\u00b1"),
    "comparison": frozenset("<>=!\u2264\u2265\u2260"),
    "bracket": frozenset("()[]{}"),
}


@dataclass(frozen=True, eq=False)
class Spelling:
    """`special` ids end, mark or structure a text; without `decode` nothing is known of the others."""

    special: frozenset[int] = frozenset()
    decode: Callable[[int], str] | None = None
    _texts: dict[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, target: Any) -> Spelling:
        """Of a target, if it has a tokenizer."""
        tokenizer = getattr(target, "tokenizer", None)
        ends = frozenset(getattr(target, "eos_token_ids", ()))
        if tokenizer is None:
            return cls(ends)
        added: dict[str, int] = getattr(tokenizer, "get_added_vocab", dict)()
        special = ends | frozenset(getattr(tokenizer, "all_special_ids", ())) | frozenset(added.values())
        return cls(special, lambda token: str(tokenizer.decode([token])))

    def text(self, token: int) -> str:
        """The token's text in compatibility form, without the space around it."""
        if self.decode is None:
            return f"<{token}>"
        if token not in self._texts:
            self._texts[token] = unicodedata.normalize("NFKC", self.decode(token)).strip()
        return self._texts[token]

    def conflict(self, one: int, other: int) -> str | None:
        """Why two tokens must not stand for each other: `special`, or the class of characters in which both differ."""
        if one in self.special or other in self.special:
            return "special"
        if self.decode is None:
            return None
        texts = self.text(one), self.text(other)
        for name, characters in _CLASSES.items():
            first, second = ("".join(c for c in text if c in characters or (name == "number" and c.isdigit())) for text in texts)
            if first and second and first != second:
                return name
        return None

    def same_surface(self, one: int, other: int) -> bool:
        """Whether two tokens differ in space and case only."""
        return self.decode is not None and self.text(one).casefold() == self.text(other).casefold()

    def kind(self, one: int, other: int) -> str:
        """In what two tokens differ, for tables: `case or space`, `word`, `number`, `sign`, or `word for sign`."""
        if self.decode is None:
            return "unknown"
        if self.same_surface(one, other):
            return "case or space"
        texts = self.text(one), self.text(other)
        if any(c.isdigit() for text in texts for c in text):
            return "number"
        words = sum(any(c.isalpha() for c in text) for text in texts)
        return ("sign", "word for sign", "word")[words]
