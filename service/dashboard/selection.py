"""`/select`: the selected implementation of a workload, the reason, and the rivals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
import sqlalchemy as sa
from fastapi import APIRouter, Request, Response

from service.context import Ctx
from service.dashboard.query import selection as query
from service.dashboard.view import render
from service.dashboard.workload_text import FAULTS, read_workload
from service.errors import InvalidError
from service.selection import candidate
from service.selection.database import RecordDatabase
from service.store.namespace import DEFAULT
from strategy.op import find_op
from strategy.op_strategy import Candidate
from strategy.select import Level, Selection, current, select
from strategy.select import holds as is_valid
from strategy.select.dispatch import DispatchTable, dispatch
from strategy.target import Target
from strategy.workload import Workload

router = APIRouter(include_in_schema=False)


class Answer(msgspec.Struct, frozen=True):
    """A selection, with the medians of all implementations at each level that has any."""

    selection: Selection
    levels: list[Level]
    at: dict[str, dict[Level, Any]]


@router.get("/select")
def show(
    context: Ctx, request: Request, workload: str = "", target: str = "cpu", device: str = "",
    policy: Literal["plevel", "tvm"] = "plevel",
) -> Response:
    filters = {"workload": workload, "target": target, "device": device, "policy": policy}
    answer: Answer | DispatchTable | None = None
    fault = None
    with context.store.read() as connection:
        if workload.strip():
            try:
                answer = _answer(connection, workload, target, device or None, policy)
            except FAULTS as error:
                fault = " ".join(str(error).split())
        fragment = "hx-request" in request.headers
        known = {} if fragment else query.known(connection)
    values = {"answer": answer, "is_table": isinstance(answer, DispatchTable), "fault": fault}
    if fragment:
        return render("select_answer.html", **values, filters=filters)
    return render("select.html", **values, filters=filters, known=known)


def select_each(
    connection: sa.Connection, workloads: Mapping[int, Workload], target: Target, namespace: str
) -> dict[int, Selection]:
    """The selections of workloads by id, without those for which nothing can be selected."""
    database = RecordDatabase(connection, workloads.values(), namespace=namespace)
    found = {}
    for i, asked in workloads.items():
        try:
            workload = candidate.normal(asked)
            offered = _offered(connection, workload, target, namespace)
            found[i] = candidate.choose(database, workload, target, offered)
        except FAULTS:
            continue
    return found


def _offered(
    connection: sa.Connection, workload: Workload, target: Target, namespace: str
) -> list[Candidate] | None:
    """Candidates on record of an operator that is not installed."""
    if find_op(workload.op) is not None:
        return None
    return query.candidates_on_record(connection, workload, target, namespace)


def _answer(
    connection: sa.Connection, text: str, target_text: str, device: str | None,
    policy: Literal["plevel", "tvm"],
) -> Answer | DispatchTable:
    workload = candidate.normal(read_workload(text))
    target = query.find_target(connection, target_text) or Target.parse(target_text)
    if device is not None and not query.has_device(connection, device):
        raise InvalidError(f"device: {device!r:.80} is not on record: /devices lists the devices")
    database = RecordDatabase(connection)
    offered = _offered(connection, workload, target, DEFAULT)
    known = candidate.gather(
        database, workload, target, offered, foreign=policy == "tvm", field="workload"
    )
    if not workload.is_constant:
        return dispatch(workload, target, database, device=device, offered=offered)
    measured = database.measured(workload, target, device)
    found = select(
        workload, target, database, device=device, policy=policy, offered=known,
        ranker=database.ranker,
    )
    by_level = current([c for c in known if is_valid(c, workload)], measured)
    levels = [level for level in Level if by_level[level]]
    at = {
        c.implementation: {
            level: by_level[level][c.implementation] for level in levels
            if c.implementation in by_level[level]
        }
        for c in known
    }
    return Answer(found, levels, at)
