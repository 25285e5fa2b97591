"""Files that are whole or absent, and a full disk that says so."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from ..errors import PacelineError

MB = 1 << 20


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a failed write into one line that names the file and the remedy."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise PacelineError(
            f"cannot write {path} ({reason}); make room or choose another --out, then run the same command again: "
            "it goes on where it stopped"
        ) from None


def put(path: Path, write: Callable[[Path], Any]) -> None:
    """Let `write` make a file or a folder beside `path`, then move it there in one go. Nothing is left behind if that fails."""
    scratch = path.with_name(f".{path.name}.part")
    with writing(path):
        remove(scratch)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write(scratch)
            if path.is_dir():
                remove(path)
            os.replace(scratch, path)
        finally:
            remove(scratch)


def put_text(path: Path, text: str) -> None:
    put(path, lambda scratch: scratch.write_text(text, "utf-8"))


def remove(path: Path) -> None:
    """Delete a file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def whole_lines(path: Path) -> list[str]:
    """The lines of a file that is only appended to; one that was cut short by a crash is taken off the file."""
    if not path.exists():
        return []
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        with writing(path):
            os.truncate(path, len(whole))
    return whole.decode("utf-8").split("\n")[:-1]  # not splitlines: a text may hold other line separators


def need_room(folder: Path, size: int, what: str, *, anyway: bool = False) -> str:
    """One line with the estimate. Raises PacelineError if the disk has less, unless `anyway`."""
    free = shutil.disk_usage(next(p for p in (folder, *folder.parents) if p.exists())).free
    line = f"{what}: {size / MB:,.0f} MB of disk, of which {free / MB:,.0f} MB are free"
    if size > free and not anyway:
        raise PacelineError(f"{line} at {folder}; choose another --out, fewer prompts or features.where=online, or try it with --yes")
    return line
