"""A library that stands in for llama.cpp in a peer's process: it starts at once, and hangs or dies when it is told to."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

SOURCE = """
import os, sys, time


class Llama:
    calls = 0

    def __init__(self, model_path, n_ctx, **_):
        print("loading", model_path)
        self.n_ctx = lambda: n_ctx

    def reset(self):
        self.seen = []

    def set_seed(self, seed):
        self.seed = seed

    def eval(self, tokens):
        self.seen += tokens

    def generate(self, tokens, **_):
        assert len(tokens) < self.n_ctx(), "it does not fit"
        Llama.calls += 1
        if Llama.calls == int(os.environ.get("HANGS_AT", 0)):
            time.sleep(1000)
        if 99 in tokens:
            print("out of luck", file=sys.stderr, flush=True)
            os.abort()
        if 77 in tokens:
            raise RuntimeError("no such thing")
        while True:
            self.eval([] if self.seen else tokens)
            yield sum(self.seen) % 50
            self.seen.append(sum(self.seen) % 50)
"""
TOLD: dict[str, Any] = {"gguf": "x.gguf", "device": "cpu", "threads": 1, "eos": [49]}


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, *, there: bool = True) -> None:
    """Make it the llama-cpp of the cache folder's environment, or leave that environment empty."""
    monkeypatch.setenv("PACELINE_CACHE", str(folder))
    python = folder / "peers" / "llama-cpp" / "bin" / "python"
    python.parent.mkdir(parents=True)
    if there:
        (python.parent / "llama_cpp.py").write_text(SOURCE)
    python.write_text(f'#!/bin/sh\nPYTHONPATH={python.parent} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
