"""A signal handler that stores the address of a fatal memory fault for the parent process.

The handler is machine code, as it may run in any thread at any instruction, with or without the GIL. It
stores the address and returns; the fault is then repeated and kills the process.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import struct
from collections.abc import Callable

_SA_SIGINFO, _SA_RESETHAND = 4, 0x80000000
# siginfo_t, the second argument, has the address in bytes 16 to 23.
_CODE: dict[str, Callable[[int], bytes]] = {
    # mov rax, [rsi+16]; mov rcx, slot; mov [rcx], rax; ret
    "x86_64": lambda slot: b"\x48\x8b\x46\x10\x48\xb9" + struct.pack("<Q", slot) + b"\x48\x89\x01\xc3",
    # ldr x9, [x1, #16]; ldr x10, slot; str x9, [x10]; ret; slot
    "aarch64": lambda slot: struct.pack("<4IQ", 0xF9400829, 0x5800006A, 0xF9000149, 0xD65F03C0, slot),
}
_FAILED = ctypes.c_void_p(-1).value


class _Action(ctypes.Structure):
    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_byte * 128),
        ("flags", ctypes.c_uint),
        ("restorer", ctypes.c_void_p),
    )


def store_faults(slot: int) -> None:
    """Store the address of a SIGSEGV or SIGBUS in the 8 bytes at `slot`, before it kills this process.

    Does nothing on other processors, or if the kernel forbids running such code.
    """
    make = _CODE.get(os.uname().machine)
    if make is None:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    # Mapped from a file, so that the kernel keeps data and instruction caches coherent.
    file = os.memfd_create("plevel-fault")
    try:
        os.write(file, make(slot))
        code = libc.mmap(
            None, ctypes.c_size_t(mmap.PAGESIZE), mmap.PROT_READ | mmap.PROT_EXEC,
            mmap.MAP_PRIVATE, file, ctypes.c_long(0),
        )
    finally:
        os.close(file)
    if code == _FAILED:
        return
    action = _Action(handler=code, flags=_SA_SIGINFO | _SA_RESETHAND)
    for number in (signal.SIGSEGV, signal.SIGBUS):
        libc.sigaction(number, ctypes.byref(action), None)
