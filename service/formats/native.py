"""plevel's own NDJSON: lossless and versioned; every line can be read alone.

The first line has the version. An `attachment` line has a long text that many records share (the JSON of a
space, a MetaSchedule module) and precedes the first of them; a record whose attachment is missing is still
read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from service.formats import autotvm, kernel_tuner, metaschedule
from service.formats.entry import (
    MAX_CACHED,
    Attachment,
    ImportedRecord,
    Item,
    Reason,
    RejectError,
    Samples,
    Task,
    checked,
    config_key,
)
from service.formats.source import Source, check, load
from strategy.config import MAX_PARTS, MAX_TEXT
from strategy.record import Device, ErrorKind, Phase, Seconds, TimingPolicy, decode, encode
from strategy.space import ConfigSpace

VERSION = 1
MAX_LINE = 1 << 26  # of an attachment, as a module with constants may be long
MAX_RECORD = 1 << 21  # of any other line: the largest record of any format
KEPT = 2_000  # distinct tasks, devices, environments and policies, from one log to the next
KEPT_BYTES = 1 << 21


class _Own(msgspec.Struct):
    """Fields of plevel's own records."""

    drift: float | None = None


_own = msgspec.json.Decoder(_Own)
_ATTACHMENT = re.compile(rb'\{(?:.*?,)?\s*"kind"\s*:\s*"attachment"')

# Sources whose `extra` is read again: how an exporter, or the list of records, reads a record of theirs.
OWN_FIELDS: Mapping[str, Callable[[ImportedRecord], object]] = {
    "plevel": lambda item: _own.decode(item.extra),
    "autotvm": lambda item: list(autotvm.write([item])),
    "kernel_tuner": lambda item: list(kernel_tuner.write([item])),
    "metaschedule": lambda item: msgspec.json.decode(item.extra, type=list[Any]),
}
decode_any = msgspec.json.Decoder(dict[str, Any]).decode  # of other tools: not read before, such as 1e400

T = TypeVar("T")
NONE = msgspec.Raw(b"")  # omitted; msgspec has no optional Raw
Integer = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Value = (
    bool
    | Integer
    | float
    | Annotated[str, Meta(max_length=MAX_TEXT)]
    | Annotated[list[Integer], Meta(max_length=MAX_PARTS)]
)
Text = Annotated[str, Meta(max_length=200)]


class Header(msgspec.Struct, frozen=True, kw_only=True, tag="plevel-records", tag_field="kind"):
    """The first line. Changes that older readers cannot read raise `version`."""

    version: int = VERSION


class _Record(
    msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True,
    tag="record", tag_field="kind",
):
    source: Text
    task: msgspec.Raw
    config: dict[Text, Value]
    samples_s: Samples = ()
    error: ErrorKind | None = None
    advice: bool = False  # a winner without a time
    message: Annotated[str, Meta(max_length=20_000)] = ""
    measured_at: float = 0.0
    device_model: Text = ""
    device: msgspec.Raw = NONE
    phase: Phase = Phase.SEARCH
    session: Text = ""
    worker: Text = ""
    run: Integer | None = None
    seed: Integer | None = None
    policy: msgspec.Raw = NONE
    environment: msgspec.Raw = NONE
    prepare_s: Seconds | None = None
    build_s: Seconds = 0.0
    check_s: Seconds = 0.0
    run_s: Seconds = 0.0
    code_digest: Annotated[str, Meta(max_length=128)] = ""
    extra: msgspec.Raw = NONE


_decoder = msgspec.json.Decoder(Header | Attachment | _Record)
_encode = msgspec.json.Encoder().encode


def read(source: Source) -> Iterator[Item]:
    """The records of a file, with their attachments; bad lines are rejected in place."""
    return source.read_lines(_Reader().read, MAX_LINE)


class Decoded:
    """Parts shared by many records, decoded once for equal bytes: by kind and bytes."""

    def __init__(self) -> None:
        self._values: dict[tuple[Any, bytes], Any] = {}
        self._bytes = 0
        self.get = self._values.get

    def put(self, key: tuple[Any, bytes], value: Any) -> None:
        if len(self._values) >= MAX_CACHED:
            self.clear()
        self._values[key] = value
        self._bytes += len(key[1])

    def trim(self) -> None:
        """Clear it between two logs, unless it is small."""
        if len(self._values) > KEPT or self._bytes > KEPT_BYTES:
            self.clear()

    def clear(self) -> None:
        self._values.clear()
        self._bytes = 0


_decoded = Decoded()  # of all logs: most small ones have the tasks of the last ones


