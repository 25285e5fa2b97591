"""The Python in an answer: found in its fenced blocks, or taken as the continuation of a stub."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection

_FENCE = re.compile(r"^[ \t]*```[ \t]*(\w*)[^\n]*\n(.*?)(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE)  # one cut short ends with the text
_CODE_LINE = re.compile(r"(?:async def|def|class|import|from)\s|@\w|[A-Za-z_]\w*\s*=[^=]")
_OTHER = {"text", "output", "bash", "sh", "console", "json", "plaintext", "shell"}


def extract(text: str, wanted: Collection[str] = ()) -> str | None:
    """The code of an answer that stands on its own, or None.

    Of several fenced blocks: the first that defines all the wanted names, else the first that defines a function, else the first.
    Without any: from the first line that begins a definition, an import or an assignment, as far as it parses.
    """
    blocks: list[str] = [code for language, code in _FENCE.findall(text) if language.lower() not in _OTHER and code.strip()]
    if blocks:
        return next((b for b in blocks if defines(b, wanted)), None) or next((b for b in blocks if _definitions(b)), blocks[0])
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if _CODE_LINE.match(line)), None)
    return None if start is None else _parsing("\n".join(lines[start:]))


def defines(code: str, names: Collection[str]) -> bool:
    """Whether all these names are defined at the top level; false for no names."""
    return bool(names) and set(names) <= _definitions(code)


def _definitions(code: str) -> set[str]:
    return set(re.findall(r"^(?:async\s+)?(?:def|class)\s+(\w+)", code, re.MULTILINE))


def _parsing(code: str) -> str:
    """The longest run of lines from the first on that is Python; all of them if none is."""
    lines = code.splitlines()
    for end in range(len(lines), 0, -1):
        if _is_python(shorter := "\n".join(lines[:end])):
            return shorter
    return code


def _is_python(code: str) -> bool:
    try:
        ast.parse(code)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    return True


def continuation(text: str) -> str:
    """The rest of a function's body: up to the first line that is neither indented nor blank."""
    lines = text.splitlines()
    end = next((i for i, line in enumerate(lines) if i and line.strip() and not line[0].isspace()), len(lines))
    return "\n".join(lines[:end])


def preamble(stub: str, name: str) -> str:
    """What stands before the function in its stub: imports and helpers."""
    found = re.search(rf"^(?:async\s+)?def\s+{re.escape(name)}\b", stub, re.MULTILINE)
    return stub[: found.start()] if found else ""


def completed(stub: str, name: str, text: str, chat: bool) -> list[str] | None:
    """Sources to run one after the other for an answer to a stub: a whole function with what stood before it, or a body put behind it.

    None if a chat's answer holds no code.
    """
    code = extract(text, [name])
    if code is not None and defines(code, [name]):
        return [preamble(stub, name), code]
    if chat:
        return None if code is None else [stub + continuation(code)]
    return [stub + continuation(text)]


def tested_names(code: str, tests: Collection[str]) -> set[str]:
    """The functions of a reference solution that its tests call."""
    return {name for name in _definitions(code) if any(re.search(rf"\b{re.escape(name)}\s*\(", t) for t in tests)}
