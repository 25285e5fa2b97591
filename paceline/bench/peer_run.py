"""A peer as one line of the report, decoding in its own process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .process import Worker
from .runs import Decoded
from .settings import Settings


class PeerRun:
    """One way of another library to decode. Raises Unable if it does not offer that for these models and settings."""

    rule: str | None = None
    lossless = True
    budget: int | None = None

    def __init__(self, peer: str, worker: Worker, settings: Settings, name: str = "") -> None:
        self.method, self.name, self.batch_size = peer, name or peer, settings.batch_size
        self.temperature = settings.temperature
        self.worker, self._seed = worker, settings.seed or 0
        self.worker.ask("prepare", name=peer, temperature=self.temperature, batch_size=self.batch_size)

    def decode(self, prompts: Sequence[list[int]], limits: Sequence[int]) -> Decoded:
        """A batch at a time, each to its end."""
        how: dict[str, Any] = {"temperature": self.temperature, "seed": self._seed, "batch_size": self.batch_size}
        found = self.worker.ask("decode", name=self.method, prompts=list(prompts), limits=list(limits), **how)
        return Decoded(**found)
