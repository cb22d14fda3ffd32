"""Statements that PostgreSQL gets together: in their order, with their results and their errors."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from service.errors import DatabaseError, InvalidError
from service.records.importer import import_items
from service.records.reading import Readers
from service.records.small_import import SmallImports
from service.store import sql
from service.store.db import Store
from service.store.sql import one_trip, put_rows
from service.store.tables import attachment
from tests.integration.test_import import made
from tests.integration.test_small_import import noted, together, upload_of

pytestmark = pytest.mark.in_turn("url")

COLUMNS = tuple(attachment.c["what", "key", "text"])
KEYS = sa.text("SELECT key FROM attachment WHERE what = :what ORDER BY key")


def keys(store: Store) -> list[str]:
    with store.read() as connection:
        return list(connection.scalars(sa.select(attachment.c.key).order_by(attachment.c.key)))


def test_a_query_sees_what_is_inserted_before_it(store: Store) -> None:
    with store.write() as connection:
        with one_trip(connection) as ask:
            before = ask(KEYS, {"what": "space"})
            put_rows(connection, COLUMNS, [("space", "b", ""), ("module", "c", "")], None)
            after = ask(KEYS, {"what": "space"})
            put_rows(connection, COLUMNS, [("space", "a", "")], None)
            last = ask(KEYS, {"what": "space"})
        assert [[row.key for row in rows] for rows in (before, after, last)] == [[], ["b"], ["a", "b"]]
        with one_trip(connection, joined=False) as ask:
            assert [row.key for row in ask(KEYS, {"what": "module"})] == ["c"]
    assert keys(store) == ["a", "b", "c"]


def put(store: Store, rows: list[tuple[str, str, str]], error: type[Exception] | None = None) -> None:
    with store.write() as connection, one_trip(connection) as ask:
        ask(KEYS, {"what": "space"})
        put_rows(connection, COLUMNS, rows, None)
        ask(KEYS, {"what": "space"})
        if error is not None:
            raise error


def test_an_error_is_that_of_the_statement_at_fault(store: Store) -> None:
    with pytest.raises(sa.exc.IntegrityError):
        put(store, [("space", "a", "")] * 2)
    assert keys(store) == []
    if not store.is_sqlite:  # its texts have no length
        with pytest.raises(InvalidError, match="too long"):
            put(store, [("space", "b" * 65, "")])
    put(store, [("space", "a", "")])
    assert keys(store) == ["a"]


def test_another_error_is_not_replaced(store: Store) -> None:
    with pytest.raises(ZeroDivisionError):
        put(store, [("space", "a", "")], ZeroDivisionError)
    assert keys(store) == []


def test_a_server_that_goes_away_costs_one_transaction(store: Store) -> None:
    if store.is_sqlite:
        return
    gone = sa.text("SELECT pg_terminate_backend(pg_backend_pid())")
    with pytest.raises(DatabaseError), store.write() as connection, one_trip(connection) as ask:
        ask(gone, {})
    put(store, [("space", "a", "")])
    assert keys(store) == ["a"]


def executed(store: Store) -> list[str]:
    """The first words of each statement that SQLAlchemy executes from now on."""
    told: list[str] = []
    sa.event.listen(
        store.engine, "before_cursor_execute", lambda _c, _cursor, text, *_: told.append(" ".join(text.split()[:3]))
    )
    return told


def test_a_new_best_takes_no_further_query(store: Store, readers: Readers) -> None:
    imports = SmallImports(store, readers)
    together(imports, upload_of([made(0, (9.0,), session="first"), made(1, (8.0,))]))
    told = executed(store)
    together(imports, upload_of([made(0, (1.0,), session="second"), made(1, (2.0,), session="second")]))
    insertions = [f"INSERT INTO {table}" for table in ("record", "audit", "history", "best")]
    assert [one for one in told if one.startswith("INSERT")] == insertions
    assert store.is_sqlite or told == insertions


def test_a_group_commit_takes_few_trips(store: Store, readers: Readers) -> None:
    """SQLAlchemy executes only the insertions, which share a trip on PostgreSQL with two of the queries."""
    imports = SmallImports(store, readers)
    together(imports, *(upload_of([made(i, session="first")]) for i in range(3)))
    told = executed(store)
    together(imports, *(upload_of([made(0, (9.0 + i,), session=f"s{i}")]) for i in range(3)))
    insertions = ["INSERT INTO record", "INSERT INTO audit"]
    assert [one for one in told if one.startswith("INSERT")] == insertions
    assert store.is_sqlite or told == insertions
    assert noted(store) == [1] * 6


def test_a_client_library_that_cannot(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql, "_can_join", lambda _dialect: False)
    assert import_items(store, [made(1), made(2)]).new == 2
    assert import_items(store, [made(1), made(3)]).known == 1
