"""Times on OpenMP's threads: queued for the same devices as TVM's, kept apart, and preferred for their own."""

from __future__ import annotations

import msgspec
import pytest

from plevel.client import Client
from plevel.direct import connect
from strategy.record import RunStatus
from strategy.select import Level, SelectionError
from strategy.select.lock import Lock
from tests.integration.process import Service
from tests.integration.scene import CANDIDATES, TARGET, WORKLOAD, drawn

ON_OPENMP = TARGET.with_pool("openmp")
DEVICE = "host-a/cpu:0-1"


@pytest.mark.parametrize("first", [TARGET, ON_OPENMP], ids=["tvm", "openmp"])
def test_selections_prefer_times_of_their_own_pool(url: str, tmp_path, first) -> None:
    other = ON_OPENMP if first is TARGET else TARGET
    service = Service(url, tmp_path, PLEVEL_AUTH="open")
    try:
        worker = service.register()  # its device has no pool

        def tune(target) -> RunStatus:
            asked = msgspec.structs.replace(drawn(), target=target)
            run = service.call("POST", "/v1/runs", asked, RunStatus)
            return service.work(worker, run.id)

        assert tune(first).state == "done"
        with Client(service.url) as client, connect(None, url) as direct:
            for records in (client, direct):
                own = records.select(WORKLOAD, first, candidates=CANDIDATES, device=DEVICE)
                assert own.level is Level.DEVICE
                assert "threads of the pool" not in own.explanation
                borrowed = records.select(WORKLOAD, other, candidates=CANDIDATES, device=DEVICE)
                assert (borrowed.level, borrowed.implementation) == (Level.DEVICE, own.implementation)
                assert f"by threads of the pool {first.pool}" in borrowed.explanation
            assert tune(other).trials_done > 0  # times of the other pool are none of its own
            found = client.select(WORKLOAD, other, candidates=CANDIDATES, device=DEVICE)
            assert "threads of the pool" not in found.explanation
            tasks = {t["target"] for t in client.iter_coverage()}
            assert tasks >= {TARGET.key, ON_OPENMP.key}
    finally:
        service.close()
    locked = Lock.make([own])
    assert locked.find(WORKLOAD, other).implementation == own.implementation
    with pytest.raises(SelectionError, match="not in the lock"):
        locked.find(WORKLOAD, other.with_threads(7))
