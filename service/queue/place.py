"""Devices that ask for jobs, and what their workers can build."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import orjson
import sqlalchemy as sa

from service.errors import InvalidError, ServiceError
from service.queue import fleet
from service.store.row_cache import recall
from service.store.sql import among
from service.store.tables import device, token, worker, worker_device
from strategy.record import ALL

Operators = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class Lack:
    """An operator, or a version of one of its implementations, that workers lack; and the versions that they have."""

    op: str
    implementation: str = ""
    version: str = ""
    had: tuple[str, ...] = ()


@dataclass(frozen=True)
class LeaseAsk:
    """A request for jobs for a worker's device, which then builds at most `most`.

    The owner is the name of the token, which must be that of the one that registered the worker; None: there is none.
    """

    worker_id: int
    device: str
    most: int = 1
    owner: str | None = None


@dataclass(frozen=True)
class Place:
    """A registered device and its worker."""

    worker_id: int
    device_id: int
    identity: str
    model: str
    target_id: int
    operators: Operators
    owner: str | None

    def can_build(self, needs: str) -> bool:
        return can_build(needs, self.operators)


def find_places(connection: sa.Connection, asks: Sequence[LeaseAsk]) -> list[Place | ServiceError]:
    """The device and worker of each request, or its error.

    `NotFoundError` if the worker is another token's, `InvalidError` if the worker did not register the device.
    """
    keys = [(ask.worker_id, ask.device) for ask in asks]
    known = recall(connection, "place", set(keys), _find_places)
    return [_check(ask, known.get(key)) for ask, key in zip(asks, keys, strict=True)]


def _check(ask: LeaseAsk, place: Place | None) -> Place | ServiceError:
    if place is None:
        return InvalidError(f"device {ask.device!r:.100} was not registered by worker {ask.worker_id}: register again")
    return place if ask.owner in (None, place.owner) else fleet.unknown_worker(ask.worker_id)


_PLACES = (
    sa.select(worker_device, *device.c["identity", "model"], worker.c.operators, token.c.name.label("owner"))
    .join(device, device.c.id == worker_device.c.device_id)
    .join(worker, worker.c.id == worker_device.c.worker_id)
    .outerjoin(token, token.c.id == worker.c.token_id)
    .where(among(worker.c.id))
)


def _find_places(
    connection: sa.Connection, keys: Collection[tuple[int, str]]
) -> dict[tuple[int, str], Place]:
    rows = connection.execute(_PLACES, {"ids": {worker_id for worker_id, _ in keys}})
    return {
        (r.worker_id, r.identity): Place(
            r.worker_id, r.device_id, r.identity, r.model, r.target_id, r.operators, r.owner
        )
        for r in rows
    }


def can_build(needs: str, operators: Operators) -> bool:
    """Return whether a worker with these operators and versions can build a job; one that listed none can build any."""
    if not operators:
        return True
    op, versions = _read_needs(needs)
    known = operators.get(op)
    if known is None:
        return False
    return all(str(known[name]) == version if name in known else ALL in known for name, version in versions)


def lacking(needs: str, fleet: Collection[Operators]) -> tuple[Lack, ...]:
    """The needs of a job that not all of these workers meet: the operator alone if none of them has it.

    An implementation that no worker lists, and all may have by another package, is not lacking.
    """
    op, versions = _read_needs(needs)
    known = [operators[op] for operators in fleet if op in operators]
    if not known:
        return (Lack(op),)
    lacks = (Lack(op, name, version, _versions_of(name, known)) for name, version in versions)
    return tuple(one for one in lacks if one.had not in ((), (one.version,)))


def _versions_of(name: str, known: Collection[Mapping[str, int]]) -> tuple[str, ...]:
    """The versions of an implementation that workers list, ascending; empty text stands for none."""
    had = {str(of_op.get(name) or "") for of_op in known if name in of_op or ALL not in of_op}
    return tuple(sorted(had, key=lambda version: int(version or -1)))


@lru_cache(maxsize=4096)
def _read_needs(needs: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    wanted = orjson.loads(needs)
    return wanted["op"], tuple(wanted["versions"].items())
