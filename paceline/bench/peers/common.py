"""What all peers share: what they are told, and what they give back."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol


class Unable(Exception):
    """This peer cannot do that; the bench says why and goes on."""


@dataclass
class Made:
    """What decoding some prompts gave and cost. The first forward of each reads its prompt, and counts as any other."""

    outputs: list[list[int]] = field(default_factory=list)
    seconds: float = 0.0
    target_forwards: int = 0
    draft_forwards: int = 0
    target_seconds: float = 0.0
    draft_seconds: float = 0.0

    def add(self, outputs: list[list[int]], seconds: float, target: Sequence[float], draft: Sequence[float] = ()) -> None:
        """One more call: its wall time, and the seconds of each forward of target and draft."""
        self.outputs += outputs
        self.seconds += seconds
        self.target_forwards += len(target)
        self.draft_forwards += len(draft)
        self.target_seconds += sum(target)
        self.draft_seconds += sum(draft)

    def told(self) -> dict[str, Any]:
        return asdict(self)


class Peer(Protocol):
    """A library with its models loaded, in the process of a worker.

    It is made of: model (a folder, hub id or GGUF file), revision, draft (the same or None), dtype, device, threads, eos (token ids).
    """

    def prepare(self, name: str, *, temperature: float, batch_size: int) -> None:
        """Make ready for these decodes. Raises Unable for what the library does not offer."""
        ...

    def decode(self, name: str, prompts: list[list[int]], limits: list[int], *, temperature: float, seed: int, batch_size: int) -> Made:
        """Decode prompts, each up to its limit of new tokens or an end-of-sequence id, which is kept."""
        ...


class Timed:
    """Runs a function and keeps the seconds of each call."""

    def __init__(self, run: Any, kept: list[float]) -> None:
        self.run, self.kept = run, kept

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        began = time.perf_counter()
        out = self.run(*arguments, **named)
        self.kept.append(time.perf_counter() - began)
        return out


def ended(output: list[int], limit: int, eos: set[int]) -> list[int]:
    """The output up to its limit, and to the first end-of-sequence id, that included."""
    at = next((i for i, token in enumerate(output[:limit]) if token in eos), limit - 1)
    return output[: at + 1]
