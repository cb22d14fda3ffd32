"""AutoTVM's logs: one JSON document per line, versions 0.1 and 0.2.

A line's template becomes a foreign implementation (`autotvm:conv2d_nchw_winograd.cuda`); its computation becomes a
workload of an operator that all its templates share (`autotvm.conv2d_nchw`), so that they compete.
"""
# Over 300 lines: one format in both its versions, read and written.

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Iterable, Iterator
from functools import partial
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
    RejectError,
    Task,
    checked,
    config_key,
    remembered,
)
from service.formats.foreign_target import foreign_target
from service.formats.source import Source, check, load
from service.formats.template import arguments_of, family, tensor, workload_of
from strategy.config import MAX_PARTS, MAX_TEXT
from strategy.record import ErrorKind, analyse

MAX_KNOBS = 100

Integer = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Text = Annotated[str, Meta(max_length=MAX_TEXT)]
Entity = (
    bool
    | Integer
    | float
    | None
    | Text
    | Annotated[list[Integer | Text], Meta(max_length=MAX_PARTS)]
)
Knobs = Annotated[
    list[tuple[Text, Literal["sp", "re", "an", "ot"], Entity]], Meta(max_length=MAX_KNOBS)
]

# MeasureErrorNo and plevel's kinds.
ERRORS = {
    1: ErrorKind.INSTANTIATION, 2: ErrorKind.COMPILE, 3: ErrorKind.COMPILE, 4: ErrorKind.RUNTIME,
    5: ErrorKind.WRONG_ANSWER, 6: ErrorKind.BUILD_TIMEOUT, 7: ErrorKind.RUN_TIMEOUT,
    8: ErrorKind.RUNTIME,
}
_MESSAGES = {
    1: "instantiation error", 2: "compile error on the host", 3: "compile error on the device",
    4: "runtime error on the device", 5: "wrong answer", 6: "build timeout", 7: "run timeout",
    8: "unknown error",
}
_NUMBERS = {
    ErrorKind.INVALID: 1, ErrorKind.INSTANTIATION: 1, ErrorKind.COMPILE: 2, ErrorKind.RUNTIME: 4,
    ErrorKind.OOM: 4, ErrorKind.WRONG_ANSWER: 5, ErrorKind.BUILD_TIMEOUT: 6,
    ErrorKind.RUN_TIMEOUT: 7, ErrorKind.OUT_OF_BOUNDS: 4,
}


class _Config(msgspec.Struct, forbid_unknown_fields=True):
    index: Integer | None
    code_hash: Annotated[str, Meta(max_length=1000)] | None
    entity: Knobs


# Costs, the number of the error, the cost of all, and the timestamp.
_Result = tuple[Annotated[list[float], Meta(max_length=MAX_SAMPLES)], int, float, float]


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    input: msgspec.Raw
    config: _Config
    result: _Result
    version: float
    tvm_version: Text | None = None


class _Extra(msgspec.Struct, omit_defaults=True):
    """Fields of AutoTVM's lines that records lack, kept for exports."""

    target: str
    knobs: list[tuple[str, str]]
    index: int | None = None
    code_hash: str | None = None
    error_no: int = 0
    all_cost: float = 0.0
    version: float = 0.2
    tvm_version: str | None = None
    workload: msgspec.Raw = msgspec.Raw(b"")  # of version 0.1
    template: str | None = None  # of version 0.1
    more: dict[str, Any] = {}  # keys unknown to AutoTVM


_decoder = msgspec.json.Decoder(_Line)
_encode = msgspec.json.Encoder().encode


def read(source: Source) -> Iterator[Item]:
    """Yield the records of a log; comments and blank lines are skipped, bad lines rejected."""
    return source.read_lines(partial(_record, tasks={}))


def _record(line: bytes, tasks: dict[bytes, tuple[Task, str]]) -> ImportedRecord | None:
    if line[:1] == b"#":
        return None
    check(line)
    more: dict[str, Any] = {}
    parsed = None
    # Eight known keys and eight colons: each key occurs once. Other lines take the slow path.
    if line.count(b":") == 8:
        with contextlib.suppress(msgspec.MsgspecError, ValueError, RecursionError):
            parsed = _decoder.decode(line)
    if parsed is None or parsed.tvm_version is None or parsed.version != 0.2:
        data = _load(line)
        if "v" in data:
            return _record_0_1(data, tasks)
        parsed, more = _closely(data)
    raw = bytes(parsed.input)
    task, target = remembered(tasks, raw, lambda: _task(load(raw)))
    extra = _Extra(
        target, [], parsed.config.index, parsed.config.code_hash, version=parsed.version,
        tvm_version=parsed.tvm_version, more=more,
    )
    return _built(task, parsed.config.entity, parsed.result, extra)


