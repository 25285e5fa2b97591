"""The process of a peer: one JSON line asks, one answers. It is run in the peer's own environment, see `bench.process`."""

from __future__ import annotations

import json
import os
import platform
import sys
import threading
import time
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from .. import memory, quiet
from .common import Peer, Unable

_PACKAGES = {
    "transformers": ("transformers", "torch"),
    "llama-cpp": ("llama-cpp-python", "numpy"),
    "flashspec": ("flashspec", "transformers", "torch"),
    "economize": ("economize", "transformers", "torch"),
}


def main(family: str) -> None:
    """Serve until stdin ends. What libraries print goes to stderr, so that it cannot be taken for an answer."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    peer: Peer | None = None
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if asked.pop("do") == "load":
                peer = load(family, asked)
                told: dict[str, Any] = {"versions": versions(family)}
            else:
                assert peer is not None, "a peer is loaded first"
                told = answer(peer, asked)
        except Unable as error:
            told = {"unable": str(error)}
        except Exception as error:  # whatever a library makes of it: the bench says so
            told = {"unable": f"{type(error).__name__}: {_first_line(error)}"}
        answers.write(json.dumps(told) + "\n")
        answers.flush()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def load(family: str, told: dict[str, Any]) -> Peer:
    """The peer with its models. Raises Unable if its package is not there."""
    package = _PACKAGES[family][0]
    try:
        module = import_module(f".of_{family.replace('-', '_')}", __package__)
        made: Peer = module.Peer(told)
    except ModuleNotFoundError as error:
        raise Unable(f"{package} is not installed (no module {error.name})") from None
    return made


def answer(peer: Any, asked: dict[str, Any]) -> dict[str, Any]:
    """Do what is asked: `prepare`, `decode` or, of Transformers, `logits`, with its arguments."""
    what = asked.pop("what")
    if what == "prepare":
        peer.prepare(**asked)
        return {}
    if what == "logits":
        return {"logits": peer.logits(**asked)}
    with quiet.watch() as others, memory.watch() as peak:
        made = peer.decode(**asked)
    return {**made.told(), "cores_used_by_others": others.cores, "peak_rss_mb": peak.mb}


def versions(family: str) -> dict[str, str | None]:
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in _PACKAGES[family]:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")
