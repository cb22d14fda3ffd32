"""An operator whose one implementation does whatever its configuration says, bad deeds included.

Loaded by the fork server of the tests, like the operators of another package.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from strategy.attrs import Attrs
from strategy.generic_func import override_native_generic_func
from strategy.op import register_op, register_reference, register_strategy
from strategy.op_strategy import OpStrategy
from strategy.schedule import Outs, new_schedule
from strategy.space import Config, ConfigSpace, Knob
from strategy.target import Target
from strategy.types import Type
from workers.fork import LENGTH, UNFIT

DEEDS = (
    "good", "build_raises", "build_aborts", "build_hangs", "build_eats_memory", "build_forks",
    "build_leaves_orphans", "aborts", "segfaults", "hangs", "eats_memory", "forks", "raises",
    "exits", "exits_unfit", "writes_nothing", "wrong", "slightly_wrong", "writes_input", "writes_input_later",
    "wrong_later", "slow", "waits", "damages_marks",
    "reads_past_end", "reads_far_past_end", "reads_before", "writes_past_end", "writes_before", "writes_gap",
    "writes_before_input", "code_reads_past_end", "code_reads_before", "code_writes_past_end",
    "code_reads_past_workspace", "code_writes_past_workspace", "code_writes_before_workspace", "code_writes_input",
)

LEAST = 4  # elements, of fewer of which nothing is offered
GATE = "HOSTILE_GATE"  # the environment's name of a file; a run that waits goes on once it is there


def _relation(types: Sequence[Type], attrs: Any, reporter: Any) -> bool:
    reporter.assign(1, types[0])
    return True


register_op("hostile").describe("Adds one.").set_num_inputs(1).add_argument(
    "data", "Tensor", "any"
).add_type_rel("Hostile", _relation)


@register_reference("hostile")
def hostile_reference(attrs: Attrs, inputs: Sequence[Any]) -> Any:
    import numpy as np

    return np.asarray(inputs[0], dtype=np.float64) + 1


def space(attrs: Attrs, inputs: Any, out_type: Any, target: Target) -> ConfigSpace:
    return ConfigSpace([Knob("deed", DEEDS), Knob("id", range(100))])


def compute(attrs: Attrs, inputs: Sequence[Any], out_type: Any, config: Config) -> list[Any]:
    from tvm import te, tirx

    deed = str(config["deed"])
    _at_build(deed)
    (data,) = inputs
    if deed in ("good", "wrong", "slightly_wrong") or deed.startswith("build_"):
        added = {"wrong": 2.0, "slightly_wrong": 1.0001}.get(deed, 1.0)
        wrong = tirx.const(added, data.dtype)
        if deed != "slightly_wrong":
            return [te.compute(data.shape, lambda *i: data[i] + wrong, name="out")]
        one = tirx.const(1.0, data.dtype)
        return [
            te.compute(
                data.shape, lambda i: data[i] + tirx.if_then_else(i == 5, wrong, one), name="out"
            )
        ]

    if deed.endswith("workspace"):
        # 12 bytes short of whole vectors.
        count, before = 2045, -2 if "before" in deed else 0
        size = 4 * (count - before + deed.startswith("code_writes_past"))

        def clear(_: Any, outs: Sequence[Any]) -> Any:
            start = outs[0].access_ptr("w", offset=before)
            return tirx.Evaluate(tirx.call_extern("void", "memset", start, 0, size))

        kept = te.extern((count,), [data], clear, name="kept", dtype=str(data.dtype))
        step = 33 if deed.startswith("code_reads") else 1  # of 64 elements
        one = tirx.const(1.0, data.dtype)
        return [te.compute(data.shape, lambda i: data[i] + one + kept[i * step], name="out")]

    if deed.startswith("code_reads"):  # the element next to the one that is asked for
        beside = 1 if deed.endswith("end") else -1
        one, little = (tirx.const(value, data.dtype) for value in (1.0, 1e-30))
        return [
            te.compute(data.shape, lambda i: data[i] + one + data[i + beside] * little, name="out")
        ]

    def body(ins: Sequence[Any], outs: Sequence[Any]) -> Any:
        if deed == "aborts":  # C, no Python in the way
            return tirx.Evaluate(tirx.call_extern("void", "abort"))
        if deed == "hangs":
            return tirx.Evaluate(tirx.call_extern("int32", "pause"))
        source, result = ins[0].access_ptr("r"), outs[0].access_ptr("w")
        if deed == "code_writes_input":
            return tirx.Evaluate(tirx.call_extern("void", "memset", ins[0].access_ptr("w"), 0, 4))
        if deed == "code_writes_past_end":
            size = int(data.shape[0]) * 4
            copied = tirx.call_extern("void", "memcpy", result, source, size + 4)
            return tirx.Evaluate(copied)
        return tirx.Evaluate(
            tirx.call_packed("test.hostile", deed, source, result, int(data.shape[0]))
        )

    return [te.extern(tuple(data.shape), [data], body, name="out", dtype=str(data.dtype))]


def _at_build(deed: str) -> None:
    if deed == "build_raises":
        raise ValueError("the compute refused")
    if deed == "build_aborts":
        os.abort()
    if deed == "build_hangs":
        time.sleep(1000)
    if deed == "build_eats_memory":
        _eat()
    if deed == "build_forks":
        _fork()
    if deed == "build_leaves_orphans":
        _vfork_sleepers()
        os.abort()


def _eat() -> None:
    eaten = []
    while True:
        eaten.append(bytearray(64 * 2**20))


def _fork() -> None:
    while True:
        os.fork()


def _vfork_sleepers() -> None:
    """Programs in sessions of their own, which a kill of this process's session does not reach."""
    import subprocess

    for _ in range(3):
        subprocess.Popen(["sleep", "4321"], start_new_session=True)


