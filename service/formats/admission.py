"""Checks that the databases can store each item of a log.

They run in the parsing process, as their cost depends on the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import msgspec
import orjson

from service.formats import metaschedule, native
from service.formats.entry import (
    Attachment,
    ImportedRecord,
    Item,
    Reason,
    Rejected,
    RejectError,
    Task,
    reject,
)
from strategy.record import Device, WireError, decode
from strategy.space import ConfigSpace

MAX_ADMITTED = 1000  # cached values
MAX_EXTRA = 1 << 16  # bytes; MetaSchedule's is a whole trace, which its reader limits
MAX_INSTANT = 253_402_300_800.0  # the year 10000, which no calendar of an export has
MAX_KEY = 2000  # bytes of an indexed text; PostgreSQL allows 2700

T = TypeVar("T")


def admitted(items: Iterable[Item]) -> Iterator[Item]:
    """Yield the items; those that a database cannot store as `Rejected`."""
    known: dict[int, object] = {}

    def once(check: Callable[[T], object], value: T) -> None:
        """Check values shared by many records once, as readers give one object for equal parts."""
        if known.get(id(value)) is value:
            return
        check(value)
        if len(known) >= MAX_ADMITTED:
            known.clear()
        known[id(value)] = value  # kept alive, so that its id is not reused

    for item in items:
        try:
            if isinstance(item, Attachment):
                _check_attachment(item)
            elif not isinstance(item, Rejected):
                _check_record(item)
                once(_check_task, item.task)
                if item.device is not None:
                    once(_check_device, item.device)
                if item.environment:
                    once(_dumped, item.environment)
        except (RejectError, WireError, msgspec.DecodeError) as error:
            assert not isinstance(item, Rejected)
            yield reject(0, error, b"".join(native.write([item])).split(b"\n")[1])
        else:
            yield item


def _check_record(given: ImportedRecord) -> None:
    if not 0 <= given.measured_at < MAX_INSTANT:
        raise RejectError(Reason.TIME, f"measured_at: {given.measured_at} is no instant from 1970 to 9999")
    if given.source == "metaschedule":
        return
    if given.extra and given.extra[:1] != b"{":
        raise RejectError(Reason.FIELD, "extra: expected an object")
    if len(given.extra) > MAX_EXTRA:
        raise RejectError(Reason.TOO_LONG, f"extra: longer than {MAX_EXTRA} bytes: leave out what is not needed")


def _check_task(task: Task) -> None:
    if len(task.target.key.encode()) > MAX_KEY:
        raise RejectError(Reason.TARGET, f"the target's key is longer than {MAX_KEY} bytes")
    if len(task.space) > 64:
        raise RejectError(Reason.SPACE, "a space's digest has at most 64 characters")
    if task.library is not None and len(task.library) > 200:
        raise RejectError(Reason.FIELD, "task.library has at most 200 characters")
    if not -(2**31) <= task.plevel < 2**31:
        raise RejectError(Reason.FIELD, "task.plevel has at most 32 bits")


def _check_device(given: Device) -> None:
    if len(given.model.encode()) > MAX_KEY or len(given.target.key.encode()) > MAX_KEY:
        raise RejectError(
            Reason.FIELD, f"device: the model and the target's key have at most {MAX_KEY} bytes"
        )
    _dumped(given.fingerprint)


def _check_attachment(given: Attachment) -> None:
    if not 0 < len(given.key) <= 64:
        raise RejectError(Reason.FIELD, "an attachment's key has 1 to 64 characters")
    if given.what == "space" and decode(given.text, ConfigSpace).digest != given.key:
        raise RejectError(Reason.SPACE, f"space {given.key}: its digest is another")
    if given.what == "module":
        if metaschedule.content_key(given.text) != given.key:
            raise RejectError(
                Reason.WORKLOAD, f"module {given.key}: the SHA-256 of its text is another"
            )
        metaschedule.check_workload(given.text)


def _dumped(data: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(data)
    except (TypeError, ValueError) as error:
        raise RejectError(Reason.FIELD, f"environment or fingerprint: {error}") from error