def _load(line: bytes) -> dict[str, Any]:
    if b"\t" in line and line.count(b"\t") >= 3 and b"{" not in line:
        raise RejectError(
            Reason.PICKLE, "a line of pickled objects, which are never unpickled: log as JSON"
        )
    data = load(line)
    if not isinstance(data, dict):
        raise RejectError(Reason.FIELD, "expected an object with input, config and result")
    return data


def _closely(data: dict[str, Any]) -> tuple[_Line, dict[str, Any]]:
    """Parse a line with unknown keys, which are kept, or with numbers that JSON lacks."""
    if data.get("version") not in (0.2, None) or "input" not in data:
        shown = data.get("version")
        raise RejectError(
            Reason.VERSION if "input" in data else Reason.FIELD,
            f"version {shown!r:.40} is unknown: expected 0.1 or 0.2" if "input" in data
            else "'input' is missing: not a line of an AutoTVM log",
        )
    more = {k: v for k, v in data.items() if k not in _Line.__struct_fields__}
    known = {k: v for k, v in data.items() if k not in more}
    _check_costs(known.get("result"))
    config = known.get("config")
    if isinstance(config, dict):
        unknown = {k: v for k, v in config.items() if k not in _Config.__struct_fields__}
        if unknown:
            more["config"] = unknown
            known["config"] = {k: v for k, v in config.items() if k not in unknown}
    known["input"] = msgspec.Raw(_finite(known["input"]))
    _finite(more)
    return msgspec.convert(known, _Line), more


def _finite(value: Any) -> bytes:
    try:
        return json.dumps(value, allow_nan=False).encode()
    except ValueError as error:
        raise RejectError(Reason.FIELD, f"NaN or infinity outside of times: {error}") from error


def _check_costs(result: Any) -> None:
    listed = isinstance(result, list) and result and isinstance(result[0], list)
    for cost in result[0] if listed else ():
        if not isinstance(cost, int | float) or isinstance(cost, bool) or not math.isfinite(cost):
            raise RejectError(Reason.COST, f"{cost!r:.40} is not a time")


def _built(task: Task, entity: Knobs, result: _Result, extra: _Extra) -> ImportedRecord:
    costs, number, extra.all_cost, measured_at = result
    error = None
    if number:
        error = ERRORS.get(number)
        if error is None:
            raise RejectError(Reason.FIELD, f"error_no {number} is out of range 0 … 8")
        extra.error_no = number
    elif not costs or min(costs) <= 0 or max(costs) >= MAX_COST_S:
        raise RejectError(Reason.COST, f"costs {costs!r:.80} are not times in seconds")
    if not 0 <= measured_at <= 1e12 or not math.isfinite(extra.all_cost):
        raise RejectError(Reason.TIME, f"timestamp {measured_at!r:.40} is not a Unix time")
    values: dict[str, Any] = {}
    for name, kind, value in entity:
        values[name] = value if kind != "an" and value is not None else _as_text(value)
    if len(values) != len(entity):
        raise RejectError(Reason.DUPLICATE, "a knob is given twice")
    for name, kind, value in entity:
        if type(value) is list:
            if kind != "an" and not all(type(v) is int for v in value):
                raise RejectError(Reason.CONFIG, f"knob {name!r:.80}: expected integers")
        elif kind in {"sp", "re"}:
            raise RejectError(Reason.CONFIG, f"knob {name!r:.80}: expected a list of integers")
    extra.knobs = [(name, "nil" if value is None else kind) for name, kind, value in entity]
    return ImportedRecord(
        source="autotvm", task=task, config_key=config_key(values),
        samples_s=() if error else tuple(costs), error=error,
        message=f"AutoTVM: {_MESSAGES[number]}" if error else "", measured_at=measured_at,
        device_model=task.target.model, extra=_encode(extra),
    )


def _as_text(value: Any) -> str:
    """The value of a knob; annotations (lists of names) and null become their JSON."""
    text = json.dumps(value, separators=(",", ":"))
    if len(text) > MAX_TEXT:
        raise RejectError(Reason.CONFIG, f"a knob's text has at most {MAX_TEXT} characters")
    return text


def _task(data: Any, template: str | None = None) -> tuple[Task, str]:
    """The task of `input`, and its target as written."""
    match data:
        case [str(spec), str(name), list(args), kwargs]:
            pass
        case _:
            raise RejectError(Reason.FIELD, "input: expected [target, task, args, kwargs]")
    if not isinstance(kwargs, dict):
        raise RejectError(Reason.FIELD, "input: kwargs: expected an object")
    full = name if template is None else f"{name}.{template}"
    if not 0 < len(full) <= 100:
        raise RejectError(
            Reason.WORKLOAD, f"a task's name has 1 to 100 characters, got {full!r:.40}…"
        )
    task = Task(
        workload=workload_of(name, args, kwargs), target=foreign_target(spec),
        implementation=f"autotvm:{full}", version="1.0",
    )
    return checked(task), spec


