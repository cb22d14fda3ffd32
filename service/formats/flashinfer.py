"""FlashInfer's autotuning cache: one JSON object, a problem's key → the runner and the tactic that won.

`_metadata` names the GPU and the versions of libraries. There are no times, so each entry is advice. A key is the
text of `(operation, runner, shapes, extras)`, of which only the names are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from service.formats.entry import ImportedRecord, Item, Reason, RejectError
from service.formats.foreign import Place, each, key_of, make_task, read_document
from service.formats.source import Source
from strategy.target import Target

KEY = re.compile(r"\('([^']{1,200})', '([^']{1,200})', (.*)\)", re.DOTALL)


def read(source: Source, target: Target | None = None, device_model: str = "") -> Iterator[Item]:
    """The entries of a cache as advice; a given device model takes precedence over the file's."""
    return read_document(source, lambda data: _entries(data, target, device_model))


def _entries(data: dict[str, Any], target: Target | None, device_model: str) -> Iterable[Item]:
    about = data.get("_metadata")
    about = about if isinstance(about, dict) else {}
    gpu = about.get("gpu")
    place = Place(target, device_model or (gpu if isinstance(gpu, str) and gpu != "unknown" else ""))
    environment = {str(k): v for k, v in about.items() if isinstance(v, str)}

    def record(entry: tuple[str, Any]) -> ImportedRecord:
        key, value = entry
        named = KEY.fullmatch(key)
        if named is None:
            raise RejectError(Reason.FIELD, f"{key!r:.80}: expected ('operation', 'runner', …)")
        if not isinstance(value, list) or len(value) < 2 or not isinstance(value[0], str):
            raise RejectError(Reason.CONFIG, f"{key!r:.80}: expected [runner, tactic]")
        op, _, problem = named.groups()
        return ImportedRecord(
            source="flashinfer", task=make_task("flashinfer", op, {"problem": problem}, place.target),
            config_key=key_of({"runner": value[0], "tactic": value[1]}), device_model=place.model,
            environment=environment,
        )

    return each(((k, v) for k, v in data.items() if not k.startswith("_")), record)
