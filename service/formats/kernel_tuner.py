"""Kernel Tuner's files: caches (closed, or as an interrupted run leaves them) and T4 results.

Both are one JSON object. The kernel becomes a workload and a foreign implementation of its own
(`kernel_tuner:convolution_kernel`), the tuned parameters a space of categorical knobs.
"""
# Over 300 lines: one format in both its forms, read and written.

from __future__ import annotations

import contextlib
import json
import math
import re
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Any

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
    reject,
)
from service.formats.scan import Entry, Frame, scan
from service.formats.source import Source, load
from strategy.config import MAX_TEXT
from strategy.foreign import clean_name
from strategy.knob import MAX_VALUES
from strategy.record import ErrorKind
from strategy.space import Config, ConfigSpace, Knob, SpaceError
from strategy.target import Target
from strategy.workload import Workload

_IN_MEMORY = 1 << 24

_FAILURES = {
    "InvalidConfig": ErrorKind.INVALID,
    "CompilationFailedConfig": ErrorKind.COMPILE,
    "RuntimeFailedConfig": ErrorKind.RUNTIME,
}
_INVALIDITY = {
    "constraints": ErrorKind.INVALID, "compile": ErrorKind.COMPILE, "runtime": ErrorKind.RUNTIME,
    "timeout": ErrorKind.RUN_TIMEOUT, "correctness": ErrorKind.WRONG_ANSWER,
}
# T4 writes "miliseconds".
_UNITS = {
    "": 1e-3, "ms": 1e-3, "miliseconds": 1e-3, "milliseconds": 1e-3, "s": 1.0, "seconds": 1.0,
    "us": 1e-6, "microseconds": 1e-6, "ns": 1e-9, "nanoseconds": 1e-9,
}
_NOT_PARAMETERS = frozenset(
    "time times timestamp compile_time verification_time benchmark_time strategy_time "
    "framework_time __error__".split()
)
_T4_KEYS = frozenset(
    b"timestamp configuration objectives times invalidity correctness measurements".split()
)
_VENDORS = (
    (re.compile(r"nvidia|geforce|tesla|quadro|\b[rg]tx\b|titan", re.IGNORECASE), "cuda"),
    (re.compile(r"\bamd\b|radeon|instinct|\bmi\d|gfx\d|\bw[67]\d00", re.IGNORECASE), "rocm"),
    (re.compile(r"xeon|epyc|ryzen|\bcpu\b|threadripper", re.IGNORECASE), "llvm"),
    (re.compile(r"apple", re.IGNORECASE), "metal"),
)


def read(source: Source, target: Target | None = None, device_model: str = "") -> Iterator[Item]:
    """The records of a cache or of T4 results, with their space; bad entries are rejected.

    A T4 file, and a cache whose header follows its entries, are read twice, if the stream cannot seek through a
    temporary file, as the meaning of entries is only known at the end.

    Args:
        source: the file; its name is the kernel's if the file has none.
        target: the kernel's target; default: derived from the device's name.
        device_model: the device's name if the file has none, as T4 results.
    """
    is_cache = b'"results"' not in source.head or b'"cache"' in source.head
    reader = (_Cache if is_cache else _Results)(source.name, target, device_model)
    with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY) as copy:
        chunks: Iterable[bytes] = source.chunks()
        if reader.needs_all(source.head):
            for chunk in chunks:
                copy.write(chunk)
            copy.seek(0)
            yield from reader.survey(_chunks_of(copy))
            copy.seek(0)
            chunks = _chunks_of(copy)
        yield from reader.records(chunks)
    if source.fault is not None:
        yield source.fault


def _chunks_of(stream: Any) -> Iterator[bytes]:
    return iter(lambda: bytes(stream.read(1 << 18)), b"")


