"""Helion's `.best_config`: one winner per file, or one per line as its hook sends them; a winner without a time.

The workload is the file's name, which is the digest under which Helion looks for it; the implementation is the
digest of the kernel's source. The text is kept as it is, as Helion needs it back.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

import msgspec

from service.formats.entry import ImportedRecord, Item, Reason, RejectError
from service.formats.foreign import Place, key_of, make_task, read_document
from service.formats.source import Source, load
from strategy.target import Target

HEAD = re.compile(rb'"type"\s*:\s*"\w*AutotuneCacheKey"')
_DIGEST = re.compile(r"[0-9a-f]{16,64}")
_ENVIRONMENT = ("runtime_name", "backend", "helion_key", "torch_key", "triton_key")
encode = msgspec.json.Encoder().encode


def read(source: Source, target: Target | None = None, device_model: str = "") -> Iterator[Item]:
    """The winner of a file as advice."""
    key = PurePath(source.name).name.removesuffix(".gz").removesuffix(".best_config")
    return read_document(source, lambda data: [_record(data, key, target, device_model)])


def _record(
    data: dict[str, Any], key: str, target: Target | None, device_model: str
) -> ImportedRecord:
    about = data.get("key")
    fields = about.get("fields") if isinstance(about, dict) else None
    if not isinstance(fields, dict) or not isinstance(data.get("config"), str):
        raise RejectError(Reason.FIELD, "config and key.fields: no .best_config of Helion's")
    if not _DIGEST.fullmatch(key):
        raise RejectError(
            Reason.FIELD, f"{key!r:.80}: the file's name is no digest: keep the name that Helion gave it"
        )
    config = load(data["config"].encode())
    if not isinstance(config, dict):
        raise RejectError(Reason.CONFIG, "config: expected the text of an object")
    hardware = fields.get("hardware")
    place = Place(target, device_model or (hardware if isinstance(hardware, str) else ""))
    task = make_task("helion", "kernel", {"cache_key": key}, place.target)
    source = fields.get("kernel_source_hash")
    if isinstance(source, str) and _DIGEST.fullmatch(source):
        task = msgspec.structs.replace(task, version=source[:16])
    return ImportedRecord(
        source="helion", task=task, config_key=key_of(config), device_model=place.model,
        environment={k: fields[k] for k in _ENVIRONMENT if isinstance(fields.get(k), str)},
        extra=encode(data),
    )
