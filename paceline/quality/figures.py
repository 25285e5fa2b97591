"""The number that an answer to a word problem ends in.

Exact arithmetic: `18`, `18.00`, `$18` and `1,000/500` are compared as fractions.
"""

from __future__ import annotations

import re
from fractions import Fraction

_WHOLE = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)"
_NUMBER = re.compile(rf"(?<![\w.])(-?\$?-?)({_WHOLE}(?:\.\d+)?|\.\d+)(?:/({_WHOLE}))?")
_MARKED = re.compile(r"####[ \t]*([^\n]*)")
_SAID = re.compile(r"answer\b[^\n:.]{0,60}?(?:\bis\b:?|:)\s*([^\n]*)", re.IGNORECASE)
_LONGEST = 40  # digits: no answer has more, and longer runs cost time


def extract(text: str) -> str | None:
    """The final number as it stands in the text: after the last `####`, in the last box, after the last "answer is", else the last one."""
    text = _plain(text)
    marked, said = _last(_MARKED, text), _last(_SAID, text)
    for place in filter(None, (marked and marked.group(1), last_box(text), said and said.group(1))):
        if found := _NUMBER.search(place.rpartition("=")[2]) or _NUMBER.search(place):
            return found.group()
    return last.group() if (last := _last(_NUMBER, text)) else None


def value(number: str) -> Fraction | None:
    """What a number is worth; None if it is none."""
    found = _NUMBER.fullmatch(_plain(number).strip().rstrip("."))
    if found is None or len(number) > _LONGEST:
        return None
    sign, above, below = found.groups()
    under = Fraction((below or "1").replace(",", ""))
    return None if under == 0 else (-1 if "-" in sign else 1) * Fraction(above.replace(",", "")) / under


def equal(reference: str, answer: str) -> bool:
    """Whether two numbers are worth the same."""
    expected = value(reference)
    return expected is not None and value(answer) == expected


def last_box(text: str) -> str | None:
    """What the last `\\boxed{...}` that is closed holds, with braces inside balanced; None if there is none."""
    for start in (m.end() for m in reversed(list(re.finditer(r"\\f?boxed\s*\{", text)))):
        depth = 1
        for at in range(start, len(text)):
            depth += {"{": 1, "}": -1}.get(text[at], 0) if text[at - 1] != "\\" else 0
            if depth == 0:
                return text[start:at]
    return None


def _plain(text: str) -> str:
    """Without what typesetting puts into numbers."""
    return text.replace("\u2212", "-").replace("{,}", ",").replace("\\$", "$").replace("\\!", "").replace("**", "")


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    return next(reversed(list(pattern.finditer(text))), None)
