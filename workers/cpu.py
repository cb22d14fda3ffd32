"""The CPU of this host as a device: its cores, timing lock, and state."""
# Over 300 lines: what is known of one device, and the locks of its cores.

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import logging
import math
import os
import platform
import re
import socket
import stat
import struct
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from strategy.host import cache_sizes, cpu_info
from strategy.installed_code import code_identity
from strategy.record import Device
from strategy.target import Target, cpu_target
from workers.cgroup import group_limits

log = logging.getLogger(__name__)
_CPUS = Path("/sys/devices/system/cpu")
# Folders that all users of a host can write to, on most.
_SHARED = (Path("/run/lock"), Path("/var/lock"), Path("/tmp"))  # noqa: S108
_LOCK_NAME = "plevel-timing.lock"
_CLAIMS = 1 << 20  # byte of the lock's file from which on workers mark their timing cores
_WAITS = _CLAIMS - 1  # byte that those mark who wait for the host's lock
_LOOK_S = 0.02  # between two looks at a lock
_LONG_WAIT_S = 60.0
AWAITS_TURN = "waiting for a turn to time or build"  # in a worker's log, which `plevel tune` repeats
_LONGEST_SLOT = 100  # characters; a device's identity, the machine and the slot, may have 200


class DeviceError(ValueError):
    """This host lacks the device, or cannot use it; the message has the field and the remedy."""


@dataclass(frozen=True)
class Cores:
    """The cores of a device by purpose."""

    slot: str
    timing: tuple[int, ...]
    building: tuple[int, ...]

    @property
    def overlap(self) -> bool:
        """True if timing and building share cores, so that builds must wait while a kernel is timed."""
        return bool(set(self.timing) & set(self.building))

    @property
    def all(self) -> tuple[int, ...]:
        return tuple(sorted({*self.timing, *self.building}))


def parse_cores(text: str) -> tuple[int, ...]:
    """Parse `cpu`, `cpu:0-3` or `cpu:0,2`; without numbers, all cores that this process may use.

    Raises:
        DeviceError: malformed, or an unavailable core.
    """
    kind, _, numbers = text.partition(":")
    allowed = sorted(os.sched_getaffinity(0))
    if kind != "cpu":
        raise DeviceError(f"device {text!r:.40}: unknown: write cpu, cpu:0-3 or cuda:0")
    if not numbers:
        return tuple(allowed)
    cores: set[int] = set()
    for part in numbers.split(","):
        first, dash, last = part.partition("-")
        known = all(n.isdecimal() and len(n) < 10 for n in ((first, last) if dash else (first,)))
        if not known or int(last or first) < int(first):
            raise DeviceError(f"device {text!r:.40}: {part!r:.20} is no core: write cpu:0-3 or cpu:0,2")
        for core in range(int(first), int(last or first) + 1):
            if core not in allowed:
                shown = ",".join(map(str, allowed))
                raise DeviceError(
                    f"device {text!r:.40}: core {core} is not available to this process: choose from {shown}"
                )
            cores.add(core)
    return tuple(sorted(cores))


def assign(cores: Sequence[int], threads: int) -> Cores:
    """Divide cores into those that time kernels of `threads` threads and those that build.

    Each timing thread gets a physical core if there are enough, the fastest ones where they differ. The other
    hyper-thread of a timing core builds nothing. If no physical core is left, building shares the timing cores.

    Raises:
        DeviceError: more threads than cores.
    """
    if not 1 <= threads <= len(cores):
        raise DeviceError(f"threads = {threads}: the device has only {len(cores)} cores: use fewer threads")
    physical: dict[tuple[int, ...], list[int]] = {}
    for core in cores:
        physical.setdefault(_siblings(core), []).append(core)
    # Interrupts and other programs prefer the first cores: time on the last ones of the fastest.
    by_core = sorted(physical.values(), key=lambda group: (_speed(group[0]), group), reverse=True)
    timing = [group[0] for group in by_core[:threads]] if threads <= len(by_core) else sorted(cores)[-threads:]
    building = [core for group in by_core if not set(group) & set(timing) for core in group] or list(cores)
    return Cores(_slot(sorted(cores)), tuple(sorted(timing)), tuple(sorted(building)))


def pin(thread: int, cores: Collection[int]) -> None:
    """Restrict a thread to cores; raise `DeviceError` if this process may use none of them any more."""
    try:
        os.sched_setaffinity(thread, cores)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise DeviceError(
            f"cores {_ranges(sorted(cores))} are offline, or another cpuset's: start the worker again"
        ) from error


def _siblings(core: int) -> tuple[int, ...]:
    text = read(_CPUS / f"cpu{core}/topology/thread_siblings_list") or str(core)
    return tuple(int(word) for part in text.split(",") for word in part.split("-"))


