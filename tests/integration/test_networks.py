"""Confirmations of networks: recorded once for each key, over REST and in a database, in their namespace."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import msgspec
import pytest
import sqlalchemy as sa

from plevel.client import Client, ServiceError
from plevel.direct import connect
from service.access import token
from service.records import network
from service.store.db import Store
from service.store.tables import TokenScope
from service.store.tables import network as network_table
from strategy.confirmation import Confirmation
from strategy.record import convert, to_json
from tests.browser.seed import confirmation
from tests.integration.process import Service

pytestmark = pytest.mark.in_turn("url")

FOUND = confirmation()


@pytest.fixture
def served(url: str, tmp_path) -> Iterator[Service]:
    one = Service(url, tmp_path, PLEVEL_AUTH="auto")
    yield one
    one.close()


def test_a_confirmation_is_recorded_the_same_way_over_rest_and_in_a_database(
    served: Service, url: str
) -> None:
    base = str(served.http.base_url)
    with connect(base, None) as far, connect(None, url) as near:
        first = far.record_network(FOUND)
        assert near.record_network(FOUND) == first  # the same key
        other = near.record_network(msgspec.structs.replace(FOUND, key="d" * 32, after_s=None))
        for place in (far, near):
            assert [n["id"] for n in place.networks()] == [other, first]
            assert place.networks(limit=1)[0]["confirmation"]["after_s"] is None
            assert place.networks(graph="0" * 32) == []
            assert place.network(first) == place.networks()[-1]
            with pytest.raises(ServiceError, match="network 999 does not exist"):
                place.network(999)
            shown = place.networks(device_model=FOUND.target.model)[-1]["confirmation"]
            assert convert(shown, Confirmation) == FOUND
    page = served.http.get("/v1/networks", params={"limit": 1}).json()
    assert served.http.get("/v1/networks", params={"cursor": page["next"]}).json()["networks"][0]["id"] == first
    assert served.http.get(f"/v1/networks/{first}").json()["confirmation"]["graph"] == FOUND.graph
    assert served.http.get("/v1/networks/999").status_code == 404
    with connect(base, None, "other") as elsewhere:
        assert elsewhere.networks() == []
        assert elsewhere.record_network(FOUND) not in (first, other)
    refused = served.http.post("/v1/networks", json={**to_json(FOUND), "weights": [1.0]})
    assert (refused.status_code, "weights" in refused.text) == (422, True)


def test_a_confirmation_with_fields_of_a_newer_service_is_read(store: Store) -> None:
    with store.write() as connection:
        one = network.put(connection, FOUND, "default")
        stored = sa.select(network_table.c.body).where(network_table.c.id == one)
        body = connection.scalar(stored)
        newer = {"energy_j": 5.0, "parts": [part | {"bytes": 4} for part in body["parts"]]}
        connection.execute(sa.update(network_table).values(body=body | newer))
        shown = to_json(network.find(connection, one, "default").confirmation)
    assert convert(shown, Confirmation) == FOUND


def test_a_token_that_only_reads_records_nothing(served: Service, url: str) -> None:
    store = Store(url)
    with store.write() as c:
        made = {s: token.create(c, s.value, [s]).secret for s in (TokenScope.READ, TokenScope.SUBMIT)}
    store.close()
    with Client(served.url, token=made[TokenScope.READ]) as reader:
        assert reader.networks() == []
        with pytest.raises(ServiceError, match="this request needs submit"):
            reader.record_network(FOUND)
    with Client(served.url, token=made[TokenScope.SUBMIT]) as writer:
        assert writer.record_network(FOUND)


def test_clients_that_report_one_graph_at_once_make_one_row(store: Store) -> None:
    begin, ids = threading.Barrier(4), []

    def report(i: int) -> None:
        mine = msgspec.structs.replace(FOUND, after_s=0.01 * (i + 1))
        begin.wait()
        with store.write() as connection:
            ids.append(network.put(connection, mine, "default"))

    threads = [threading.Thread(target=report, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with store.read() as connection:
        (one,) = network.page(connection, None).networks
    assert set(ids) == {one.id}
    assert one.confirmation.after_s in (0.01, 0.02, 0.03, 0.04)
