"""Workers and their devices: registration, liveness, and ownership of devices.

A device has an identity, and belongs to the token that registered it first. A row of `device` never
changes: a device whose description changes gets another row with a new history, and earlier records
stay with the earlier row.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from service.errors import ForbiddenError, InvalidError, LeaseLostError, NotFoundError
from service.store import catalogue, event
from service.store.row_cache import by_id, recall
from service.store.sql import among, insert, now, one_trip
from service.store.tables import device, device_owner, lease, token, worker, worker_device
from strategy.record import LONGEST_NAME, WorkerInfo

RENAMING = " renaming"  # the lock of renamings, and the beginning of a temporary identity, which no worker has


def register(connection: sa.Connection, info: WorkerInfo, token_id: int | None = None) -> int:
    """Register a worker with its devices; return its id. Later requests for it need a token of the same name.

    A device with an unchanged description keeps its row and history.

    Raises:
        InvalidError: a device is listed twice.
        ForbiddenError: a device belongs to another token.
    """
    identities = [d.identity for d in info.devices]
    if len(set(identities)) < len(identities):
        raise InvalidError("devices: a device is listed twice: list each once")
    _claim(connection, identities, token_id)
    worker_id = connection.execute(
        sa.insert(worker)
        .values(
            name=info.name, host=info.host, pid=info.pid, version=info.version,
            operators=info.operators, token_id=token_id, created_at=now(), seen_at=now(),
        )
        .returning(worker.c.id)
    ).scalar_one()
    # Table by table, each in a fixed order, so that registrations and imports cannot deadlock.
    ordered = sorted(info.devices, key=lambda d: (d.target.key, d.identity))
    targets = [catalogue.put_target(connection, described.target) for described in ordered]
    for described, target_id in zip(ordered, targets, strict=True):
        device_id = catalogue.put_device(
            connection, described.identity, described.slot,
            described.model or described.target.model, target_id, described.target.to_json(),
            described.fingerprint,
        )
        connection.execute(sa.update(device).where(device.c.id == device_id).values(seen_at=now()))
        connection.execute(
            sa.insert(worker_device).values(
                worker_id=worker_id, device_id=device_id, target_id=target_id
            )
        )
    event.note(connection, "registered", worker_id=worker_id, name=info.name, devices=identities)
    return int(worker_id)


def _claim(connection: sa.Connection, identities: Collection[str], token_id: int | None) -> None:
    """Lock devices until the transaction ends; those without an owner become the token's.

    Without a token, all are allowed. A token of the same name counts as the owner, so that tokens can be
    replaced before they expire. Raises `ForbiddenError`.
    """
    name = None
    if token_id is not None:
        name = connection.execute(sa.select(token.c.name).where(token.c.id == token_id)).scalar_one()
    for identity in sorted(identities):
        owner = _lock(connection, identity)
        if owner is None:
            _give(connection, identity, name)
        elif name not in (None, owner):
            raise ForbiddenError(
                f"device {identity!r:.200} belongs to token {owner!r}, not to {name!r}: use that token, or "
                f"have an administrator transfer it: plevel fleet move {identity} {name}"
            )


def _lock(connection: sa.Connection, identity: str) -> str | None:
    """The name of the token that owns a device; locks it until the transaction ends."""
    put = insert(connection, device_owner).values(identity=identity).on_conflict_do_nothing()
    with one_trip(connection) as ask:
        connection.execute(put.inline())
        rows = ask(_OWNER, {"identity": identity})
    owner: str | None = rows[0].owner
    return owner


_OWNER = (
    sa.select(device_owner.c.owner)
    .where(device_owner.c.identity == sa.bindparam("identity"))
    .with_for_update(key_share=True)
)


def _give(connection: sa.Connection, identity: str, name: str | None) -> None:
    connection.execute(sa.update(device_owner).where(device_owner.c.identity == identity).values(owner=name))


def move(connection: sa.Connection, identity: str, name: str) -> None:
    """Transfer a device to the tokens of a name; end workers of other tokens that drive it.

    Raises:
        NotFoundError: the device or the token does not exist.
    """
    _check_device(connection, identity)
    named = sa.select(token.c.id).where(token.c.name == name)
    if connection.scalar(named.limit(1)) is None:
        raise NotFoundError(f"token {name!r:.200} does not exist: `plevel token list` lists the tokens")
    _lock(connection, identity)
    _give(connection, identity, name)
    of_others = sa.or_(worker.c.token_id.is_(None), worker.c.token_id.not_in(named))
    _end_drivers(connection, [identity], of_others)
    event.note(connection, "moved", device=identity, owner=name)


def lock_device(connection: sa.Connection, device_id: int) -> sa.Select[tuple[int]]:
    """Lock all rows of a device until the transaction ends; return the query of their ids."""
    query = sa.select(device.c.identity).where(device.c.id == device_id)
    identity = connection.execute(query).scalar_one()
    _lock(connection, identity)
    # It may have been renamed before the lock, and others lock its new name.
    while (found := connection.execute(query).scalar_one()) != identity:
        identity = found
        _lock(connection, identity)
    return sa.select(device.c.id).where(_named(identity))


def _named(identity: str) -> sa.ColumnElement[bool]:
    return device.c.identity == identity


def _check_device(connection: sa.Connection, identity: str) -> None:
    if connection.scalar(sa.select(device.c.id).where(_named(identity)).limit(1)) is None:
        raise NotFoundError(f"device {identity!r:.200} is not known: `plevel workers --json` lists the devices")


def _end_drivers(
    connection: sa.Connection, identities: Collection[str], *conditions: sa.ColumnElement[bool]
) -> None:
    """End the workers that drive the devices, so that they register again."""
    drives = (
        sa.select(worker_device.c.worker_id)
        .join(device, device.c.id == worker_device.c.device_id)
        .where(device.c.identity.in_(identities))
    )
    # In the order of heartbeats, against deadlocks.
    found = sa.select(worker.c.id).where(worker.c.id.in_(drives), worker.c.ended_at.is_(None), *conditions)
    ids = connection.scalars(found.order_by(worker.c.id).with_for_update(key_share=True)).all()
    connection.execute(sa.update(worker).where(among(worker.c.id)).values(ended_at=now()), {"ids": ids})


def check_worker(connection: sa.Connection, worker_id: int, owner: str | None) -> None:
    """Raise `NotFoundError` if a worker belongs to another token; without a token (None) all are allowed."""
    if owner is not None and owners(connection, [worker_id]).get(worker_id) != owner:
        raise unknown_worker(worker_id)


def owners(connection: sa.Connection, workers: Collection[int]) -> Mapping[int, str | None]:
    """The names of the tokens that workers registered with, by the workers' ids."""
    return recall(connection, "owner", workers, _find_owners)


