"""Messages between the service and a process that reads a log."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from service.formats import Attachment, Format, ImportedRecord, Rejected, Task
from strategy.record import Device, TimingPolicy
from strategy.target import Target


class Order(msgspec.Struct, frozen=True):
    """The arguments of `service.formats.read`, and the file's name."""

    name: str = ""
    form: Format | None = None
    target: Target | None = None
    device_model: str = ""


class Begin(msgspec.Struct, frozen=True, array_like=True):
    """The first part of a log, and True if it is complete; the `Order` is JSON."""

    order: bytes
    part: bytes
    whole: bool


class Reply(msgspec.Struct, frozen=True, array_like=True):
    pass


class Shared(Reply, frozen=True, tag="shared"):
    """A value shared by many records, also of later logs, which refer to it by its number from 0."""

    what: Literal["task", "device", "policy", "environment"]
    text: bytes


class Forget(Reply, frozen=True, tag="forget"):
    """Restart the numbering of shared values."""


class Attached(Reply, frozen=True, tag="attachment"):
    item: Attachment


class Aside(Reply, frozen=True, tag="aside"):
    item: Rejected


class More(Reply, frozen=True, tag="more"):
    """Request the next part; an empty one marks the end."""


class End(Reply, frozen=True, tag="end"):
    """The end of the log, or the reason why it cannot be read."""

    error: str = ""


KINDS: dict[str, Any] = {
    "task": Task, "device": Device, "policy": TimingPolicy, "environment": dict[str, Any],
}
_NUMBERS: dict[str, Any] = dict.fromkeys(KINDS, int | None) | {"task": int}
# The fields of an `ImportedRecord` in order, with shared values as numbers.
Row: Any = msgspec.defstruct(
    "Row", [(f.name, _NUMBERS.get(f.name, f.type)) for f in msgspec.structs.fields(ImportedRecord)],
    bases=(Reply,), frozen=True, tag="row",
)
AnyReply = Shared | Forget | Row | Attached | Aside | More | End
FIELDS = ImportedRecord.__struct_fields__
pack = msgspec.msgpack.Encoder().encode
