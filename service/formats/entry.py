"""The items that readers yield and writers take: records, attachments, and rejected entries."""

from __future__ import annotations

import hashlib
import json
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import orjson
from msgspec import Meta

from strategy.condition import SpecializedCondition
from strategy.record import Device, ErrorKind, Name, Phase, TimingPolicy, WireError, to_json
from strategy.space import Config, ConfigError, SpaceError
from strategy.target import Target, TargetError
from strategy.types import TypeSyntaxError
from strategy.workload import Workload, WorkloadError

MAX_COST_S = 1e9  # what AutoTVM and MetaSchedule write if there is no time
MAX_SAMPLES = 10_000  # of one record
MAX_CACHED = 20_000  # values of one kind, which many records share

Samples = Annotated[tuple[Annotated[float, Meta(gt=0, lt=MAX_COST_S)], ...], Meta(max_length=MAX_SAMPLES)]
K = TypeVar("K")
V = TypeVar("V")


def remembered(cache: dict[K, V], key: K, make: Callable[[], V]) -> V:
    """The value of a key, made if it is not cached; a full cache begins anew."""
    found = cache.get(key)
    if found is None:
        if len(cache) >= MAX_CACHED:
            cache.clear()
        found = cache[key] = make()
    return found


class Reason(StrEnum):
    """The reason of a rejection."""

    JSON = "json"  # not JSON, or not UTF-8
    TRUNCATED = "truncated"  # the file ends in the middle of it
    TOO_LONG = "too_long"
    DEPTH = "depth"  # nested too deeply
    DUPLICATE = "duplicate"  # a key or a knob twice
    FIELD = "field"  # missing, unknown, or of the wrong type
    VERSION = "version"  # of a format that this release does not know
    TARGET = "target"
    TYPE = "type"  # a dtype or a shape
    WORKLOAD = "workload"  # missing or malformed
    CONFIG = "config"
    SPACE = "space"
    COST = "cost"  # not a time: NaN, zero, negative, out of range
    TIME = "time"  # not a date
    PICKLE = "pickle"  # never unpickled
    GZIP = "gzip"  # damaged
    RATIO = "ratio"  # unpacks to too large a multiple of its size
    SLOW = "slow"  # takes too long to read
    FORMAT = "format"  # cannot be written in the requested format


class RejectError(ValueError):
    """An entry cannot be read; the reader yields it as `Rejected`."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class Rejected(msgspec.Struct, frozen=True, kw_only=True):
    """A rejected entry: its line (counted from 1), the reason, and its text.

    `text` is the complete entry, unless it is too long.
    """

    line: int
    reason: Reason
    detail: str
    text: bytes = b""


class Task(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, dict=True):
    """A measured implementation of a workload on a target, as data.

    `space` is the digest of its space, an earlier `Attachment`; empty if none is
    known.
    """

    workload: Workload
    target: Target
    implementation: Name
    version: Name
    space: str = ""
    plevel: int = 10
    library: str | None = None
    condition: SpecializedCondition | None = None

    @cached_property
    def key(self) -> str:
        """32 hexadecimal digits over the identity of the task, without the plevel."""
        return task_key(
            self.workload.key, self.target.to_json(), self.implementation, self.version, self.space
        )


def task_key(
    workload: str, target: dict[str, Any], implementation: str, version: str, space: str
) -> str:
    """Compute `Task.key` from a workload's key, a target's JSON and a space's digest."""
    parts = (workload, json.dumps(target, sort_keys=True), implementation, version, space)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def checked(task: Task) -> Task:
    """Return `task` after checking that it has a key and can be stored; its attributes lose the sign of zeros.

    Raises:
        RejectError: an integer of more than 64 bits, a number that is not finite, or text that is not Unicode.
    """
    workload = task.workload.unsigned()
    if workload is not task.workload:
        task = msgspec.structs.replace(task, workload=workload)
    try:
        orjson.dumps(to_json(task))
        for attrs in (task.workload.attrs, *(step.attrs for step in task.workload.epilogue)):
            json.dumps(attrs, allow_nan=False)  # orjson writes null
        _ = task.key
    except (TypeError, ValueError) as error:  # UnicodeError is one
        raise RejectError(Reason.WORKLOAD, f"cannot be stored: {error}") from error
    return task


class Attachment(msgspec.Struct, frozen=True, kw_only=True, tag="attachment", tag_field="kind"):
    """A document that records refer to by key; it precedes the first of them.

    A `space` (key: its digest) is the JSON of a `ConfigSpace`; a `module` (key: the SHA-256 of the
    text, which is the attribute `module` of its workload) is a line of MetaSchedule's workloads.
    """

    what: Literal["space", "module"]
    key: str
    text: str


class ImportedRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One attempt of one configuration, from any source.

    Either `error` is set or there are samples; with neither it is advice: a tool's winner without a time. `source`
    is `plevel`, or the format of its first import; `extra` is a JSON object of the fields that only that format has
    and an exact export needs.
    """

    source: str
    task: Task
    config_key: str
    samples_s: tuple[float, ...] = ()
    error: ErrorKind | None = None
    message: str = ""
    measured_at: float = 0.0
    device_model: str = ""
    device: Device | None = None
    phase: Phase = Phase.SEARCH
    session: str = ""
    worker: str = ""
    run: int | None = None
    seed: int | None = None
    policy: TimingPolicy | None = None
    environment: dict[str, Any] = {}
    prepare_s: float | None = None
    build_s: float = 0.0
    check_s: float = 0.0
    run_s: float = 0.0
    code_digest: str = ""
    extra: bytes = b""

    @property
    def config(self) -> Config:
        return Config(json.loads(self.config_key))

    @property
    def is_advice(self) -> bool:
        return self.error is None and not self.samples_s

    @property
    def config_digest(self) -> str:
        """The `config.digest`, without building a `Config`."""
        return hashlib.sha256(self.config_key.encode()).hexdigest()[:16]

    @property
    def identity(self) -> bytes:
        """A digest of 16 bytes over the record's content; equal ones are the same record."""
        where = self.device.identity if self.device is not None else self.device_model
        return identity(
            self.task.key, self.config_key, self.phase, self.error, self.measured_at, self.session,
            where, self.samples_s,
        )


def identity(
    task: str,
    config: str,
    phase: str,
    error: str | None,
    measured_at: float,
    session: str,
    where: str,
    samples_s: Sequence[float],
) -> bytes:
    """Compute `ImportedRecord.identity` from the keys of its task and configuration."""
    # Joined, as formatting an enumeration's member takes as long as the digest.
    text = "\n".join((task, config, phase, error or "", repr(measured_at), session, where, ""))
    content = text.encode() + struct.pack(f"<{len(samples_s)}d", *samples_s)
    return hashlib.blake2b(content, digest_size=16).digest()


Item = ImportedRecord | Attachment | Rejected

_sorted = msgspec.json.Encoder(order="sorted")


def config_key(values: dict[str, Any]) -> str:
    """Compute `Config(values).key` five times faster; raise `RejectError` for a value that is not finite."""
    text = _sorted.encode(values).decode()
    # json.dumps writes floats and non-ASCII characters differently.
    if float in map(type, values.values()):
        values = {name: v + 0.0 if type(v) is float else v for name, v in values.items()}  # no sign of zero
    elif text.isascii() and text.isprintable():
        return text
    try:
        return json.dumps(values, separators=(",", ":"), sort_keys=True, allow_nan=False)
    except ValueError as error:
        raise RejectError(Reason.CONFIG, "a knob's value is not finite") from error


def reject(line: int, error: Exception, text: bytes = b"") -> Rejected:
    """The rejected entry for an error of its reader."""
    return Rejected(line=line, reason=_reason_of(error), detail=f"{error}"[:500], text=text)


def _reason_of(error: Exception) -> Reason:
    if isinstance(error, RejectError):
        return error.reason
    if isinstance(error, WireError | msgspec.ValidationError):
        if isinstance(error.__cause__, Exception):
            return _reason_of(error.__cause__)
        path = str(error).rpartition("$")[2]
        return Reason.COST if path.startswith(".samples_s") else Reason.FIELD
    kinds: tuple[tuple[type[Exception], Reason], ...] = (
        (TargetError, Reason.TARGET),
        (TypeSyntaxError, Reason.TYPE),
        (WorkloadError, Reason.WORKLOAD),
        (ConfigError, Reason.CONFIG),
        (SpaceError, Reason.SPACE),
        (RecursionError, Reason.DEPTH),
        (ValueError, Reason.JSON),
    )
    return next((reason for kind, reason in kinds if isinstance(error, kind)), Reason.FIELD)


class Summary:
    """Counts of an import, for a person and as JSON."""

    def __init__(self) -> None:
        self.read = self.new = self.known = 0
        self.reasons: Counter[str] = Counter()

    @property
    def rejected(self) -> int:
        return self.reasons.total()

    def add(self, *, new: int = 0, known: int = 0) -> None:
        """Count records that were read."""
        self.read += new + known
        self.new += new
        self.known += known

    def put_aside(self, rejected: Rejected) -> None:
        """Count a rejected entry, which counts as read too."""
        self.read += 1
        self.reasons[rejected.reason.value] += 1

    def to_json(self) -> dict[str, Any]:
        """`read` is the sum of `new`, `known` and `rejected`."""
        return {
            "read": self.read, "new": self.new, "known": self.known, "rejected": self.rejected,
            "reasons": dict(sorted(self.reasons.items())),
        }
