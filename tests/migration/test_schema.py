"""The migrations make the schema that the models describe, and refuse what they do not know."""

from __future__ import annotations

import importlib
import io
import os
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from service.access import audit, token
from service.errors import DatabaseError, SchemaError
from service.formats import Source, read
from service.records.importer import import_items
from service.store import catalogue, db, migration
from service.store.db import Store, normal_url, show_url
from service.store.tables import TokenScope, metadata, target
from tests.limit import HANG_S

pytestmark = pytest.mark.in_turn("url")


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    """The URL of an empty database."""
    name = "sqlite_url" if request.param == "sqlite" else "postgres_url"
    found: str = request.getfixturevalue(name)
    return found


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    opened = Store(url)
    yield opened
    opened.close()


@pytest.mark.in_turn
def test_models_are_what_the_migrations_make(url: str, store: Store) -> None:
    migration.upgrade(url)
    with store.read() as connection:
        opts = {"compare_server_default": True, "include_object": includes(connection)}
        context = MigrationContext.configure(connection, opts=opts)
        assert compare_metadata(context, metadata) == []


def includes(connection: sa.Connection) -> Callable[..., bool]:
    """Leave out the foreign keys whose place triggers take on PostgreSQL."""
    checks = importlib.import_module("migrations.versions.0013_statement_checks")
    by_trigger = {f"fk_record_{column}_{parent}" for column, parent in checks.PARENTS.items()}
    if connection.dialect.name == "sqlite":
        by_trigger.clear()
    return lambda _object, name, *_: name not in by_trigger


@pytest.mark.in_turn
def test_constraints_are_what_the_migrations_make(url: str, store: Store) -> None:
    """Parts of the schema that alembic does not compare: checks, and the conditions of partial indexes."""
    migration.upgrade(url)
    with store.read() as connection:
        inspector = sa.inspect(connection)
        for table in metadata.tables.values():
            expected = {
                (c.name, *literals(str(c.sqltext)))
                for c in table.constraints
                if isinstance(c, sa.CheckConstraint)
            }
            checks = inspector.get_check_constraints(table.name)
            assert {(c["name"], *literals(c["sqltext"])) for c in checks} == expected
            dialect = connection.dialect.name
            partial = {
                i.name: str(where)
                for i in table.indexes
                if (where := i.dialect_options[dialect]["where"]) is not None
            }
            found = {
                i["name"]: str(i["dialect_options"][f"{dialect}_where"])
                for i in inspector.get_indexes(table.name)
                if f"{dialect}_where" in i["dialect_options"]
            }
            assert found.keys() == partial.keys()
            for name, where in partial.items():
                words = where.replace("'", "").split()
                assert all(w in found[name] for w in words), (name, where, found[name])


def literals(condition: str) -> list[str]:
    """The values that a check allows: databases write the rest of it in their own ways."""
    return re.findall(r"'(\w+)'", condition)


def test_revisions_are_those_of_alembic() -> None:
    script = ScriptDirectory.from_config(migration._config())
    assert migration.revisions() == [r.revision for r in script.walk_revisions()][::-1]
    assert migration.head() == script.get_current_head()


def test_upgrade_is_idempotent_and_said(url: str) -> None:
    assert migration.current(url) is None
    with pytest.raises(SchemaError, match="no schema yet.*plevel db upgrade --database '?(sqlite|postgresql)"):
        migration.check(url)
    if url.startswith("postgresql"):
        with pytest.raises(SchemaError, match=r"upgrade`, with this URL and its password in PLEVEL_DATABASE or --d"):
            migration.check(url.replace("plevel@", "plevel:any@"))
    assert migration.upgrade(url) == migration.head()
    assert migration.upgrade(url) == migration.head()
    assert migration.current(url) == migration.head()
    migration.check(url)


@pytest.mark.in_turn
def test_downgrade_leaves_nothing(url: str, store: Store) -> None:
    from alembic import command

    migration.upgrade(url)
    with store.write() as connection:
        command.downgrade(migration._config(connection), "base")
    with store.read() as connection:
        assert sa.inspect(connection).get_table_names() == ["alembic_version"]


