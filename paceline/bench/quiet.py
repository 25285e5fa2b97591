"""Was the machine quiet? Times taken while other processes compute are not worth much, so the report says how much they did."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_STAT = Path("/proc/stat")
_IDLE, _IOWAIT, _GUEST = 3, 4, 8  # places in its first line, whose times from 8 on are counted in earlier ones already


class Others:
    """`cores` that other processes kept busy on average, or None where the system does not tell (only Linux does)."""

    cores: float | None = None


@contextmanager
def watch() -> Iterator[Others]:
    """Measure until the block ends."""
    others, began = Others(), time.perf_counter()
    busy, own = busy_seconds(), time.process_time()
    yield others
    seconds, after = time.perf_counter() - began, busy_seconds()
    if busy is not None and after is not None and seconds > 0:
        others.cores = max(0.0, (after - busy - (time.process_time() - own)) / seconds)


def busy_seconds(stat: Path = _STAT) -> float | None:
    """Processor seconds that all processes, the kernel and the hypervisor's other guests have used since the machine started."""
    if not stat.is_file():
        return None
    ticks = [int(t) for t in stat.read_text().split("\n", 1)[0].split()[1:]]
    used = sum(t for place, t in enumerate(ticks[:_GUEST]) if place not in (_IDLE, _IOWAIT))
    return used / float(os.sysconf("SC_CLK_TCK"))
