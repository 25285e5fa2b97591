"""Ctrl-C in the middle of a run, for commands that must go on when they are given again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from paceline.bench.runs import Decoded, MethodRun


def interrupt_after(calls: int, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Ctrl-C at this decode. Returns how to undo it."""
    right, seen = MethodRun.decode, []

    def decode(self: MethodRun, prompts: Sequence[list[int]], limits: Sequence[int]) -> Decoded:
        seen.append(self.name)
        if len(seen) > calls:
            raise KeyboardInterrupt
        return right(self, prompts, limits)

    monkeypatch.setattr(MethodRun, "decode", decode)
    return lambda: monkeypatch.setattr(MethodRun, "decode", right)
