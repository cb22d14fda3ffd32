"""Streamed imports of records from logs of other tools and of plevel."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from typing import Annotated

import msgspec
from anyio import from_thread, to_thread
from fastapi import APIRouter, Query, Request, Response

from service.access import audit
from service.access.auth import Actor, Who, Within
from service.api.wire import describe, reply
from service.context import Context, Ctx, named_length
from service.errors import DatabaseError, InvalidError
from service.formats import Format, FormatError, Rejected, Summary
from service.formats.source import GZIP, Pieces, Stream
from service.peer import client_of
from service.records.importer import import_items
from service.records.paced_upload import PacedUpload
from service.records.reading_message import Order
from service.records.small_import import Arrived, Upload
from strategy.target import Target

router = APIRouter(prefix="/v1", tags=["records"])
MAX_SHOWN = 10_000
SHOWN_TEXT = 1000
SMALL = 1 << 16  # bytes: smaller logs are read whole, and concurrent ones stored in one batch


class PutAside(msgspec.Struct, frozen=True, kw_only=True):
    """A rejected entry: its line (counted from 1), the reason, and its first characters."""

    line: int
    reason: str
    detail: str
    text: str


class Imported(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The summary of an import: `read` is the sum of `new`, `known` and `rejected`."""

    read: int
    new: int
    known: int
    rejected: int
    reasons: dict[str, int]
    rejects: tuple[PutAside, ...] = ()


def _uploaded(context: Context, request: Request, makes_way: Callable[[], bool] | None) -> PacedUpload:
    parts = request.stream().__aiter__()

    async def receive() -> bytes | None:
        return await anext(parts, None)

    return PacedUpload(receive, context.settings.body_s, makes_way)


_BODY = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
_DESCRIBED = (
    describe(
        "Import records", gives=Imported, errors=(422,),
        note="The body is a log of any format in docs/formats.md, read as it arrives; `name` helps to detect "
        "the format if the content does not suffice. Bad lines are rejected and counted; `rejects` limits "
        "how many the answer shows. Importing a file again adds nothing. `target` or `device_model` is that of "
        "a file that names none, as Triton's, or only a device, as Kernel Tuner's. MetaSchedule's two files are "
        "sent in one body, the workloads first.",
    )
    | {"openapi_extra": {"requestBody": {"required": True, "content": _BODY}}}
)


@router.post("/records:import", **_DESCRIBED)
async def import_records(
    context: Ctx,
    who: Who,
    within: Within,
    request: Request,
    name: Annotated[str, Query(max_length=500)] = "",
    format: Format | None = None,
    target: Annotated[str | None, Query(max_length=4096)] = None,
    device_model: Annotated[str, Query(max_length=200)] = "",
    rejects: Annotated[int, Query(ge=0, le=MAX_SHOWN)] = 0,
) -> Response:
    order = Order(name, format, None if target is None else Target.parse(target), device_model)
    length = named_length(request)
    small = length is not None and length <= SMALL
    # A small one holds no slot that another could wait for: its time is limited as that of other bodies.
    data = await _uploaded(context, request, None).read() if small else b""
    if small and not data.startswith(GZIP):  # packed, it may be many records
        upload = Upload(data=data, actor=who, order=order, namespace=within, shown=rejects)
        arrived = await context.small_imports.put(upload)
    else:
        async with context.imports.turn(client_of(request, who)) as makes_way:
            body = _uploaded(context, request, makes_way)
            # For the thread, which receives the next part on demand.
            stream = io.BytesIO(data) if small else Pieces(lambda: from_thread.run(body.next))
            arrived = await to_thread.run_sync(
                _store, context, stream, who, order, within, rejects, limiter=context.imports.threads
            )
    context.metrics.imported.inc(arrived.summary.new)
    imported = Imported(
        **arrived.summary.to_json(),
        rejects=tuple(
            PutAside(
                line=found.line, reason=found.reason.value, detail=found.detail,
                text=found.text[:SHOWN_TEXT].decode(errors="replace"),
            )
            for found in arrived.rejects
        ),
    )
    return reply(imported)


def _store(
    context: Context, upload: Stream, who: Actor, order: Order, namespace: str, shown: int
) -> Arrived:
    """Import a large log, batch by batch as it arrives, with a line of the audit log, also of a part of it."""
    rejects: list[Rejected] = []
    summary = Summary()

    def put_aside(found: Rejected) -> None:
        if len(rejects) < shown:
            rejects.append(msgspec.structs.replace(found, text=found.text[:SHOWN_TEXT]))

    def note() -> None:
        with context.store.write() as connection:
            audit.note(connection, who, "import", name=order.name, new=summary.new, namespace=namespace)

    items = context.readers.read(upload, order)
    try:
        import_items(context.store, items, put_aside, namespace=namespace, ahead=False, summary=summary)
    except BaseException as error:
        if summary.new:
            with contextlib.suppress(DatabaseError):
                note()
        if isinstance(error, FormatError):
            raise InvalidError(str(error)) from error
        raise
    note()
    return Arrived(summary, rejects)
