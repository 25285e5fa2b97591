"""The page: one file that needs nothing else."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..errors import PacelineError

_HERE = "/* the story */ null"


def page(story: dict[str, Any]) -> str:
    """HTML with the story in it, as data that no browser takes for markup."""
    template = files(__package__).joinpath("page.html").read_text("utf-8")
    assert template.count(_HERE) == 1, "the page has one place for its story"
    data = json.dumps(story, allow_nan=False, ensure_ascii=False)
    for mark in "<>&\u2028\u2029":  # no tag, comment or line ends inside a script
        data = data.replace(mark, f"\\u{ord(mark):04x}")
    return template.replace(_HERE, data)


def write(story: dict[str, Any], file: Path) -> None:
    """Raises PacelineError if the file cannot be written."""
    try:
        file.write_text(page(story), "utf-8")
    except OSError as error:
        raise PacelineError(
            f"the page cannot be written to {file} ({error.strerror}); make room, or give another name with --out"
        ) from None
