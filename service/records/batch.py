"""Batches of imported records: rows for one namespace and one transaction."""

from __future__ import annotations

from typing import Any

import orjson

from service.formats import Attachment, ImportedRecord
from service.store.namespace import DEFAULT, check, within
from service.store.tables import record
from service.store.text import positional

# First the columns of the record itself, then the ids of its references.
COLUMNS = tuple(
    record.c[
        "identity", "source", "origin_run", "origin_worker", "phase", "session", "seed", "config",
        "config_digest", "error", "message", "samples_s", "median_s", "mean_s", "prepare_s", "build_s",
        "check_s", "run_s", "code_digest", "extra", "measured_at",
        "task_id", "variant_id", "device_id", "environment_id", "policy_id",
    ]
)


Row = tuple[ImportedRecord, tuple[Any, ...]]  # a record, with the first columns of its row


class Batch:
    """Records for one namespace and one transaction.

    Attributes:
        namespace: their namespace.
        rows: by identity in the namespace: records, with the first columns of their rows.
        count: the number of added records, duplicates included.
        attachments: the documents that they refer to.
        bytes: the approximate size in memory.
    """

    def __init__(self, namespace: str = DEFAULT) -> None:
        self.namespace = check(namespace)
        self.rows: dict[bytes, Row] = {}
        self.count = 0
        self.attachments: list[Attachment] = []
        self.bytes = 0

    def add(self, item: ImportedRecord | Attachment) -> None:
        if isinstance(item, Attachment):
            self.attachments.append(item)
            self.bytes += len(item.text)
            return
        self.count += 1
        identity = within(self.namespace, item.identity)
        if identity not in self.rows:
            self.rows[identity] = item, (identity, *_own_values(item))
            self.bytes += 32 * len(item.samples_s) + len(item.extra) + len(item.message)

    def merge(self, other: Batch) -> None:
        """Add the records of another batch of the same namespace."""
        for identity, row in other.rows.items():
            self.rows.setdefault(identity, row)
        self.count += other.count
        self.attachments += other.attachments
        self.bytes += other.bytes


def _own_values(item: ImportedRecord) -> tuple[Any, ...]:
    """The columns of the record itself, in the order of `COLUMNS`, without the identity."""
    samples = item.samples_s
    median_s = mean_s = samples[0] if samples else None
    if len(samples) > 1:
        ordered, middle = sorted(samples), len(samples) // 2
        median_s = (ordered[middle] + ordered[-1 - middle]) / 2  # as `statistics.median`, without its checks
        mean_s = sum(samples) / len(samples)
    error = item.error
    return (
        item.source, item.run, item.worker or None, item.phase.value, item.session, item.seed,
        positional(item.config_key), item.config_digest, None if error is None else error.value, item.message,
        orjson.dumps(samples).decode(), median_s, mean_s, item.prepare_s, item.build_s,
        item.check_s, item.run_s, item.code_digest, item.extra.decode() or None, item.measured_at,
    )