_find_owners = by_id(
    lambda row: row.name,
    sa.select(worker.c.id, token.c.name).select_from(worker).outerjoin(token, token.c.id == worker.c.token_id),
)


_LEASE_OWNERS = (
    sa.select(lease.c.id, token.c.name)
    .join(worker, worker.c.id == lease.c.worker_id)
    .join(token, token.c.id == worker.c.token_id)
    .where(among(lease.c.id))
)


def check_leases(connection: sa.Connection, leases: Collection[int], owner: str | None) -> None:
    """Raise `LeaseLostError` if a lease's worker belongs to another token."""
    for error in find_strange(connection, [(leases, owner)]):
        if error is not None:
            raise error


def find_strange(
    connection: sa.Connection, asked: Sequence[tuple[Collection[int], str | None]]
) -> list[LeaseLostError | None]:
    """For each set of leases the error if one's worker belongs to another token than the named one (None: any)."""
    ids = {lease_id for leases, owner in asked if owner is not None for lease_id in leases}
    owners = {row.id: row.name for row in connection.execute(_LEASE_OWNERS, {"ids": ids})} if ids else {}
    errors: list[LeaseLostError | None] = []
    for leases, owner in asked:
        strange = [] if owner is None else [i for i in leases if owners.get(i) != owner]
        errors.append(
            LeaseLostError(f"lease {min(strange)} belongs to a worker of another token: send one of that name")
            if strange
            else None
        )
    return errors


def unknown_worker(worker_id: int) -> NotFoundError:
    return NotFoundError(f"worker {worker_id} is not registered: register again")


def end(connection: sa.Connection, worker_id: int) -> None:
    """Mark a worker as left; its leases are released by the queue."""
    ended = connection.execute(
        sa.update(worker)
        .where(worker.c.id == worker_id, worker.c.ended_at.is_(None))
        .values(ended_at=now())
    )
    if not ended.rowcount:
        raise unknown_worker(worker_id)
    event.note(connection, "left", worker_id=worker_id)


def rename(connection: sa.Connection, old: str, new: str) -> None:
    """Give a device another identity; if another device has it, exchange the two.

    Their workers must register again. Raises `NotFoundError`, or `InvalidError` for an identity that is none.
    """
    if not 0 < len(new) <= LONGEST_NAME:
        raise InvalidError(f"new {new!r:.80}: name an identity of up to {LONGEST_NAME} characters")
    # Renamings run one at a time, as each may change the names that another uses.
    owners = {name: _lock(connection, name) for name in sorted({RENAMING, old, new})}
    _check_device(connection, old)
    if owners[new] is None:
        _give(connection, new, owners[old])
    _end_drivers(connection, [old, new])  # before their devices, in the lock order of leasing
    between = f"{RENAMING} {secrets.token_hex(8)}"
    for name, other in ((old, between), (new, old), (between, new)):
        connection.execute(sa.update(device).where(_named(name)).values(identity=other))
    event.note(connection, "renamed", old=old, new=new)


def is_alive(alive_s: float | sa.BindParameter[float]) -> sa.ColumnElement[bool]:
    """The condition on `worker` that it has not left and sent a heartbeat within `alive_s`."""
    return sa.and_(
        worker.c.ended_at.is_(None),
        worker.c.seen_at > now() - alive_s,
        worker.c.seen_at < now() + alive_s,  # else the clock has been set back
    )


def of_live(alive_s: float | sa.BindParameter[float], *columns: Any) -> sa.Select[Any]:
    """Columns of the devices of live workers, from `worker_device` and `worker`."""
    driven = worker_device.join(worker, worker.c.id == worker_device.c.worker_id)
    return sa.select(*columns).select_from(driven).where(is_alive(alive_s))


def count_alive(connection: sa.Connection, target_id: int, alive_s: float) -> int:
    """Count the devices of live workers that have this target."""
    query = of_live(alive_s, sa.func.count(worker_device.c.device_id.distinct()))
    return int(connection.execute(query.where(worker_device.c.target_id == target_id)).scalar_one())


def count_held(connection: sa.Connection, target_id: int, alive_s: float) -> int:
    """Count the jobs that live workers of a target have at once: one that a device times, and those ahead of it."""
    each = (
        of_live(alive_s, (1 + sa.func.max(worker.c.ahead)).label("held"))
        .where(worker_device.c.target_id == target_id)
        .group_by(worker_device.c.device_id)
        .subquery()
    )
    return int(connection.scalar(sa.select(sa.func.sum(each.c.held))) or 0)