def _speed(core: int) -> int:
    """The speed of a core beside others of its host, as some processors have slow ones to save energy; 0 if unknown."""
    texts = (read(_CPUS / f"cpu{core}" / name) for name in ("cpu_capacity", "cpufreq/cpuinfo_max_freq"))
    return next((int(text) for text in texts if text.isdecimal()), 0)


def _slot(cores: Sequence[int]) -> str:
    """The name of sorted cores as a device: their ranges, or of many apart their number and a digest."""
    listed = _ranges(cores)
    if len(listed) > _LONGEST_SLOT:
        listed = f"{len(cores)}-of-{cores[-1] + 1}-{hashlib.sha256(listed.encode()).hexdigest()[:12]}"
    return f"cpu:{listed}"


def _ranges(cores: Sequence[int]) -> str:
    parts: list[str] = []
    start = previous = cores[0]
    for core in [*cores[1:], -1]:
        if core != previous + 1:
            parts.append(str(start) if start == previous else f"{start}-{previous}")
            start = core
        previous = core
    return ",".join(parts)


def read(path: Path) -> str:
    """The text of a file; empty if it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def machine_id() -> str:
    """A persistent identity of this machine."""
    return read(Path("/etc/machine-id")) or read(Path("/var/lib/dbus/machine-id")) or socket.gethostname()


def describe_device(cores: Cores, threads: int) -> Device:
    """The device to register: this host's target with `threads` threads, on these cores."""
    target: Target = cpu_target().with_threads(threads)
    info = cpu_info()
    fingerprint = {
        "cpu": target.model,
        "vendor": info.get("vendor_id", ""),
        "family": info.get("cpu family", ""),
        "model": info.get("model", ""),
        "stepping": info.get("stepping", ""),
        "microcode": info.get("microcode", ""),
        "features": sorted(info.get("flags", info.get("Features", "")).split()),
        "cores": len(cores.all),
        "cores_online": os.cpu_count(),
        "timing_cores": list(cores.timing),
        "building_cores": list(cores.building),
        "governor": governor(),
        **cache_sizes(),
    }
    return Device(
        identity=f"{machine_id()}/{cores.slot}", slot=cores.slot, model=target.model, target=target,
        fingerprint=fingerprint,
    )


def governor() -> str:
    """The frequency governor of the processor; empty if unknown, as on virtual machines."""
    return read(_CPUS / "cpu0/cpufreq/scaling_governor")


def environment() -> dict[str, Any]:
    """The toolchain and settings of this host that are known without loading TVM."""
    return {
        "python": platform.python_version(),
        "tvm": installed_version("apache-tvm"),
        "tvm_ffi": installed_version("apache-tvm-ffi"),
        "numpy": installed_version("numpy"),
        "openblas": installed_version("scipy-openblas32"),
        "kernel": platform.release(),
        "governor": governor(),
        "plevel": code_identity(),
    }


def state(cores: Sequence[int]) -> dict[str, Any]:
    """Load, frequency, temperature, stolen and throttled time now; omits what the host does not report."""
    frequency = read(_CPUS / f"cpu{cores[0]}/cpufreq/scaling_cur_freq")
    temperature = hottest()
    found = {
        "load": round(os.getloadavg()[0], 2),
        "frequency_mhz": round(int(frequency) / 1000) if frequency.isdecimal() else _nominal_mhz(),
        "temperature_c": temperature,
        "stolen_s": _stolen_s(cores),
        "throttled_s": _throttled_s(),
    }
    return {name: value for name, value in found.items() if value is not None}


def _nominal_mhz() -> int | None:
    """The first core's frequency in /proc/cpuinfo in MHz, the only source on virtual machines."""
    text = cpu_info().get("cpu MHz", "")
    return round(float(text)) if text else None


def hottest() -> float | None:
    """The temperature of the hottest sensor, in °C."""
    zones = (read(p) for p in Path("/sys/class/thermal").glob("thermal_zone*/temp"))
    found = [int(text) / 1000 for text in zones if text.lstrip("-").isdecimal()]
    return max(found, default=None)


def _stolen_s(cores: Sequence[int]) -> float | None:
    """Seconds since the start that a hypervisor gave to other machines."""
    names = {f"cpu{core}" for core in cores}
    lines = (line.split() for line in read(Path("/proc/stat")).splitlines())
    ticks = [int(words[8]) for words in lines if words[0] in names and len(words) > 8]
    return round(sum(ticks) / os.sysconf("SC_CLK_TCK"), 2) if ticks else None


def _throttled_s(root: Path = Path("/")) -> float | None:
    """Seconds for which a quota has stopped processes of this one's control group, or of one above it."""
    texts = group_limits("cpu", "cpu.stat", root)
    found = [int(usec) for text in texts for usec in re.findall(r"^throttled_usec (\d+)$", text, re.MULTILINE)]
    return round(max(found) * 1e-6, 2) if found else None


