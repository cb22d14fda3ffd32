"""Cores: which time, which build, and which thread gets which."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

import pytest

from strategy.record import Device, decode, encode
from workers import cpu
from workers.cpu import (
    DeviceError,
    assign,
    describe_device,
    environment,
    parse_cores,
    pin,
    timing_lock,
)


@pytest.fixture
def eight(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host of eight cores, on four physical ones: 0 with 4, 1 with 5 …"""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(cpu, "_siblings", lambda core: (core % 4, core % 4 + 4))
    monkeypatch.setattr(cpu, "_speed", lambda core: 0)


@pytest.mark.parametrize(
    ("text", "cores"),
    [("cpu", range(8)), ("cpu:3", [3]), ("cpu:0-2", [0, 1, 2]), ("cpu:6,1-2,2", [1, 2, 6])],
)
def test_cores_are_read(eight: None, text: str, cores: Sequence[int]) -> None:
    assert parse_cores(text) == tuple(cores)


@pytest.mark.parametrize(
    "text", ["gpu", "cpu:", "cpu:x", "cpu:1-", "cpu:-1", "cpu:7-8", "cpu:1,,2", "cpu:3-1", "cpu:0-99999999999"]
)
def test_what_cannot_be_read_is_named(eight: None, text: str) -> None:
    if text == "cpu:":
        assert parse_cores(text) == tuple(range(8))
        return
    with pytest.raises(DeviceError, match="device"):
        parse_cores(text)


@pytest.mark.parametrize(
    ("threads", "timing", "building"),
    [
        # The other hyper-thread of a timing core is left alone.
        (1, (3,), (0, 1, 2, 4, 5, 6)),
        (2, (2, 3), (0, 1, 4, 5)),
        # No physical core is left to build on: building and timing take turns.
        (4, (0, 1, 2, 3), tuple(range(8))),
        (6, (2, 3, 4, 5, 6, 7), tuple(range(8))),
        (8, tuple(range(8)), tuple(range(8))),
    ],
)
def test_each_timing_thread_gets_a_physical_core(
    eight: None, threads: int, timing: tuple[int, ...], building: tuple[int, ...]
) -> None:
    cores = assign(range(8), threads)
    assert cores.timing == timing
    assert cores.building == building
    assert cores.overlap == bool(set(timing) & set(building))
    assert cores.slot == "cpu:0-7"


@pytest.mark.parametrize(
    ("file", "fast", "slow"), [("cpufreq/cpuinfo_max_freq", "4900000", "3600000"), ("cpu_capacity", "1024", "290")]
)
def test_slow_cores_that_save_energy_time_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, fast: str, slow: str
) -> None:
    monkeypatch.setattr(cpu, "_CPUS", tmp_path)
    for core in range(6):
        path = tmp_path / f"cpu{core}" / file
        path.parent.mkdir(parents=True)
        path.write_text(f"{fast if core < 2 else slow}\n")
    assert assign(range(6), 1).timing == (1,)
    assert assign(range(6), 3).timing == (0, 1, 5)


def test_many_cores_apart_have_a_short_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as those of one socket of two, on hosts that number them in turn."""
    even = list(range(0, 256, 2))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(even))
    monkeypatch.setattr(cpu, "_siblings", lambda core: (core,))
    device = describe_device(assign(parse_cores("cpu"), 8), 8)
    assert device.slot.startswith("cpu:128-of-255-") and decode(encode(device), Device) == device
    other = describe_device(assign([*even[:-1], 255], 8), 8)
    assert other.identity != device.identity
    assert assign(even[:20], 1).slot == "cpu:" + ",".join(map(str, even[:20]))


def test_all_users_find_the_same_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner of a folder may write to it, as root may to any; another user may not."""
    folders = [tmp_path / name for name in ("gone", "own", "shared", "later")]
    for folder, mode in zip(folders[1:], (0o755, 0o1777, 0o1777), strict=True):
        folder.mkdir()
        folder.chmod(mode)
    monkeypatch.setattr(cpu, "_SHARED", folders)
    with timing_lock() as mine:
        assert mine
    assert [list(folder.glob("*")) for folder in folders] == [[], [], [folders[2] / cpu._LOCK_NAME], []]
    assert stat.S_IMODE((folders[2] / cpu._LOCK_NAME).stat().st_mode) == 0o666


def test_a_host_without_a_folder_for_the_lock_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "_SHARED", (tmp_path / "gone",))
    told = r"plevel-timing.lock, by .* cannot be created \(No such file or directory\): let all users write to one of "
    with pytest.raises(DeviceError, match=told), timing_lock():
        pass


@pytest.mark.parametrize("threads", [0, -1, 9])
def test_more_threads_than_cores_are_refused(eight: None, threads: int) -> None:
    with pytest.raises(DeviceError, match="8 cores"):
        assign(range(8), threads)


def test_the_device_stays_the_same_and_its_threads_are_the_targets() -> None:
    cores = assign(parse_cores("cpu"), 1)
    device, again = describe_device(cores, 1), describe_device(cores, 1)
    assert device.identity == again.identity
    assert device.identity.endswith("/" + device.slot)
    assert device.target.threads == 1
    assert device.fingerprint["timing_cores"] == list(cores.timing)


def test_the_environment_is_known_without_loading_tvm() -> None:
    found = environment()
    assert found["tvm"] and found["python"] and found["kernel"]


def test_cores_that_are_gone_are_named() -> None:
    with pytest.raises(DeviceError, match="^cores 5000-5001 are offline"):
        pin(0, {5000, 5001})
    with pytest.raises(ProcessLookupError):
        pin(2**22 + 1, {0})  # of no process


def test_throttled_time_is_that_of_the_group_that_lost_most(tmp_path: Path) -> None:
    groups = tmp_path / "sys/fs/cgroup"
    for place, usec in (("pods/one", 100_000), ("pods", 2_500_000)):
        (groups / place).mkdir(parents=True, exist_ok=True)
        (groups / place / "cpu.stat").write_text(f"usage_usec 9\nnr_throttled 3\nthrottled_usec {usec}\n")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/pods/one\n")
    assert cpu._throttled_s(tmp_path) == 2.5
    assert cpu._throttled_s(tmp_path / "none") is None
