"""Mathematical answers in LaTeX, compared by math-verify in a process of its own.

An answer such as `10^{10^{10}}` can keep a computer algebra system busy for ever, so the process has a time limit and a memory limit.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType

from ..errors import PacelineError
from .figures import last_box

SECONDS = 15.0  # for one comparison; the first one also imports the library
_STARTING = 60.0  # seconds
_MEMORY = 3 << 30  # bytes of address space
_ROOT = str(Path(__file__).resolve().parents[2])
_START = "import sys; sys.path.insert(0, sys.argv[1]); from paceline.quality import latex; latex.serve(int(sys.argv[2]))"
_TAIL = 300  # characters: where an answer without a box is looked for


def extract(text: str) -> str | None:
    """What the last box holds, or the end of the text, in which math-verify looks for a formula; None if the text is empty."""
    box = last_box(text)
    if box is not None:
        return box.strip() or None
    return text.strip()[-_TAIL:] or None


def require() -> None:
    """Raise PacelineError if math-verify is not installed."""
    if find_spec("math_verify") is None:
        raise PacelineError("task math500 needs math-verify to compare LaTeX; pip install 'paceline[eval]'")


class Judge:
    """Compares answers. Use it as a context: the process ends with the block."""

    def __init__(self, seconds: float = SECONDS) -> None:
        require()
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._ours: Connection | None = None

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop()

    def equal(self, reference: str, answer: str, boxed: bool = True) -> bool | None:
        """Whether two answers are the same; None if that could not be found out in time and memory.

        Args: boxed, whether `answer` is the answer alone; else it is a text with the answer somewhere in it.
        """
        if reference.strip() == answer.strip():
            return True
        if self._process is None:
            self._start()
        assert self._ours is not None
        self._ours.send((reference, answer, boxed))
        try:
            if self._ours.poll(self._seconds):
                return bool(self._ours.recv())
        except (EOFError, ConnectionError):
            pass  # it ran out of memory
        self._stop()
        return None

    def _start(self) -> None:
        self._ours, theirs = Pipe()
        with theirs:
            order = [sys.executable, "-c", _START, _ROOT, str(theirs.fileno())]
            self._process = subprocess.Popen(order, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        if not self._ours.poll(_STARTING) or self._ours.recv() != "ready":
            self._stop()
            raise PacelineError("math-verify does not start; try `python -c 'import math_verify'`")

    def _stop(self) -> None:
        if self._process is not None and self._ours is not None:
            self._process.kill()
            self._process.wait()
            self._ours.close()
            self._process = None


def serve(descriptor: int) -> None:
    """The other side: compare what comes until nobody asks any more."""
    import logging
    import resource

    from math_verify import parse, verify

    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    logging.disable(logging.CRITICAL)
    parse("$\\frac{1}{2}$")  # builds its parser, which takes a second
    pipe = Connection(descriptor)
    pipe.send("ready")
    while True:
        try:
            reference, answer, boxed = pipe.recv()
        except (EOFError, ConnectionError):
            return
        expected, given = parse(f"\\boxed{{{reference}}}"), parse(f"\\boxed{{{answer}}}" if boxed else answer)
        pipe.send(bool(expected and given and verify(expected, given)))