class _Reader(ABC):
    """The common parser of caches and T4 results: a frame with entries in one member."""

    member = ""

    def __init__(self, name: str, target: Target | None, device_model: str) -> None:
        self._name = name
        self._target = target
        self._device = device_model or ("" if target is None else target.model)
        self._surveyed = False
        self._task: Task | None = None
        self._parameters: dict[str, None] = {}  # in their order
        self._keys: dict[str, None] = {}

    def needs_all(self, head: bytes) -> bool:
        """True if the whole file must be read before its first record, as no header has the parameters' values."""
        return True

    @abstractmethod
    def _learn(self, frame: dict[str, Any]) -> Iterator[Item]:
        """Make the task of all records."""

    @abstractmethod
    def _first_keys(self, frame: bytes) -> frozenset[bytes] | None:
        """The possible first keys of entries, None if any."""

    @abstractmethod
    def _entries(self, text: bytes) -> Iterable[tuple[str, Any]]:
        """The entries in one piece of the member, by name."""

    @abstractmethod
    def _record(self, entry: dict[str, Any]) -> ImportedRecord:
        """The record of an entry."""

    def survey(self, chunks: Iterable[bytes]) -> Iterator[Item]:
        """Collect the information for records from the whole file."""
        frame = b""
        for part in scan(chunks, self.member, self._first_keys, last=False):
            if isinstance(part, Frame):
                frame = part.text
            elif part.fault is None:
                # Rejections are reported with the records.
                with contextlib.suppress(Exception):
                    for _, entry in self._entries(part.text):
                        if isinstance(entry, dict):
                            self._note(entry)
        self._surveyed = True
        yield from self._begin(frame)

    def _note(self, entry: dict[str, Any]) -> None:
        if len(self._keys) < 20:
            self._keys[next(iter(entry))] = None

    def records(self, chunks: Iterable[bytes]) -> Iterator[Item]:
        """All records, after their space."""
        begun = self._surveyed
        for part in scan(chunks, self.member, self._first_keys, last=not self._surveyed):
            if isinstance(part, Frame):
                if not begun:
                    yield from self._begin(part.text)
                begun = True
            elif part.fault is not None:
                detail = f"the entry has no end ({part.fault.value}) and was not read"
                yield Rejected(line=part.line, reason=part.fault, detail=detail, text=part.text)
            else:
                yield from self._read(part)

    def _begin(self, frame: bytes) -> Iterator[Item]:
        try:
            data = _frame(frame)
            if self.member not in data:
                detail = f"{self.member!r} is missing: not a Kernel Tuner file"
                raise RejectError(Reason.FIELD, detail)
            yield from self._learn(data)
        except Exception as error:
            yield reject(1, error, frame)

    def _read(self, part: Entry) -> Iterator[Item]:
        try:
            if self._task is None:
                raise RejectError(Reason.WORKLOAD, "the description of the kernel cannot be read")
            entries = list(self._entries(part.text))
        except Exception as error:
            yield reject(part.line, error, part.text)
            return
        for name, entry in entries:
            try:
                if not isinstance(entry, dict):
                    raise RejectError(Reason.FIELD, f"entry {name!r:.80}: expected an object")
                yield self._record(entry)
            except Exception as error:
                yield reject(part.line, error, part.text)

    def _make_task(
        self, kernel: str, device: str, values: Mapping[str, list[Any]], attrs: dict[str, Any]
    ) -> Iterator[Item]:
        """The task of all records, after the attachment of its space, if any."""
        space = None
        self._parameters = dict.fromkeys(values)
        try:
            space = space_of(values)
        except SpaceError as error:
            yield reject(1, error)
        if len(kernel) > 100:
            raise RejectError(
                Reason.WORKLOAD, f"kernel_name {kernel!r:.40}…: at most 100 characters"
            )
        name = clean_name(kernel) or "kernel"
        if name != kernel:
            attrs = {"kernel_name": kernel, **attrs}
        digest = "" if space is None else space.digest
        task = Task(
            workload=Workload(f"kernel_tuner.{name}", (), attrs),
            target=self._target or target_of(device), implementation=f"kernel_tuner:{name}",
            version=f"1.{digest or 0}", space=digest,
        )
        self._task = checked(task)
        if space is not None:
            yield Attachment(what="space", key=digest, text=json.dumps(space.to_json()))

    def _made(self, **values: Any) -> ImportedRecord:
        assert self._task is not None
        return ImportedRecord(source="kernel_tuner", task=self._task, **values)

    def _config(self, entry: Mapping[str, Any]) -> str:
        missing = next((p for p in self._parameters if p not in entry), None)
        if missing is not None:
            raise RejectError(Reason.FIELD, f"parameter {missing!r:.80} is missing")
        values = {p: as_value(entry[p]) for p in self._parameters}
        return config_key(dict(Config(values).plain))


