"""Assembly of the service as an ASGI application."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import Depends, FastAPI

from service.access.auth import Authority
from service.api import (
    coverage,
    fleet,
    foreign,
    health,
    lease,
    model,
    network,
    problem,
    record,
    run,
    selection,
    token,
    transfer,
    worker,
)
from service.api.direct import DirectRoutes
from service.api.guard import Guard, needed
from service.api.head import Head
from service.api.query import check_query
from service.api.wire import install_schema
from service.context import Context
from service.dashboard import site
from service.errors import OverloadedError
from service.predict.trainer import Trainer
from service.search.child import ChildModel
from service.settings import Settings
from service.store import migration
from service.store.db import Store
from service.tuning.tuner import Tuner
from service.tuning.webhook import Postman

PATIENCE_S = 30.0
AGAIN_S = 0.5
# Time limit of a request's wait for a lock, which another program may hold for any time. A batch that fails by it is
# served again one by one, and given up at the second failure: its requests are refused after three times this limit.
LOCK_S = 4.0
log = logging.getLogger(__name__)

DESCRIPTION = """An autotuning service with a tuning-log database.

Times are in seconds, instants are Unix times. Errors are problem documents (RFC 9457). The target
`cpu` in a request means the host of this service.
"""


def create_app(settings: Settings | None = None) -> FastAPI:
    """Make the service as an ASGI application, which opens the database when it starts.

    Raises:
        DatabaseError: on start, if the database cannot be used or has another schema.
    """
    context = Context(settings or Settings())
    authority = Authority(lambda: context.store, context.settings.auth, context.settings.rate)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        prepare(context.settings)
        context.opened = Store(context.settings.database, lock_s=LOCK_S)
        cost_model = ChildModel()
        if context.settings.tune:
            context.tuner = Tuner(
                context.opened, context.settings, cost_model, context.changed, context.queued
            )
            context.tuner.start()
            context.trainer = Trainer(context.opened, context.settings.poll_s)
            context.trainer.start()
        postman = Postman(context.opened, context.settings)
        if context.settings.webhook_hosts:  # anybody may be told
            postman.start()
        watching = asyncio.create_task(authority.watch())
        try:
            yield
        finally:
            watching.cancel()
            context.stop()
            context.readers.close()
            if context.tuner is not None:
                context.tuner.stop()
            if context.trainer is not None:
                context.trainer.stop()
            postman.stop()
            cost_model.close()
            context.opened.close()

    app = FastAPI(
        title="plevel", description=DESCRIPTION, lifespan=lifespan, docs_url=None, redoc_url=None,
        dependencies=[Depends(check_query)],
    )
    app.state.context = context
    for part in (
        run, selection, transfer, coverage, foreign, record, model, network, worker, lease, fleet, token,
        health,
    ):
        app.include_router(part.router)
    app.router.routes.insert(0, DirectRoutes([selection.router, transfer.router, lease.router]))
    problem.install(app)
    site.install(app)
    install_schema(app, needed)
    app.add_middleware(
        Guard, authority=authority, show=site.show_problem, is_stopping=lambda: context.stopping
    )
    app.add_middleware(Head)  # the outermost: all others see GET
    return app


def prepare(settings: Settings) -> None:
    """Upgrade the database to this schema, or check that it is up to date.

    A server that takes no connection at this moment is asked again for half a minute.
    """
    bring = migration.upgrade if settings.migrate else migration.check
    give_up = time.monotonic() + PATIENCE_S
    while True:
        try:
            bring(settings.database)
            return
        except OverloadedError as error:
            if time.monotonic() > give_up:
                raise
            log.warning("%s: asking again", error)
            time.sleep(AGAIN_S)
