"""The child's side of the sandbox: give up everything, then run a program that is not trusted and say how it ended.

It runs in an interpreter of its own, without site-packages, and reads one JSON object on stdin: `secret`, `limits` and `parts`, sources
that are run one after the other in one module. It writes one JSON object on the descriptor that is its second argument.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import sysconfig
import types
from collections.abc import Sequence
from typing import Any

from . import kernel

_LONGEST = 300  # characters of a message
_REFUSED = (
    "socket.", "subprocess.", "ctypes.", "shutil.", "tempfile.", "pty.", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork",
    "os.kill", "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.chmod",
    "os.chown", "os.chdir", "os.utime", "os.startfile", "resource.", "signal.pthread_kill", "fcntl.", "sqlite3.", "syslog.",
    "webbrowser.", "http.", "urllib.", "ftplib.", "smtplib.",
)  # fmt: skip
_LISTING = {"os.listdir", "os.scandir", "os.walk", "os.fwalk", "glob.glob", "glob.glob/2", "pathlib.Path.glob", "pathlib.Path.rglob"}
_NAME = "<answer>"
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Refused(PermissionError):
    """The program asked for something that the sandbox does not give."""


def main() -> None:
    """Read the order, lock up, run, report."""
    out = int(sys.argv[2])
    order = json.loads(sys.stdin.buffer.read())
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    layers = _lock(order["limits"])
    refusals: list[str] = []
    _watch(refusals)
    kind, detail = _run(order["parts"])
    if kind in ("failed", "error", "exited") and refusals:
        kind, detail = "refused", refusals[0]
    reply = {"secret": order["secret"], "kind": kind, "detail": detail[:_LONGEST], "layers": layers}
    os.write(out, json.dumps(reply).encode())
    os._exit(0)  # without handlers that the program may have left


def _lock(limits: dict[str, int]) -> list[str]:
    """Everything that this system can deny. Returns what took effect."""
    layers = []
    for name, step in {
        "limits": lambda: _limit(limits),
        "namespaces": kernel.leave_network,
        "parent": kernel.die_with_parent,  # after what changes credentials, which may undo it
        "privileges": kernel.no_new_privileges,
        "landlock": lambda: kernel.deny_files(_readable()),
        "seccomp": kernel.deny_calls,
    }.items():
        try:
            step()
            layers.append(name)
        except (OSError, ValueError, AttributeError):  # not on this system: the others hold
            continue
    return [*layers, "audit"]


def _limit(limits: dict[str, int]) -> None:
    for name, value in limits.items():
        kind = getattr(resource, f"RLIMIT_{name.upper()}")
        hard = value + 1 if name == "cpu" else value  # at the soft limit a signal, a second later the end
        resource.setrlimit(kind, (value, hard))


def _readable() -> list[str]:
    """The standard library, the empty folder, and what extension modules need."""
    paths = sysconfig.get_paths()
    python = [paths["stdlib"], paths["platstdlib"], os.getcwd()]
    return [*python, "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache", "/usr/share/zoneinfo"]


def _watch(refusals: list[str]) -> None:
    """Refuse in the interpreter too, which names what was asked for; where the kernel denies nothing this is all there is."""
    folders = tuple(os.path.realpath(p) + os.sep for p in _readable()[:3])

    def inside(path: Any) -> bool:
        return (os.path.abspath(os.fsdecode(path)) + os.sep).startswith(folders)

    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if isinstance(path, int) or (not (flags or 0) & _WRITING and (inside(path) or path in ("/dev/null", "/dev/urandom"))):
                return
            if path == _NAME:  # Python looks for the source of an error's line
                raise FileNotFoundError(path)
        elif event in _LISTING:
            if not isinstance(arguments[0], int) and inside(arguments[0] or "."):
                return
        elif not event.startswith(_REFUSED):
            return
        asked = f"{event}({', '.join(repr(a)[:60] for a in arguments[:1])})"
        refusals.append(asked)
        raise Refused(f"the sandbox refuses {asked}")

    sys.addaudithook(refuse)


def _run(parts: Sequence[str]) -> tuple[str, str]:
    """Run the parts in one module that is not the main one. Returns the kind of end and what to say about it."""
    module = types.ModuleType("answer")
    sys.modules["answer"] = module
    try:
        for part in parts:
            exec(compile(part, _NAME, "exec", dont_inherit=True), module.__dict__)
    except AssertionError as error:
        return "failed", _said(error)
    except MemoryError:
        module.__dict__.clear()  # there must be some left for the report
        return "memory", "MemoryError"
    except (SystemExit, KeyboardInterrupt) as error:
        return "exited", _said(error)
    except BaseException as error:
        return "error", _said(error)
    return "passed", ""


def _said(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # its own __str__ is part of the program
        return type(error).__name__
