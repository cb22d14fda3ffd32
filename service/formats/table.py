"""Records as CSV, for spreadsheets and data frames; export only, as a table is not lossless.

Texts that a spreadsheet would evaluate as formulas get an apostrophe.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from statistics import median

from service.formats.entry import Attachment, ImportedRecord

COLUMNS = (
    "workload", "target", "implementation", "version", "config", "phase", "error", "median_s",
    "samples", "measured_at", "device_model", "device", "worker", "run", "session", "source",
)
_PIECE = 1 << 16
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def write(items: Iterable[ImportedRecord | Attachment]) -> Iterator[bytes]:
    """A row per record, the names of the columns first; `config` is JSON, times are in seconds."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\r\n")
    rows.writerow(COLUMNS)
    for item in items:
        if isinstance(item, ImportedRecord):
            rows.writerow(map(_safe, _row(item)))
        if text.tell() > _PIECE:
            yield text.getvalue().encode()
            text.seek(0)
            text.truncate()
    yield text.getvalue().encode()


def _row(item: ImportedRecord) -> list[object]:
    device = item.device
    return [
        item.task.workload.key, item.task.target.key, item.task.implementation, item.task.version,
        item.config_key, item.phase.value, item.error.value if item.error else "",
        median(item.samples_s) if item.samples_s else "", len(item.samples_s), item.measured_at,
        device.model if device else item.device_model, device.identity if device else "",
        item.worker, "" if item.run is None else item.run, item.session, item.source,
    ]


def _safe(cell: object) -> object:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell
