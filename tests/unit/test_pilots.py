"""Decisions about pilot jobs: how many, when not, and what a new scaler knows."""

from __future__ import annotations

import getpass
import itertools
import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plevel.client import UnreachableError
from plevel.pilots.engine import Engine, EngineError, Pilot, _list_local, _list_pbs, _list_slurm
from plevel.pilots.scaler import Backlog, Bounds, Plan, Scaler, plan
from tests.pods import Pods


def pilots(working: int, idle: int, pending: int) -> tuple[Pilot, ...]:
    names = [*(f"busy.{i}" for i in range(working)), *(f"idle.{i}" for i in range(idle))]
    started = tuple(Pilot(name, name, waits=False) for name in names)
    return started + tuple(Pilot(f"p.{i}", f"p.{i}", waits=True) for i in range(pending))


@pytest.mark.parametrize(
    ("queued", "there", "expected"),
    [
        (0, (0, 0, 0), Plan()),
        (1, (0, 0, 0), Plan(submit=1)),
        (5, (0, 0, 0), Plan(submit=3)),
        (5, (0, 1, 1), Plan(submit=1)),  # what starts or idles is to take two jobs each
        (5, (3, 0, 3), Plan()),
        (100, (2, 0, 1), Plan(submit=5)),  # up to the most
        (0, (4, 2, 0), Plan()),  # what has started ends by itself
        (0, (1, 0, 3), Plan(cancel=("p.2", "p.1", "p.0"))),  # the youngest first
        (2, (1, 0, 3), Plan(cancel=("p.2", "p.1"))),
    ],
)
def test_pilots_are_as_many_as_the_backlog_asks_for(
    queued: int, there: tuple[int, int, int], expected: Plan
) -> None:
    busy = frozenset(f"busy.{i}" for i in range(there[0]))
    assert plan(Backlog(queued, busy, busy), pilots(*there), Bounds(0, 8, 2)) == expected


def test_the_fewest_are_kept_without_a_backlog() -> None:
    assert plan(Backlog(0, frozenset(), frozenset()), pilots(0, 1, 0), Bounds(3, 8, 2)) == Plan(submit=2)


class Farm:
    """A queue and a batch system in one: what a scaler sees, and what it has done."""

    def __init__(self, queued: int) -> None:
        self.queued = queued
        self.jobs: dict[str, Pilot] = {}
        self.busy: set[str] = set()
        self.idle: set[str] = set()
        self.submitted = 0
        self.cancelled: list[str] = []
        self.now = 0.0
        self.said: list[str] = []
        self.fails: Exception | None = None
        self.away: EngineError | None = None
        self.kept: set[str] = set()

    def look(self) -> Backlog:
        if isinstance(self.fails, UnreachableError):
            raise self.fails
        return Backlog(self.queued, frozenset(self.busy | self.idle), frozenset(self.busy))

    def pilots(self) -> tuple[Pilot, ...]:
        if self.away is not None:
            raise self.away
        return tuple(p for p in self.jobs.values() if not p.given_up)

    def submit(self, command: str) -> str:
        if self.fails is not None:
            raise self.fails
        self.submitted += 1
        name = str(self.submitted)
        self.jobs[name] = Pilot(name, name, waits=True)
        return name

    def clean(self) -> tuple[Pilot, ...]:
        given_up = tuple(p for p in self.jobs.values() if p.given_up)
        self.cancel(p.id for p in given_up)
        return given_up

    def cancel(self, ids: Iterable[str]) -> None:
        for one in tuple(ids):
            if one in self.kept:
                raise EngineError(f"pilots {one} were not cancelled: the batch system refused")
            self.cancelled.append(one)
            del self.jobs[one]

    def scaler(self) -> Scaler:
        return Scaler(
            self, self.look, "plevel worker", Bounds(0, 8, 2), 30.0, 60.0, self.said.append, Path("logs"),
            lambda: self.now,
        )


def test_another_scaler_goes_on_with_what_there_is() -> None:
    farm = Farm(queued=6)
    farm.scaler().step()
    assert farm.submitted == 3
    farm.scaler().step()  # as after a kill, on another host
    assert farm.submitted == 3


def test_pending_pilots_are_cancelled_when_they_are_too_many_as_long_as_a_pilot_idles() -> None:
    farm = Farm(queued=6)
    scaler = farm.scaler()
    scaler.step()
    for farm.queued in (0, 0, 6, 0, 0):  # it is empty for moments
        farm.now += 30.0
        scaler.step()
    assert (farm.submitted, farm.cancelled) == (3, [])
    farm.now += 30.0
    scaler.step()
    assert sorted(farm.cancelled) == ["1", "2", "3"]


