"""Tuning of a model, and a backend that selects by what was measured, from the database and from a lock."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

torch = pytest.importorskip("torch", reason="the torch extra is not installed")

from plevel.cli import tune_run
from plevel.client import Client, NoWorkerError, UnreachableError
from plevel.database import plevel_database
from plevel.extra import EmbeddedError
from plevel.kernel_selection import make_chooser, read_lock
from plevel.torch import explain, tune
from plevel.torch.backend import plevel
from plevel.torch.plan import model_target
from strategy.select import NO_RECORDS, Reason, select
from strategy.select.lock import Lock
from strategy.target import Target
from strategy.workload import Workload
from tests.torch import models


def reasons(model, inputs, **options):
    torch._dynamo.reset()
    with torch.inference_mode():
        found = torch.compile(model, backend=plevel, options={"confirm": False, **options})(*inputs)
        torch.testing.assert_close(found, model(*inputs), atol=2e-5, rtol=2e-5)
    return [row.reason for row in explain(model)[-1].rows]


@pytest.mark.full
def test_a_model_is_tuned_and_its_kernels_are_those_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    torch.manual_seed(5)
    model, inputs = models.Block(32, 48).eval(), (torch.randn(16, 32),)
    database = tmp_path / "records.db"
    seen = []
    run = tune(model, inputs, trials=8, database=str(database), report=seen.append)
    assert run.state == "done"
    assert seen
    assert seen[-1].id == run.id
    capsys.readouterr()
    tune(model, inputs, trials=8, database=str(database))
    assert f"tuned enough already, in run {run.id}: " in (said := capsys.readouterr().err)
    assert said.endswith("`force` (--force) tunes again\n")
    target = model_target()
    with plevel_database(database) as records:
        workloads = [row.workload for row in explain_rows(model, inputs, database)]
        assert len(workloads) == 2
        selections = [select(w, target, records) for w in workloads]
    assert all(s.reason is Reason.MEASURED for s in selections)
    measured = reasons(model, inputs, database=database)
    assert all("measured" in reason for reason in measured)
    lock = tmp_path / "plevel.lock"
    lock.write_text(Lock.make(selections).write())
    database.unlink()
    assert reasons(model, inputs, lock=lock) == [f"{reason}; from the lock's entry for {target}" for reason in measured]


def explain_rows(model, inputs, database):
    reasons(model, inputs, database=database)
    return explain(model)[-1].rows


def test_a_database_that_is_not_there_falls_back(tmp_path: Path):
    model, inputs = models.Block(24, 48).eval(), (torch.randn(16, 24),)
    with pytest.warns(UserWarning, match="left to Inductor: UnreachableError: .*no such file"):
        assert reasons(model, inputs, database=tmp_path / "none.db") == []
    with pytest.raises(EmbeddedError, match="there is no folder"):
        tune(model, inputs, database=tmp_path / "none" / "records.db")


def test_a_model_in_training_mode_is_warned_of(tmp_path: Path):
    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Dropout(0.5))
    given = {"inputs": (torch.randn(2, 8),), "database": tmp_path / "none" / "records.db"}
    with pytest.warns(UserWarning, match=r"in training mode, .*: call model.eval\(\)"), pytest.raises(EmbeddedError):
        tune(model, **given)
    with pytest.raises(EmbeddedError):  # without a warning, which would be an error
        tune(model.eval(), **given)


def test_a_lock_for_another_processor_alone_is_warned_of(tmp_path: Path):
    softmax = Workload.make("softmax", {"data": "float32[4,8]"})
    path = tmp_path / "plevel.lock"
    path.write_text(Lock.make([select(softmax, Target.parse("llvm -mcpu=znver2 -num-cores=64"), NO_RECORDS)]).write())
    with pytest.warns(UserWarning, match="untuned: .*plevel.lock: the lock has nothing for .*llvm/znver2/threads=64: "):
        read_lock(str(path), model_target(), None)
    read_lock(str(path), model_target(), "farm.db")  # which has what the lock lacks


def test_a_lock_of_another_model_is_warned_of_once(tmp_path: Path):
    target, softmax = model_target(), Workload.make("softmax", {"data": "float32[4,8]"})
    path = tmp_path / "plevel.lock"
    path.write_text(Lock.make([select(softmax, target, NO_RECORDS)]).write())
    torch._dynamo.reset()
    model = models.Block(24, 40).eval()
    fast = torch.compile(model, backend=plevel, dynamic=False, options={"confirm": False, "lock": path})
    said = "plevel.lock has none of the 2 workloads of a graph, .*: kernels are selected untuned .write a lock"
    with torch.inference_mode():
        with pytest.warns(UserWarning, match=said):
            fast(torch.randn(16, 24))
        fast(torch.randn(8, 24))  # a second warning would be an error


def test_a_lock_of_before_an_update_is_warned_of(tmp_path: Path):
    target, softmax = model_target(), Workload.make("softmax", {"data": "float32[4,8]"})
    (entry,) = Lock.make([select(softmax, target, NO_RECORDS)]).selections
    path = tmp_path / "plevel.lock"
    path.write_text(Lock(selections=(replace(entry, version="0.0"),)).write())
    torch._dynamo.reset()
    fast = torch.compile(torch.nn.Softmax(-1), backend=plevel, options={"confirm": False, "lock": path})
    with (
        torch.inference_mode(),
        pytest.warns(UserWarning, match="plevel.lock has 1 of the 1 workload of a graph in other versions of impl"),
    ):
        fast(torch.randn(4, 8))


def test_records_of_before_an_update_are_warned_of_once(monkeypatch: pytest.MonkeyPatch):
    def make(*given):
        choose = make_chooser(*given)
        return lambda workload: replace(choose(workload), reason=Reason.STALE)

    monkeypatch.setattr("plevel.torch.backend.make_chooser", make)
    torch._dynamo.reset()
    fast = torch.compile(torch.nn.Softmax(-1), backend=plevel, dynamic=False, options={"confirm": False})
    with torch.inference_mode():
        with pytest.warns(UserWarning, match="records of 1 workload of a graph are of other versions of impl"):
            fast(torch.randn(4, 8))
        fast(torch.randn(5, 8))  # a second warning would be an error


def test_a_service_without_a_worker_for_the_target_is_an_error_unless_the_run_is_to_wait(service) -> None:
    model, inputs = models.Block(16, 48).eval(), (torch.randn(16, 16),)
    missing = re.escape(f"no worker for {model_target()} at {service.url} (") + ".*start one with 'plevel worker --url"
    with pytest.raises(NoWorkerError, match=f"{missing}.* or queue the run with wait=True"):
        tune(model, inputs, database=service.url)
    with Client(service.url) as client:
        before = {run.id for run in client.runs()}

    class Seen(Exception):
        pass

    def leave(run) -> None:
        assert run.workers == 0
        with Client(service.url) as client:
            client.cancel(run.id)
        raise Seen(run.id)

    with pytest.warns(UserWarning, match=f"the run waits: {missing}"), pytest.raises(Seen) as seen:
        tune(model, inputs, database=service.url, wait=True, report=leave)
    assert seen.value.args[0] not in before


@pytest.mark.full
def test_a_service_that_stays_away_or_is_misnamed_is_an_error_of_the_client(
    service, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, inputs = models.Block(16, 40).eval(), (torch.randn(16, 16),)
    followed = []

    def lose(client: Client, run_id: int):
        followed.append(run_id)
        raise UnreachableError("no service answers")

    with monkeypatch.context() as patch:
        patch.setattr(Client, "follow", lose)
        patch.setattr(tune_run, "AWAY_S", -1.0)
        patch.setattr(tune_run, "PAUSE_S", 0.0)
        said = f"{re.escape(service.url)} has not answered for .*: start it, and repeat the command or the call"
        with pytest.warns(UserWarning, match="the run waits"), pytest.raises(UnreachableError, match=said):
            tune(model, inputs, database=service.url, wait=True, report=lambda run: None)
    assert followed == followed[:1] * 2
    with Client(service.url) as client:
        client.cancel(followed[0])
    monkeypatch.setenv("PLEVEL_URL", "farm:8765")
    with pytest.raises(UnreachableError, match="expected http://host:port"):
        tune(model, inputs)
