"""Whether the service lives, and whether it can do its work."""

from __future__ import annotations

from typing import Annotated

import sqlalchemy as sa
from fastapi import APIRouter, Depends, Response

from service.api.wire import describe, reply
from service.context import Context, context_of
from service.models import run

router = APIRouter(tags=["health"])


@router.get("/healthz", **describe("The process answers"))
async def healthz() -> Response:
    return reply({"status": "ok"})


@router.get("/readyz", **describe("The database answers too", errors=(503,)))
def readyz(context: Annotated[Context, Depends(context_of)]) -> Response:
    with context.store.read() as connection:
        connection.execute(sa.select(run.c.id).limit(1))
    return reply({"status": "ready"})