class _Cache(_Reader):
    member = "cache"
    _header = ("device_name", "kernel_name", "tune_params_keys", "tune_params")

    def needs_all(self, head: bytes) -> bool:
        """True if the entries precede their description, or that is longer than `head`."""
        before = head[: max(head.find(b'"cache"'), 0)]
        return any(f'"{name}"'.encode() not in before for name in self._header)

    def _learn(self, frame: dict[str, Any]) -> Iterator[Item]:
        values = frame.get("tune_params")
        names = frame.get("tune_params_keys", list(values) if isinstance(values, dict) else None)
        if not isinstance(values, dict) or not isinstance(names, list):
            raise RejectError(
                Reason.FIELD, "tune_params is missing: expected name → list of values"
            )
        for name in names:
            if not isinstance(name, str) or not isinstance(values.get(name), list):
                raise RejectError(Reason.FIELD, f"tune_params: no list of values for {name!r:.80}")
        kernel, device = frame.get("kernel_name"), frame.get("device_name")
        if not isinstance(kernel, str) or not isinstance(device, str):
            raise RejectError(Reason.FIELD, "kernel_name and device_name: expected texts")
        self._device = device[:200]
        attrs = {} if frame.get("problem_size") is None else {"problem_size": frame["problem_size"]}
        yield from self._make_task(kernel, device, {n: values[n] for n in names}, attrs)

    def _first_keys(self, frame: bytes) -> frozenset[bytes] | None:
        names = self._keys if self._surveyed else self._parameters
        return frozenset(n.encode() for n in names) or None

    def _entries(self, text: bytes) -> Iterable[tuple[str, Any]]:
        entries: dict[str, Any] = load(b"{" + text.strip(b", \t\r\n") + b"}")
        return entries.items()

    def _record(self, entry: dict[str, Any]) -> ImportedRecord:
        config = self._config(entry)
        time = entry.get("__error__", entry.get("time"))
        error = None
        samples: tuple[float, ...] = ()
        if isinstance(time, str):
            # Failures may have other names in later releases.
            error = _FAILURES.get(time, ErrorKind.RUNTIME)
        else:
            samples = seconds(entry.get("times", [time]) or [time], 1e-3)
        rest = {
            k: v for k, v in entry.items() if k not in self._parameters and k not in _NOT_PARAMETERS
        }
        return self._made(
            config_key=config, samples_s=samples, error=error,
            message=f"Kernel Tuner: {time:.200}" if error else "",
            measured_at=instant(entry.get("timestamp")), device_model=self._device,
            build_s=duration(entry.get("compile_time")),
            check_s=duration(entry.get("verification_time")),
            run_s=duration(entry.get("benchmark_time")), extra=_extra({"metrics": rest}),
        )


