"""MetaSchedule's pair of files: `database_workload.json` and `database_tuning_record.json`.

Records are kept complete, so that an export equals the import byte for byte. A workload's line, a structural
hash and a module, is identified by the SHA-256 of its text, as the hash cannot be verified here. Modules are not
parsed.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from service.formats.entry import (
    MAX_COST_S,
    MAX_SAMPLES,
    Attachment,
    ImportedRecord,
    Item,
    Reason,
    Rejected,
    RejectError,
    Task,
    checked,
    config_key,
    remembered,
)
from service.formats.foreign_target import foreign_target
from service.formats.source import MAX_LINE as MAX_RECORD
from service.formats.source import Source, check, load
from strategy.config import MAX_TEXT
from strategy.record import ErrorKind
from strategy.space import Config
from strategy.types import TensorType
from strategy.workload import Input, Workload

MAX_LINE = 1 << 26  # of a workload, as a module with constants may be long
MAX_WORKLOADS = 100_000

_HASH = re.compile(r"-?[0-9]{1,20}")
_Body = tuple[
    tuple[msgspec.Raw, list[tuple[int, Any]]],
    Annotated[list[float], Meta(max_length=MAX_SAMPLES)] | None,
    msgspec.Raw,
    msgspec.Raw,
]
_records = msgspec.json.Decoder(tuple[Annotated[int, Meta(ge=0)], msgspec.Raw])
_bodies = msgspec.json.Decoder(_Body)


def read(source: Source) -> Iterator[Item]:
    """The records of a tuning file that follows its workloads, which become attachments.

    The two files are read as one after the other; several such pairs may follow each other.
    """
    return source.read_lines(_Reader().read, MAX_LINE)


class _Reader:
    def __init__(self) -> None:
        self._workloads: list[tuple[str, str] | None] = []  # structural hash, key of the attachment
        self._recording = False
        self._tasks: dict[tuple[str, bytes, bytes], Task] = {}

    def read(self, line: bytes) -> Item:
        check(line)
        if line.lstrip()[:2] == b'["':
            return self._workload(line)
        if len(line) > MAX_RECORD:
            raise RejectError(Reason.TOO_LONG, f"a record longer than {MAX_RECORD} bytes: not read")
        try:
            index, body = _records.decode(line)
        except msgspec.DecodeError:
            data = load(line)
            _check_times(data if isinstance(data, list) else [])
            raise
        self._recording = True
        found = self._workloads[index] if index < len(self._workloads) else None
        if found is None:
            raise RejectError(
                Reason.WORKLOAD,
                f"workload {index} did not come before it: give database_workload.json first",
            )
        return self._record(*found, bytes(body))

    def _workload(self, line: bytes) -> Attachment:
        if self._recording:  # the next pair of files
            self._workloads, self._recording = [], False
        if len(self._workloads) >= MAX_WORKLOADS:
            raise RejectError(Reason.TOO_LONG, f"more than {MAX_WORKLOADS} workloads in one file")
        # Records refer to lines by number, so rejected ones count.
        self._workloads.append(None)
        hashed, module = check_workload(line)
        made = attach(hashed, module)
        self._workloads[-1] = hashed, made.key
        return made

    def _record(self, hashed: str, module: str, body: bytes) -> ImportedRecord:
        try:
            (instructions, decisions), times, target, arguments = _bodies.decode(body)
        except msgspec.DecodeError:
            load(body)
            raise
        key = (module, bytes(target), bytes(arguments))
        task = remembered(self._tasks, key, lambda: _task(hashed, module, load(key[1]), load(key[2])))
        values: dict[str, Any] = {"trace": hashlib.sha256(bytes(instructions)).hexdigest()[:16]}
        for place, decision in decisions:
            name = f"decision_{place}"
            if name in values:
                raise RejectError(Reason.DUPLICATE, f"two decisions of instruction {place}")
            values[name] = _as_value(decision)
        # A failure has no times, or 1e10.
        failed = not times or max(times) >= MAX_COST_S
        if times and not all(t > 0 and math.isfinite(t) for t in times):
            raise RejectError(Reason.COST, f"run_secs {times!r:.80} are not times in seconds")
        return ImportedRecord(
            source="metaschedule", task=task, config_key=config_key(dict(Config(values).plain)),
            samples_s=() if failed else tuple(times or ()),
            error=ErrorKind.RUNTIME if failed else None,
            message="MetaSchedule: it did not run" if failed else "",
            device_model=task.target.model, extra=body,
        )


def check_workload(line: bytes | str) -> tuple[str, str]:
    """A workload's structural hash and its base64 module, from a well-formed line."""
    hashed, module = msgspec.json.decode(line, type=tuple[str, str])
    if not _HASH.fullmatch(hashed):
        raise RejectError(Reason.WORKLOAD, f"{hashed!r:.40} is not a structural hash")
    try:
        base64.b64decode(module, validate=True)
    except ValueError as error:
        raise RejectError(Reason.WORKLOAD, f"the module is not base64: {error}") from error
    return hashed, module


