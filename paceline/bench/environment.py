"""Where a measurement was made: versions, commit, hardware, command. No host names and no home folders."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from .. import __version__

_PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "scikit-learn")  # with the last one, assisted generation tunes itself


def versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {"paceline": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def commit() -> tuple[str | None, bool | None]:
    """The commit of the checkout that this package runs from, and whether its tracked files differ from it; None where it is none."""
    package = Path(__file__).resolve().parents[1]

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(package), *arguments], capture_output=True, text=True, timeout=30, check=True)
        return done.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")
        return git("rev-parse", "HEAD"), bool(git("status", "--porcelain", "--", "."))
    except (OSError, subprocess.SubprocessError):
        return None, None


def code() -> str:
    """A hash of the sources that decode: rows made by different code do not belong in one report."""
    package = Path(__file__).resolve().parents[1]
    files = sorted(f for f in package.rglob("*.py") if f.relative_to(package).parts[0] not in ("bench", "cli"))
    return hashlib.sha256(b"".join(f.read_bytes() for f in files)).hexdigest()


def hardware(device: torch.device) -> dict[str, Any]:
    found: dict[str, Any] = {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "device": device.type,
    }
    if device.type == "cuda":
        found["gpu"] = torch.cuda.get_device_name(device)
    return found


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor() or platform.machine()
    )


def provenance(typed: str, device: torch.device) -> dict[str, Any]:
    """What a result file says of its making; `typed` is the command line (see `typed_as`)."""
    found, dirty = commit()
    return {"versions": versions(), "commit": found, "uncommitted_changes": dirty, "hardware": hardware(device), "command": typed}


def typed_as(*program: str) -> str:
    """This process' command line, as it could be typed again in the same folder, with these words for the program."""
    return scrub(shlex.join([*program, *sys.argv[1:]]))


def command_line() -> str:
    """That of this process (see `command`)."""
    return command(sys.argv)


def command(argv: Sequence[str]) -> str:
    """The command line, as it could be typed again in the same folder."""
    arguments = list(argv[1:])
    if arguments[:1] == ["bench"]:
        del arguments[0]
    return scrub(shlex.join(["paceline", "bench", *arguments]))


def scrub(text: str) -> str:
    """The text with the current folder as `.` and the home folder as `~`."""
    for folder, short in ((Path.cwd(), "."), (Path.home(), "~")):
        if folder != folder.parent:
            text = text.replace(f"{folder}/", f"{short}/")
    return text
