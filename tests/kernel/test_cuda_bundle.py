"""Bundles: made here, timed elsewhere, read back; what is not signed or was altered is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tvm")

from plevel.cli import bundle as command
from plevel.cli import location
from plevel.direct import connect
from strategy.op_strategy import candidates
from strategy.record import Device, ErrorKind, Job, JobEntry, Phase, Result
from strategy.target import Target
from strategy.workload import Workload
from tests.kernel.emulation.device import EmulatedDriver
from tests.kernel.test_cuda_runner import POLICY, Channel, artefact_of
from tests.limit import HANG_S
from workers.builder import Built
from workers.bundle import Bundle, BundleError, Part, make_key, read_key, run_bundle, seal, unseal
from workers.cpu import timing_lock
from workers.cuda.runner import CudaRunner
from workers.runner import Session
from workers.sandbox import ForkServer
from workers.timing_runner import Conditions

TARGET = Target.parse("cuda -arch=sm_80")
WORKLOAD = Workload.make("softmax", {"data": "float32[6,100]"})
DEVICE = Device(identity="m/cuda:0", slot="cuda:0", model="Emulation", target=TARGET)


@pytest.fixture(scope="module")
def made() -> Bundle:
    """Two configurations, one of which could not be built."""
    candidate = next(
        c for c in candidates(WORKLOAD, TARGET) if c.implementation == "softmax_rows.cuda"
    )
    assert candidate.space is not None
    configs = [candidate.fallback, candidate.fallback.replace(vector=4)]
    job = Job(
        id=0, run_id=0, workload=WORKLOAD, target=TARGET, phase=Phase.SEARCH, policy=POLICY, seed=0,
        entries=tuple(
            JobEntry(
                index=i, task_id=0, implementation="softmax_rows.cuda",
                version=candidate.version, config=config,
            )
            for i, config in enumerate(configs)
        ),
    )
    part = Part(
        job=job, candidates=(candidate,),
        built=(Built(entry=0, code_digest="a"), Built(entry=1, error=ErrorKind.COMPILE, message="no")),
        artefacts={"0": artefact_of(WORKLOAD, "softmax_rows.cuda")},
    )
    return Bundle(parts=(part,), made_at=1.0)


def test_a_bundle_is_read_with_the_key_that_signed_it(made: Bundle, tmp_path: Path) -> None:
    path = tmp_path / "key"
    make_key(path)
    assert path.stat().st_mode & 0o077 == 0
    key = read_key(path)
    assert unseal(seal(made, key), key) == made
    with pytest.raises(BundleError, match="exists"):
        make_key(path)


def test_what_is_altered_or_signed_with_another_key_is_refused(made: Bundle) -> None:
    key = bytes(range(32))
    data = seal(made, key)
    for place in (len(data) - 1, len(data) // 2, len(b"plevel-bundle 1\n")):
        altered = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        with pytest.raises(BundleError, match="not signed with this key or was altered"):
            unseal(altered, key)
    with pytest.raises(BundleError, match="not signed"):
        unseal(data, bytes(32))
    with pytest.raises(BundleError, match="not a bundle"):
        unseal(b"PK" + data, key)
    with pytest.raises(BundleError, match="not signed"):
        unseal(data[:30], key)


@pytest.mark.parametrize("text", ["", "abc", "00" * 16])
def test_what_is_no_key_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(text)
    with pytest.raises(BundleError, match="key"):
        read_key(path)


def test_results_come_back_and_the_next_round_follows_them(
    made: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.runner.pin_threads", lambda cores, known: None)

    def time_job(
        job: Job, built: Sequence[Built], report: Callable[[Result], None]
    ) -> dict[str, Any]:
        channel = Channel()
        runner = CudaRunner(channel, EmulatedDriver(tmp_path / "emulation"))
        runner.run(Session(job=job, built=tuple(built), cores=(0,)))
        for result in channel.results.values():
            report(result)
        return runner.toolchain()

    lines = list(run_bundle(made, time_job, DEVICE, "s", "host"))
    records = [json.loads(line) for line in lines if b'"kind":"record"' in line]
    assert [r.get("error") for r in records] == ["compile", None]
    place = location.Location(database=f"sqlite:///{tmp_path / 'records.db'}")
    location.make_database(place)
    with connect(None, place.database) as database:
        summary = database.import_records(lines)
        assert (summary["new"], summary["rejected"]) == (2, 0), summary
        answer = database.select(WORKLOAD, TARGET)
        assert (answer.reason, answer.implementation) == ("measured", "softmax_rows.cuda")
        assert database.import_records(lines)["new"] == 0
    offered = [c for c in candidates(WORKLOAD, TARGET) if c.implementation == "softmax_rows.cuda"]
    entries = command._propose(WORKLOAD, TARGET, offered, 8, 0, place)
    tried = {e.config for e in made.parts[0].job.entries}
    assert len({e.config for e in entries}) == 8
    assert not tried & {e.config for e in entries}


def test_the_first_round_is_proposed_without_a_record_of_the_operator(tmp_path: Path) -> None:
    place = location.Location(database=f"sqlite:///{tmp_path / 'records.db'}")
    location.make_database(place)
    offered = [c for c in candidates(WORKLOAD, TARGET) if c.implementation == "softmax_rows.cuda"]
    assert len(command._propose(WORKLOAD, TARGET, offered, 8, 0, place)) == 8


def test_a_bundle_is_timed_on_an_allowed_core_and_in_turn(
    made: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_key(tmp_path / "key")
    (tmp_path / "bundle").write_bytes(seal(made, read_key(tmp_path / "key")))
    cores: list[Sequence[int]] = []

    class Alone:
        """A runner that times while nobody else may."""

        def __init__(self, server: ForkServer, given: Sequence[int], slot: str) -> None:
            cores.append(given)

        def run(self, job: Job, built: Sequence[Built], stop: object, report: Callable[[Result], None]) -> Conditions:
            with timing_lock(lambda: True) as second:
                assert not second
            for one in built:
                report(Result(entry=one.entry, samples_s=(1.0, 1.0, 1.0)))
            return Conditions()

        def close(self) -> None: ...

    monkeypatch.setattr("workers.cpu._SHARED", (tmp_path,))  # a lock that no other process takes
    monkeypatch.setattr("workers.__main__.describe_cuda", lambda slot: DEVICE)
    monkeypatch.setattr("workers.cuda.runner.runner_on", Alone)
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(allowed)})
    try:
        command.run(tmp_path / "bundle", tmp_path / "key", tmp_path / "out")
    finally:
        os.sched_setaffinity(0, allowed)
    assert [tuple(c) for c in cores] == [(max(allowed),)]
    assert (tmp_path / "out").read_bytes().count(b'"kind":"record"') == 2
    monkeypatch.setattr("workers.__main__.describe_cuda", lambda slot: os.read(-1, 1))
    with pytest.raises(OSError, match="Bad file descriptor"):  # of no file that the command line names
        command.run(tmp_path / "bundle", tmp_path / "key", tmp_path / "out")


def test_a_bundle_is_run_without_tvm_and_the_service(made: Bundle, tmp_path: Path) -> None:
    make_key(tmp_path / "key")
    (tmp_path / "bundle").write_bytes(seal(made, read_key(tmp_path / "key")))
    hidden = (
        "import sys; sys.modules.update(dict.fromkeys(['tvm', 'tvm_ffi', 'sqlalchemy', 'pycuda']))"
    )
    files = [str(tmp_path / name) for name in ("bundle", "key", "out")]
    command = ["bundle", "run", files[0], "-k", files[1], "-o", files[2]]
    done = subprocess.run(
        [sys.executable, "-c", f"{hidden}; from plevel.cli.main import main; main({command})"],
        capture_output=True, text=True, check=False, timeout=HANG_S,
    )
    # All is there but the device.
    assert done.returncode == 1
    assert done.stderr.startswith("plevel: cuda:0: "), done.stderr
    assert done.stderr.count("\n") == 1
