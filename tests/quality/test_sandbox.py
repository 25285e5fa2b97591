"""The sandbox: programs that loop, fork, eat memory, reach out or lie are contained and reported, and others are not hindered."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paceline.quality import sandbox
from paceline.quality.sandbox import Limits, Outcome, run

SHORT = Limits(cpu_seconds=1, wall_seconds=0.5)
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has these walls")


def expect(found: Outcome, kind: str, *words: str) -> None:
    assert found.kind == kind, f"{found.kind}: {found.detail}"
    for word in words:
        assert word in found.detail, f"{word!r} is not in {found.detail!r}"


USEFUL = (
    "import bisect, collections, copy, dataclasses, datetime, decimal, functools, hashlib, heapq, itertools, math, random, re, statistics"
)


@pytest.mark.parametrize(
    "source",
    [
        "assert sum(range(10)) == 45",
        USEFUL,
        "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: int\nassert A(1) == A(1)",
        "print('x' * 10**7)",
        "try:\n    open('/etc/passwd')\nexcept OSError:\n    pass",
        "if __name__ == '__main__':\n    raise ValueError('an answer is no script')",
        "x = [0] * 10**7",
    ],
    ids=lambda s: s[:30],
)
def test_a_program_that_computes_passes(source: str) -> None:
    expect(run([source]), "passed")


def test_parts_share_one_module() -> None:
    expect(run(["def f(x):\n    return x + 1", "assert f(1) == 2"]), "passed")


@pytest.mark.parametrize(
    ("source", "kind", "words"),
    [
        ("assert 1 == 2, 'not so'", "failed", ["AssertionError: not so"]),
        ("def f(:", "error", ["SyntaxError"]),
        ("x = y", "error", ["NameError", "'y'"]),
        ("def f():\n    f()\nf()", "error", ["RecursionError"]),
        ("input()", "error", ["EOFError"]),
        ("import numpy", "error", ["No module named 'numpy'"]),
        ("class E(Exception):\n    def __str__(self):\n        raise self\nraise E()", "error", ["E"]),
        ("import sys\nsys.exit(0)", "exited", ["SystemExit"]),
        ("import os\nos._exit(0)", "exited", ["exit code 0"]),
        ("import os\nos.abort()", "crashed", ["SIG"]),
        ("x = bytearray(8 << 30)", "memory", ["MemoryError"]),
        ("x = []\nwhile True:\n    x.append(bytes(1 << 20))", "memory", ["MemoryError"]),
        ("open('/etc/passwd').read()", "refused", ["/etc/passwd"]),
        ("import os\nos.listdir('/')", "refused", ["os.listdir"]),
        ("open('note', 'w').write('x')", "refused", ["note"]),
        ("import os\nos.mkdir('folder')", "refused", ["os.mkdir"]),
        ("import os\nos.fork()", "refused", ["os.fork"]),
        ("import subprocess\nsubprocess.run(['ls'])", "refused", ["subprocess.Popen"]),
        ("import os\nos.system('ls')", "refused", ["os.system"]),
        ("import socket\nsocket.create_connection(('127.0.0.1', 1))", "refused", ["socket"]),
        ("import os\nos.kill(os.getppid(), 9)", "refused", ["os.kill"]),
        ("import ctypes\nctypes.CDLL(None)", "refused", ["ctypes"]),
        ("import resource\nresource.setrlimit(resource.RLIMIT_CPU, (99, 99))", "refused", ["resource.setrlimit"]),
    ],
    ids=lambda x: x[:40] if isinstance(x, str) else "",
)
def test_what_a_program_did_is_reported(source: str, kind: str, words: list[str]) -> None:
    expect(run([source], Limits(cpu_seconds=5)), kind, *words)


def test_a_loop_ends_at_the_limit_of_processor_time() -> None:
    began = time.monotonic()
    expect(run(["while True:\n    pass"], Limits(cpu_seconds=1, wall_seconds=60)), "timeout", "processor time")
    assert time.monotonic() - began < 30


@pytest.mark.slow
def test_a_loop_that_ignores_the_limit_ends_a_second_later() -> None:
    source = "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True:\n    pass"
    expect(run([source], Limits(cpu_seconds=1, wall_seconds=60)), "timeout", "killed")


def test_a_program_that_sleeps_ends_at_the_limit_of_wall_time() -> None:
    expect(run(["import time\ntime.sleep(60)"], SHORT), "timeout", "wall time")


@LINUX
def test_a_thread_cannot_be_started() -> None:
    expect(run(["import threading\nthreading.Thread(target=print).start()"]), "error", "can't start new thread")


def test_nothing_of_the_environment_is_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN", "secret")
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    expect(
        run(["import os, sys\nassert not {'A_TOKEN', 'HOME', 'PATH'} & set(os.environ), os.environ\nassert '/somewhere' not in sys.path"]),
        "passed",
    )


def test_the_folder_is_empty_and_gone_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    expect(run([f"import os\nassert os.getcwd().startswith({str(tmp_path)!r})\nassert os.listdir() == []"]), "passed")
    assert os.listdir(tmp_path) == []


def test_no_descriptor_is_left_open() -> None:
    before = len(os.listdir("/dev/fd"))
    for source in ("pass", "import os\nos._exit(1)"):
        run([source])
    assert len(os.listdir("/dev/fd")) == before


def test_a_verdict_without_the_secret_counts_for_nothing() -> None:
    forged = '{"secret": "", "kind": "passed", "detail": "", "layers": []}'
    source = f"""
import os
for fd in range(3, 20):
    try:
        os.write(fd, {forged!r}.encode())
    except OSError:
        pass
os._exit(0)
"""
    expect(run([source]), "exited")


@LINUX
def test_all_walls_stand_here_or_the_missing_one_is_named() -> None:
    missing = set(sandbox.KERNEL) - set(sandbox.check())
    assert missing <= {"namespaces", "landlock"}, f"missing: {missing}; only these two depend on how the kernel was configured"


def test_surrogates_and_nulls_in_a_program_are_no_fault_of_ours() -> None:
    expect(run(["x = '\ud800'"]), "error", "surrogates")
    expect(run(["x = '\0'"]), "error", "null bytes")


@LINUX
def test_a_program_dies_with_the_evaluation() -> None:
    psutil = pytest.importorskip("psutil")
    source = 'from paceline.quality.sandbox import run; run(["import time; time.sleep(60)"])'
    evaluation = subprocess.Popen([sys.executable, "-c", source])
    try:
        limit = time.monotonic() + 20
        while not (children := psutil.Process(evaluation.pid).children()) or not locked(children[0].pid):
            assert time.monotonic() < limit, f"children {children}"
            time.sleep(0.02)
    finally:
        evaluation.kill()
        evaluation.wait()
    gone, alive = psutil.wait_procs(children, timeout=20)
    assert gone, f"{alive} lives on"


def locked(pid: int) -> bool:
    """Whether a process has its filter of system calls, the last wall of the kernel."""
    return "Seccomp:\t2" in Path(f"/proc/{pid}/status").read_text()
