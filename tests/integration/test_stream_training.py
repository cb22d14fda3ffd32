"""Training on a stream of records on disk: as good as in memory, brought up to date, and without leftovers."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
import sqlalchemy as sa

from service.errors import InvalidError
from service.predict import evidence, forest, learner, lineage, process, spool, training
from service.records import settled
from service.store.db import Store
from service.store.sql import one_trip
from service.store.tables import cost_model
from tests.integration.scene import TARGET
from tests.integration.test_training import SHAPES, measure
from tests.limit import HANG_S

pytestmark = pytest.mark.in_turn("url")

OTHERS = [(80, 48), (24, 640), (384, 100), (640, 24), (144, 320)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of temporary files, of which none may be left."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = tmp_path / "cache" / "plevel" / "training"
    yield root
    assert list(root.iterdir()) == []


def train(store: Store, *, afresh: bool = False) -> training.Model:
    return learner.train(store, "filter", TARGET.key, afresh=afresh)


def test_a_stream_from_the_disk_is_as_good_as_memory(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    measure(store, SHAPES)
    at_once = train(store)
    monkeypatch.setattr(forest, "IN_MEMORY", 0)
    monkeypatch.setattr(evidence, "PAGE", 7)
    monkeypatch.setattr(evidence, "TASKS", 3)
    monkeypatch.setattr(spool, "PART_ROWS", 30)
    monkeypatch.setattr(spool, "PAGE_ROWS", 50)
    streamed = train(store)
    assert (streamed.records, streamed.held_out, streamed.pairs) == (
        at_once.records, at_once.held_out, at_once.pairs,
    )
    assert streamed.accuracy == pytest.approx(at_once.accuracy, abs=0.02)


def test_a_model_is_brought_up_to_date_where_that_is_as_good(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lineage, "LEAST_UPDATED", 0)
    measure(store, SHAPES + OTHERS)
    first = train(store)
    assert first.lineage == "trained from nothing"
    held_out = first.held_out
    measure(store, [(48, 200), (200, 48)])
    second = train(store)
    assert second.lineage == "version 1, updated with 72 new records"
    assert (second.records, second.workloads) == (first.records + 72, first.workloads + 2)
    assert second.accuracy >= first.accuracy - lineage.TOLERANCE
    assert held_out <= second.held_out <= held_out + 2
    with store.read() as c:
        sizes = c.scalars(sa.select(sa.func.length(cost_model.c.trees)).order_by(cost_model.c.id)).all()
    assert sizes[0] < sizes[1] < 2 * sizes[0]
    assert train(store).lineage == "trained from nothing", "nothing is new"
    measure(store, [(56, 72)])
    assert train(store, afresh=True).lineage == "trained from nothing"
    # A few more trees do not learn times that contradict the old ones, or make the model worse than it was.
    measure(store, [(shape[0] + 8, shape[1]) for shape in SHAPES], upside_down=range(len(SHAPES)))
    told = train(store).lineage
    assert told.startswith("trained from nothing: an update of version 4 ranked")


def test_records_behind_a_transaction_that_was_under_way_are_new_to_an_update(
    postgres_copy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have committed records with lower ids since."""
    monkeypatch.setattr(lineage, "LEAST_UPDATED", 0)
    monkeypatch.setattr(lineage, "LEAST_LEFT", 0.5)
    with closing(Store(postgres_copy)) as store:
        measure(store, SHAPES + OTHERS)
        with store.write() as late:
            with one_trip(late) as ask:
                settled.announce(late, ask)
            measure(store, [(48, 200)])
            train(store)
        assert train(store).lineage == "version 1, updated with 36 new records"


def test_a_damaged_model_is_trained_from_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lineage, "LEAST_UPDATED", 0)
    measure(store, SHAPES + OTHERS)
    train(store)
    measure(store, [(48, 200)])
    with store.write() as c:
        trees = c.scalar(sa.select(cost_model.c.trees))
        c.execute(sa.update(cost_model).values(trees=trees[: len(trees) // 10]))
    assert train(store).lineage == "trained from nothing: the trees of version 1 are damaged"


@pytest.mark.full
def test_a_full_disk_is_an_error_of_one_line(sqlite_copy: str, cache: Path) -> None:
    store = Store(sqlite_copy)
    measure(store, SHAPES)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, before[1]))  # for the process that trains
    try:
        with pytest.raises(InvalidError, match=f"^training: {cache}: File too large: free some, or set XDG_CACHE_HOME"):
            process.train_apart(store, "filter", TARGET.key)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        store.close()


def test_without_room_for_the_binned_form_it_is_said_before(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    measure(store, SHAPES)
    monkeypatch.setattr(forest, "IN_MEMORY", 0)
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=0))
    with pytest.raises(InvalidError, match=r"needs up to 0\.0 GiB more in .*, which has 0\.0"):
        train(store)


@pytest.mark.full
def test_an_interrupted_training_leaves_nothing(sqlite_copy: str, cache: Path) -> None:
    store = Store(sqlite_copy)
    measure(store, SHAPES)
    store.close()
    command = [sys.executable, "-m", "plevel", "model", "train", "filter", "--target", "llvm -mcpu=znver4 -num-cores=2"]
    with subprocess.Popen([*command, "--database", sqlite_copy], stderr=subprocess.PIPE, text=True) as process:
        give_up = time.monotonic() + HANG_S
        while not list(cache.glob("*/lock")):  # a folder without one may be another process's, at its start
            assert time.monotonic() < give_up
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert process.wait(HANG_S) == 130
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()
