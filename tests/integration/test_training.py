"""Models in the database: trained in a process of their own, versioned, and answering only where they rank well."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import msgspec
import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from plevel.cli.main import app
from plevel.client import Client, ServiceError
from service.errors import InvalidError, NotFoundError
from service.predict import evidence, learner, process, ranker, trainer, training
from service.predict.ranker import LEAST_ACCURACY, ModelRanker
from service.predict.spool import split
from service.predict.trainer import Trainer
from service.selection.database import RecordDatabase
from service.store.db import Store
from service.store.tables import LIVE, audit, cost_model, run, task
from service.tuning import run as runs
from strategy.op_strategy import Candidate
from strategy.record import (
    Device,
    ErrorKind,
    JobEntry,
    Phase,
    Result,
    RunRequest,
    RunState,
    RunWorkload,
)
from strategy.select import Reason, Selection, select
from strategy.space import Config, ConfigSpace, Knob
from strategy.workload import EpilogueStep, Input, Workload
from tests.integration.process import Start
from tests.integration.scene import OTHER_TARGET, TARGET, Scene, device, failed
from tests.limit import wait_until

pytestmark = pytest.mark.in_turn("url")

SPACE = ConfigSpace(
    [Knob("tile", (1, 2, 4, 8, 16, 32)), Knob("unroll", (1, 2, 4))],
    fallback={"tile": 1, "unroll": 1},
)
TILED = Candidate("filter_tiled.cpu", f"1.{SPACE.digest}", 5, None, SPACE)
PLAIN = Candidate("filter_plain.cpu", f"1.{SPACE.digest}", 10, None, SPACE)
SHAPES = [(16, 64), (64, 64), (128, 32), (256, 256), (1000, 64), (96, 512), (32, 768)]


def shape(m: int, k: int) -> Workload:
    return Workload("filter", (Input("data", f"float32[{m},{k}]"),))


def seconds(workload: Workload, implementation: str, config: Config) -> float:
    """Wide tiles are fast where they divide the rows; the plain one takes three times as long."""
    m, k = workload.inputs[0].tensor.concrete_shape
    tile, unroll = config["tile"], config["unroll"]
    assert isinstance(tile, int)
    assert isinstance(unroll, int)
    waste = math.ceil(m / tile) * tile / m
    slower = 3.0 if implementation == PLAIN.implementation else 1.0
    return slower * 1e-9 * m * k * waste * (1 + 4 / tile) * (1 + unroll / 10)


def measure(
    store: Store, shapes: Sequence[tuple[int, int]], *, upside_down: Sequence[int] = (),
    offered: tuple[Candidate, ...] = (TILED, PLAIN), place: Device | None = None,
    epilogue: tuple[EpilogueStep, ...] = (),
) -> None:
    """Records of the whole space of all offered, for each shape; of some the slowest is the fastest."""
    place = place or device()
    for i, one in enumerate(shapes):
        workload = msgspec.structs.replace(shape(*one), epilogue=epilogue)
        asked = RunRequest(
            workloads=(RunWorkload(workload=workload, candidates=offered),),
            target=TARGET,
            force=True,
        )
        scene = Scene.make(store, asked)
        worker = scene.register(place)
        for name in scene.tasks:
            scene.enqueue(list(SPACE), name)
            held = scene.leased(worker, place.identity)

            def timed(
                e: JobEntry, workload: Workload = workload, flip: bool = i in upside_down
            ) -> Result:
                time_s = seconds(workload, e.implementation, e.config)
                return Result(entry=e.index, samples_s=(1e-9 / time_s if flip else time_s,) * 3)

            scene.report(held, [timed(e) for e in held.job.entries])


def ask(
    store: Store, workload: Workload, offered: Sequence[Candidate] = (TILED, PLAIN)
) -> Selection:
    with store.read() as c:
        return select(workload, TARGET, RecordDatabase(c), ranker=ModelRanker(c), offered=offered)


def test_a_model_answers_for_what_was_never_measured(store: Store) -> None:
    measure(store, SHAPES)
    unseen = shape(512, 40)
    assert ask(store, unseen).reason is Reason.PLEVEL
    model = process.train_apart(store, "filter", TARGET.key)
    assert (model.version, model.workloads, model.held_out) == (1, len(SHAPES), 1)
    assert model.records == len(SHAPES) * 2 * len(list(SPACE))
    assert model.accuracy > LEAST_ACCURACY
    answer = ask(store, unseen)
    assert answer.reason is Reason.PREDICTED
    assert answer.implementation == TILED.implementation
    optimum = min(seconds(unseen, TILED.implementation, c) for c in SPACE)
    assert seconds(unseen, answer.implementation, answer.config) <= 1.2 * optimum
    # Measured workloads are answered from their measurement, and other targets have models of their own.
    assert ask(store, shape(*SHAPES[0])).reason is Reason.MEASURED
    with store.read() as c:
        assert ModelRanker(c).rank(unseen, OTHER_TARGET, (TILED, PLAIN)) == []
    # One that is damaged, or of another format, is told, and answers nothing.
    with store.read() as c:
        trees = c.scalar(sa.select(cost_model.c.trees))
    for unread, digest, words in (
        (trees[: len(trees) // 3], ranker.digest_of_trees(trees), "its trees are damaged"),
        (b"{}", ranker.digest_of_trees(b"{}"), "XGBoost "),
    ):
        ranker._loaded.clear()
        with store.write() as c:
            c.execute(sa.update(cost_model).values(trees=unread, digest=digest))
        answer = ask(store, unseen)
        assert answer.reason is Reason.PLEVEL
        assert f"version 1 of the cost model: {words}" in answer.explanation


@pytest.mark.full
def test_a_model_is_of_the_device_model_with_the_most_records(store: Store) -> None:
    """On the other model, the slowest configurations are the fastest."""
    measure(store, SHAPES)
    other = device("host-b/cpu:0-1", model="Model B")
    measure(store, SHAPES[:6], place=other, upside_down=range(6))
    model = learner.train(store, "filter", TARGET.key)
    assert (model.records, model.workloads) == (len(SHAPES) * 2 * len(list(SPACE)), len(SHAPES))
    assert model.accuracy > LEAST_ACCURACY
    assert model.lineage == "trained from nothing; on records of Model A, the most of 2 device models"
    assert ask(store, shape(512, 40)).implementation == TILED.implementation
    with store.read() as c:
        assert not trainer._is_due(c, "filter", TARGET.key)
    measure(store, [*SHAPES[6:], (80, 48)], place=other, upside_down=range(2))
    # Not a quarter more than the model was trained on, but of another device model.
    with store.read() as c:
        assert trainer._is_due(c, "filter", TARGET.key)
    model = learner.train(store, "filter", TARGET.key)
    assert (model.records, model.workloads) == (8 * 2 * len(list(SPACE)), 8)
    assert model.lineage == (
        "trained from nothing: version 1 was trained on records of Model A; on records of Model B, the most of 2 "
        "device models"
    )


@pytest.mark.full
def test_epilogues_of_a_call_are_held_out_together(store: Store) -> None:
    relu, tanh = ((EpilogueStep(name, (None,)),) for name in ("relu", "tanh"))
    for epilogue in ((), relu, tanh):
        measure(store, SHAPES[:5], offered=(TILED,), epilogue=epilogue)
    model = learner.train(store, "filter", TARGET.key)
    # One call is held out, with its three epilogues, none of which is trained on.
    assert (model.workloads, model.held_out) == (5, 3)
    assert split(shape(1, 2)) == split(msgspec.structs.replace(shape(1, 2), epilogue=relu))
    with store.read() as c:
        assert training.known(c, "filter", TARGET.key).workloads == 5


def test_versions_count_and_the_newest_answers(store: Store) -> None:
    measure(store, SHAPES[:5])
    first, second = (learner.train(store, "filter", TARGET.key) for _ in range(2))
    assert (first.version, second.version) == (1, 2)
    with store.read() as c:
        assert [m.id for m in training.find(c)] == [second.id, first.id]
        assert training.show(c, first.id) == first
    with store.write() as c:
        c.execute(sa.update(cost_model).where(cost_model.c.id == second.id).values(accuracy=0.5))
    assert ask(store, shape(512, 40)).reason is Reason.PLEVEL


@pytest.mark.full
def test_a_model_is_trained_on_the_greatest_version_not_on_the_one_recorded_last(store: Store) -> None:
    newest, *older = (msgspec.structs.replace(TILED, version=f"{v}.{SPACE.digest}") for v in (10, 9, "tvm"))
    measure(store, SHAPES[:2], offered=(newest,))
    for old in older:
        measure(store, SHAPES, offered=(old,))
    with store.read() as c:
        target_id = c.scalar(sa.select(task.c.target_id).limit(1))
        assert evidence.count_trials(c, "filter", target_id, 0, ()) == (0, 2 * len(list(SPACE)), 2)


@pytest.mark.full
def test_a_model_of_older_code_does_not_answer_and_is_due_again(store: Store) -> None:
    measure(store, SHAPES[:5])
    learner.train(store, "filter", TARGET.key)
    with store.read() as c:
        assert not trainer._is_due(c, "filter", TARGET.key)
    newer = tuple(msgspec.structs.replace(one, version=f"2.{SPACE.digest}") for one in (TILED, PLAIN))
    assert ask(store, shape(512, 40)).reason is Reason.PREDICTED
    stale = ask(store, shape(512, 40), newer)
    assert stale.reason is Reason.PLEVEL
    assert (
        f"version 1 of the cost model was trained on other code of {TILED.implementation}, {PLAIN.implementation}: "
        f"train it again; {PLAIN.implementation} has the highest plevel"
    ) in stale.explanation
    measure(store, SHAPES[:5], offered=newer)  # no more than the model was trained on
    with store.read() as c:
        assert trainer._is_due(c, "filter", TARGET.key)
    learner.train(store, "filter", TARGET.key)
    assert ask(store, shape(512, 40), newer).reason is Reason.PREDICTED


def test_times_of_what_a_later_check_refuted_are_not_learned(store: Store) -> None:
    measure(store, SHAPES[:1], offered=(TILED,))
    wrong = next(iter(SPACE))
    scene = Scene.make(store, RunRequest(
        workloads=(RunWorkload(workload=shape(*SHAPES[0]), candidates=(TILED,)),), target=TARGET, force=True
    ))
    scene.enqueue([wrong], phase=Phase.CONFIRM)
    held = scene.leased(scene.register())
    with store.read() as c:
        target_id = c.scalar(sa.select(task.c.target_id).limit(1))
        before = sum(len(t.log_s) for _, t in evidence.read_trials(c, "filter", target_id))
    scene.report(held, [failed(0, ErrorKind.WRONG_ANSWER)])
    with store.read() as c:
        (_, found), = evidence.read_trials(c, "filter", target_id)
        assert len(found.log_s) == before - 1 == len(list(SPACE)) - 1
        (held,) = evidence.read_held_out(c, "filter", target_id, (), lambda _: True)
        for trials in (found, held):
            assert SPACE.digits(wrong) not in {tuple(row) for row in trials.digits}
        assert len(held.log_s) == len(found.log_s)


def test_a_model_below_the_bar_does_not_answer(store: Store) -> None:
    held_out = min(range(len(SHAPES)), key=lambda i: split(shape(*SHAPES[i])))
    measure(store, SHAPES, upside_down=[held_out])  # unlike all that it is trained on
    model = learner.train(store, "filter", TARGET.key)
    assert model.accuracy < LEAST_ACCURACY
    assert not model.answers
    answer = ask(store, shape(512, 40))
    assert answer.reason is Reason.PLEVEL
    assert f"ranks {model.accuracy:.2f} of held-out pairs as measured, less than 0.85" in answer.explanation


@pytest.mark.full
def test_an_implementation_that_it_does_not_know_leaves_the_answer_to_the_plevel(
    store: Store,
) -> None:
    measure(store, SHAPES)
    learner.train(store, "filter", TARGET.key)
    other = msgspec.structs.replace(PLAIN, implementation="filter_new.cpu")
    assert ask(store, shape(512, 40), (TILED, other)).reason is Reason.PLEVEL


def finish_runs(store: Store) -> None:
    with store.write() as c:
        live = c.scalars(sa.select(run.c.id).where(run.c.state.in_(LIVE))).all()
        for run_id in live:
            runs.finish(c, run_id, RunState.DONE, "done")


def test_runs_that_end_train_a_model_once_all_is_quiet(store: Store) -> None:
    trainer = Trainer(store, poll_s=60.0, quiet_s=0.0)

    def step() -> list[training.Model]:
        trainer.step()
        trainer.wait()
        with store.read() as c:
            return training.find(c)

    measure(store, SHAPES[:5])
    assert step() == [], "runs are live"
    finish_runs(store)
    assert [m.version for m in step()] == [1]
    assert len(step()) == 1, "nothing is new"
    Scene.make(store)
    finish_runs(store)
    assert len(step()) == 1, "nothing was measured"
    measure(store, SHAPES[5:])
    finish_runs(store)
    assert [m.version for m in step()] == [2, 1]
    trainer.stop()


@pytest.mark.full
def test_training_gives_way_to_a_run_and_comes_back(store: Store) -> None:
    trainer = Trainer(store, poll_s=60.0, quiet_s=0.0)
    measure(store, SHAPES)
    finish_runs(store)
    trainer.step()
    Scene.make(store)
    trainer.step()
    trainer.wait()
    with store.read() as c:
        assert training.find(c) == [], "it was ended, half done"
    finish_runs(store)
    trainer.step()
    trainer.wait()
    with store.read() as c:
        assert len(training.find(c)) == 1
    trainer.stop()


def plevel(*arguments: str) -> str:
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.full
def test_the_command_line_trains_lists_and_shows(store: Store, url: str) -> None:
    measure(store, SHAPES[:5])
    place = ("--database", url)
    target = "llvm -mcpu=znver4 -num-cores=2"
    assert "no cost models yet" in plevel("model", "list", *place)
    trained = json.loads(plevel("model", "train", "filter", "--target", target, "--json", *place))
    assert (trained["op"], trained["target"], trained["version"]) == ("filter", TARGET.key, 1)
    assert json.loads(plevel("model", "list", "--json", *place)) == [trained]
    shown = plevel("model", "show", str(trained["id"]), *place)
    assert f"version 1 of filter on {TARGET.key}" in shown
    assert "from accuracy 0.85" in shown


def test_a_service_trains_what_it_is_asked_for(store: Store, url: str, start: Start) -> None:
    measure(store, SHAPES[:5])
    finish_runs(store)
    service = start(url, PLEVEL_POLL_S="0.05")
    place, target = ("--url", service.url), ("--target", "llvm -mcpu=znver4 -num-cores=2")
    with Client(service.url) as client:
        assert client.models() == []
        asked = json.loads(plevel("model", "train", "filter", *target, "--json", *place))
        assert asked == {
            "op": "filter", "target": TARGET.key, "workloads": 5, "records": 5 * 2 * len(list(SPACE)),
        }
        wait_until(client.models, "the training", 0.05)
        models = client.models()
        assert client.model(models[0]["id"]) == models[0]
        assert models[0]["records"] == asked["records"]
        # Nothing is new, and it is trained all the same.
        assert "when no run is live" in plevel("model", "train", "filter", *target, *place)
        wait_until(lambda: len(client.models()) == 2, "the second training", 0.05)
        assert service.http.get("/v1/models", params={"op": "dense"}).json() == {"models": []}
        with pytest.raises(ServiceError, match="0 workloads on record"):
            client.train_model("dense", TARGET)
        with pytest.raises(ServiceError, match="no records: tune"):
            client.train_model("filter", OTHER_TARGET)
        with pytest.raises(ServiceError, match="model 99 does not exist"):
            client.model(99)
    with store.read() as c:
        assert c.scalars(sa.select(audit.c.action)).all() == ["model.train", "model.train"]
    assert "version" in plevel("model", "show", str(models[0]["id"]), *place)


@pytest.mark.full
def test_too_few_workloads_are_refused(store: Store) -> None:
    measure(store, SHAPES[:4])
    with pytest.raises(InvalidError, match="4 workloads on record, not counting epilogues, at least 5"):
        process.train_apart(store, "filter", TARGET.key)
    with pytest.raises(NotFoundError, match="no records: tune"):
        learner.train(store, "filter", OTHER_TARGET.key)
    with store.read() as c, pytest.raises(NotFoundError, match="model 9 does not exist"):
        training.show(c, 9)
