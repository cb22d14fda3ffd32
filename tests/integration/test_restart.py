"""A service that is started again at once, while PostgreSQL still counts the connections of the last one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import psycopg
import pytest

from service.api.wire import QUESTION
from service.server import WARM
from strategy.record import encode
from tests.integration.process import Start
from tests.limit import HANG_S


@pytest.fixture
def limit(postgres_server: str) -> Iterator[tuple[str, Callable[[int], None]]]:
    """The URL of an empty database, and a function that limits the connections to it; -1 is no limit."""
    name = f"limited_{os.getpid()}"
    with psycopg.connect(f"host={postgres_server} user=plevel dbname=postgres", autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {name} LOGIN")  # of superusers nothing is limited
        admin.execute(f"CREATE DATABASE {name} OWNER {name}")

        def set_limit(most: int) -> None:
            admin.execute(f"ALTER ROLE {name} CONNECTION LIMIT {most}")

        yield f"postgresql://{name}@/{name}?host={postgres_server}", set_limit
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
        admin.execute(f"DROP ROLE {name}")


@pytest.mark.full
def test_a_service_waits_until_there_is_a_connection(
    limit: tuple[str, Callable[[int], None]],
) -> None:
    url, set_limit = limit
    set_limit(0)
    command = [sys.executable, "-m", "service", "--database", url, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr
        assert child.stdout
        assert "too many connections" in child.stderr.readline()
        set_limit(-1)
        assert "plevel service on http://" in child.stdout.readline()
        with psycopg.connect(url) as own:
            opened = own.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            ).fetchone()
        assert opened is not None
        assert opened[0] >= WARM
        child.terminate()
        child.communicate()
    assert child.returncode == 0


def test_a_service_that_was_killed_starts_again_at_once(url: str, start: Start) -> None:
    for _ in range(3):
        service = start(url)
        assert service.raw("GET", "/healthz").status_code == 200
        service.kill()


def test_selections_of_many_clients_open_no_more_connections(postgres_copy: str, start: Start) -> None:
    """Those that come while all connections are used wait for one: another would take longer."""
    service = start(postgres_copy, PLEVEL_TUNE="false")
    # Those of its start may still end, and the server has processes of its own.
    connected = (
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
        "AND backend_type = 'client backend'"
    )
    asked = encode(QUESTION)

    def select(_: int) -> set[int]:
        with httpx.Client(base_url=service.url, timeout=HANG_S) as client:
            return {client.post("/v1/select", content=asked).status_code for _ in range(5)}

    with psycopg.connect(postgres_copy, autocommit=True) as own, ThreadPoolExecutor(16) as pool:
        opened = set(own.execute(connected))
        assert set().union(*pool.map(select, range(16))) == {200}
        assert set(own.execute(connected)) <= opened
