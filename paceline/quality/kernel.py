"""What the Linux kernel can deny a process for good: namespaces, Landlock for files and TCP, seccomp for system calls.

Runs in the child, right before the program that is not trusted. Each function takes effect or raises OSError; nothing can be taken
back afterwards. Numbers are those of the kernel's headers; see landlock(7), seccomp(2).
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Iterable, Sequence

_NEW_USER, _NEW_NETWORK, _NEW_IPC = 0x10000000, 0x40000000, 0x08000000
_PDEATHSIG, _NO_NEW_PRIVS, _SET_SECCOMP, _FILTER = 1, 38, 22, 2
_SIGKILL = 9

# system call -> number on x86-64 and on arm64 (None: it has none)
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_DENIED: dict[str, tuple[int | None, int | None]] = {
    "fork": (57, None), "vfork": (58, None), "clone": (56, 220), "clone3": (435, 435), "execve": (59, 221), "execveat": (322, 281),
    "socket": (41, 198), "socketpair": (53, 199), "io_uring_setup": (425, 425), "memfd_create": (319, 279), "shmget": (29, 194),
    "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424), "ptrace": (101, 117), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "setrlimit": (160, 164), "setpriority": (141, 140), "sched_setaffinity": (203, 122),
    "setsid": (112, 157), "setpgid": (109, 154), "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "bpf": (321, 280),
    "perf_event_open": (298, 241), "keyctl": (250, 219), "userfaultfd": (323, 282), "mq_open": (240, 180),
}  # fmt: skip
_PRLIMIT = (302, 261)  # denied unless it only reads
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _EPERM, _KILL = 0x7FFF0000, 0x00050001, 0x80000000
_X32 = 0x40000000  # a second set of system calls on x86-64
_NUMBER, _ARCHITECTURE, _NEW_LIMIT = 0, 4, 16 + 8 * 2  # places in struct seccomp_data

_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_READ_FILE, _READ_DIR = 1 << 2, 1 << 3
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}  # version -> how many there are


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def die_with_parent() -> None:
    _checked(_libc().prctl(_PDEATHSIG, _SIGKILL, 0, 0, 0))


def no_new_privileges() -> None:
    _checked(_libc().prctl(_NO_NEW_PRIVS, 1, 0, 0, 0))


def leave_network() -> None:
    """New user, network and IPC namespaces: the only interface is a loopback that is down, and privileges outside are gone."""
    _checked(_libc().unshare(_NEW_USER | _NEW_NETWORK | _NEW_IPC))


def deny_files(readable: Iterable[str]) -> None:
    """Landlock: below these folders files may be read, everything else on files is denied, and so are TCP, and signals to others."""
    libc = _libc()
    version = _checked(libc.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(1)))
    rights = (1 << _FILE_RIGHTS.get(version, 16)) - 1
    fields = [rights, *([3] if version >= 4 else []), *([3] if version >= 6 else [])]  # TCP; abstract sockets and signals
    attributes = struct.pack(f"={len(fields)}Q", *fields)
    rules = _checked(libc.syscall(_LANDLOCK_CREATE, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0)))
    for path in readable:
        if os.path.exists(path):
            opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
            allowed = _READ_FILE | (_READ_DIR if os.path.isdir(path) else 0)
            _checked(libc.syscall(_LANDLOCK_ADD, rules, 1, struct.pack("=Qi", allowed, opened), ctypes.c_uint32(0)))
            os.close(opened)
    _checked(libc.syscall(_LANDLOCK_RESTRICT, rules, ctypes.c_uint32(0)))
    os.close(rules)


def deny_calls() -> None:
    """seccomp: no process, thread, program, socket, signal, limit or namespace can be made or changed; such a call fails with EPERM."""
    machine = platform.machine()
    if machine not in _ARCHITECTURES:
        raise OSError(f"no list of system calls for {machine}")
    column, architecture = _ARCHITECTURES[machine]
    numbers = [n[column] for n in _DENIED.values()]
    program = _filter([n for n in numbers if n is not None], _PRLIMIT[column], architecture)
    code = ctypes.create_string_buffer(b"".join(program))

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))

    filled = Program(len(program), ctypes.addressof(code))
    _checked(_libc().prctl(_SET_SECCOMP, _FILTER, ctypes.byref(filled), 0, 0))


def _filter(denied: Sequence[int], prlimit: int, architecture: int) -> list[bytes]:
    """A program of classic BPF. A jump counts the instructions that it leaps over."""

    def op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
        return struct.pack("=HBBI", code, if_true, if_false, value)

    checks = []
    for left, number in zip(range(len(denied), 0, -1), denied, strict=True):
        checks.append(op(_EQUAL, number, left + 5))  # over the other checks and what follows them, to the refusal
    return [
        op(_LOAD, _ARCHITECTURE),
        op(_EQUAL, architecture, 1),
        op(_RETURN, _KILL),
        op(_LOAD, _NUMBER),
        op(_AT_LEAST, _X32, len(denied) + 6),
        *checks,
        op(_EQUAL, prlimit, 0, 4),
        op(_LOAD, _NEW_LIMIT),
        op(_EQUAL, 0, 0, 3),
        op(_LOAD, _NEW_LIMIT + 4),
        op(_EQUAL, 0, 0, 1),
        op(_RETURN, _ALLOW),
        op(_RETURN, _EPERM),
    ]
