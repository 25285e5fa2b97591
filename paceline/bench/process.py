"""A peer's process, seen from here: it is asked in lines of JSON, and stopped if it takes too long, whatever it does.

It runs in the peer's own virtual environment where there is one, `peers/FAMILY` in Paceline's cache folder, else with this Python.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from ..targets.load import cache_folder
from .peers.common import Unable
from .peers.names import FAMILIES

_SLICE = 1.0  # seconds; counted by slices, so that time in which this machine stands still is not the peer's
_START = """
import importlib.util, sys
sys.path[:] = [place for place in sys.path if place]
found = importlib.util.spec_from_file_location("paceline_bench", sys.argv[1] + "/__init__.py", submodule_search_locations=[sys.argv[1]])
sys.modules["paceline_bench"] = importlib.util.module_from_spec(found)
from paceline_bench.peers.worker import main
main(sys.argv[2])
"""


def python_of(family: str) -> str:
    """The interpreter that runs this family's peers."""
    own = folder_of(family) / "bin" / "python"
    return str(own) if own.exists() else sys.executable


def folder_of(family: str) -> Path:
    """Where the virtual environment of a family is looked for."""
    return cache_folder() / "peers" / family


class Worker:
    """One family's process. It starts when it is first asked, and again after it was stopped.

    Args:
        told: what its models are loaded by, see `peers.common.Peer`.
        limit: seconds for each answer, loading included.
    """

    def __init__(self, family: str, told: dict[str, Any], limit: float) -> None:
        self.family, self.limit = family, limit
        self.versions: dict[str, Any] = {}
        self._told = told
        self._process: subprocess.Popen[bytes] | None = None
        self._said: IO[bytes] | None = None  # its stderr
        self._rest = b""
        self._failed: str | None = None  # why its models cannot be loaded

    def ask(self, what: str, **arguments: Any) -> dict[str, Any]:
        """Raises Unable with the reason if the peer cannot, fails, dies or is not back in time."""
        if self._process is None:
            self._load()
        return self._answer({"do": "ask", "what": what, **arguments}, "decoding" if what == "decode" else what)

    def _load(self) -> None:
        if self._failed is not None:
            raise Unable(self._failed)
        self._start()
        try:
            self.versions = self._answer({"do": "load", **self._told}, "loading its models")["versions"]
        except Unable as error:
            self.stop()
            self._failed = self._with_remedy(str(error))
            raise Unable(self._failed) from None

    def _start(self) -> None:
        self._said, self._rest = tempfile.TemporaryFile(), b""  # noqa: SIM115 - read when it has ended, closed by stop
        command = [python_of(self.family), "-c", _START, str(Path(__file__).parent), self.family]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, start_new_session=True)

    def _answer(self, asked: dict[str, Any], doing: str) -> dict[str, Any]:
        process = self._process
        assert process is not None, "it is started first"
        assert process.stdin is not None, "it is asked through a pipe"
        try:
            process.stdin.write(json.dumps(asked).encode() + b"\n")
            process.stdin.flush()
            line = self._line(process, doing)
        except BrokenPipeError:
            raise self._died(process) from None
        found: dict[str, Any] = json.loads(line)
        if "unable" in found:
            raise Unable(found["unable"])
        return found

    def _line(self, process: subprocess.Popen[bytes], doing: str) -> bytes:
        assert process.stdout is not None, "it answers through a pipe"
        waited = 0.0
        while b"\n" not in self._rest:
            if waited >= self.limit:
                self.stop()
                raise Unable(f"stopped: no answer after {self.limit:g} s of {doing}; give it longer with --peer-timeout, or leave it out")
            wait = min(_SLICE, self.limit - waited)
            if not select.select([process.stdout], [], [], wait)[0]:
                waited += wait
                continue
            chunk = os.read(process.stdout.fileno(), 1 << 20)
            if not chunk:
                raise self._died(process)
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _died(self, process: subprocess.Popen[bytes]) -> Unable:
        try:
            code = process.wait(_SLICE)
        except subprocess.TimeoutExpired:  # it closed its pipe and lives
            code = -signal.SIGKILL
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        said = ""
        if self._said is not None:
            self._said.seek(0)
            said = next((line.strip() for line in reversed(self._said.read().decode(errors="replace").splitlines()) if line.strip()), "")
        self.stop()
        return Unable(f"its process ended with {how}" + (f", saying: {said}" if said else ""))

    def _with_remedy(self, why: str) -> str:
        if "is not installed" not in why:
            return why
        place = folder_of(self.family)
        return f"{why}; python -m venv {place} && {place}/bin/pip install {FAMILIES[self.family].pinned}"

    def stop(self) -> None:
        """End it with all that it started."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout, self._said):
            if pipe is not None:
                pipe.close()