def test_a_downgrade_says_what_it_would_delete_before_it_does(url: str, store: Store) -> None:
    migration.upgrade(url)
    with store.write() as connection:
        for name in ("one", "two"):
            token.create(connection, name, [TokenScope.READ])
        audit.note(connection, audit.user(), "token.create")
    lost = {"tokens": 2, "entries of the audit log": 1}
    assert migration.find_losses(url, "0002") == migration.Losses({}, lost)
    with pytest.raises(SchemaError, match=r"deletes 2 tokens, 1 entries of the audit log: .*--yes"):
        migration.downgrade(url, "0002")
    assert migration.current(url) == migration.head()
    assert migration.find_losses(url, "0003") == migration.Losses({}, {})
    migration.downgrade(url, "0003")
    migration.downgrade(url, "0002", lose=True)
    assert migration.current(url) == "0002"
    with pytest.raises(SchemaError, match=r"at schema 0002 and cannot be downgraded to '0005', did you mean 0002\?"):
        migration.downgrade(url, "0005")


@pytest.mark.full
def test_a_downgrade_to_nothing_needs_no_older_schema_that_holds_the_rows(url: str, store: Store) -> None:
    migration.upgrade(url)
    log = Path(__file__).parents[1] / "data/formats/autotvm_0_2.log"
    for namespace in ("default", "other"):
        import_items(store, read(Source(io.BytesIO(log.read_bytes()), log.name)), namespace=namespace)
    with store.write() as connection:
        row = connection.execute(sa.select(target)).first()
        assert row is not None
        for model in ("one", "another"):  # the same device with two histories
            catalogue.put_device(connection, "host/cuda:0", "cuda:0", model, row.id, row.body, {})
    assert len(migration.find_losses(url, "0001").cannot) >= 3
    with pytest.raises(SchemaError, match=r"deletes .* records, .*--yes"):
        migration.downgrade(url, "base")
    migration.downgrade(url, "base", lose=True)
    assert migration.current(url) is None
    with store.read() as connection:
        assert sa.inspect(connection).get_table_names() == ["alembic_version"]
        if not store.is_sqlite:
            functions = sa.text("SELECT count(*) FROM pg_proc WHERE proname LIKE 'plevel%'")
            assert connection.scalar(functions) == 0
    assert migration.upgrade(url) == migration.head()


@pytest.mark.full
def test_every_count_can_be_asked_of_every_schema(url: str) -> None:
    migration.upgrade(url)
    known = ["base", *migration.revisions()]
    for number, revision in reversed([*enumerate(known, 1)]):
        migration.downgrade(url, revision)
        for older in known[:number]:
            assert migration.find_losses(url, older) == migration.Losses({}, {})


def test_a_newer_schema_is_refused(url: str, store: Store) -> None:
    migration.upgrade(url)
    with store.write() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    for refuse in (migration.check, migration.upgrade):
        remedy = f"`plevel db downgrade {migration.head()}`"
        with pytest.raises(SchemaError, match=f"schema 9999, newer than .* by {remedy}"):
            refuse(url)
    with store.read() as connection:
        assert connection.scalar(sa.text("SELECT version_num FROM alembic_version")) == "9999"


@pytest.mark.parametrize(
    "made",
    [
        ["CREATE TABLE customer (id INTEGER)"],
        [
            "CREATE TABLE alembic_version (version_num VARCHAR(32))",
            "INSERT INTO alembic_version VALUES ('a1b2c3d4e5f6')",
        ],
    ],
    ids=["tables", "migrations"],
)
def test_another_programs_database_is_left_alone(url: str, store: Store, made: list[str]) -> None:
    with store.write() as connection:
        for statement in made:
            connection.execute(sa.text(statement))
        before = sa.inspect(connection).get_table_names()
    for refuse in (migration.check, migration.upgrade):
        with pytest.raises(SchemaError, match="belongs to another program: name an empty"):
            refuse(url)
    with store.read() as connection:
        assert sa.inspect(connection).get_table_names() == before


@pytest.mark.parametrize("asked", [migration.current, migration.check, migration.upgrade])
def test_another_programs_file_is_not_touched(tmp_path: Path, asked: Callable[[str], object]) -> None:
    file = tmp_path / "theirs.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE theirs (x)")
        connection.commit()
    before = file.read_bytes()
    with suppress(SchemaError):
        asked(str(file))
    assert (file.read_bytes(), list(tmp_path.iterdir())) == (before, [file])


