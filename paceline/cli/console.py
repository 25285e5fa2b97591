"""What people see besides the answer: progress and errors, on stderr only."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ..errors import InvalidRequest

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bars
    from rich.status import Status

    from ..bench.report import Report


def stderr() -> Console:
    """A console that writes no colour codes where there is no terminal, and takes text as it is."""
    from rich.console import Console

    return Console(stderr=True, markup=False, highlight=False, emoji=False)


def tables(*, on_stderr: bool, width: int) -> Console:
    """A console for reports, on stdout or, where that is for JSON, on stderr; so wide where there is no terminal."""
    from rich.console import Console

    console = Console(file=sys.stderr if on_stderr else sys.stdout, markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        console = Console(file=console.file, width=width, markup=False, highlight=False, emoji=False)
    return console


def report_file(json: str | None) -> Path | None:
    """The file that --json names; None without one and for -, which is stdout. Raises InvalidRequest where it cannot be."""
    file = None if json in (None, "-") else Path(str(json))
    if file is not None and (file.is_dir() or not file.absolute().parent.is_dir()):
        raise InvalidRequest(f"--json {file} is no file in a folder that exists; make the folder first, or give another name")
    return file


def publish(made: Report, show: Callable[[Report, Console], object], file: Path | None, *, to_stdout: bool) -> None:
    """Show a report as tables, then give its line of JSON to stdout or say in which file it is already."""
    console = tables(on_stderr=to_stdout, width=200)
    show(made, console)
    if to_stdout:
        from ..bench.report import as_json

        write(as_json(made) + "\n")
    elif file is not None:
        console.print(f"written to {file}")


def bars() -> Bars:
    """Bars for counted work, on stderr while their block runs, if that is a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = stderr()  # refreshed seldom: decoding needs the processor
    return Bars(*columns, console=console, refresh_per_second=1, transient=True, disable=not console.is_terminal)


@contextmanager
def counting() -> Iterator[Callable[[str, int, int], None]]:
    """A bar for each thing that is counted: call it with what is being done, how much of it is done, and of how much."""
    with bars() as bar:
        tasks: dict[str, Any] = {}

        def advance(doing: str, done: int, of: int) -> None:
            if doing not in tasks:
                tasks[doing] = bar.add_task(doing)
            bar.update(tasks[doing], completed=done, total=of)

        yield advance


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
