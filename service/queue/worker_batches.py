"""Serve workers' requests; batch concurrent ones into one transaction."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from service.errors import STOPPING, ServiceError, StoppedError
from service.queue import fleet, heartbeat, renewal
from service.queue import lease as leasing
from service.queue import report as reporting
from service.queue.place import LeaseAsk
from service.queue.retry import Terms
from service.store.batcher import Batcher
from service.store.db import Store
from strategy.record import Lease, Renewal, Report, ResultsAccepted

# The largest batches: of jobs to lease, jobs with results, and workers. A device idles until its lease
# comes, while results are safe on their worker's disk: leases have priority, and batches of results are small.
LEASED = 512
REPORTED = 48
WORKERS = 1000


# The reports of one request, and the owner of its token.
Request = tuple[Sequence[Report], str | None]
Answers = Sequence[ResultsAccepted | ServiceError]


class WorkerBatches:
    """One batcher for each kind of workers' requests. Bound to one event loop."""

    def __init__(self, store: Store, terms: Terms) -> None:
        self._store = store
        self._terms = terms
        self._leases: Batcher[LeaseAsk, list[Lease]] = Batcher(self._lease, LEASED, lambda ask: ask.most)
        self._looks: Batcher[LeaseAsk, bool] = Batcher(self._look, WORKERS)
        self._reports: Batcher[Request, Answers] = Batcher(
            self._store_results, REPORTED, lambda request: len(request[0]), first=self._leases
        )
        self._renewals = Batcher(self._renew, WORKERS)
        self._signs = Batcher(self._see, WORKERS)

    def refuse_leases(self) -> None:
        """Raise `StoppedError` for those that wait for a lease or a look at the queue; what was sent is stored."""
        for batcher in (self._leases, self._looks):
            batcher.refuse(StoppedError(STOPPING))

    async def lease(self, ask: LeaseAsk) -> list[Lease]:
        """Lease jobs, as `lease.lease_many`; empty if another service claimed them first."""
        return await self._leases.ask(ask)

    async def may_lease(self, ask: LeaseAsk) -> bool:
        """Return whether a job may be available for the device, without writing."""
        return await self._looks.ask(ask)

    async def report(self, reports: Sequence[Report], owner: str | None) -> Answers:
        """Store results, as `report.report_many`.

        Raises:
            LeaseLostError: a lease belongs to a worker of another token; nothing is stored.
        """
        return await self._reports.ask((reports, owner))

    async def renew(self, lease_id: int, asked: Renewal, owner: str | None) -> renewal.Kept | None:
        """Renew a lease, as `renewal.renew_many`; None also if it belongs to a worker of another token."""
        return await self._renewals.ask((lease_id, asked, owner))

    async def see(self, worker_id: int, owner: str | None) -> None:
        """Store a heartbeat; raise `NotFoundError` for a worker that is unknown or belongs to another token."""
        if not await self._signs.ask((worker_id, owner)):
            raise fleet.unknown_worker(worker_id)

    def _lease(self, asks: Sequence[LeaseAsk]) -> Sequence[list[Lease] | ServiceError]:
        try:
            with self._store.write() as connection:
                return leasing.lease_many(connection, asks, self._terms)
        except sa.exc.IntegrityError:
            if len(asks) > 1:
                raise
            return [[]]

    def _look(self, asks: Sequence[LeaseAsk]) -> Sequence[bool]:
        with self._store.read() as connection:
            return leasing.may_lease(connection, asks)

    def _store_results(self, requests: Sequence[Request]) -> Sequence[Answers | ServiceError]:
        with self._store.write() as connection:
            errors = fleet.find_strange(
                connection, [({one.lease_id for one in reports}, owner) for reports, owner in requests]
            )
            asked = list(zip(requests, errors, strict=True))
            accepted = [one for (reports, _), error in asked if error is None for one in reports]
            found = iter(reporting.report_many(connection, accepted, self._terms))
        return [[next(found) for _ in reports] if error is None else error for (reports, _), error in asked]

    def _renew(self, requests: Sequence[tuple[int, Renewal, str | None]]) -> Sequence[renewal.Kept | None]:
        with self._store.write() as connection:
            errors = fleet.find_strange(connection, [({lease_id}, owner) for lease_id, _, owner in requests])
            asked = list(zip(requests, errors, strict=True))
            own = [(lease_id, one.token, one.timing) for (lease_id, one, _), error in asked if error is None]
            found = iter(renewal.renew_many(connection, own, self._terms))
        return [next(found) if error is None else None for error in errors]

    def _see(self, signs: Sequence[tuple[int, str | None]]) -> Sequence[bool]:
        with self._store.write() as connection:
            workers = {worker_id for worker_id, _ in signs}
            known = heartbeat.store(connection, workers, self._terms.alive_s)
            owners = fleet.owners(connection, known)
        return [
            worker_id in known and owner in (None, owners[worker_id])
            for worker_id, owner in signs
        ]
