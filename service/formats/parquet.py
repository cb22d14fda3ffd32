"""Records as Parquet, for data frames and query engines; export only, as a table is not lossless.

pyarrow is an extra of its own, as it is larger than the rest of a service.
"""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Iterable, Iterator
from statistics import median
from typing import Any

import orjson

from service.formats.entry import Attachment, ImportedRecord

GROUP = 10_000  # rows of a row group, kept in memory
# Unknown values are null; `config` and `environment` are JSON, times are in seconds.
COLUMNS = {
    "workload": "string", "op": "string", "target": "string", "implementation": "string",
    "version": "string", "config": "string", "phase": "string", "error": "string",
    "message": "string", "median_s": "double", "samples_s": "list", "prepare_s": "double",
    "build_s": "double", "check_s": "double", "run_s": "double", "measured_at": "double",
    "device_model": "string", "device": "string", "environment": "string", "worker": "string",
    "run": "int64", "seed": "int64", "session": "string", "source": "string",
    "code_digest": "string",
}


def is_installed() -> bool:
    """True if pyarrow is installed, which `write` needs."""
    return importlib.util.find_spec("pyarrow") is not None


def write(items: Iterable[ImportedRecord | Attachment]) -> Iterator[bytes]:
    """Yield a file in pieces: a row group for each `GROUP` records, then its footer."""
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    kinds = {
        "string": pa.string(), "double": pa.float64(), "int64": pa.int64(),
        "list": pa.list_(pa.float64()),
    }
    schema = pa.schema([(name, kinds[kind]) for name, kind in COLUMNS.items()])
    out = io.BytesIO()
    with ParquetWriter(out, schema, compression="zstd") as writer:
        for rows in _groups(items):
            columns = zip(zip(*rows, strict=True), schema.types, strict=True)
            arrays = [pa.array(values, kind) for values, kind in columns]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema), GROUP)
            yield _drain(out)
    yield _drain(out)


def _drain(out: io.BytesIO) -> bytes:
    """Return the bytes written since the last call; the writer tracks its position itself."""
    data = out.getvalue()
    out.seek(0)
    out.truncate()
    return data


def _groups(items: Iterable[ImportedRecord | Attachment]) -> Iterator[list[tuple[Any, ...]]]:
    rows: list[tuple[Any, ...]] = []
    for item in items:
        if isinstance(item, ImportedRecord):
            rows.append(_row(item))
        if len(rows) == GROUP:
            yield rows
            rows = []
    if rows:
        yield rows


def _row(item: ImportedRecord) -> tuple[Any, ...]:
    task, device = item.task, item.device
    return (
        task.workload.key, task.workload.op, task.target.key, task.implementation, task.version,
        item.config_key, item.phase.value, item.error and item.error.value, item.message or None,
        median(item.samples_s) if item.samples_s else None, item.samples_s, item.prepare_s,
        item.build_s, item.check_s, item.run_s, item.measured_at,
        (device.model if device else item.device_model) or None, device and device.identity,
        orjson.dumps(item.environment).decode() if item.environment else None,
        item.worker or None, item.run, item.seed, item.session or None, item.source,
        item.code_digest or None,
    )
