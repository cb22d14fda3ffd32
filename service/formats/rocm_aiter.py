"""AITER's tuned configurations: CSV with a header, one problem and its winner per row, times in microseconds.

The columns differ by kernel. Those of the winner and of its measurement are known by name; all others are the
problem. `gfx` is the architecture, `cu_num` the compute units; the kernel is the file's name.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator
from pathlib import PurePath

from service.formats.entry import ImportedRecord, Item, Reason, RejectError
from service.formats.foreign import Place, key_of, make_task
from service.formats.kernel_tuner import seconds
from service.formats.source import Source, check
from strategy.target import Target

HEADER = re.compile(rb"(?:gfx,)?cu_num,(?:[\w]+,)*us(?:,|\s|$)")
_WINNER = frozenset(
    "kernelId splitK kernelName kernelName1 kernelName2 libtype solidx soltimes block_m ksplit "
    "run_1stage kernel_name tile_m tile_n tile_k".split()
)
_MEASURED = frozenset("us us1 us2 tflops bw errRatio err err1 err2 err_ratio".split())
_TUNED = re.compile(r"^(.*?)_?tuned_(gemm|bmm|fmoe|grouped_gemm|conv|[a-z0-9]+)")


def read(source: Source, target: Target | None = None, device_model: str = "") -> Iterator[Item]:
    """The rows of a file: records where there is a time, else advice."""
    name = PurePath(source.name).name.removesuffix(".gz").removesuffix(".csv")
    tuned = _TUNED.match(name)
    kernel = "_".join(filter(None, tuned.groups())) if tuned else name or "kernel"
    header: list[str] = []

    def line(text: bytes) -> ImportedRecord | None:
        check(text)
        fields = [f.strip() for f in next(csv.reader([text.decode()], strict=True))]
        if not header or fields == header:
            header[:] = fields
            if len(set(header)) != len(header):
                raise RejectError(Reason.DUPLICATE, "a column is named twice")
            return None
        if len(fields) != len(header):
            raise RejectError(Reason.FIELD, f"{len(fields)} fields, but the header has {len(header)}")
        row = {k: v for k, v in zip(header, fields, strict=True) if k and not k.startswith("_")}
        arch, units = row.pop("gfx", ""), row.pop("cu_num", "")
        given = target
        if given is None and not device_model:
            capability = {"multi_processors": int(units)} if units.isdigit() and int(units) else {}
            given = Target.parse({"kind": "rocm", **({"arch": arch} if arch else {}), **capability})
        place = Place(given, device_model)
        attrs = {k: _number(v) for k, v in row.items() if k not in _WINNER | _MEASURED}
        if units:
            attrs["cu_num"] = _number(units)
        took = _number(row.get("us") or "")
        return ImportedRecord(
            source="aiter", task=make_task("aiter", kernel, attrs, place.target),
            config_key=key_of({k: _number(v) for k, v in row.items() if k in _WINNER}),
            samples_s=() if took == "" else seconds([took], 1e-6), device_model=place.model,
        )

    return source.read_lines(line)


def _number(text: str) -> int | float | str:
    """The number that a field is, or its text."""
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        if math.isfinite(value) and abs(value) < 2**63:
            return value
    return text