class _Results(_Reader):
    member = "results"

    def __init__(self, name: str, target: Target | None, device_model: str) -> None:
        super().__init__(name, target, device_model)
        self._unit = 1e-3
        self._values: dict[str, dict[str, Any]] = {}

    def _note(self, entry: dict[str, Any]) -> None:
        super()._note(entry)
        for name, value in entry["configuration"].items():
            known = self._values.setdefault(name, {})
            if len(known) <= MAX_VALUES and len(self._values) <= 1000:
                known.setdefault(json.dumps(value), value)

    def _learn(self, frame: dict[str, Any]) -> Iterator[Item]:
        about = frame.get("metadata")
        about = about if isinstance(about, dict) else {}
        unit = about.get("timeunit", about.get("time_unit", ""))
        if unit not in _UNITS:
            raise RejectError(Reason.FIELD, f"metadata.timeunit = {unit!r:.40}: not a known unit")
        self._unit = _UNITS[unit]
        stem = PurePath(self._name).name.removesuffix(".gz").removesuffix(".json")
        kernel = str(about.get("kernel_name") or stem or "kernel")
        self._device = str(about.get("device_name") or self._device)[:200]
        values = {n: _ordered(v.values()) for n, v in self._values.items()}
        yield from self._make_task(kernel, self._device, values, {})

    def _first_keys(self, frame: bytes) -> frozenset[bytes] | None:
        return _T4_KEYS

    def _entries(self, text: bytes) -> Iterable[tuple[str, Any]]:
        entries = load(b"[" + text.strip(b", \t\r\n") + b"]")
        return [(f"[{i}]", entry) for i, entry in enumerate(entries)]

    def _record(self, entry: dict[str, Any]) -> ImportedRecord:
        configuration, times = entry.get("configuration"), entry.get("times", {})
        if not isinstance(configuration, dict) or not isinstance(times, dict):
            raise RejectError(Reason.FIELD, "configuration and times: expected objects")
        config = self._config(configuration)
        invalidity = entry.get("invalidity", "correct")
        error = None if invalidity == "correct" else _INVALIDITY.get(invalidity, ErrorKind.RUNTIME)
        if error is None and entry.get("correctness", 1) == 0:
            error = ErrorKind.WRONG_ANSWER
        samples: tuple[float, ...] = ()
        if error is None:
            runs = _either(times, "runtimes")
            samples = seconds(runs, self._unit) if runs else self._measured(entry)
        kept = {"measurements", "objectives", "correctness"}
        rest = {k: v for k, v in entry.items() if k in kept}
        return self._made(
            config_key=config, samples_s=samples, error=error,
            message=f"Kernel Tuner: {invalidity}"[:200] if error else "",
            measured_at=instant(entry.get("timestamp")), device_model=self._device,
            build_s=duration(_either(times, "compilation"), self._unit),
            check_s=duration(_either(times, "validation"), self._unit),
            run_s=duration(_either(times, "benchmark"), self._unit), extra=_extra(rest),
        )

    def _measured(self, entry: dict[str, Any]) -> tuple[float, ...]:
        for found in entry.get("measurements", ()):
            if isinstance(found, dict) and found.get("name") == "time":
                unit = _UNITS.get(found.get("unit") or "?", self._unit)
                return seconds([found.get("value")], unit)
        raise RejectError(Reason.COST, "neither times.runtimes nor a measurement called time")


def _frame(text: bytes) -> dict[str, Any]:
    """The frame as an object, closed if the file was left open."""
    closed = text.rstrip(b", \t\r\n")
    try:
        frame = load(closed)
    except RejectError as error:
        if error.reason is Reason.DUPLICATE:
            raise
        frame = load(closed + b"}")
    if not isinstance(frame, dict):
        raise RejectError(Reason.FIELD, "expected an object")
    return frame


def _either(times: Mapping[str, Any], name: str) -> Any:
    """A time under either spelling of T4's schema and its writers."""
    return times.get(name, times.get(f"{name}_time"))


def _extra(data: dict[str, Any]) -> bytes:
    try:
        return json.dumps(data, allow_nan=False, separators=(",", ":")).encode()
    except ValueError:
        return b""  # NaN metrics are dropped


def _ordered(values: Iterable[Any]) -> list[Any]:
    listed = list(values)
    if all(type(v) in {int, float} for v in listed):
        return sorted(listed)
    return listed


def as_value(value: Any) -> Any:
    """A parameter's value as a knob's; objects, null and mixed lists become their JSON."""
    plain = isinstance(value, bool | int | float | str)
    if plain or (isinstance(value, list) and all(type(v) is int for v in value)):
        return value
    text = json.dumps(value, separators=(",", ":"), sort_keys=True)
    if len(text) > MAX_TEXT:
        raise RejectError(Reason.CONFIG, f"a parameter's value has at most {MAX_TEXT} characters")
    return text


