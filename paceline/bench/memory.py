"""Peak memory of this process, from here on: on Linux the kernel's high-water mark can be set back."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_RESET, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")


_before = 0.0  # the largest that was seen before the mark was set back


class Peak:
    """`mb` is the largest resident memory while the block ran; where the system cannot say that, since the process began."""

    mb = 0.0


@contextmanager
def watch() -> Iterator[Peak]:
    """Measure until the block ends."""
    global _before
    peak = Peak()
    _before = lifetime_mb()
    try:
        _RESET.write_text("5")
    except OSError:  # no Linux, or not allowed
        yield peak
        peak.mb = lifetime_mb()
        return
    yield peak
    peak.mb = next(int(line.split()[1]) for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM")) / 1024


def lifetime_mb() -> float:
    """Since the process began, all models in it included."""
    unit = 1 if sys.platform == "darwin" else 1024
    now = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20, 1)
    return max(_before, now)
