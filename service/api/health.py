"""Liveness and readiness of the service."""

from __future__ import annotations

import sqlalchemy as sa
from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from service.api.wire import describe, reply
from service.context import Ctx
from service.store.tables import run

router = APIRouter(tags=["health"])


@router.get("/healthz", **describe("Check that the process answers"))
async def healthz() -> Response:
    return reply({"status": "ok"})


_METRICS = describe(
    "Metrics for Prometheus", errors=(503,),
    note="Counters of this process and gauges of the database, in Prometheus's text format.",
)
_METRICS["responses"][200]["content"] = {"text/plain": {"schema": {"type": "string"}}}


@router.get("/metrics", **_METRICS)
def metrics(context: Ctx) -> Response:
    text = context.metrics.render(context.store, context.settings.alive_s)
    return Response(text, 200, media_type=CONTENT_TYPE_PLAIN_0_0_4)


@router.get("/readyz", **describe("Check that the database answers too", errors=(503,)))
def readyz(context: Ctx) -> Response:
    with context.store.read() as connection:
        connection.execute(sa.select(run.c.id).limit(1))
    return reply({"status": "ready"})
