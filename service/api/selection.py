"""Selection of an implementation and a configuration, with the reason."""

from __future__ import annotations

from typing import Annotated

import msgspec
import sqlalchemy as sa
from anyio import to_thread
from fastapi import APIRouter, Request, Response

from service.access import audit
from service.access.auth import Actor, Who, Within
from service.api.problem import problem_of
from service.api.wire import QUESTION, TARGET, Body, Etag, Problem, describe, reply, reply_tagged
from service.context import Context, Ctx
from service.errors import DatabaseError
from service.selection import candidate
from service.selection.database import RecordDatabase
from service.store.tables import TokenScope
from service.tuning import plan as planning
from service.tuning import run as runs
from service.turn import FEW, in_turn
from strategy.op_strategy import Candidate
from strategy.record import AskedWorkload, RunRequest, RunWorkload
from strategy.select import Evidence, Policy, Reason, Selection
from strategy.select.dispatch import DispatchTable, dispatch
from strategy.target import Target
from strategy.workload import Workload

router = APIRouter(prefix="/v1", tags=["selection"])


class EvidenceRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request for measurements, with fields as in `SelectRequest`."""

    workload: AskedWorkload
    target: Target
    device: str | None = None


class DispatchRequest(EvidenceRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request for a selection of a workload with symbolic dimensions (`float32[m,768]`)."""

    candidates: tuple[Candidate, ...] | None = None


