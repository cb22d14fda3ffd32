"""A thousand candidates in a row that kill what builds or runs them: each costs itself only."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from strategy.record import ErrorKind
from tests.kernel.test_worker import CORES, hostile_job
from tests.limit import HANG_S
from workers.builder_pool import BuilderPool
from workers.fork import Limits
from workers.sandbox import WORKER_IMPORTS, Died, ForkServer
from workers.timing_runner import TimingRunner

sys.path.insert(0, str(Path(__file__).parent))  # where the children find the operator too
import hostile

NEVER = threading.Event()
POISON = ("build_aborts", "aborts", "segfaults", "exits", "raises")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ForkServer]:
    with ForkServer(tmp_path, (*WORKER_IMPORTS, "hostile")) as found:
        yield found


@pytest.mark.full
def test_fifty_real_ones(server: ForkServer, tmp_path: Path) -> None:
    assert set(POISON) <= set(hostile.DEEDS)
    pool = BuilderPool(server, CORES.building, tmp_path, 2**30)
    runner = TimingRunner(server, CORES.timing, 2**30)
    kinds: Counter[ErrorKind | None] = Counter()
    for _ in range(10):
        job = hostile_job(*POISON, "good")
        built = pool.build(job, NEVER)
        kinds.update(b.error for b in built if b.error is not None)
        runner.run(
            job, [b for b in built if b.error is None], NEVER, lambda r: kinds.update([r.error])
        )
    pool.close()
    runner.close()
    assert kinds[None] == 10  # the good one among them, each time
    assert sum(kinds.values()) == 60


@pytest.mark.full
def test_the_rest_with_a_builder_that_dies(server: ForkServer) -> None:
    for _ in range(950):
        child = server.spawn(Limits(module="hostile"))
        child.send("leave")
        with pytest.raises(Died):
            child.receive(HANG_S)
    child = server.spawn(Limits(module="hostile"))
    child.send("hello")
    assert child.receive(HANG_S) == {"echo": "hello"}
    child.kill()
