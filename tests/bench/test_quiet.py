"""How busy others kept the machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paceline.bench import quiet


def test_busy_time_is_all_but_idle_and_waiting_and_counts_guests_once(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 20 30 9999 8888 4 5 6 77 7\ncpu0 1 1 1 1 1 1 1 1 1 1\n")
    assert quiet.busy_seconds(stat) == (100 + 20 + 30 + 4 + 5 + 6) / os.sysconf("SC_CLK_TCK")
    assert quiet.busy_seconds(tmp_path / "missing") is None


@pytest.mark.skipif(not Path("/proc/stat").is_file(), reason="needs Linux")
def test_another_process_that_computes_is_seen() -> None:
    with quiet.watch() as others:
        child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        time.sleep(0.6)
        child.kill()
        child.wait()
    assert others.cores is not None
    assert others.cores > 0.15


def test_where_the_system_does_not_tell_nothing_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quiet, "busy_seconds", lambda: None)
    with quiet.watch() as others:
        pass
    assert others.cores is None
