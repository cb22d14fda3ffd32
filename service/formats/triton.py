"""Triton's cache of autotuning: `KERNEL.autotune.json`, one object per file, or one per line where they are joined.

`{"key": […], "configs_timings": [[{"kwargs": {…}, "num_warps": …}, [p50, p20, p80]], …]}`, in milliseconds. The file
names neither the device nor the kernel's source; the kernel is the file's name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from service.formats.entry import ImportedRecord, Item, Reason, RejectError
from service.formats.foreign import Place, each, key_of, make_task
from service.formats.kernel_tuner import seconds
from service.formats.source import Source, load
from strategy.record import ErrorKind
from strategy.target import Target

_OPTIONS = ("num_warps", "num_ctas", "num_stages", "maxnreg", "ir_override")
_FAILED = "Triton: out of resources, a failed static assertion, or an error of ptxas"


def read(source: Source, target: Target | None = None, device_model: str = "") -> Iterator[Item]:
    """The candidates of a cache; the median of each is its one sample, the quantiles are kept aside."""
    name = PurePath(source.name).name.removesuffix(".gz").removesuffix(".json")
    kernel = name.removesuffix(".autotune") or "kernel"

    def line(text: bytes) -> list[Item]:
        data = load(text)
        if not isinstance(data, dict) or not isinstance(data.get("configs_timings"), list):
            raise RejectError(Reason.FIELD, "configs_timings is missing: no cache of Triton's autotuner")
        key = data.get("key")
        if not isinstance(key, list):
            raise RejectError(Reason.FIELD, "key: expected a list")
        place = Place(target, device_model)
        task = make_task("triton", kernel, {"key": key}, place.target)

        def record(entry: Any) -> ImportedRecord:
            if not isinstance(entry, list) or len(entry) != 2 or not isinstance(entry[0], dict):
                raise RejectError(Reason.FIELD, "configs_timings: expected [configuration, times]")
            config, times = key_of(config_of(entry[0])), entry[1]
            times = times if isinstance(times, list) else [times]
            failed = bool(times) and times[0] == math.inf
            samples = () if failed else seconds(times, 1e-3)
            if not (failed or samples):
                raise RejectError(Reason.COST, "there is no time")
            extra = json.dumps({"quantiles_s": samples}).encode() if len(samples) > 1 else b""
            return ImportedRecord(
                source="triton", task=task, config_key=config, samples_s=samples[:1],
                error=ErrorKind.COMPILE if failed else None, message=_FAILED if failed else "",
                device_model=place.model, extra=extra,
            )

        return list(each(data["configs_timings"], record))

    return source.read_lines(line)


def config_of(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a `triton.Config`'s fields, as its `all_kwargs` has it."""
    kwargs = fields.get("kwargs")
    if not isinstance(kwargs, dict):
        raise RejectError(Reason.FIELD, "kwargs: expected an object")
    options = {name: fields[name] for name in _OPTIONS if fields.get(name) is not None}
    return {**kwargs, **options}
