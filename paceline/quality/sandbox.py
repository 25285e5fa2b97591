"""Run a program that a model wrote, in a process that can do little more than compute. `docs/eval.md` says what is guaranteed.

The process has its own session, no environment, an empty folder to stand in, limits on processor time, memory, files and processes, no
network, and a limit on wall time after which its group is killed. `jail` is what runs inside.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import PacelineError

_ROOT = str(Path(__file__).resolve().parents[2])
_START = "import sys; sys.path.insert(0, sys.argv[1]); from paceline.quality import jail; del sys.path[0]; jail.main()"
_SLICE = 0.05  # seconds
_REPLY = 1 << 16  # bytes: one reply fits into a pipe
KERNEL = ("limits", "parent", "namespaces", "privileges", "landlock", "seccomp")  # layers that Linux has


@dataclass(frozen=True)
class Limits:
    """What one program may use. `wall_seconds` counts while this process runs too: time in which both are suspended is not its fault."""

    cpu_seconds: int = 10
    wall_seconds: float = 30.0
    memory_bytes: int = 1 << 30  # of address space
    file_bytes: int = 0  # of any file that it writes
    open_files: int = 32
    processes: int = 1

    def rlimits(self) -> dict[str, int]:
        return {
            "core": 0,
            "cpu": self.cpu_seconds,
            "as": self.memory_bytes,
            "fsize": self.file_bytes,
            "nofile": self.open_files,
            "nproc": self.processes,
        }


@dataclass(frozen=True)
class Outcome:
    """How a program ended.

    `kind`: passed; failed (an assertion); error (another exception, syntax included); exited; timeout; memory; refused (it asked for a
    file, a process, the network and the like); crashed. `layers` are the walls that stood, where the program lived to tell.
    """

    kind: str
    detail: str = ""
    layers: tuple[str, ...] = ()


def run(parts: Sequence[str], limits: Limits | None = None) -> Outcome:
    """Run sources one after the other in one module, and say how that ended. Never raises for anything that they do."""
    limits, secret = limits or Limits(), secrets.token_hex(16)
    order = json.dumps({"secret": secret, "limits": limits.rlimits(), "parts": list(parts)}).encode("utf-8", "replace")
    with tempfile.TemporaryDirectory(prefix="paceline-") as folder:
        reading, writing = os.pipe()
        try:
            process = subprocess.Popen(
                [sys.executable, "-s", "-S", "-P", "-B", "-X", "utf8", "-c", _START, _ROOT, str(writing)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(writing,),
                cwd=folder,
                env={"PYTHONHASHSEED": "0"},  # the order of a set is the same every time
                start_new_session=True,
            )
            os.close(writing)
            late = _wait(process, order, limits.wall_seconds)
            reply = _read(reading)
        finally:
            os.close(reading)
    return Outcome("timeout", "wall time") if late else _outcome(process.returncode, reply, secret)


def check() -> tuple[str, ...]:
    """Run an empty program. Returns the layers that stand on this system; raises PacelineError if it does not pass."""
    found = run(["pass"])
    if found.kind != "passed":
        raise PacelineError(f"the sandbox for generated code does not work here ({found.kind} {found.detail}); it needs Linux or macOS")
    return found.layers


def _wait(process: subprocess.Popen[bytes], order: bytes, seconds: float) -> bool:
    """Feed it and wait; at the limit kill its whole group. Returns whether the limit was reached."""
    assert process.stdin is not None
    try:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(order)
            process.stdin.close()
        for _ in range(max(1, round(seconds / _SLICE))):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_SLICE)
                return False
        return True
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # also what it may have left behind
        process.kill()
        process.wait()


def _read(pipe: int) -> bytes:
    os.set_blocking(pipe, False)
    try:
        return os.read(pipe, _REPLY)
    except BlockingIOError:  # somebody still holds the other end
        return b""


def _outcome(code: int, reply: bytes, secret: str) -> Outcome:
    try:
        said: Any = json.loads(reply)
        if said["secret"] == secret:
            return Outcome(str(said["kind"]), str(said["detail"]), tuple(said["layers"]))
    except (ValueError, KeyError, TypeError):
        pass  # it ended before it could report, or wrote something of its own
    if code in (-signal.SIGXCPU, -signal.SIGKILL):
        return Outcome(
            "timeout", "processor time" if code == -signal.SIGXCPU else "killed: processor time, or the system had no memory left"
        )
    if code < 0:
        return Outcome("crashed", signal.Signals(-code).name)
    return Outcome("exited", f"exit code {code}")
