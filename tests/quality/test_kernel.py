"""The kernel's walls by themselves, without the refusals of the interpreter before them."""

from __future__ import annotations

import platform
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paceline.quality import kernel

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux has these walls"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers of the calls below are those of x86-64"),
]
BEGIN = """
import ctypes, errno, os, socket, sys, resource
from paceline.quality import kernel
libc = ctypes.CDLL(None, use_errno=True)

def refused(*call):
    ctypes.set_errno(0)
    return libc.syscall(*call) == -1 and ctypes.get_errno() == errno.EPERM

def denied(act):
    try:
        act()
    except PermissionError:
        return True
    return False
"""


def holds(code: str) -> None:
    """Run code in a process of its own; its last statement prints what is wrong, or nothing."""
    done = subprocess.run([sys.executable, "-c", BEGIN + code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, ""), f"{done.returncode} {done.stdout} {done.stderr[-500:]}"


LOCK = "kernel.no_new_privileges(); kernel.deny_calls()\n"
CALLS = sorted(name for name, (number, _) in kernel._DENIED.items() if number is not None)


def test_every_call_on_the_list_fails() -> None:
    numbers = {name: kernel._DENIED[name][0] for name in CALLS}
    holds(f"{LOCK}for name, number in {numbers}.items():\n    if not refused(number, 0, 0, 0, 0, 0): print(name, ctypes.get_errno())")


def test_a_limit_can_be_read_and_not_changed() -> None:
    code = """
resource.getrlimit(resource.RLIMIT_CPU)
if not denied(lambda: resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (9, 9))): print("changed")
"""
    holds(LOCK + code)


def test_other_calls_go_through() -> None:
    holds(LOCK + "os.getpid(); os.urandom(4); os.close(os.pipe()[0]); open('/dev/null').read()")


def test_calls_of_the_second_table_of_x86_fail() -> None:
    holds(f"{LOCK}if not refused({0x40000000 | 39}): print(ctypes.get_errno())")


def test_nothing_but_the_named_folders_can_be_read_and_nothing_written() -> None:
    code = """
import tempfile
allowed, other = tempfile.mkdtemp(), tempfile.mkdtemp()
for folder in (allowed, other):
    open(f"{folder}/note", "w").write("x")
kernel.no_new_privileges()
try:
    kernel.deny_files([allowed, "/nowhere"])
except OSError as error:
    sys.exit(0 if error.errno in (errno.ENOSYS, errno.EOPNOTSUPP) else 1)
if open(f"{allowed}/note").read() != "x": print("unreadable")
if os.listdir(allowed) != ["note"]: print("unlistable")
acts = {
    "read": lambda: open(f"{other}/note"), "list": lambda: os.listdir(other), "write": lambda: open(f"{allowed}/note", "w"),
    "make": lambda: open(f"{allowed}/new", "w"), "remove": lambda: os.remove(f"{allowed}/note"), "mkdir": lambda: os.mkdir(f"{allowed}/d"),
    "run": lambda: os.execv("/bin/true", ["true"]), "passwd": lambda: open("/etc/passwd"), "environment": lambda: open("/proc/1/environ"),
}
for name, act in acts.items():
    if not denied(act): print(name)
"""
    holds(code)


def test_the_network_is_another_one() -> None:
    code = """
ours = os.readlink("/proc/self/ns/net")
try:
    kernel.leave_network()
except OSError as error:
    sys.exit(0 if error.errno in (errno.EPERM, errno.ENOSPC, errno.EINVAL) else 1)
if os.readlink("/proc/self/ns/net") == ours: print("the same")
if [name for _, name in socket.if_nameindex()] != ["lo"]: print(socket.if_nameindex())
"""
    holds(code)


def test_the_child_dies_with_its_parent() -> None:
    child = "from paceline.quality import kernel; kernel.die_with_parent(); print('up', flush=True); import time; time.sleep(60)"
    parent = f"""
import subprocess, sys, os
child = subprocess.Popen([sys.executable, "-c", {child!r}], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
os._exit(0)
"""
    pid = int(subprocess.run([sys.executable, "-c", parent], capture_output=True, text=True, timeout=60, check=True).stdout)
    stat, limit = Path(f"/proc/{pid}/stat"), time.monotonic() + 20
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z":  # a zombie waits for nobody here
        assert time.monotonic() < limit, f"process {pid} is alive"
        time.sleep(0.05)