def _record_0_1(data: dict[str, Any], tasks: dict[bytes, tuple[Task, str]]) -> ImportedRecord:
    if data["v"] != 0.1 or data.keys() != {"i", "r", "v"}:
        raise RejectError(Reason.VERSION, f"version {data['v']!r:.40} is unknown: expected 0.1 or 0.2")
    entries, result = data["i"], data["r"]
    if not isinstance(entries, list) or len(entries) != 6 or not isinstance(entries[5], dict):
        raise RejectError(
            Reason.FIELD, "i: expected [target, task, args, kwargs, workload, config]"
        )
    config = entries[5]
    if not config.keys() <= {"i", "c", "e", "t"}:
        raise RejectError(Reason.FIELD, "i: a config has the keys i, c, e and t")
    _check_costs(result)
    template = msgspec.convert(config.get("t"), Text | None)
    raw = _finite([*entries[:4], template])
    task, target = remembered(tasks, raw, lambda: _task(entries[:4], template))
    parsed = msgspec.convert(
        {"index": config.get("i"), "code_hash": config.get("c"), "entity": config.get("e")}, _Config
    )
    extra = _Extra(
        target, [], parsed.index, parsed.code_hash, version=0.1, template=template,
        workload=msgspec.Raw(_finite(entries[4])),
    )
    return _built(task, parsed.entity, msgspec.convert(result, _Result), extra)


analyse(_Config, _Extra, _Result)


def write(items: Iterable[ImportedRecord | Attachment]) -> Iterator[bytes]:
    """Write lines for AutoTVM's parser; imported ones are equal to the originals.

    Records of other sources have their implementation as the task, their inputs as arguments and their
    attributes as keyword arguments.
    """
    for item in items:
        if isinstance(item, ImportedRecord):
            yield json.dumps(_document(item)).encode() + b"\n"


def _document(item: ImportedRecord) -> dict[str, Any]:
    values = json.loads(item.config_key)
    if item.source == "autotvm" and item.extra:
        extra = msgspec.json.decode(item.extra, type=_Extra)
        task = item.task.implementation.removeprefix("autotvm:")
        args, kwargs = arguments_of(item.task.workload, family(task))
    else:
        knobs = [(k, "sp" if isinstance(v, list) else "ot") for k, v in values.items()]
        number = 0 if item.error is None else _NUMBERS.get(item.error, 8)
        extra = _Extra(_legacy(item), knobs, error_no=number, all_cost=item.build_s + item.run_s)
        task = item.task.implementation
        args = [tensor(i) for i in item.task.workload.inputs]
        kwargs = item.task.workload.attrs
    entity = [
        [name, "ot" if kind == "nil" else kind,
         json.loads(values[name]) if kind in {"an", "nil"} else values[name]]
        for name, kind in extra.knobs
    ]
    costs = list(item.samples_s) if item.error is None else [MAX_COST_S]
    result = [costs, extra.error_no, extra.all_cost, item.measured_at]
    if extra.version == 0.1:
        config = {"i": extra.index, "t": extra.template, "c": extra.code_hash, "e": entity}
        if extra.template is None:
            del config["t"]
        else:
            task = task.removesuffix(f".{extra.template}")
        workload = json.loads(bytes(extra.workload))
        return {"i": [extra.target, task, args, kwargs, workload, config], "r": result, "v": 0.1}
    more = dict(extra.more)
    config = {"index": extra.index, "code_hash": extra.code_hash, "entity": entity}
    config |= more.pop("config", {})
    document = {
        "input": [extra.target, task, args, kwargs], "config": config, "result": result,
        "version": extra.version,
    }
    if extra.tvm_version is not None:
        document["tvm_version"] = extra.tvm_version
    return document | more


def _legacy(item: ImportedRecord) -> str:
    """The target as a string for AutoTVM's TVM."""
    target = item.task.target
    words = [target.kind, f"-keys={','.join(target.keys)}"]
    if target.arch:
        words.append(f"-{'mcpu' if target.kind == 'llvm' else 'arch'}={target.arch}")
    if target.features:
        words.append(f"-mattr={','.join(target.features)}")
    if target.triple:
        words.append(f"-mtriple={target.triple}")
    model = target.model or item.device_model
    if model:
        words.append(f"-model={re.sub(r'[^A-Za-z0-9._-]+', '-', model)}")
    return " ".join(words)