def _progress() -> int:
    """The address of the memory that this process shares with its worker."""
    (line,) = (x for x in Path("/proc/self/maps").read_text().splitlines() if "plevel-progress" in x)
    return int(line.partition("-")[0], 16)


_calls: dict[str, int] = {}


def _at_run(deed: str, data: Any, out: Any, count: int) -> None:
    import numpy as np

    source, target = (
        np.ctypeslib.as_array((ctypes.c_float * count).from_address(p.value)) for p in (data, out)
    )
    _calls[deed] = _calls.get(deed, 0) + 1
    if deed == "segfaults":
        ctypes.memset(1, 0, 1)
    elif deed == "eats_memory":
        _eat()
    elif deed == "forks":
        _fork()
    elif deed == "raises":
        raise ValueError("the kernel refused")
    elif deed == "exits":
        os._exit(0)
    elif deed == "exits_unfit":
        os._exit(UNFIT)
    elif deed == "slow":
        time.sleep(0.02)
    elif deed == "waits":
        while not Path(os.environ[GATE]).exists():
            time.sleep(0.01)
    elif deed == "damages_marks":
        ctypes.memset(_progress(), 0x11, 8)  # the stage
        os.abort()
    elif deed == "wrong_later":
        target[...] = source + (1 if _calls[deed] < 4 else 2)
        return
    if deed == "writes_nothing":
        return
    target[...] = source + 1
    if deed == "writes_input" or (deed == "writes_input_later" and _calls[deed] >= 4):
        ctypes.memset(source.ctypes.data, 0, 4)
    elif deed == "reads_past_end":
        ctypes.string_at(data.value + 4 * count, 4)
    elif deed == "reads_far_past_end":
        ctypes.string_at(data.value + 4 * count + 100_000, 4)
    elif deed == "reads_before":
        ctypes.string_at(data.value - 8, 4)
    elif deed in ("writes_past_end", "writes_gap"):
        ctypes.memset(out.value + 4 * count, 0, 3)
    elif deed == "writes_before":
        ctypes.memset(out.value - 8, 0, 4)
    elif deed == "writes_before_input":
        ctypes.memset(data.value - 8, 0, 4)


if "tvm" in sys.modules:  # in the fork server, not in the tests themselves
    import tvm_ffi

    tvm_ffi.register_global_func("test.hostile", _at_run, override=True)


def schedule(attrs: Attrs, outs: Outs, target: Target, config: Config) -> Any:
    return new_schedule(outs)


@override_native_generic_func("hostile_strategy")
def hostile_strategy(attrs: Attrs, inputs: Any, out_type: Any, target: Target) -> OpStrategy:
    strategy = OpStrategy()
    if int(inputs[0].shape[0]) >= LEAST:
        strategy.add_implementation(compute, schedule, "hostile.cpu", 10, version=3, space=space)
    return strategy


register_strategy("hostile", hostile_strategy)


FAMILIES = ("AF_UNIX", "AF_INET", "AF_INET6", "AF_PACKET", "AF_NETLINK", "AF_VSOCK", "AF_ALG")
# socket(AF_INET, SOCK_STREAM, 0) by the interface of 32 bits:
# push rbx; mov eax, 359; mov ebx, 2; mov ecx, 1; xor edx, edx; int 0x80; pop rbx; ret
_INT_80 = bytes.fromhex("53b867010000bb02000000b90100000031d2cd805bc3")