def test_a_backlog_that_comes_and_goes_does_not_keep_pilots_from_their_start() -> None:
    """Each that is cancelled and submitted again would wait behind the jobs of all others."""
    farm = Farm(queued=0)
    scaler = farm.scaler()
    for step in range(40):
        farm.queued = 6 if step % 4 < 2 else 0
        farm.now += 30.0
        scaler.step()
    assert (farm.submitted, farm.cancelled) == (3, [])


def test_pilots_that_fail_at_their_start_are_tried_ever_less_often() -> None:
    farm = Farm(queued=2)
    scaler = farm.scaler()
    steps = []
    for step in range(64):
        farm.jobs.clear()  # each ends at once
        before = farm.submitted
        scaler.step()
        steps += [step] * (farm.submitted - before)
        farm.now += 30.0
    gaps = [b - a for a, b in itertools.pairwise(steps)]
    assert gaps == sorted(gaps) and gaps[-1] >= 4 * gaps[0]
    assert "ended without a job" in farm.said[1] and "backing off for 60 s" in farm.said[1]


def test_a_pilot_that_works_does_not_hide_that_all_others_fail() -> None:
    """A node on which every job dies is free at once, so that it gets the next ones."""
    farm = Farm(queued=100)
    scaler = farm.scaler()
    scaler.step()
    farm.busy = {"1"}
    steps = []
    for step in range(128):
        farm.jobs = {"1": Pilot("1", "1", waits=False)}
        before = farm.submitted
        scaler.step()
        steps += [step] * (farm.submitted > before)
        farm.now += 30.0
    gaps = [b - a for a, b in itertools.pairwise(steps)]
    assert gaps == sorted(gaps) and gaps[-1] >= 4 * gaps[0]
    before = farm.submitted
    farm.jobs["good"] = Pilot("good", "good", waits=True)
    scaler.step()
    assert farm.submitted == before
    farm.busy.add("good")
    scaler.step()
    assert farm.submitted > before


def test_a_pilot_without_a_worker_is_cancelled_after_a_while() -> None:
    """SLURM lists a job whose slurmstepd was killed until its time limit."""
    farm = Farm(queued=4)
    farm.jobs = {one: Pilot(one, one, waits=False) for one in ("lost", "idle")}
    farm.idle = {"idle"}
    scaler = farm.scaler()
    for _ in range(20):
        scaler.step()
        farm.now += 30.0
    assert (farm.submitted, farm.cancelled) == (0, [])
    scaler.step()
    assert (farm.submitted, farm.cancelled) == (1, ["lost"])
    assert "cancelling lost: started, but without a worker for 10 minutes" in farm.said


def test_a_suspended_pilot_is_not_lost_and_does_no_work() -> None:
    """As where jobs of a higher priority suspend it, for hours."""
    farm = Farm(queued=4)
    farm.jobs = {one: Pilot(one, one, waits=False) for one in ("works", "rests")}
    farm.busy = {"works", "rests"}
    scaler = farm.scaler()
    scaler.step()
    assert farm.submitted == 2
    farm.jobs["rests"] = Pilot("rests", "rests", waits=False, suspended=True)
    farm.busy = {"works"}
    for _ in range(40):
        assert scaler.step()
        farm.now += 30.0
    assert (farm.submitted, farm.cancelled) == (2, [])
    (said,) = (line for line in farm.said if "suspended:" in line)
    assert said.startswith("pilots rests are suspended: they take no job until")
    farm.queued = 6  # more than the others are worth
    scaler.step()
    assert farm.submitted == 3
    assert farm.said[-1].startswith("6 queued jobs; 4 pilots: 2 pending, 1 with a job, 1 suspended; submitting 1")
    farm.jobs["rests"] = Pilot("rests", "rests", waits=False)
    farm.queued = 8
    for _ in range(20):  # it has time to register again
        assert scaler.step()
        farm.now += 30.0
    assert "pilots rests go on" in farm.said
    assert farm.cancelled == []
    scaler.step()
    assert farm.cancelled == ["rests"]


def test_suspended_pilots_count_towards_the_most() -> None:
    suspended = tuple(Pilot(f"s.{i}", f"s.{i}", waits=False, suspended=True) for i in range(3))
    assert plan(Backlog(100, frozenset(), frozenset()), suspended, Bounds(0, 8, 2)) == Plan(submit=5)
    assert plan(Backlog(0, frozenset(), frozenset()), suspended, Bounds(2, 8, 2)) == Plan(submit=2)


