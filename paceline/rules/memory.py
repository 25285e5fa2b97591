"""The correction memory of CSD: how often the target said one token where the draft had said another.

Without context: a pair is (draft token, target token). A memory is a snapshot that nothing changes; requests count what they see for
themselves (`csd.Book`), and what they saw reaches others only through a `SharedMemory`.

A fixed count over a table that only grows stops filtering: of pairs like the published ones 53 % of new rejections were eligible after
100 thousand rejections and 88 % after 30 million. So a pair must also be frequent among the recent ones (`nominates`), older sightings
fade with the half-life of a calibration, and the table is bounded.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ..errors import InvalidRequest
from ..origin import Origin

CAPACITY = 1 << 18
MOST = (1 << 32) - 1  # a count stops there
_SHIFT = 32


def pack(drafted: int, target: int) -> int:
    """The key of a pair."""
    return drafted << _SHIFT | target


def unpack(key: int) -> tuple[int, int]:
    return key >> _SHIFT, key & MOST


def both_ways(key: int) -> tuple[int, int]:
    """A pair and its reverse."""
    drafted, target = unpack(key)
    return key, pack(target, drafted)


@dataclass(frozen=True)
class Memory:
    """A snapshot: `counts` by key, `weights` the same with older sightings faded, `total` the sum of the faded sightings of all pairs,
    kept or not, and `calibrated` how many rejections the calibration saw. Empty, it nominates nothing."""

    counts: Mapping[int, int] = field(default_factory=dict)
    weights: Mapping[int, float] = field(default_factory=dict)
    total: float = 0.0
    calibrated: int = 0
    origin: Origin | None = None
    domain: str = ""

    @classmethod
    def calibration(cls, counts: Mapping[int, int], origin: Origin | None = None, domain: str = "") -> Memory:
        """What a calibration saw, nothing of it faded."""
        seen = sum(counts.values())
        return cls({}, {}, 0.0, 0, origin, domain).learned(counts)._replace(calibrated=seen)

    def _replace(self, **changes: object) -> Memory:
        return replace(self, **changes)  # type: ignore[arg-type]

    def nominates(self, keys: tuple[int, ...], min_count: float, *, more: int = 0, of: int = 0, recent: bool = True) -> bool:
        """Whether these pairs, one or one with its reverse, were seen more than `min_count` times together, `more` sightings of the
        request's own among `of` included.

        With `recent` and a calibrated memory they must also make up as large a share of the faded sightings as `min_count + 1` of the
        calibration's.
        """
        if sum(self.counts.get(key, 0) for key in keys) + more <= min_count:
            return False
        if not recent or not self.calibrated:
            return True
        share = (sum(self.weights.get(key, 0.0) for key in keys) + more) / (self.total + of)
        return share >= (min_count + 1) / self.calibrated * (1 - 1e-9)

    def learned(self, seen: Mapping[int, int], capacity: int = CAPACITY) -> Memory:
        """With these sightings added. Over `capacity`, the pairs of the least weight go; they come back from zero, never with the
        count of another pair, so that forgetting cannot enable a pair."""
        new = sum(seen.values())
        fade = 0.5 ** (new / self.calibrated) if self.calibrated else 1.0
        counts = dict(self.counts)
        weights = {key: weight * fade for key, weight in self.weights.items()}
        for key, times in seen.items():
            counts[key] = min(MOST, counts.get(key, 0) + times)
            weights[key] = weights.get(key, 0.0) + times
        for key in sorted(weights, key=lambda k: (weights[k], k))[: max(0, len(weights) - capacity)]:
            del counts[key], weights[key]
        return self._replace(counts=counts, weights=weights, total=self.total * fade + new)


class SharedMemory:
    """A memory that learns of finished requests, for callers that ask for it. One per tenant: what is shared can be observed.

    A pair's sightings count once `distinct` different requests have seen it. Requests keep the snapshot that they began with.
    """

    def __init__(self, memory: Memory, *, distinct: int = 5, capacity: int = CAPACITY) -> None:
        if distinct < 1 or capacity < 1:
            raise InvalidRequest(f"distinct is {distinct} and capacity {capacity}; both must be at least 1")
        self.snapshot, self.distinct, self.capacity = memory, distinct, capacity
        self._waiting: dict[int, tuple[int, int]] = {}  # key -> requests, sightings
        self._known: set[int] = set()
        self._lock = threading.Lock()

    def add(self, seen: Mapping[int, int]) -> None:
        """The pairs of one finished request."""
        with self._lock:
            ready: dict[int, int] = {}
            for key, times in seen.items():
                requests, sightings = self._waiting.pop(key, (0, 0))
                requests, sightings = requests + 1, sightings + times
                if key in self._known or requests >= self.distinct:
                    ready[key] = sightings
                else:
                    self._waiting[key] = requests, sightings
            while len(self._waiting) > self.capacity:
                del self._waiting[next(iter(self._waiting))]  # the one that was not seen for the longest time
            if ready:
                self.snapshot = self.snapshot.learned(ready, self.capacity)
                self._known = (self._known | ready.keys()) & self.snapshot.counts.keys()
