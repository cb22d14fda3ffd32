"""Foreign lines: candidates of one kernel of another tool, as its hook or a script of the user's reports them.

One JSON object per line: `{"kind": "foreign", "tool": "triton", "kernel": "matmul", "attrs": {…}, "candidates":
[{"config": {…}, "samples_s": […]}, {"config": {…}, "error": "compile"}, {"config": {…}}]}`. A candidate without
samples and without an error is advice. The readers of the tools' own files share what makes records here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from service.formats.entry import (
    ImportedRecord,
    Item,
    Reason,
    RejectError,
    Samples,
    Task,
    checked,
    config_key,
    reject,
)
from service.formats.gpu import target_of_model
from service.formats.native import OWN_FIELDS, decode_any
from service.formats.source import KEPT, Source, check, load
from strategy.config import MAX_TEXT, Value
from strategy.foreign import foreign_workload
from strategy.record import ErrorKind, Name
from strategy.space import Config
from strategy.target import Target

UNKNOWN = "unknown"  # the version of a kernel whose source is not known
MAX_KNOBS = 200
MAX_NAME = 200  # characters of a knob's name, as in plevel's own format
MAX_DOCUMENT = 1 << 24  # bytes of a file that is one object
Text = Annotated[str, Meta(max_length=200)]


class _Candidate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    config: dict[str, Any]
    samples_s: Samples = ()
    error: ErrorKind | None = None
    message: Annotated[str, Meta(max_length=1000)] = ""
    extra: msgspec.Raw = msgspec.Raw(b"")


class _Line(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="foreign", tag_field="kind"
):
    tool: Annotated[str, Meta(pattern="^[a-z][a-z0-9_]{0,30}$")]
    kernel: Annotated[str, Meta(min_length=1, max_length=500)]
    candidates: Annotated[list[msgspec.Raw], Meta(max_length=10_000)]  # decoded one by one
    attrs: dict[str, Any] = {}
    version: Name = UNKNOWN
    device_model: Text = ""
    target: dict[str, Any] | Text | None = None
    environment: dict[str, Any] = {}
    worker: Text = ""
    measured_at: Annotated[float, Meta(ge=0, le=1e12)] = 0.0


_decoder = msgspec.json.Decoder(_Line)
_candidates = msgspec.json.Decoder(_Candidate)


def read(source: Source, target: Target | None = None, device_model: str = "") -> Iterator[Item]:
    """The candidates of all lines; those that cannot be stored are rejected one by one."""

    def line(text: bytes) -> list[Item]:
        check(text)
        load(text)  # rejects keys that occur twice
        found = _decoder.decode(text)
        if found.tool in OWN_FIELDS:
            raise RejectError(
                Reason.FIELD, f"tool: {found.tool} has a format of its own: import its file, or name another tool"
            )
        given = target if found.target is None else Target.parse(found.target)
        where = Place(given, found.device_model or device_model)
        task = make_task(found.tool, found.kernel, found.attrs, where.target, found.version)
        return list(
            each(
                found.candidates,
                lambda one: _record(found, task, where.model, _candidates.decode(one)),
            )
        )

    return source.read_lines(line)


def _record(line: _Line, task: Task, model: str, one: _Candidate) -> ImportedRecord:
    if one.error is not None and one.samples_s:
        raise RejectError(Reason.FIELD, "samples_s, error: a candidate has at most one of them")
    if one.extra:
        decode_any(one.extra)  # as the native format does, in which it is exported
    return ImportedRecord(
        source=line.tool, task=task, config_key=key_of(one.config), samples_s=one.samples_s,
        error=one.error, message=one.message, measured_at=line.measured_at, device_model=model,
        environment=line.environment, worker=line.worker, extra=bytes(one.extra),
    )


class Place:
    """The target and the device model of a file; one is derived from the other.

    Raises:
        RejectError: neither is given.
    """

    def __init__(self, target: Target | None, model: str) -> None:
        self.model = model.replace("\0", "")[:200] or ("" if target is None else target.model)
        if target is None and not self.model:
            raise RejectError(
                Reason.TARGET,
                "the file names no device: give its model (--device-model) or a target (--target)",
            )
        self.target = target_of_model(self.model) if target is None else target


def make_task(
    tool: str, kernel: str, attrs: Mapping[str, Any], target: Target, version: str = UNKNOWN
) -> Task:
    """The task of a kernel of another tool; `version` is a digest of its source."""
    workload = foreign_workload(tool, kernel, attrs)
    implementation = f"{tool}:{workload.op.removeprefix(f'{tool}.')}"
    return checked(Task(workload=workload, target=target, implementation=implementation, version=version))


def key_of(values: Mapping[str, Any]) -> str:
    """The key of a configuration; raise `RejectError` if it is empty or too large.

    Values that no knob can have (objects, null, mixed lists) become their JSON, long ones with a digest.
    """
    if not values:
        raise RejectError(Reason.CONFIG, "a configuration has at least one value")
    if len(values) > MAX_KNOBS or any(len(name) > MAX_NAME for name in values):
        raise RejectError(
            Reason.CONFIG,
            f"a configuration has at most {MAX_KNOBS} values, whose names have at most {MAX_NAME} characters",
        )
    return config_key(dict(Config({k: value_of(v) for k, v in values.items()}).plain))


def value_of(value: Any) -> Value:
    """A value as a knob's."""
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, list) and all(type(v) is int for v in value) and len(value) < 64:
        return tuple(value)
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), sort_keys=True)
    if len(text) <= MAX_TEXT:
        return text
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]
    return f"{text[:100]}… sha256:{digest}"


def each(entries: Iterable[Any], read: Callable[[Any], ImportedRecord]) -> Iterator[Item]:
    """The record of each entry; those at which `read` fails are rejected."""
    for entry in entries:
        item: Item
        try:
            item = read(entry)
        except Exception as error:
            text = entry if isinstance(entry, msgspec.Raw) else repr(entry).encode(errors="replace")
            item = reject(1, error, bytes(text)[:KEPT])
        yield item


def read_document(source: Source, read: Callable[[dict[str, Any]], Iterable[Item]]) -> Iterator[Item]:
    """Yield what `read` makes of a file that is one JSON object of at most `MAX_DOCUMENT` bytes."""
    text = bytearray()
    try:
        for chunk in source.chunks():
            text += chunk
            if len(text) > MAX_DOCUMENT:
                raise RejectError(
                    Reason.TOO_LONG, f"longer than {MAX_DOCUMENT} bytes and was not read"
                )
        data = load(bytes(text))
        if not isinstance(data, dict):
            raise RejectError(Reason.FIELD, "expected an object")
        items = read(data)
    except Exception as error:
        yield reject(1, error, bytes(text[:KEPT]))
    else:
        yield from items
    if source.fault is not None:
        yield source.fault
