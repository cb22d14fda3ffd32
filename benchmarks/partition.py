"""The sizes of the log and its indexes on PostgreSQL, and the times of closing and thinning a partition of it.

    python benchmarks/partition.py --postgresql URL [--records 10000000]

It takes an empty database. The first records are imported as a fleet sends them, and copied under other identities
and configurations until there are enough: a minute for 10⁶, ten minutes and 8 GB for 10⁷. There is no peer.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.fixture import make_parser
from benchmarks.result import Table
from benchmarks.store import records
from service.records.importer import import_items
from service.store import migration
from service.store.db import Store

SCRIPT = Path(__file__).parents[1] / "deploy/postgresql/partition.sql"
IMPORTED = 100_000
PER_TASK = 100
OTHER = {  # of a copy with number %(n)s
    "id": "nextval('record_id_seq')",
    "identity": "decode(md5(concat(id, '-', %(n)s)), 'hex')",
    "config_digest": "md5(concat(id, %(n)s)) || md5(concat(%(n)s, 'x', id))",
}


def fill(store: Store, admin: psycopg.Connection[Any], count: int) -> None:
    first = min(count, IMPORTED)
    import_items(store, records(first, max(count // PER_TASK, 1)), ahead=False)
    found = admin.execute("SELECT column_name FROM information_schema.columns WHERE table_name = 'record'").fetchall()
    names = [name for (name,) in found]
    copied = ", ".join(OTHER.get(name, name) for name in names)
    statement = f"INSERT INTO record ({', '.join(names)}) SELECT {copied} FROM record WHERE id <= {first}"
    for n in range(1, count // first):
        admin.execute(statement.replace("%(n)s", str(n)))


def sizes(admin: psycopg.Connection[Any]) -> dict[str, int]:
    """Bytes of the table and of each index."""
    rows = admin.execute(
        "SELECT 'record', pg_table_size('record') UNION ALL "
        "SELECT indexrelid::regclass::text, pg_relation_size(indexrelid) FROM pg_index "
        "WHERE indrelid = 'record'::regclass ORDER BY 2 DESC"
    )
    return {str(name): int(size) for name, size in rows}


def timed(admin: psycopg.Connection[Any], statement: str) -> float:
    began = time.perf_counter()
    admin.execute(statement)
    return time.perf_counter() - began


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--postgresql", metavar="URL", required=True, help="an empty database")
    parser.add_argument("--records", type=int, default=1_000_000)
    given = parser.parse_args()
    migration.upgrade(given.postgresql)
    store = Store(given.postgresql)
    url = store.url.set(drivername="postgresql").render_as_string(hide_password=False)
    table = Table({f"{given.records:,} records": "", "bytes a record": "", "": ""})
    with psycopg.connect(url, autocommit=True) as admin, table.saved(variant=str(given.records)):
        fill(store, admin, given.records)
        found = sizes(admin)
        for name, size in (found | {"all": sum(found.values())}).items():
            table.add(name, size / given.records, (size / 2**30, "GiB"))
        admin.execute(SCRIPT.read_text())
        thin = "SELECT plevel_thin(('record_' || to_char(now(), 'YYYY_MM'))::regclass)"
        table.add("closing the partition", None, (timed(admin, "CALL plevel_partition()"), "s"))
        table.add("thinning it to the best", None, (timed(admin, thin), "s"))
    store.close()


if __name__ == "__main__":
    main()
