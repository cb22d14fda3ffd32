"""Confirmations of networks: the verdicts on kernels in whole graphs, the newest of each key."""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa

from service.errors import NotFoundError
from service.records.filter import has_words
from service.store.sql import insert, is_given, now
from service.store.tables import network
from strategy.confirmation import Confirmation, Part
from strategy.record import convert, to_json


class Network(msgspec.Struct, frozen=True, kw_only=True):
    """A confirmation on record; `recorded_at` is its last report."""

    id: int
    recorded_at: float
    confirmation: Confirmation


class Networks(msgspec.Struct, frozen=True, kw_only=True):
    """A page of confirmations, the newest first; `next` is the cursor of the following page."""

    networks: tuple[Network, ...]
    next: int | None


def put(connection: sa.Connection, confirmation: Confirmation, namespace: str) -> int:
    """Record a confirmation in place of an earlier one of its key; return its id."""
    values = {
        "graph": confirmation.graph, "device_model": confirmation.target.model,
        "body": to_json(confirmation), "recorded_at": now(),
    }
    query = insert(connection, network).values(namespace=namespace, key=confirmation.key, **values)
    query = query.on_conflict_do_update(index_elements=["namespace", "key"], set_=values)
    return int(connection.execute(query.returning(network.c.id)).scalar_one())


def page(
    connection: sa.Connection,
    namespace: str | None,
    *,
    graph: str | None = None,
    graph_begin: str = "",
    device_model: str | None = None,
    device_has: str = "",
    limit: int = 100,
    cursor: int | None = None,
) -> Networks:
    """A page of the confirmations of one namespace, or of all; of graphs that begin so, on models that have words."""
    wanted = {"namespace": namespace, "graph": graph, "device_model": device_model}
    query = sa.select(network).where(*(is_given(network.c[name], value) for name, value in wanted.items()))
    query = query.where(*has_words(network.c.device_model, device_has))
    if graph_begin:
        query = query.where(network.c.graph.startswith(graph_begin, autoescape=True))
    if cursor is not None:
        query = query.where(network.c.id < cursor)
    rows = connection.execute(query.order_by(network.c.id.desc()).limit(limit + 1)).all()
    last = rows[limit - 1].id if len(rows) > limit else None
    return Networks(networks=tuple(map(_read, rows[:limit])), next=last)


def find(connection: sa.Connection, network_id: int, namespace: str | None) -> Network:
    """One confirmation.

    Raises:
        NotFoundError: there is none of this id in the namespace.
    """
    row = connection.execute(sa.select(network).where(network.c.id == network_id)).one_or_none()
    if row is None or namespace not in (None, row.namespace):
        raise NotFoundError(f"network {network_id} does not exist: /v1/networks lists what is on record")
    return _read(row)


class _StoredPart(Part, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """A part of a `_Stored`."""


class _Stored(Confirmation, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """A confirmation on record. Fields of a newer plevel, which has stored it, are left out."""

    parts: tuple[_StoredPart, ...]


def _read(row: Any) -> Network:
    return Network(id=row.id, recorded_at=row.recorded_at, confirmation=convert(row.body, _Stored))