class SelectRequest(DispatchRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request for a selection. `candidates` are for operators that the service lacks.

    `device` is the identity of a device whose own records are preferred. The target `cpu` means the
    host of this service. `foreign` adds imported implementations of other tools (`autotvm:…`), which cannot
    be built here; the policy `tvm` always does. `as_of` is an instant: later records are ignored. If nothing
    is measured, or only in an older version, `tune_on_miss` creates a run for the workload, unless there has been one
    of that implementation's version.
    """

    policy: Policy = "plevel"
    foreign: bool = False
    as_of: float | None = None
    tune_on_miss: bool = False


@router.post(
    "/select",
    **describe(
        "Select an implementation", takes=SelectRequest, example=QUESTION, gives=Selection,
        note="By measurements first, or by stale ones where no current one is as fast, then by those of the same call "
        "with a shorter epilogue, then by a cost model, then by the static priority level; the answer has the "
        "reason and the rivals. The target `cpu` means the host of this service. An answer has an ETag: with "
        "If-None-Match an unchanged answer is 304. The header Location names the run that "
        "`tune_on_miss` created or found.",
    ),
)
async def choose(
    context: Ctx, who: Who, within: Within, request: Request, body: Body[SelectRequest], known: Etag = None
) -> Response:
    found = await in_turn(context, request, who, _is_large(body), lambda: _choose(context, within, body))
    headers = {}
    if body.tune_on_miss and found.reason not in (Reason.MEASURED, Reason.TRANSFERRED):
        who.check(TokenScope.SUBMIT)
        # Apart from selections, as it may wait for other writers.
        run_id = await to_thread.run_sync(_tune, context, who, within, body, found.implementation)
        headers["location"] = f"/v1/runs/{run_id}"
    return reply_tagged(found, known, headers)


def _is_large(question: SelectRequest) -> bool:
    """Return whether a selection reads all records of its tasks, of which there may be any number."""
    return question.as_of is not None


def _choose(context: Context, within: str, body: SelectRequest) -> Selection:
    asked = candidate.normal(body.workload)
    with context.store.read() as connection:
        database = RecordDatabase(connection, as_of=body.as_of, namespace=within)
        return _select(database, body, asked, "workload")


def _tune(context: Context, who: Actor, within: str, body: SelectRequest, selected: str) -> int:
    """The run for an unmeasured workload: the newest one with the version of `selected`, or else a new one."""
    wanted = RunWorkload(workload=body.workload, candidates=body.candidates)
    request = RunRequest(workloads=(wanted,), target=body.target)
    planned = planning.plan(request)
    with context.store.write() as connection:
        own = next((c for c in planned[0].candidates if c.implementation == selected), None)
        run_id = runs.newest(connection, planned[0].workload, body.target, within, own)
        if run_id is None:
            run_id = runs.create(connection, request, planned, within)
            audit.note(connection, who, "run.create", run=run_id)
    context.changed.notify()
    return run_id


def _select(
    database: RecordDatabase, body: SelectRequest, asked: Workload, field: str
) -> Selection:
    return candidate.choose(
        database, asked, body.target, body.candidates, device=body.device, policy=body.policy, foreign=body.foreign,
        field=field,
    )


class BatchRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A batch of independent selection requests."""

    requests: Annotated[tuple[SelectRequest, ...], msgspec.Meta(min_length=1, max_length=10_000)]


class BatchAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The selection, or the error, of one request."""

    selection: Selection | None = None
    problem: Problem | None = None


class BatchAnswers(msgspec.Struct, frozen=True, kw_only=True):
    """Answers in the order of the requests."""

    answers: tuple[BatchAnswer, ...]


@router.post(
    "/select:batch",
    **describe(
        "Select for many workloads", takes=BatchRequest, gives=BatchAnswers,
        example={"requests": [QUESTION, {"workload": "softmax(data=float32[12,384])", "target": TARGET}]},
        note="All are answered from the records of one moment. A request that fails has its problem document "
        "in its place, and does not affect the others. None creates a run.",
    ),
)
async def choose_many(
    context: Ctx, who: Who, within: Within, request: Request, body: Body[BatchRequest]
) -> Response:
    large = len(body.requests) > FEW or any(map(_is_large, body.requests))
    return await in_turn(context, request, who, large, lambda: _choose_many(context, within, body))


def _choose_many(context: Context, within: str, body: BatchRequest) -> Response:
    workloads: list[Workload | Problem] = []
    for i, question in enumerate(body.requests):
        try:
            workloads.append(candidate.normal(question.workload))
        except Exception as error:
            workloads.append(problem_of(error, f"requests[{i}] of a batch"))
    answers = []
    with context.store.read() as connection:
        together: dict[float | None, list[Workload]] = {q.as_of: [] for q in body.requests}
        for question, asked in zip(body.requests, workloads, strict=True):
            if isinstance(asked, Workload):
                together[question.as_of].append(asked)
        databases = {at: RecordDatabase(connection, some, at, within) for at, some in together.items()}
        for i, (question, asked) in enumerate(zip(body.requests, workloads, strict=True)):
            if isinstance(asked, Problem):
                answers.append(BatchAnswer(problem=asked))
                continue
            try:
                database = databases[question.as_of]
                found = _select(database, question, asked, f"requests[{i}].workload")
                answers.append(BatchAnswer(selection=found))
            except (DatabaseError, sa.exc.SQLAlchemyError):  # of all of them: the transaction has ended
                raise
            except Exception as error:
                problem = problem_of(error, f"requests[{i}] of a batch")
                answers.append(BatchAnswer(problem=problem))
    return reply(BatchAnswers(answers=tuple(answers)))


@router.post(
    "/dispatch",
    **describe(
        "Select for symbolic shapes", takes=DispatchRequest, gives=DispatchTable,
        example={
            "workload": "dense(data=float32[m,768],weight=float32[3072,768]:const)", "target": TARGET,
        },
        note="A table with a row for each satisfiable combination of the strategy's conditions; "
        "each row's choice is derived from the concrete shapes on record in its range, and names them.",
    ),
)
async def tabulate(
    context: Ctx, who: Who, within: Within, request: Request, body: Body[DispatchRequest]
) -> Response:
    return await in_turn(context, request, who, True, lambda: _tabulate(context, within, body))


def _tabulate(context: Context, within: str, body: DispatchRequest) -> Response:
    workload, known = candidate.known_candidates(
        body.workload, body.target, body.candidates, "workload"
    )
    offered = None if body.candidates is None else known
    with context.store.read() as connection:
        table = dispatch(
            workload, body.target, RecordDatabase(connection, namespace=within),
            device=body.device, offered=offered,
        )
    return reply(table)


@router.post(
    "/evidence",
    **describe(
        "The measurements behind a selection", takes=EvidenceRequest, example=QUESTION, gives=Evidence,
        note="The best of each implementation at each level, the versions of which nothing succeeded, the lowest means "
        "for the policy `tvm`, and, of a symbolic workload, those of the shapes on record: for clients that apply the "
        "rule themselves.",
    ),
)
async def show_evidence(
    context: Ctx, who: Who, within: Within, request: Request, body: Body[EvidenceRequest]
) -> Response:
    large = not body.workload.is_constant  # it reads all shapes on record
    return await in_turn(context, request, who, large, lambda: _show_evidence(context, within, body))


def _show_evidence(context: Context, within: str, body: EvidenceRequest) -> Response:
    asked = candidate.normal(body.workload)
    with context.store.read() as connection:
        database = RecordDatabase(connection, namespace=within)
        found = Evidence.read(database, asked, body.target, body.device)
    return reply(found)
