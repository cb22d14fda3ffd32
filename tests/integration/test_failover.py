"""Connections to a PostgreSQL that has become a standby, and of a service that is gone."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
import sqlalchemy as sa

from service.errors import DatabaseError
from service.records import best
from service.store.db import Store
from service.store.sql import one_trip
from service.store.tables import run
from tests.integration.scene import Scene


@pytest.fixture
def read_only(postgres_copy: str, postgres_server: str) -> Iterator[Callable[[bool], None]]:
    """Have a database refuse to write, as a standby does, or take it back."""
    name = postgres_copy.partition("@/")[2].partition("?")[0]
    with psycopg.connect(f"host={postgres_server} user=plevel dbname=postgres", autocommit=True) as admin:

        def set_mode(on: bool) -> None:
            admin.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = {'on' if on else 'off'}")

        yield set_mode


@pytest.mark.parametrize("joined", [False, True])
def test_connections_to_a_standby_are_left(
    postgres_copy: str, read_only: Callable[[bool], None], joined: bool
) -> None:
    """After a failover the next ones are to the new primary, however many there were."""

    def write(c: sa.Connection) -> None:
        with one_trip(c, joined=joined) as ask:
            best.ask_lock(c, ask, [1])

    read_only(True)
    store = Store(postgres_copy)
    with store.read(), store.read():  # two connections
        pass
    with pytest.raises(DatabaseError, match="refuses: .*read-only.*target_session_attrs"), store.write() as c:
        write(c)
    read_only(False)
    with store.write() as c, store.write() as other:
        write(c)
        write(other)
    store.close()


def test_the_statement_of_a_client_that_is_gone_is_ended(
    postgres_copy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The locks of a service that was killed are released, however long its statement would take."""
    monkeypatch.setattr("service.store.session.GONE_S", 1)
    gone, other = Store(postgres_copy), Store(postgres_copy)
    scene = Scene.make(other)
    end = sa.update(run).where(run.c.id == scene.run_id).values(message="mine")
    begun = threading.Event()
    numbers: list[int] = []

    def execute() -> None:
        with gone.write() as c:
            c.execute(end)
            numbers.append(c.connection.driver_connection.fileno())
            begun.set()
            c.execute(sa.text("SELECT pg_sleep(600)"))

    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(execute)
        begun.wait()
        with socket.socket(fileno=os.dup(numbers[0])) as own:
            own.shutdown(socket.SHUT_RDWR)
        with pytest.raises(DatabaseError):
            ended.result()
    with other.write() as c:
        c.execute(end.values(message="other"))
    gone.close()
    other.close()
