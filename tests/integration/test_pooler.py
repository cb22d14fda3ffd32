"""A pooler, such as PgBouncer, between a service and PostgreSQL: each transaction may be of another server process."""

from __future__ import annotations

from contextlib import closing

import psycopg
import pytest
import sqlalchemy as sa

from service.selection.database import RecordDatabase
from service.store import migration
from service.store.db import Store
from strategy.target import Target
from strategy.workload import Input, Workload


@pytest.mark.parametrize("pooled", [False, True])
def test_statements_are_prepared_only_without_a_pooler(
    postgres_url: str, pooled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pooler tells clients process ids of its own."""
    if pooled:
        monkeypatch.setattr(psycopg.ConnectionInfo, "backend_pid", property(lambda _: -1))
    migration.upgrade(postgres_url)
    asked = Workload("nothing", (Input("data", "float32[1]"),))
    with closing(Store(postgres_url)) as store:
        for _ in range(8):  # psycopg prepares what is executed for the sixth time
            with store.read() as c:
                RecordDatabase(c).measured(asked, Target.parse("llvm"), None)
        with store.read() as c:
            prepared = c.scalar(sa.text("SELECT count(*) FROM pg_prepared_statements"))
    assert bool(prepared) != pooled