def _answer(number: int, *arguments: Any) -> int:
    """0, or the number of the error of a system call."""
    libc = ctypes.CDLL(None, use_errno=True)
    found = libc.syscall(ctypes.c_long(number), *arguments)
    return ctypes.get_errno() if found < 0 else 0


def _by_int_80() -> int:
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    page = libc.mmap(None, ctypes.c_size_t(4096), 7, 0x22, -1, ctypes.c_long(0))
    ctypes.memmove(page, _INT_80, len(_INT_80))
    return -min(ctypes.CFUNCTYPE(ctypes.c_int)(page)(), 0)


def _escape(way: str, pid: int) -> int:
    """0 where a way out of the sandbox is open, else the error of it; `pid` is whom to reach."""
    memory = ctypes.create_string_buffer(128)
    ctypes.memset(ctypes.addressof(memory) + 8, 0xFF, 4)  # SI_QUEUE, which any process may send
    own = os.open("/dev/null", os.O_RDONLY)
    ways = {
        "kill": lambda: _answer(62, pid, 0),
        "killpg": lambda: _answer(62, -pid, 0),
        "kill all": lambda: _answer(62, -1, 0),
        "tkill": lambda: _answer(200, pid, 0),
        "tgkill": lambda: _answer(234, pid, pid, 0),
        "rt_sigqueueinfo": lambda: _answer(129, pid, 0, memory),
        "rt_tgsigqueueinfo": lambda: _answer(297, pid, pid, 0, memory),
        "pidfd_send_signal": lambda: _answer(424, os.pidfd_open(pid), 0, None, 0),
        "fcntl": lambda: _answer(72, own, 8, pid),
        "ptrace": lambda: _answer(101, 0x4206, pid, 0, 0),
        "process_vm_readv": lambda: _answer(310, pid, None, 0, None, 0, 0),
        "process_vm_writev": lambda: _answer(311, pid, None, 0, None, 0, 0),
        "prlimit64": lambda: _answer(302, pid, 7, None, memory),
        "x32": lambda: _answer(0x40000000 | 39),
        "int 0x80": _by_int_80,
        "io_uring": lambda: _answer(425, 1, memory),
        "pthread_kill": lambda: signal.pthread_kill(threading.get_ident(), 0) or 0,
        "getrlimit": lambda: resource.getrlimit(resource.RLIMIT_DATA) and 0,
    } | {name: lambda name=name: _opens(name) for name in FAMILIES}
    return ways[way]()


def _opens(family: str) -> int:
    try:
        kind = socket.SOCK_SEQPACKET if family == "AF_ALG" else socket.SOCK_DGRAM
        socket.socket(getattr(socket, family), kind).close()
    except OSError as error:
        return error.errno or -1
    return 0


def serve(channel: Any) -> None:
    """A child that answers, leaves, hangs or writes garbage, as it is told."""
    while True:
        asked = channel.receive()
        if asked == "leave":
            os._exit(7)
        if asked == "hang":
            channel.mark(5)
            time.sleep(1000)
        if asked == "prepare and hang":
            time.sleep(1)
            channel.mark(0)
            time.sleep(1000)
        if asked == "half a message":
            os.write(channel.fileno(), LENGTH.pack(16) + b"{")
            time.sleep(1000)
        if asked in ("damage the marks", "zero the marks"):
            channel.mark(3)
            ctypes.memset(_progress(), 0xFF if asked == "damage the marks" else 0, 16)  # NaN is the time, or 0
            time.sleep(1000)
        if asked == "garbage":
            os.write(channel.fileno(), b"\xff\xff\xff\xff")
        if asked == "environment":
            answer = {
                "threads": len(list(os.scandir("/proc/self/task"))),
                "tvm_threads": os.environ.get("TVM_NUM_THREADS"),
                "cores": sorted(os.sched_getaffinity(0)),
                "session": os.getsid(0) == os.getpid(),
                "loaded": "tvm" in sys.modules,
                "collects": gc.isenabled(),
                "frozen": gc.get_freeze_count() > 10_000,
            }
            channel.send(answer)
        elif isinstance(asked, dict) and "escape" in asked:
            own = asked.get("own", False)
            channel.send(_escape(asked["escape"], os.getpid() if own else os.getppid()))
        else:
            channel.send({"echo": asked})
