"""Times as in a network: queued for the same devices as others, kept apart, and preferred for their own."""

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

pytestmark = pytest.mark.in_turn("url")

IN_NETWORK = TARGET.in_network()
DEVICE = "host-a/cpu:0-1"


@pytest.mark.sample(1)
@pytest.mark.parametrize("first", [TARGET, IN_NETWORK], ids=["alone", "in a network"])
def test_selections_prefer_times_of_their_own_way(url: str, tmp_path, first) -> None:
    other = IN_NETWORK if first is TARGET else TARGET
    service = Service(url, tmp_path, PLEVEL_AUTH="open")
    try:
        worker = service.register()  # its device times in any way

        def tune(target) -> RunStatus:
            asked = msgspec.structs.replace(drawn(), target=target)
            run = service.call("POST", "/v1/runs", asked, RunStatus)
            return service.work(worker, run.id)

        assert tune(first).state == "done"
        with Client(service.url) as client, connect(None, url) as direct:
            for records in (client, direct):
                own = records.select(WORKLOAD, first, candidates=CANDIDATES, device=DEVICE)
                assert own.level is Level.DEVICE
                assert "timed with" not in own.explanation
                borrowed = records.select(WORKLOAD, other, candidates=CANDIDATES, device=DEVICE)
                assert (borrowed.level, borrowed.implementation) == (Level.DEVICE, own.implementation)
                assert f"timed with {other.otherwise(first.key)}" in borrowed.explanation
            assert tune(other).trials_done > 0  # times of the other way are none of its own
            found = client.select(WORKLOAD, other, candidates=CANDIDATES, device=DEVICE)
            assert "timed with" not in found.explanation
            tasks = {t["target"] for t in client.iter_coverage()}
            assert tasks >= {TARGET.key, IN_NETWORK.key}
    finally:
        service.close()
    locked = Lock.make([own])
    assert locked.select(WORKLOAD, other).implementation == own.implementation
    with pytest.raises(SelectionError, match="not in the lock"):
        locked.select(WORKLOAD, other.with_threads(7))