def attach(hashed: str, module: str) -> Attachment:
    """A workload's line as an attachment, whose key is the attribute `module` of its tasks."""
    text = msgspec.json.encode([hashed, module]).decode()
    return Attachment(what="module", key=content_key(text), text=text)


def content_key(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _check_times(line: list[Any]) -> None:
    """Raise `RejectError` naming the time that standard JSON does not allow."""
    for body in line[1:2]:
        times = body[1] if isinstance(body, list) and len(body) == 4 else None
        for time in times if isinstance(times, list) else ():
            if not isinstance(time, int | float) or not math.isfinite(time):
                raise RejectError(Reason.COST, f"run_secs: {time!r:.40} is not a time")


def _as_value(decision: Any) -> Any:
    if isinstance(decision, int) or (
        isinstance(decision, list) and all(type(v) is int for v in decision)
    ):
        return decision
    text = json.dumps(decision, separators=(",", ":"))
    if len(text) > MAX_TEXT:
        return "sha256:" + hashlib.sha256(text.encode()).hexdigest()
    return text


def _task(hashed: str, module: str, target: Any, arguments: Any) -> Task:
    if target is None:
        raise RejectError(Reason.TARGET, "the record names no target")
    inputs = []
    for i, entry in enumerate(arguments or ()):
        match entry:
            case ["TENSOR", str(dtype), list(shape)]:
                inputs.append(Input(f"arg{i}", str(TensorType(shape, dtype))))
            case _:
                raise RejectError(Reason.TYPE, f"args_info[{i}] = {entry!r:.80}: expected a tensor")
    attrs = {"structural_hash": hashed, "module": module}
    task = Task(
        workload=Workload("metaschedule.module", tuple(inputs), attrs),
        target=foreign_target(target), implementation="metaschedule:trace", version="1.0",
    )
    return checked(task)


Line = tuple[Literal["workload", "tuning_record"], bytes]


def write(
    items: Iterable[ImportedRecord | Attachment], places: dict[str, int] | None = None
) -> Iterator[Line | Rejected]:
    """Lines for `database_workload.json` and `database_tuning_record.json`, which JSONDatabase loads.

    Modules must precede the records that need them. Records of other sources are reported, with their number
    instead of a line.

    Args:
        places: the lines of modules in `database_workload.json` that are written already, to which those of the items
            are added.
    """
    places = {} if places is None else places
    number = 0
    for item in items:
        if isinstance(item, Attachment):
            if item.what == "module" and item.key not in places:
                places[item.key] = len(places)
                yield "workload", item.text.encode() + b"\n"
            continue
        number += 1
        module = item.task.workload.attrs.get("module")
        if item.source != "metaschedule" or not item.extra or module not in places:
            detail = "not a MetaSchedule record with a known module"
            yield Rejected(line=number, reason=Reason.FORMAT, detail=detail)
            continue
        yield "tuning_record", b"[%d,%s]\n" % (places[module], item.extra)
