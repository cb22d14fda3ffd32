"""`plevel doctor` on hosts that describe themselves in files."""

from __future__ import annotations

import errno
import math
import os
import re
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.unit.test_cli import plevel
from workers import doctor
from workers.__main__ import Options, serve
from workers.cgroup import cpu_quota, machine_memory
from workers.cpu import Cores, assign, parse_cores
from workers.daemon import Daemon

CORES = Cores("cpu:0-1", (0, 1), (0, 1))


def host(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / "sys/devices/system" / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def settings(root: Path) -> dict[str, tuple[str, bool]]:
    return {f.what: (f.found, not f.remedy) for f in doctor._settings(CORES, root)}


def test_a_good_host(tmp_path: Path) -> None:
    found = settings(
        host(
            tmp_path, cpu__cpu0__cpufreq__scaling_governor="performance",
            cpu__intel_pstate__no_turbo="1", clocksource__clocksource0__current_clocksource="tsc",
        )
    )
    assert found == {
        "governor": ("performance", True), "turbo": ("off", True), "clock source": ("tsc", True),
        "quota": ("none", True),
    }


def test_a_host_with_everything_wrong(tmp_path: Path) -> None:
    root = host(
        tmp_path, cpu__cpu0__cpufreq__scaling_governor="powersave", cpu__cpufreq__boost="1",
        clocksource__clocksource0__current_clocksource="hpet",
    )
    (root / "sys/fs/cgroup/build.slice/plevel.service").mkdir(parents=True)
    (root / "sys/fs/cgroup/build.slice/plevel.service/cpu.max").write_text("max 100000\n")
    (root / "sys/fs/cgroup/build.slice/cpu.max").write_text("150000 100000\n")
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text("0::/build.slice/plevel.service\n")
    found = {f.what: f for f in doctor._settings(CORES, root)}
    assert all(f.remedy for f in found.values())
    assert "performance" in found["governor"].remedy
    assert "cpufreq/boost" in found["turbo"].remedy
    assert found["quota"].found == "the time of 1.5 cores"


@pytest.mark.parametrize(
    ("group", "files", "quota"),
    [
        ("0::/job", {"job/cpu.max": "max 100000"}, math.inf),
        ("0::/job/step", {"job/cpu.max": "800000 100000", "job/step/cpu.max": "50000 100000"}, 0.5),
        ("4:cpu,cpuacct:/job", {"cpu/job/cpu.cfs_quota_us": "-1"}, math.inf),
        (
            "4:cpu,cpuacct:/job",
            {"cpu/job/cpu.cfs_quota_us": "300000", "cpu/job/cpu.cfs_period_us": "100000"}, 3.0,
        ),
    ],
)
def test_the_quota_is_that_of_the_tightest_control_group(
    tmp_path: Path, group: str, files: dict[str, str], quota: float
) -> None:
    for name, limit in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{limit}\n")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(f"{group}\n")
    assert cpu_quota(tmp_path) == quota


@pytest.mark.parametrize(("quota", "said"), [(1.5, True), (2.0, False)])
def test_a_worker_of_more_cores_than_its_quota_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture, quota: float, said: bool
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: None)
    monkeypatch.setattr("workers.__main__.cpu_quota", lambda: quota)
    monkeypatch.setattr("workers.__main__.ended_by_signals", lambda *_: nullcontext())
    monkeypatch.setattr(Daemon, "run", lambda *_: None)
    assert serve(Options(url="http://127.0.0.1:9"), "cpu") == 0
    assert ("cpu:0-1 has more than the time of 1.5 cores" in caplog.text) is said


def test_the_memory_is_that_of_the_smallest_control_group(tmp_path: Path) -> None:
    for name, limit in {"job_7/step_0/memory.max": "max", "job_7/memory.max": str(16 << 20)}.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{limit}\n")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("4:memory:/job_7\n0::/job_7/step_0\n")
    assert machine_memory(tmp_path) == 16 << 20


@pytest.mark.parametrize(
    ("command", "fault"),
    [("nonsense -m64", "CC names 'nonsense -m64', which is no program"), ('cc "', "is no command: correct its quotes")],
)
def test_a_compiler_that_workers_refuse_is_not_good(
    command: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", command)
    (found,) = (f for f in doctor._tools() if f.what == "C compiler")
    assert fault in found.remedy


def test_a_compiler_without_openmp_is_not_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    assert {f.what: f.remedy.partition(" ")[0] for f in doctor._tools()} == {
        "plevel": "", "TVM": "", "C compiler": "", "OpenMP": "install",
    }


def test_a_worker_without_a_folder_for_temporary_files_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def find_none() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr("tempfile.gettempdir", find_none)
    assert serve(Options(url="http://127.0.0.1:9"), "cpu") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("plevel worker: temporary files cannot be written (No usable") and "TMPDIR" in line


def test_a_folder_of_which_nothing_runs_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    look = os.statvfs

    def mounted(path: Path) -> os.statvfs_result:
        found = look(path)
        return os.statvfs_result((*found[:8], os.ST_NOEXEC, *found[9:]))

    monkeypatch.setattr(os, "statvfs", mounted)
    (found,) = (f for f in doctor._room() if f.what == "disk")
    assert "noexec" in found.remedy and "TMPDIR" in found.remedy
    assert serve(Options(url="http://127.0.0.1:9"), "cpu") == 2
    assert capsys.readouterr().err == f"plevel worker: {found.remedy}\n"


def test_a_host_that_tells_nothing_is_no_fault(tmp_path: Path) -> None:
    assert all(good for _, good in settings(tmp_path).values())


@pytest.mark.parametrize(("load", "times", "wrong"), [(0.1, [1.0, 1.02], set()),
                                                      (3.0, [1.0, 1.2], {"load", "spread"})])
def test_what_others_do_is_noticed(
    monkeypatch: pytest.MonkeyPatch, load: float, times: list[float], wrong: set[str]
) -> None:
    monkeypatch.setattr(doctor.os, "getloadavg", lambda: (load, 0, 0))
    monkeypatch.setattr(doctor, "_watch", lambda cores: times)
    monkeypatch.setattr(doctor, "state", lambda cores: {"stolen_s": 1.0})
    found = list(doctor._noise(Cores("cpu:0-1", (1,), (0,))))
    assert {f.what for f in found if f.remedy} == wrong
    assert {f.what for f in found} == {"load", "stolen time", "spread"}


def test_the_watch_leaves_the_affinity_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_WATCH_S", 0.01)
    cores = assign(parse_cores("cpu"), 1)
    assert all(m > 0 for m in doctor._watch(cores.timing))
    assert parse_cores("cpu") == cores.all


def test_the_command(tmp_path: Path) -> None:
    done = plevel("doctor", "--threads", "1", home=tmp_path)
    assert done.returncode in (0, 1), done.stderr
    assert re.search(r"TVM +0\.\d", done.stdout)
    for what in ("plevel", "governor", "turbo", "clock source", "memory", "disk", "load", "spread"):
        assert what in done.stdout
    assert (done.returncode == 1) == ("less reliable" in done.stderr)
    refused = plevel("doctor", "--device", "gpu:0", home=tmp_path)
    assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1)
