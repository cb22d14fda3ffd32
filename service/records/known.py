"""Names in filters of lists: what is nearly a known name is an error, not an empty list."""

from __future__ import annotations

import sqlalchemy as sa

from service.errors import InvalidError
from service.store.namespace import DEFAULT
from service.store.tables import run, task, token, workload
from strategy.installed import installed
from strategy.suggestion import suggest


def check_names(
    connection: sa.Connection,
    *,
    op: str | None = None,
    implementation: str | None = None,
    namespace: str | None = None,
) -> None:
    """Check the names of a filter that nothing matches.

    Raises:
        InvalidError: one is neither installed nor on record, and near to one that is.
    """
    listed = installed()
    implementations = {name for of in listed.values() for name in of}
    for field, given, own, columns in (
        ("op", op, listed.keys(), [workload.c.op]),
        ("implementation", implementation, implementations, [task.c.implementation]),
        ("namespace", namespace, {DEFAULT}, [task.c.namespace, run.c.namespace, token.c.namespace]),
    ):
        if not given or given in own:
            continue
        on_record = sa.union(*(sa.select(column).where(column.is_not(None)) for column in columns))
        known = {*own, *connection.scalars(on_record)}
        meant = suggest(given, known)
        if given not in known and meant:
            raise InvalidError(f"{field}: {given!r:.80} is not known{meant}")
