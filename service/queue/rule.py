"""Rules of claiming: conditions on which a device gets a queued job, and explanations of refusals.

The claim (`claim`) takes no job that a rule refuses, and `plevel why` (`explain`) names the rules that refuse it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from service.queue import fleet, pause, retry
from service.queue import job as jobs
from service.store.sql import is_due
from service.store.tables import JobState, job, lease, run, worker, worker_device
from strategy.record import Phase

# Time for which a final is reserved for another device than timed the previous one; idle workers poll constantly.
SPREAD_S = 2.0


@dataclass(frozen=True)
class Claimant:
    """A device and the worker that drives it: parameters of a statement, or columns of its rows."""

    worker_id: Any
    device_id: Any
    target_id: Any
    alive_s: Any = None


@dataclass(frozen=True)
class Rule:
    """A rule of claiming.

    Args:
        allows: the condition, over a row of `job`, that the claimant may claim it.
        refusal: the explanation of a refusal, a format string with the fields of `explain`.
        concerns: a condition on the job alone; jobs that do not meet it are always allowed, those that
            do are claimed one by one. None if the rule depends on the claimant or the time alone.
    """

    allows: sa.ColumnElement[bool]
    refusal: str
    concerns: sa.ColumnElement[bool] | None = None


BACK_OFF = Rule(
    is_due(job.c.available_at, retry.MAX_BACKOFF_S), "backing off for another {back_off_s:.0f} s"
)


def rules_of(claimant: Claimant) -> tuple[Rule, ...]:
    """All rules, in the order in which they are explained."""
    return BACK_OFF, *claimant_rules(claimant), *job_rules(claimant)


def claimant_rules(claimant: Claimant) -> tuple[Rule, ...]:
    """The rules that depend on the claimant alone, and so hold for all jobs or for none."""
    suspect = job.alias("suspect")
    holds_suspect = (
        _held(claimant)
        .join(suspect, suspect.c.id == lease.c.job_id)
        .where(suspect.c.attempts > 0)
        .correlate_except(lease, suspect)
        .exists()
    )
    return (
        Rule(~pause.is_paused(claimant.device_id, claimant.target_id), "{pauses}"),
        Rule(~holds_suspect, "a worker for it holds a job that was lost before, which runs alone"),
    )


def job_rules(claimant: Claimant) -> tuple[Rule, ...]:
    """The rules that concern some jobs only."""
    limit = (
        sa.select(run.c.max_jobs)
        .where(run.c.id == job.c.run_id)
        .correlate_except(run)
        .scalar_subquery()
    )
    holds_any = _held(claimant).correlate_except(lease).exists()
    lost_here = _lost_on(claimant.device_id).exists()
    lost_nowhere = ~_lost_on(worker_device.c.device_id).exists()
    # The finals of a workload go to two devices if there are two.
    final = job.alias("final")
    final_here = (
        sa.select(lease.c.id)
        .join(final, final.c.id == lease.c.job_id)
        .where(
            lease.c.device_id == claimant.device_id, final.c.run_id == job.c.run_id,
            final.c.workload_id == job.c.workload_id, final.c.phase == Phase.CONFIRM.value,
            final.c.id != job.c.id,
            sa.or_(lease.c.ended_at.is_(None), lease.c.end_reason == "done"),
        )
        .correlate_except(lease, final)
        .exists()
    )
    return (
        Rule(
            sa.or_(job.c.attempts == 0, ~holds_any),
            "it was lost before and runs alone: it waits for a worker without other jobs",
            job.c.attempts > 0,
        ),
        Rule(
            sa.or_(
                job.c.attempts < retry.SPLIT_ATTEMPTS, ~lost_here, ~_live_device(claimant, lost_nowhere)
            ),
            "it is reserved for devices that have not lost it",
            job.c.attempts >= retry.SPLIT_ATTEMPTS,
        ),
        Rule(
            sa.or_(
                job.c.phase != Phase.CONFIRM.value, job.c.attempts > 0,
                is_due(job.c.available_at + SPREAD_S, retry.MAX_BACKOFF_S + SPREAD_S), ~final_here,
                ~_live_device(claimant, worker_device.c.device_id != claimant.device_id),
            ),
            "a final: reserved for another {spread_s:.0f} s for devices without another final of its workload",
            job.c.phase == Phase.CONFIRM.value,
        ),
        Rule(
            sa.or_(limit.is_(None), leased_of_run() < limit, _is_inherited(job)),
            "run {run_id} has {at_work} leased, its maximum (max_jobs = {max_jobs})",
            limit.is_not(None),
        ),
    )


def leased_of_run() -> sa.ScalarSelect[int]:
    """The number of leased jobs that count against the maximum of a job's run."""
    of_run = job.alias("of_run")
    return (
        sa.select(sa.func.count())
        .where(of_run.c.run_id == job.c.run_id, of_run.c.state == JobState.LEASED, ~_is_inherited(of_run))
        .correlate_except(of_run)
        .scalar_subquery()
    )


def _is_inherited(one: sa.FromClause) -> sa.ColumnElement[bool]:
    """The condition that a more urgent run waits for a job (`tuning.other_run`), against whose maximum it counts."""
    own_priority = (
        sa.select(sa.func.coalesce(run.c.request["priority"].as_integer(), 0))
        .where(run.c.id == one.c.run_id)
        .correlate_except(run)
        .scalar_subquery()
    )
    priority: sa.ColumnElement[bool] = one.c.priority < jobs.URGENT - jobs.RUN_PRIORITY * own_priority
    return priority


def _held(claimant: Claimant) -> sa.Select[Any]:
    """Live leases of the claimant's worker, in the order of their index (`sql.in_index_order`).

    By statistics of a time without leases, PostgreSQL would read those of all workers by another index. OFFSET 0 keeps
    it from joining them with several claimants.
    """
    of_worker = sa.select(lease.c.id).where(lease.c.worker_id == claimant.worker_id, lease.c.ended_at.is_(None))
    return of_worker.order_by(lease.c.id).offset(0)


def _lost_on(device_id: Any) -> sa.Select[Any]:
    """Leases of a device that count against the job of the enclosing query, or its parent."""
    lost = lease.alias()
    return (
        sa.select(lost.c.id)
        .where(
            lost.c.device_id == device_id,
            sa.or_(*(lost.c.end_reason == reason for reason in retry.LOST)),
            sa.or_(lost.c.job_id == job.c.id, lost.c.job_id == job.c.parent_id),
        )
        .correlate_except(lost)
    )


def _live_device(claimant: Claimant, condition: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
    """The condition that a live device of the target meets `condition`."""
    return (
        fleet.of_live(claimant.alive_s, worker_device.c.device_id)
        .where(worker_device.c.target_id == claimant.target_id, condition)
        .correlate_except(worker_device, worker)
        .exists()
    )
