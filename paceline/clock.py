"""Where the time goes: thin timed wrappers around the model calls of targets. The loop does not know them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_BESIDES = ("fuse", "context_kv", "markov", "markov_table")  # of a head, beside `draft`


class Stopwatch:
    """Seconds that pass only while it runs."""

    def __init__(self) -> None:
        self._passed = 0.0
        self._since: float | None = None

    def __call__(self) -> float:
        return self._passed if self._since is None else self._passed + time.perf_counter() - self._since

    @contextmanager
    def running(self) -> Iterator[None]:
        """Until the block ends."""
        self._since = time.perf_counter()
        try:
            yield
        finally:
            self._passed, self._since = self(), None


class Clock:
    """Counts and times the forwards of one target while `watching` it. On a GPU the time is that of the calls, not of the kernels."""

    def __init__(self) -> None:
        self.seconds, self.forwards, self.prefills = 0.0, 0, 0
        self.prefill_seconds = 0.0  # of `seconds`

    def _timed(self, run: Callable[..., Any], counter: str | None) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            began = time.perf_counter()
            out = run(*arguments, **named)
            seconds = time.perf_counter() - began
            self.seconds += seconds
            self.prefill_seconds += seconds if counter == "prefills" else 0
            if counter is not None:
                setattr(self, counter, getattr(self, counter) + 1)
            return out

        return call

    @contextmanager
    def watching(self, target: Any) -> Iterator[Clock]:
        """Time `target.full` and `target.rest` (verification) and `target.base` (prefill) until the block ends. None is allowed and
        counts nothing."""
        if target is None:
            yield self
            return
        full, base = target.full, target.base
        target.full, target.base = self._timed(full, "forwards"), self._timed(base, "prefills")
        target.rest = self._timed(target.rest, "forwards")
        try:
            yield self
        finally:
            target.full, target.base = full, base
            del target.rest  # what covers the target's own

    @contextmanager
    def watching_heads(self, drafter: Any) -> Iterator[Clock]:
        """Time the heads that a drafter or a part of it asks, until the block ends: a draft is a forward, or, up a target's own layers, a
        token of it; reading features and the Markov term are no forwards of their own."""
        parts = (drafter, *getattr(drafter, "drafters", ()))
        heads, climbers = [d.head for d in parts if hasattr(d, "head")], [d for d in parts if hasattr(d, "climb")]
        for climber in climbers:
            climber.climb = self._timed(climber.climb, "forwards")
        for head in heads:
            head.draft = self._timed(head.draft, "forwards")
            for name in _BESIDES:
                setattr(head, name, self._timed(getattr(head, name), None))
        try:
            yield self
        finally:
            for head in heads:
                for name in ("draft", *_BESIDES):
                    delattr(head, name)  # what covers the head's own
            for climber in climbers:
                del climber.climb
