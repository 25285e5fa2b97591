"""A head's files: read with a line that says what is wrong, written whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..errors import CheckpointMismatch
from .shipped import CONFIG

WEIGHTS, CARD = "model.safetensors", "card.json"


def read_json(file: Path) -> dict[str, Any]:
    """An object. Raises CheckpointMismatch if it cannot be read."""
    try:
        found = json.loads(file.read_text())
    except OSError as error:
        raise CheckpointMismatch(
            f"{file} cannot be read ({error.strerror}); name the folder of a head, with {CONFIG} and {WEIGHTS}"
        ) from None
    except ValueError as error:
        raise CheckpointMismatch(f"{file} is no JSON ({error}); get the head again") from None
    if not isinstance(found, dict):
        raise CheckpointMismatch(f"{file} is no JSON object; get the head again")
    return found


def write_json(file: str, values: Mapping[str, Any]) -> None:
    Path(file).write_text(json.dumps(values, indent=2, sort_keys=True) + "\n")


def replace_file(file: Path, write_to: Callable[[str], Any]) -> None:
    """Write beside the file, then take its place."""
    scratch = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        write_to(str(scratch))
        scratch.replace(file)
    finally:
        scratch.unlink(missing_ok=True)
