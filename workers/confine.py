"""The filter of system calls (seccomp) that a worker's child applies to itself.

It guards against accidents and needs no privileges, which namespaces would. `docs/farm.md` lists what it
prevents.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import socket
import struct
from collections.abc import Sequence

_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 22, 38
# AUDIT_ARCH, and the numbers of system calls where the two differ; AArch64 has no fork.
_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_NUMBERS = {
    "x86_64": {
        "clone": 56, "fork": 57, "socket": 41, "kill": 62, "tkill": 200, "tgkill": 234,
        "rt_sigqueueinfo": 129, "rt_tgsigqueueinfo": 297, "fcntl": 72, "ptrace": 101,
        "process_vm_readv": 310, "process_vm_writev": 311, "prlimit64": 302,
    },
    "aarch64": {
        "clone": 220, "socket": 198, "kill": 129, "tkill": 130, "tgkill": 131,
        "rt_sigqueueinfo": 138, "rt_tgsigqueueinfo": 240, "fcntl": 25, "ptrace": 117,
        "process_vm_readv": 270, "process_vm_writev": 271, "prlimit64": 261,
    },
}
_BOTH = {"pidfd_send_signal": 424, "io_uring_setup": 425, "clone3": 435}
_X32 = 0x40000000  # the bit of system calls of x86-64's interface with short pointers
# BPF opcodes, and actions of filters.
_LOAD, _EQUAL, _HAS, _AT_LEAST, _ANSWER = 0x20, 0x15, 0x45, 0x35, 0x06
_ALLOW, _FAIL = 0x7FFF0000, 0x50000
_Step = tuple[int, int, int, int]
_F_SETOWN_EX = 15
_OF_A_PROCESS = ("kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "prlimit64")
_REACHING = ("pidfd_send_signal", "ptrace", "process_vm_readv", "process_vm_writev")


class _Program(ctypes.Structure):
    _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def confine(*, forks: bool) -> None:
    """Filter the system calls of this process and its descendants, irrevocably.

    Without support by the kernel, or on other processors, nothing is filtered. Calls by other interfaces
    (32 bits, x32) have other numbers and are all refused.

    Args:
        forks: allow it to fork, as nvcc does; the linker does not.
    """
    arch = _ARCH.get(os.uname().machine)
    if arch is None:
        return
    steps = [
        (_LOAD, 0, 0, 4),
        (_EQUAL, 1, 0, arch),
        (_ANSWER, 0, 0, _FAIL | errno.ENOSYS),
        (_LOAD, 0, 0, 0),
        (_AT_LEAST, 0, 1, _X32),
        (_ANSWER, 0, 0, _FAIL | errno.ENOSYS),
        *_within_host_and_process(),
        *([] if forks else _without_fork()),
        (_ANSWER, 0, 0, _ALLOW),
    ]
    code = b"".join(struct.pack("HBBI", *step) for step in steps)
    buffer = ctypes.create_string_buffer(code, len(code))
    program = _Program(len(steps), ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    libc.prctl(_PR_SET_SECCOMP, 2, ctypes.byref(program), 0, 0)


def _within_host_and_process() -> list[_Step]:
    """Refuse network sockets, and access to other processes.

    AF_UNIX is allowed, as drivers use it.
    """
    own = (os.getpid(), 0, -os.getpid())  # and its process group, which it has alone
    rules = [
        _unless("socket", 0, (socket.AF_UNIX,), errno.EACCES),
        _refuse("io_uring_setup", errno.ENOSYS),  # io_uring could open sockets past the filter
        *(_unless(name, 0, own, errno.EPERM) for name in _OF_A_PROCESS),
        # F_SETOWN could send signals to other processes.
        _when("fcntl", 1, (fcntl.F_SETOWN, _F_SETOWN_EX), errno.EPERM),
        *(_refuse(name, errno.EPERM) for name in _REACHING),
    ]
    return [step for rule in rules for step in rule]


def _without_fork() -> list[_Step]:
    """Let this process start threads and, one at a time, programs (the linker), but not fork.

    RLIMIT_NPROC counts all processes of the user and does not bind root, so it cannot stop a fork bomb; a
    filter can. Without filters, a fork bomb lasts until the time-out.
    """
    thread_or_vfork = 0x10000 | 0x4000
    return [
        *_refuse("fork", errno.EAGAIN),
        # glibc falls back to clone from clone3, whose flags a filter cannot read.
        *_refuse("clone3", errno.ENOSYS),
        *_rule(
            "clone", _argument(0), (_HAS, 1, 0, thread_or_vfork), *_answers(_FAIL | errno.EAGAIN, _ALLOW)
        ),
    ]


def _refuse(name: str, number: int) -> list[_Step]:
    return _rule(name, (_ANSWER, 0, 0, _FAIL | number))


def _when(name: str, argument: int, values: Sequence[int], number: int) -> list[_Step]:
    """Refuse a call whose argument is among the values."""
    refused = _FAIL | number
    return _rule(name, _argument(argument), *_among(values), *_answers(_ALLOW, refused))


def _unless(name: str, argument: int, values: Sequence[int], number: int) -> list[_Step]:
    """Refuse a call whose argument is none of the values."""
    refused = _FAIL | number
    return _rule(name, _argument(argument), *_among(values), *_answers(refused, _ALLOW))


def _rule(name: str, *steps: _Step) -> list[_Step]:
    """The filter of one system call: a test of its number, then instructions that end with an action."""
    number = (_NUMBERS[os.uname().machine] | _BOTH).get(name)
    return [] if number is None else [(_EQUAL, 0, len(steps), number), *steps]


def _argument(index: int) -> _Step:
    """Load the lower half of an argument, which is what the kernel uses of an `int`."""
    return (_LOAD, 0, 0, 16 + 8 * index)


def _among(values: Sequence[int]) -> list[_Step]:
    """Skip the next of two actions if the loaded value is among the values."""
    last = len(values)
    return [(_EQUAL, last - i, 0, v & 0xFFFFFFFF) for i, v in enumerate(values)]


def _answers(first: int, second: int) -> list[_Step]:
    return [(_ANSWER, 0, 0, first), (_ANSWER, 0, 0, second)]