class _Reader:
    """A reader of lines; parts shared by many records are decoded once for equal bytes."""

    def __init__(self) -> None:
        self._readable = True
        self._known = _decoded
        self._known.trim()
        self._modules: dict[str, str] = {}  # keys by structural hash, for files of earlier releases

    def read(self, line: bytes) -> Item | None:
        if len(line) > MAX_RECORD and not _ATTACHMENT.match(line, 0, 1000):
            raise RejectError(Reason.TOO_LONG, f"a record longer than {MAX_RECORD} bytes: not read")
        check(line)
        parsed = _decoder.decode(line)
        if isinstance(parsed, Header):
            self._readable = parsed.version <= VERSION
        if not self._readable:
            raise RejectError(
                Reason.VERSION, f"written by a later release than version {VERSION}: update plevel"
            )
        if isinstance(parsed, Header):
            return None
        if isinstance(parsed, _Record):
            if _encode(parsed) != line:  # another form than plevel's: may have duplicate keys
                load(line)
            return self._record(parsed)
        load(line)
        if parsed.what == "space":
            decode(parsed.text, ConfigSpace)
        return self._attachment(parsed)

    def _attachment(self, given: Attachment) -> Attachment:
        """The attachment, with the current kind of key if it has a structural hash."""
        if given.what != "module" or given.text.startswith("["):
            return given
        made = metaschedule.attach(given.key, given.text)
        if len(self._modules) >= MAX_CACHED:
            self._modules.clear()
        self._modules[given.key] = made.key
        self._known = Decoded()  # later tasks may refer to this module, which other logs lack
        return made

    def _task(self, task: Task) -> Task:
        """The task, with the key of its module if it has only the structural hash."""
        attrs = task.workload.attrs
        module = self._modules.get(str(attrs.get("structural_hash")))
        if module is None or "module" in attrs or task.workload.op != "metaschedule.module":
            return checked(task)
        of = msgspec.structs.replace(task.workload, attrs={**attrs, "module": module})
        return checked(msgspec.structs.replace(task, workload=of))

    def _get(self, raw: msgspec.Raw, kind: type[T]) -> T:
        key = (kind, bytes(raw))
        found: Any = self._known.get(key)
        if found is None:
            load(key[1])
            found = decode(key[1], kind)
            if isinstance(found, Task):
                found = self._task(found)
            self._known.put(key, found)
        made: T = found
        return made

    def _record(self, line: _Record) -> ImportedRecord:
        if (line.error is not None) + bool(line.samples_s) + line.advice != 1:
            raise RejectError(Reason.FIELD, "samples_s, error, advice: a record has exactly one of them")
        made = ImportedRecord(
            source=line.source, task=self._get(line.task, Task),
            config_key=config_key(line.config), samples_s=line.samples_s, error=line.error,
            message=line.message, measured_at=line.measured_at, device_model=line.device_model,
            device=self._get(line.device, Device) if line.device else None,
            phase=line.phase, session=line.session, worker=line.worker, run=line.run,
            seed=line.seed,
            policy=self._get(line.policy, TimingPolicy) if line.policy else None,
            environment=self._get(line.environment, dict[str, Any]) if line.environment else {},
            prepare_s=line.prepare_s, build_s=line.build_s, check_s=line.check_s,
            run_s=line.run_s, code_digest=line.code_digest,
            extra=bytes(line.extra),
        )
        if made.extra:
            try:
                read = OWN_FIELDS.get(made.source)
                _ = decode_any(made.extra) if read is None else read(made)
            except Exception as error:
                raise RejectError(
                    Reason.FIELD, f"extra: not what a record of {made.source} has: {error!r}"
                ) from error
        return made


def write(items: Iterable[ImportedRecord | Attachment]) -> Iterator[bytes]:
    """Encode lines, the header first, in the order of the items."""
    yield _encode(Header()) + b"\n"
    tasks: dict[int, tuple[Task, msgspec.Raw]] = {}
    for item in items:
        if isinstance(item, Attachment):
            yield _encode(item) + b"\n"
            continue
        known = tasks.get(id(item.task))
        if known is None:
            if len(tasks) >= MAX_CACHED:
                tasks.clear()
            # The task is kept alive, so that its id is not reused.
            known = tasks[id(item.task)] = (item.task, _raw(item.task))
        yield _encode(_line(item, known[1])) + b"\n"


def _line(item: ImportedRecord, task: msgspec.Raw) -> _Record:
    return _Record(
        source=item.source, task=task, config=msgspec.json.decode(item.config_key),
        samples_s=item.samples_s, error=item.error, advice=item.is_advice,
        message=item.message, measured_at=item.measured_at, device_model=item.device_model,
        device=_raw(item.device) if item.device else NONE, phase=item.phase,
        session=item.session, worker=item.worker, run=item.run, seed=item.seed,
        policy=_raw(item.policy) if item.policy else NONE,
        environment=_raw(item.environment) if item.environment else NONE,
        prepare_s=item.prepare_s, build_s=item.build_s, check_s=item.check_s, run_s=item.run_s,
        code_digest=item.code_digest, extra=msgspec.Raw(item.extra) if item.extra else NONE,
    )


def _raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(encode(value))
