"""What people see besides the answer: progress and errors, on stderr only."""

from __future__ import annotations

import os
import sys
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status


def stderr() -> Console:
    """A console that writes no colour codes where there is no terminal, and takes text as it is."""
    from rich.console import Console

    return Console(stderr=True, markup=False, highlight=False, emoji=False)


def fail(message: str) -> int:
    """Print an error as one line. Returns the exit code."""
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    return 2


def write(text: str) -> None:
    """Part of the answer, at once, on stdout."""
    sys.stdout.write(text)
    sys.stdout.flush()


class Progress:
    """One line about what is going on, shown on a terminal until `stop` or the end of the block. Call it with a message."""

    def __init__(self) -> None:
        self._status: Status | None = None

    def __call__(self, message: str) -> None:
        from rich.text import Text

        if self._status is None:
            self._status = stderr().status(Text(message), refresh_per_second=4)  # seldom: decoding needs the processor
            self._status.start()
        else:
            self._status.update(Text(message))

    def stop(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()


def quiet_transformers() -> None:
    """Turn Transformers' bars off, which would mix with ours, and its warnings, unless TRANSFORMERS_VERBOSITY asks for them."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    if "TRANSFORMERS_VERBOSITY" not in os.environ:
        logging.set_verbosity_error()
