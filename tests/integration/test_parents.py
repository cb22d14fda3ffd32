"""References of imported records on PostgreSQL, which triggers check once per statement."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa

from service.records.importer import import_items
from service.store import migration
from service.store.db import Store
from service.store.tables import best, environment, history, record, timing_policy
from tests.integration.test_import import count, made
from tests.integration.test_partition import SCRIPT
from tests.integration.test_races import await_waiting
from tests.limit import HANG_S

PARENTS: dict[str, str] = importlib.import_module("migrations.versions.0013_statement_checks").PARENTS
MISSING = 10**6


@pytest.fixture
def store(postgres_copy: str) -> Iterator[Store]:
    """A log of two records, which have all references that imported ones may have, and a policy without records."""
    found = Store(postgres_copy)
    import_items(found, [made(i, device_model="v100") for i in range(2)])
    with found.write() as c:
        given = {"digest": "d", "body": {}}
        ids = {
            "environment_id": c.scalar(
                sa.insert(environment).values(**given, created_at=0.0).returning(environment.c.id)
            ),
            "policy_id": c.scalar(sa.insert(timing_policy).values(**given).returning(timing_policy.c.id)),
        }
        c.execute(sa.update(record).values(**ids))
        c.execute(sa.insert(timing_policy).values(digest="free", body={}))
        for other in (best, history):  # which have foreign keys of their own
            c.execute(sa.delete(other))
    yield found
    found.close()


def partition(store: Store) -> None:
    with store.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as c:
        c.exec_driver_sql(SCRIPT.read_text().replace("%", "%%"))
        c.exec_driver_sql("CALL plevel_partition()")


def copy(store: Store, **changed: int) -> None:
    """Store the first record once more, under another identity and with other references."""
    with store.write() as c:
        row = dict(c.execute(sa.select(record).order_by(record.c.id).limit(1)).mappings().one())
        del row["id"]
        c.execute(sa.insert(record).values(row | {"identity": bytes(16)} | changed))


def refusal(column: str) -> str:
    return f"ForeignKeyViolation.*record.{column}: public.{PARENTS[column]} has no id {MISSING}"


def check(store: Store) -> None:
    """Each reference is refused where its row is missing, and each row kept while records refer to it."""
    before = count(store, record)
    for column, parent in PARENTS.items():
        with pytest.raises(sa.exc.IntegrityError, match=refusal(column)):
            copy(store, **{column: MISSING})
        with pytest.raises(sa.exc.IntegrityError, match=refusal(column)), store.write() as c:
            c.execute(sa.update(record).values({column: MISSING}))
        for act in ("DELETE FROM", "UPDATE"):
            moved = f" SET id = {MISSING}" if act == "UPDATE" else ""
            where = f"WHERE id = (SELECT max({column}) FROM record)"
            with pytest.raises(sa.exc.IntegrityError, match=f"has records, by record.{column}"), store.write() as c:
                c.exec_driver_sql(f"{act} {parent}{moved} {where}")
    assert count(store, record) == before


def keys(store: Store) -> set[str]:
    with store.read() as c:
        found = sa.inspect(c).get_foreign_keys("record")
    return {column for key in found for column in key["constrained_columns"]}


@pytest.mark.parametrize("partitioned", [False, True])
def test_a_reference_is_as_safe_as_by_a_foreign_key(store: Store, partitioned: bool) -> None:
    if partitioned:
        partition(store)
    assert keys(store) == {"run_id", "job_id", "lease_id", "worker_id"}
    check(store)
    import_items(store, [made(i) for i in range(2, 300)])  # COPY, without environment and policy
    assert count(store, record) == 300
    with store.write() as c:
        c.execute(sa.update(timing_policy).values(digest=timing_policy.c.digest + "x", id=timing_policy.c.id))
        assert c.execute(sa.delete(timing_policy).where(timing_policy.c.digest == "freex")).rowcount == 1


FREE = timing_policy.c.digest == "free"


def test_a_transaction_that_does_not_see_others_neither_deletes_nor_refers_to_what_is_deleted(store: Store) -> None:
    with store.engine.connect().execution_options(isolation_level="REPEATABLE READ") as c:
        with pytest.raises(sa.exc.IntegrityError, match="that only READ COMMITTED sees"), c.begin():
            c.execute(sa.delete(timing_policy).where(FREE))
        c.begin()
        free = c.scalar(sa.select(timing_policy.c.id).where(FREE))
        with store.write() as other:
            other.execute(sa.delete(timing_policy).where(FREE))
        with pytest.raises(sa.exc.OperationalError, match="SerializationFailure"):
            c.execute(sa.update(record).values(policy_id=free))


def test_an_older_schema_has_the_foreign_keys_of_a_partitioned_log(store: Store, postgres_copy: str) -> None:
    partition(store)
    store.engine.dispose()
    migration.downgrade(postgres_copy, "0012")
    assert keys(store) >= PARENTS.keys()
    with pytest.raises(sa.exc.IntegrityError, match="fk_record_variant_id_target_variant"):
        copy(store, variant_id=MISSING)
    migration.upgrade(postgres_copy)
    check(store)


@pytest.mark.parametrize("first", ["insertion", "deletion"])
def test_a_row_is_deleted_before_a_record_or_not_at_all(store: Store, first: str) -> None:
    with store.read() as c:
        free = c.scalar(sa.select(timing_policy.c.id).where(timing_policy.c.digest == "free"))
    assert free is not None

    def insert() -> None:
        copy(store, policy_id=free)

    def delete() -> None:
        with store.write() as c:
            c.execute(sa.delete(timing_policy).where(timing_policy.c.id == free))

    with ThreadPoolExecutor(1) as pool:
        with store.write() as c:
            if first == "insertion":
                c.execute(sa.update(record).values(policy_id=free))
            else:
                c.execute(sa.delete(timing_policy).where(timing_policy.c.id == free))
            other = pool.submit(delete if first == "insertion" else insert)
            await_waiting(store, 1)
        with pytest.raises(sa.exc.IntegrityError, match=f"policy {free} has records|timing_policy has no id {free}"):
            other.result()


def test_insertions_do_not_wait_for_each_others_references(store: Store) -> None:
    with ThreadPoolExecutor(1) as pool, store.write() as c:
        c.execute(sa.update(record).values(policy_id=record.c.policy_id))  # holds them as an insertion does
        pool.submit(copy, store).result(HANG_S)
    assert count(store, record) == 3
