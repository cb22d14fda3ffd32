"""Names in filters of lists: what is nearly a known name is an error, not an empty list."""

from __future__ import annotations

import sqlalchemy as sa

from service.errors import InvalidError
from service.store.sql import is_given
from service.store.tables import task, workload
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

    The namespace itself is not checked: it exists as soon as something is stored in it, and may be asked
    before. Names on record are those of its tasks, of all namespaces' where it is None.

    Raises:
        InvalidError: one is neither installed nor on record, and near to one that is.
    """
    if not op and not implementation:  # to list the installed operators, all of their modules are loaded
        return
    listed = installed()
    implementations = {name for of in listed.values() for name in of}
    for field, given, own, column in (
        ("op", op, listed.keys(), workload.c.op),
        ("implementation", implementation, implementations, task.c.implementation),
    ):
        if not given or given in own:
            continue
        on_record = sa.select(column).join_from(task, workload, workload.c.id == task.c.workload_id).distinct()
        known = {*own, *connection.scalars(on_record.where(is_given(task.c.namespace, namespace)))}
        meant = suggest(given, known)
        if given not in known and meant:
            raise InvalidError(f"{field}: {given!r:.80} is not known{meant}")