@pytest.mark.parametrize("given_up", ["", "launch failed requeued held"])
def test_a_pilot_that_cannot_be_cancelled_holds_no_other_up(given_up: str) -> None:
    farm = Farm(queued=4)
    farm.jobs = {"lost": Pilot("lost", "lost", waits=False, given_up=given_up)}
    farm.kept = {"lost"}
    scaler = farm.scaler()
    for _ in range(40):
        assert scaler.step()
        farm.now += 30.0
    assert (farm.submitted, farm.cancelled) == (2, [])
    assert "pilots lost were not cancelled: the batch system refused; trying again in 30 s" in farm.said


def test_pilots_have_time_to_register_once_the_service_is_back() -> None:
    farm = Farm(queued=2)
    farm.jobs = {"new": Pilot("new", "new", waits=False)}
    scaler = farm.scaler()
    assert scaler.step()
    farm.fails = UnreachableError("gone")
    for _ in range(30):
        farm.now += 30.0
        assert not scaler.step()
    farm.fails = None
    assert scaler.step() and farm.cancelled == []
    farm.now += 600.0
    assert scaler.step() and farm.cancelled == ["new"]


def test_pilots_that_had_a_job_are_replaced_at_once() -> None:
    farm = Farm(queued=2)
    scaler = farm.scaler()
    for expected in (1, 1, 2):
        scaler.step()
        assert farm.submitted == expected
        if not farm.busy:
            farm.jobs["1"] = Pilot("1", "1", waits=False)
            farm.busy.add("1")
            farm.queued = 0
        else:  # its lifetime is over
            farm.jobs.pop("1", None)
            farm.queued = 2


def test_a_batch_system_that_refuses_is_left_alone_for_a_while() -> None:
    farm = Farm(queued=2)
    scaler = farm.scaler()
    farm.fails = EngineError("no pilot was submitted: QOSMaxSubmitJobPerUserLimit")
    assert not scaler.step()
    assert farm.said[-1].endswith("QOSMaxSubmitJobPerUserLimit; backing off for 60 s")
    farm.fails = None
    assert scaler.step() and farm.submitted == 0
    farm.now = 60.0
    assert scaler.step() and farm.submitted == 1


def test_a_batch_system_that_did_not_answer_gets_pilots_once_it_does() -> None:
    farm = Farm(queued=2)
    scaler = farm.scaler()
    farm.away = EngineError("squeue failed: Unable to contact slurm controller")
    for _ in range(20):
        assert not scaler.step()
        farm.now += 30.0
    assert farm.said[-1].endswith("slurm controller; trying again in 30 s")
    farm.away = None
    assert scaler.step() and farm.submitted == 1


def test_a_batch_system_that_is_away_for_days_is_asked_again() -> None:
    farm = Farm(queued=2)
    scaler = farm.scaler()
    farm.fails = EngineError("no pilot was submitted: sbatch: Unable to contact slurm controller")
    for _ in range(1100):
        assert not scaler.step()
        farm.now += 900.0
    assert farm.said[-1].endswith("controller; backing off for 900 s")
    farm.fails = None
    assert scaler.step() and farm.submitted == 1


def test_words_of_a_batch_system_are_one_line() -> None:
    slurm = SimpleNamespace(clusters=None, execute_wait=lambda command: (1, "", "no controller\n\ntry later\n"))
    with pytest.raises(EngineError, match="^squeue failed: no controller try later$"):
        list(_list_slurm(slurm))


def test_a_job_without_a_name_is_no_pilot_nor_one_that_is_ending() -> None:
    listed = (
        "CLUSTER: a\n17|R|None|plevel-x.1\n18|PD|Resources|\n\nmaintenance\n19|CF|None|plevel-x.2\n"
        "20|CG|None|plevel-x.3\n21|RH|JobHeldUser|plevel-x.4\n22|PD|launch failed requeued held|a|b\n"
        "23|S|None|plevel-x.5\n24|ST|None|plevel-x.6\n"
    )
    slurm = SimpleNamespace(clusters=None, execute_wait=lambda command: (0, listed, ""))
    assert list(_list_slurm(slurm)) == [
        Pilot("17", "plevel-x.1", False), Pilot("18", "", True), Pilot("19", "plevel-x.2", True),
        Pilot("21", "plevel-x.4", True), Pilot("22", "a|b", True, "launch failed requeued held"),
        *(Pilot(number, name, False, suspended=True) for number, name in (("23", "plevel-x.5"), ("24", "plevel-x.6"))),
    ]