def space_of(values: Mapping[str, list[Any]]) -> ConfigSpace:
    """The space of categorical knobs; raise `SpaceError` if it is too large."""
    knobs = []
    for name, given in values.items():
        taken = [tuple(v) if isinstance(v, list) else v for v in map(as_value, given)]
        knobs.append(Knob(name, {(type(v), v): v for v in taken}.values()))
    return ConfigSpace(knobs)


def target_of(device: str) -> Target:
    """The target derived from a device's name, else OpenCL, which all devices support."""
    kind = next((kind for pattern, kind in _VENDORS if pattern.search(device)), "opencl")
    return Target.parse({"kind": kind, "model": device[:200]} if device else {"kind": kind})


def seconds(values: Any, unit: float) -> tuple[float, ...]:
    """Times in units of `unit` seconds; raise `RejectError` unless all are positive."""
    if not isinstance(values, list) or len(values) > MAX_SAMPLES:
        raise RejectError(Reason.COST, f"times: expected a list of up to {MAX_SAMPLES}")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise RejectError(Reason.COST, f"{value!r:.40} is not a time")
        if not 0 < value * unit < MAX_COST_S:
            raise RejectError(Reason.COST, f"{value!r:.40} is not a time: it must be positive")
    return tuple(float(v) * unit for v in values)


def duration(value: Any, unit: float = 1e-3) -> float:
    """The duration of a step in seconds, 0 if the file does not say."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    return value * unit if math.isfinite(value) and 0 < value * unit < MAX_COST_S else 0.0


def instant(text: Any) -> float:
    """The Unix time of an ISO date, UTC without a zone; 0 if there is none."""
    if text is None:
        return 0.0
    try:
        when = datetime.fromisoformat(text)
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    except (TypeError, ValueError, OverflowError) as error:
        raise RejectError(Reason.TIME, f"timestamp {text!r:.40}: expected an ISO date") from error


def write(items: Iterable[ImportedRecord | Attachment]) -> Iterator[bytes]:
    """T4 results of one task's records, in pieces; times are in milliseconds.

    The kernel is the task's, the device is the first record's.
    """
    opened = False
    for item in items:
        if isinstance(item, ImportedRecord):
            yield b",\n" if opened else _opening(item)
            yield json.dumps(_result(item)).encode()
            opened = True
    yield (b"" if opened else _opening()) + b'\n], "schema_version": "1.0.0"}\n'


def _opening(first: ImportedRecord | None = None) -> bytes:
    about = {"timeunit": "miliseconds"}
    if first is not None:
        task, device = first.task, first.device
        kernel = task.implementation.removeprefix("kernel_tuner:")
        about["kernel_name"] = str(task.workload.attrs.get("kernel_name", kernel))
        about["device_name"] = (device.model if device else first.device_model) or task.target.model
    return b'{"metadata": %s, "results": [\n' % json.dumps(about).encode()


_NAMES = {kind: name for name, kind in _INVALIDITY.items()} | {
    ErrorKind.INSTANTIATION: "compile", ErrorKind.BUILD_TIMEOUT: "timeout",
}


def _result(item: ImportedRecord) -> dict[str, Any]:
    extra = json.loads(item.extra) if item.source == "kernel_tuner" and item.extra else {}
    runs = [s * 1e3 for s in item.samples_s]
    mean = sum(runs) / len(runs) if runs else "RuntimeFailedConfig"
    metrics = [{"name": n, "value": v, "unit": ""} for n, v in extra.get("metrics", {}).items()]
    invalidity = "correct" if item.error is None else _NAMES.get(item.error, "runtime")
    when = datetime.fromtimestamp(item.measured_at, UTC).isoformat(sep=" ")
    times: dict[str, Any] = {
        "compilation": item.build_s * 1e3, "benchmark": item.run_s * 1e3, "framework": 0,
        "search_algorithm": 0, "validation": item.check_s * 1e3,
    }
    if runs:
        times["runtimes"] = runs
    return {
        "timestamp": when, "configuration": json.loads(item.config_key), "times": times,
        "invalidity": invalidity, "correctness": int(item.error is None),
        "measurements": extra.get(
            "measurements", [{"name": "time", "value": mean, "unit": "ms"}, *metrics]
        ),
        "objectives": extra.get("objectives", ["time"]),
    }