def test_two_processes_upgrade_at_once(url: str) -> None:
    code = "import sys; from service.store import migration; print(migration.upgrade(sys.argv[1]))"
    running = [
        subprocess.Popen([sys.executable, "-c", code, url], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    for process in running:
        out, _ = process.communicate(timeout=HANG_S)
        assert (process.returncode, out.strip()) == (0, migration.head())


def test_an_upgrade_ends_no_transaction_of_a_service(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that holds a table which the migration needs last, and then needs one that it has first."""
    monkeypatch.setattr(migration, "_is_long_used", lambda *_: False)  # on a slow machine it has begun long ago
    migration.upgrade(postgres_url)
    migration.downgrade(postgres_url, "0012", lose=True)
    waiting = sa.text("SELECT count(*) FROM pg_locks WHERE NOT granted")
    with (
        closing(Store(postgres_url)) as service, closing(Store(postgres_url)) as watcher,
        ThreadPoolExecutor(1) as pool, service.write() as c,
    ):
        c.exec_driver_sql("UPDATE timing_policy SET id = id WHERE false")
        upgraded = pool.submit(migration.upgrade, postgres_url)
        give_up = time.monotonic() + HANG_S
        while not _count(watcher, waiting):
            assert time.monotonic() < give_up and not upgraded.done()
            time.sleep(0.01)
        c.exec_driver_sql("UPDATE record SET id = id WHERE false")
        c.commit()
        assert upgraded.result(HANG_S) == migration.head()
    migration.check(postgres_url)


def test_no_request_waits_behind_an_upgrade_that_waits_for_a_long_transaction(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    migration.upgrade(postgres_url)
    migration.downgrade(postgres_url, "0012", lose=True)
    looks: list[bool] = []
    look = migration._is_long_used

    def seen(*given: Any) -> bool:
        looks.append(look(*given))
        return looks[-1]

    monkeypatch.setattr(migration, "_is_long_used", seen)
    waiting = sa.text("SELECT count(*) FROM pg_locks WHERE NOT granted")
    began = "SELECT clock_timestamp() - now() > INTERVAL '1 s'"
    with (
        closing(Store(postgres_url)) as service, closing(Store(postgres_url)) as watcher, ThreadPoolExecutor(1) as pool,
    ):
        with service.read() as c:
            c.execute(sa.select(target.c.id)).all()
            give_up = time.monotonic() + HANG_S
            while not c.scalar(sa.text(began)):
                assert time.monotonic() < give_up
                time.sleep(0.01)
            upgraded = pool.submit(migration.upgrade, postgres_url)
            while len(looks) < 3:
                assert time.monotonic() < give_up and not upgraded.done()
                assert _count(watcher, waiting) == 0
                time.sleep(0.01)
        assert upgraded.result(HANG_S) == migration.head()
    assert looks[:3] == [True] * 3
    assert looks[-1] is False


def test_an_upgrade_beside_an_endless_transaction_is_given_up(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    migration.upgrade(postgres_url)
    migration.downgrade(postgres_url, "0012", lose=True)
    monkeypatch.setattr(migration, "PATIENCE_S", 0.0)
    with closing(Store(postgres_url)) as service, service.read() as c:
        c.execute(sa.select(target.c.id)).all()
        with pytest.raises(DatabaseError, match="is in use: its tables could not be locked"):
            migration.upgrade(postgres_url)
    assert migration.current(postgres_url) == "0012"


def test_an_upgrade_waits_for_no_table_of_others(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    migration.upgrade(postgres_url)
    migration.downgrade(postgres_url, "0012", lose=True)
    monkeypatch.setattr(migration, "PATIENCE_S", 0.0)
    with closing(Store(postgres_url)) as other:
        with other.write() as c:
            c.exec_driver_sql("CREATE TABLE of_another_program (id INTEGER)")
        with other.write() as c:
            c.exec_driver_sql("INSERT INTO of_another_program VALUES (1)")
            assert migration.upgrade(postgres_url) == migration.head()


def _count(store: Store, query: sa.TextClause) -> int:
    with store.read() as connection:
        return int(connection.execute(query).scalar_one())


@pytest.mark.full
def test_migrations_are_found_without_the_source_tree(url: str, tmp_path: Path) -> None:
    """As from an installed wheel: packages alone, another working directory."""
    import shutil

    root = Path(__file__).parents[2]
    site = tmp_path / "site"
    for package in ("strategy", "service", "migrations"):
        shutil.copytree(root / package, site / package, ignore=shutil.ignore_patterns("__pycache__"))
    code = (
        "import sys; from service.store import migration; import migrations; "
        "print(migrations.__file__); print(migration.upgrade(sys.argv[1]))"
    )
    environment = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run(
        [sys.executable, "-c", code, url], cwd=tmp_path, env=environment, capture_output=True,
        text=True, check=True, timeout=HANG_S,
    )
    where, revision = done.stdout.split()
    assert Path(where).is_relative_to(site)
    assert revision == migration.head()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mysql://x/y", "not supported"),
        ("sqlite://", "needs a file"),
        ("sqlite:///:memory:", "needs a file"),
        ("://", "not a URL"),
        ("/proc/nowhere/plevel.db", "there is no folder /proc/nowhere"),
        ("/proc/plevel.db", "not writable|cannot be created"),
        ("postgresql://nobody@127.0.0.1:1/x", "does not answer"),
    ],
)
def test_a_database_that_cannot_be_is_refused_in_one_line(url: str, message: str) -> None:
    with pytest.raises(DatabaseError, match=message) as caught:
        migration.upgrade(url)
    assert "\n" not in str(caught.value)


def test_a_full_disk_is_said_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plevel.db"
    monkeypatch.setattr("service.store.db._PRAGMAS", (*db._PRAGMAS, "max_page_count = 20"))
    with pytest.raises(DatabaseError, match=f"disk is full: free space on the disk of {path}, or name another"):
        migration.upgrade(str(path))


def test_a_damaged_file_is_no_defect_and_is_named_as_its_user_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "wörk 1" / "plevel.db"
    path.parent.mkdir()
    migration.upgrade(str(path))
    assert migration.shown(Store(str(path))) == f"sqlite:///{path}"
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 8], whole[:16] + b"garbage"):
        path.write_bytes(content)
        for suffix in ("-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        with pytest.raises(DatabaseError, match=f"database {path} is damaged .*: put a backup in its place"):
            migration.check(str(path))


def test_a_user_without_rights_is_told_what_is_missing(postgres_url: str) -> None:
    """As by default since PostgreSQL 15, in a database of another owner."""
    admin = sa.create_engine(postgres_url)
    with admin.begin() as connection:
        connection.exec_driver_sql("DROP ROLE IF EXISTS guest")
        connection.exec_driver_sql("CREATE ROLE guest LOGIN")
        connection.exec_driver_sql("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    as_guest = postgres_url.replace("plevel@", "guest@")
    with pytest.raises(DatabaseError, match="permission denied for schema public.*owner of the database"):
        migration.upgrade(as_guest)
    migration.upgrade(postgres_url)
    with pytest.raises(DatabaseError, match="permission denied for table.*owner of the database") as caught:
        migration.check(as_guest)
    assert "\n" not in str(caught.value)
    with admin.begin() as connection:
        connection.exec_driver_sql("DROP ROLE guest")
    admin.dispose()


@pytest.mark.parametrize(("part", "other"), [("plevel@", "nobody@"), (r"/test_\w+\?", "/nothing?")])
def test_a_server_that_refuses_is_not_to_be_started(postgres_url: str, part: str, other: str) -> None:
    url = re.sub(part, other, postgres_url)
    assert url != postgres_url
    with pytest.raises(DatabaseError, match="does not exist: check the user, the password and") as caught:
        migration.check(url)
    assert "start the server" not in str(caught.value)


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("remember the milk, and everything else")
    with pytest.raises(DatabaseError, match="not an SQLite file"):
        migration.upgrade(str(path))
    with pytest.raises(DatabaseError, match="is a folder"):
        migration.upgrade(str(tmp_path))
    assert path.read_text().startswith("remember")


def test_a_password_is_not_shown() -> None:
    store = Store("postgresql://user:secret@host/name")
    assert "secret" not in migration.shown(store)
    store.close()


@pytest.mark.parametrize("by", ["u:geheim@h/d", "u@h/d?password=geheim", "h/d?sslpassword=geheim&user=u"])
def test_a_password_is_never_shown(by: str) -> None:
    assert "geheim" not in show_url(normal_url(f"postgresql://{by}"))