def test_pilots_that_the_batch_system_has_given_up_are_cancelled_and_replaced_ever_less_often() -> None:
    farm = Farm(queued=2)
    scaler = farm.scaler()
    scaler.step()
    farm.jobs["1"] = Pilot("1", "1", waits=True, given_up="launch failed requeued held")
    scaler.step()
    assert farm.cancelled == ["1"] and farm.submitted == 1
    assert "pilot 1 was cancelled" in farm.said[-2] and "backing off for 60 s" in farm.said[-1]
    farm.now += 60.0
    scaler.step()
    assert farm.submitted == 2


def test_a_folder_that_cannot_be_written_is_an_error_of_the_batch_system(tmp_path: Path) -> None:
    """The scaler backs off, and goes on once the file system is back."""
    pytest.importorskip("parsl", reason="the cluster extra is not installed")
    (tmp_path / "file").write_text("")
    engine = Engine("local", {}, "plevel-x", tmp_path / "file" / "scripts")
    with pytest.raises(EngineError, match="no pilot was submitted"):
        engine.submit("true")


PBS = """#!/bin/sh
case ${0##*/} in
qsub)
    for script; do :; done
    number=$(($(ls jobs | wc -l) + 1)).head
    { echo "$USER"; sed -n 's/^#PBS -N //p' "$script"; } > jobs/$number
    echo $number ;;
qdel)
    for number; do rm jobs/$number || exit 1; done ;;
qstat)
    [ "$*" = "-f -F json" ] || exit 1
    printf '{"Jobs": {'
    for job in jobs/*; do
        [ -e $job ] && { read -r owner; read -r name; } < $job &&
        printf '%s"%s": {"Job_Owner": "%s@login", "Job_Name": "%s", "job_state": "%s"}' \
            "$comma" ${job#jobs/} $owner "$name" $(cat state) && comma=,
    done
    echo '}}' ;;
esac
"""


def test_jobs_of_pbs_are_listed_and_cancelled_by_any_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("parsl", reason="the cluster extra is not installed")
    for name in ("qsub", "qstat", "qdel"):
        (tmp_path / name).write_text(PBS)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "jobs").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("USER", getpass.getuser())
    monkeypatch.chdir(tmp_path)

    def engine(name: str = "plevel-x") -> Engine:
        return Engine("pbs", {"queue": "cpu", "walltime": "01:00:00"}, name, tmp_path / "scripts")

    ids = [engine().submit("plevel worker") for _ in range(2)]
    engine("plevel-other").submit("plevel worker")
    (tmp_path / "jobs/9.head").write_text("somebody\nplevel-x.1\n")
    for state, waits in (("Q", [True, True]), ("R", [False, False]), ("S", [False, False]), ("E", []), ("F", [])):
        (tmp_path / "state").write_text(state)
        assert [p.waits for p in engine().pilots()] == waits
        assert all(p.suspended is (state == "S") for p in engine().pilots())
    (tmp_path / "state").write_text("Q")
    listed = engine().pilots()
    assert [p.id for p in listed] == ids
    script = (tmp_path / "scripts" / listed[0].name).read_text()
    assert f'JOBNAME="{listed[0].name}"' in script and "\nexec plevel worker" in script
    engine().cancel(ids[:1])
    assert [p.id for p in engine().pilots()] == ids[1:]
    with pytest.raises(EngineError, match="were not cancelled"):
        engine().cancel(["99.head"])
    (tmp_path / "state").write_text('"')
    with pytest.raises(EngineError, match="qstat gave no list of jobs"):
        engine().pilots()
    (tmp_path / "qstat").write_text("#!/bin/sh\nprintf 'l\\350ve'\n")
    with pytest.raises(EngineError, match="the pilots were not listed: 'utf-8' codec"):
        engine().pilots()
    (tmp_path / "qsub").write_text("#!/bin/sh\n")
    with pytest.raises(EngineError, match="the batch system gave it no number"):
        engine().submit("plevel worker")


@pytest.mark.parametrize(
    "told",
    ["[]", '{"Jobs": null}', '{"Jobs": {"1": "Q"}}', '{"Jobs": {"1": {"Job_Name": "x"}}}',
     f'{{"Jobs": {{"1": {{"Job_Owner": "{getpass.getuser()}@login"}}}}}}'],
)
def test_a_list_of_other_form_is_an_error_of_the_batch_system(told: str) -> None:
    with pytest.raises(EngineError, match="qstat gave no list of jobs"):
        list(_list_pbs(SimpleNamespace(execute_wait=lambda command: (0, told, ""))))


