"""Joining a live run by an equal request: the run goes on under the terms of whichever is the more urgent."""

from __future__ import annotations

import sqlalchemy as sa

from service.queue import job as jobs
from service.store import event
from service.store.tables import LIVE, JobState, job, run
from strategy.record import RunRequest, StoredRequest, convert


def join(connection: sa.Connection, request: RunRequest, digest: str, namespace: str) -> int | None:
    """The live run that an equal request joins; None if there is none. One with `force` joins only a forced one.

    The higher priority and the larger number of concurrent jobs hold from then on, also for what is queued.
    """
    wanted = [run.c.digest == digest, run.c.namespace == namespace, run.c.state.in_(LIVE)]
    if request.force:
        wanted.append(run.c.forced)
    query = sa.select(run.c.id, run.c.request).where(*wanted).order_by(run.c.id).limit(1)
    found = connection.execute(query.with_for_update(key_share=True)).one_or_none()
    if found is None:
        return None
    theirs = convert(found.request, StoredRequest)
    most = None if None in (theirs.max_jobs, request.max_jobs) else max(theirs.max_jobs or 0, request.max_jobs or 0)
    priority = max(theirs.priority, request.priority)
    if (priority, most) != (theirs.priority, theirs.max_jobs):
        both = found.request | {"priority": priority, "max_jobs": most}  # with fields that only a newer plevel knows
        connection.execute(sa.update(run).where(run.c.id == found.id).values(request=both, max_jobs=most))
        queued = sa.select(*job.c["id", "priority"]).where(job.c.run_id == found.id, job.c.state == JobState.QUEUED)
        for row in connection.execute(queued.order_by(job.c.id).with_for_update(key_share=True)).all():
            raised = sa.update(job).where(job.c.id == row.id).values(priority=jobs.raised(row.priority, priority))
            connection.execute(raised)
    event.note(connection, "joined", run_id=found.id)
    return int(found.id)