@cache
def installed_version(package: str) -> str:
    """The version of an installed package, else an empty text."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


@contextlib.contextmanager
def timing_lock(stop: Callable[[], bool] = lambda: False, cores: Sequence[int] | None = None) -> Iterator[bool]:
    """Hold this host's timing lock, and exclude builds on some cores, by all daemons, whatever their user.

    Locks of a file in a folder shared by all users, which end with their process. Containers on one CPU
    share it if each mounts the host's folder.

    Args:
        stop: polled while waiting; if it returns true, the lock is not acquired.
        cores: the timing cores; default: all that this process may use.
    """
    cores = sorted(os.sched_getaffinity(0)) if cores is None else cores
    with _opened_lock() as file:
        _let_others_go_first(file)
        # The host's first: while it is held nobody else times, so that builds ahead of timing come to an end.
        host = partial(fcntl.flock, file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        begin, end = (_locks_of(file, [_WAITS], kind) for kind in (fcntl.F_RDLCK, fcntl.F_UNLCK))
        yield _acquire([*begin, host, *end, *_locks_of(file, cores, fcntl.F_WRLCK)], stop)


def _let_others_go_first(file: int) -> None:
    """Wait for two looks if another waits for the host's lock: who times on and on would leave it no moment."""
    (alone,) = _locks_of(file, [_WAITS], fcntl.F_WRLCK)
    try:
        alone()
    except BlockingIOError:
        time.sleep(2 * _LOOK_S)


@contextlib.contextmanager
def claimed(cores: Sequence[int]) -> Iterator[bool]:
    """Mark cores as those that this worker times on; yield False if another one of this host times on one of them."""
    with _opened_lock() as file:
        try:
            for mark in _locks_of(file, [_CLAIMS + core for core in cores], fcntl.F_WRLCK):
                mark()
        except BlockingIOError:
            yield False
        else:
            yield True


@contextlib.contextmanager
def building_lock(cores: Sequence[int], stop: Callable[[], bool]) -> Iterator[bool]:
    """Exclude timing on some cores, by all daemons of this host, whatever their user.

    Args:
        stop: see `timing_lock`.
    """
    with _opened_lock() as file:
        yield _acquire(_locks_of(file, cores, fcntl.F_RDLCK), stop)


def _locks_of(file: int, cores: Sequence[int], kind: int) -> list[Callable[[], object]]:
    """Locks of the byte of each core, in one order for all, so that none waits for another in turn."""
    # `struct flock`; of the open file, not of the process, whose threads exclude each other, too.
    asked = (struct.pack("hhqqi4x", kind, os.SEEK_SET, core, 1, 0) for core in sorted(cores))
    return [partial(fcntl.fcntl, file, fcntl.F_OFD_SETLK, one) for one in asked]


def _acquire(locks: Sequence[Callable[[], object]], stop: Callable[[], bool]) -> bool:
    say_at = time.monotonic() + _LONG_WAIT_S
    for lock in locks:
        while True:
            try:
                lock()
                break
            except BlockingIOError:
                if stop():
                    return False
                if time.monotonic() >= say_at:
                    path, say_at = _lock_path(), math.inf
                    log.warning(
                        "%s, for %g s so far: another process holds %s: 'fuser -v %s' names it; continue or end it if "
                        "it is stopped", AWAITS_TURN, _LONG_WAIT_S, path, path,
                    )
                time.sleep(_LOOK_S)
    return True


def _lock_path() -> Path:
    return next(filter(_is_shared, _SHARED), _SHARED[-1]) / _LOCK_NAME


@contextlib.contextmanager
def _opened_lock() -> Iterator[int]:
    path = _lock_path()
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        descriptor = os.open(path, flags)  # of another user: sticky folders forbid O_CREAT on it
    except FileNotFoundError:
        descriptor = _create_lock(path, flags)
    except OSError as error:
        raise DeviceError(f"{path} cannot be opened ({error.strerror}): remove it") from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _create_lock(path: Path, flags: int) -> int:
    try:
        descriptor = os.open(path, flags | os.O_CREAT, 0o666)
    except OSError as error:
        folders = ", ".join(map(str, _SHARED))
        raise DeviceError(
            f"{path}, by which the workers of a host take turns, cannot be created ({error.strerror}): let all users "
            f"write to one of {folders}, in a container by a volume"
        ) from error
    with contextlib.suppress(PermissionError):
        os.fchmod(descriptor, 0o666)
    return descriptor


def _is_shared(folder: Path) -> bool:
    """Return whether all users can write to a folder; `os.access` would say of root that it always can."""
    try:
        writable = folder.stat().st_mode & stat.S_IWOTH
        return bool(writable) and not os.statvfs(folder).f_flag & os.ST_RDONLY
    except OSError:
        return False