@pytest.mark.parametrize("rest", ['"Job_Name": 17, "job_state": "R"', '"Job_Name": null', '"job_state": []'])
def test_jobs_of_other_users_may_be_of_any_form(rest: str) -> None:
    """PBS writes a number for a name that looks like one, for example."""
    other = f'"3.head": {{"Job_Owner": "somebody@login", {rest}}}'
    own = f'"4.head": {{"Job_Owner": "{getpass.getuser()}@login", "Job_Name": "plevel-x.1", "job_state": "Q"}}'
    pbs = SimpleNamespace(execute_wait=lambda command: (0, f'{{"Jobs": {{{other}, {own}}}}}', ""))
    assert list(_list_pbs(pbs)) == [Pilot("4.head", "plevel-x.1", True)]


def test_pods_are_pilots_that_leave_their_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any process lists and cancels them; those that have ended are deleted, and are not started again."""
    pytest.importorskip("parsl", reason="the cluster extra is not installed")
    pytest.importorskip("kubernetes", reason="the cluster extra is not installed")

    def engine(name: str = "plevel-Big_one") -> Engine:
        return Engine("kubernetes", {"image": "plevel", "namespace": "farm"}, name, tmp_path / "pods")

    with Pods(tmp_path) as there:
        monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(there.configuration))
        ended = engine().submit('echo "$JOBNAME"')
        running = engine().submit("sleep 600")
        other = engine("plevel-other").submit("sleep 600")
        there.starts = False
        waiting = engine().submit("sleep 600")
        there.finish(ended)
        assert {p.id: p.waits for p in engine().pilots()} == {running: False, waiting: True}
        engine().clean()
        assert set(there.specs) == {running, waiting, other}
        assert (tmp_path / "pods" / f"{ended}.log").read_text() == f"{ended}\n"
        engine().cancel([waiting])
        assert [p.id for p in engine().pilots()] == [running] == [p.name for p in engine().pilots()]
        assert there.specs[running]["spec"]["enableServiceLinks"] is False
        (container,) = there.specs[running]["spec"]["containers"]
        assert container["args"][1].strip() == "exec sleep 600"  # the signal that ends a pod reaches its worker
        with pytest.raises(EngineError, match=f'were not cancelled: .*pods "{waiting}" not found'):
            engine().cancel([waiting])
        there.refuses = 'pods is forbidden: User "you" cannot list resource "pods"'
        for asks in (engine().pilots, engine().clean, lambda: engine().submit("true")):
            with pytest.raises(EngineError, match="pods is forbidden"):
                asks()
    with pytest.raises(EngineError, match="Connection refused"):
        engine().pilots()


def test_a_pod_is_deleted_once_its_log_is_kept_or_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("parsl", reason="the cluster extra is not installed")
    pytest.importorskip("kubernetes", reason="the cluster extra is not installed")

    class Shared(Pods):
        """The namespace of another scaler, which deletes pods, and of an administrator, who forbids logs."""

        deleted = ""
        forbidden = ""

        def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
            if f"/pods/{self.deleted}/log" in path:
                self._stop(self.deleted)
            if f"/pods/{self.forbidden}/log" in path:
                return 403, {"kind": "Status", "message": "pods/log is forbidden"}
            return super().answer(method, path, body)

    with Shared(tmp_path) as there:
        monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(there.configuration))
        engine = Engine("kubernetes", {"image": "plevel", "namespace": "farm"}, "plevel-x", tmp_path / "pods")
        there.deleted, other, there.forbidden = (engine.submit("true") for _ in range(3))
        for name in list(there.specs):
            there.finish(name)
        with pytest.raises(EngineError, match="pods/log is forbidden"):
            engine.clean()
        assert list(there.specs) == [there.forbidden]
        assert (tmp_path / "pods" / f"{other}.log").exists()


def test_a_service_that_is_away_changes_nothing() -> None:
    farm = Farm(queued=2)
    scaler = farm.scaler()
    scaler.step()
    farm.fails = UnreachableError("no service answers at http://farm")
    assert not scaler.step()
    assert len(farm.jobs) == 1 and "trying again in 30 s" in farm.said[-1]


def test_a_process_whose_name_is_cut_inside_a_letter_is_passed_over(tmp_path: Path) -> None:
    program = tmp_path / "fourteen_bytesé"  # Linux keeps 15 of a name's bytes
    shutil.copy("/bin/sleep", program)
    with subprocess.Popen([program, "60"]) as process:
        try:
            name = Path(f"/proc/{process.pid}/stat").read_bytes()
            assert b"fourteen_bytes\xc3)" in name
            assert all(pilot.name != program.name for pilot in _list_local(None))
        finally:
            process.kill()
