"""vLLM's `fused_moe` configurations from what a database knows: a file per shape, a row per number of tokens.

vLLM takes the row of the nearest number of tokens, by difference, so that a gap in a file gives a batch the row of a
much smaller one. Every usual number is pinned: by a row of this device model, else of a device of the same
architecture, else by the row of the nearest number by ratio.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from plevel.cli.error import CommandError
from plevel.cli.file import make_folder, whole
from plevel.cli.output import tell
from service.formats.gpu import arch_of_model
from service.formats.vllm import NAME, file_name
from strategy.workload_text import parse_workload

# The numbers of tokens that vLLM's own benchmark tunes.
TOKENS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 1536, 2048, 3072, 4096)
PROVENANCE = "provenance.json"
MAX_NAME = 200  # bytes of a file's name; a file system takes 255, with those of a partial file


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A row and its origin: `measured`, `advised` (a winner without a time), `transferred` or `predicted`."""

    config: dict[str, Any]
    origin: str
    device_model: str
    median_s: float | None = None
    tokens: int | None = None  # of a predicted row: the number whose row it is


def tabulate(
    kernels: Iterable[Mapping[str, Any]], device_model: str
) -> Iterator[tuple[str, dict[int, Row]]]:
    """Yield the name and the rows of each file for a device model.

    Args:
        kernels: those of `Client.iter_foreign("vllm")`, the newest first.
        device_model: as PyTorch names it: `NVIDIA H100 80GB HBM3`.
    """
    arch = arch_of_model(device_model)
    shapes: dict[str, dict[int, Row]] = {}
    for kernel in kernels:
        best = kernel["best"]
        attrs = dict(parse_workload(kernel["workload"]).attrs)
        m = attrs.get("M")
        if best is None or not {"E", "N"} <= attrs.keys() or type(m) is not int or m < 1:
            continue
        if "down" in attrs:  # SGLang's second product, for which vLLM has no file
            continue
        name = file_name(attrs, device_model)
        # Of a foreign line, and no name for vLLM, or for a file.
        if NAME.fullmatch(name) is None or not name.isprintable() or len(name.encode()) > MAX_NAME:
            continue
        own = best["device_model"] == device_model
        if not own and (not arch or arch_of_model(best["device_model"]) != arch):
            continue
        origin = "transferred" if not own else "advised" if best["median_s"] is None else "measured"
        row = Row(
            config=best["config"], origin=origin, device_model=best["device_model"],
            median_s=best["median_s"],
        )
        rows = shapes.setdefault(name, {})
        if m not in rows or _rank(row) < _rank(rows[m]):
            rows[m] = row
    for name in sorted(shapes):
        yield name, _pinned(shapes[name])


def _rank(row: Row) -> tuple[bool, bool]:
    """This device model's rows come first, then those with a time."""
    return row.origin == "transferred", row.median_s is None


def _pinned(known: Mapping[int, Row]) -> dict[int, Row]:
    rows = {}
    for m in sorted({*TOKENS, *known}):
        if m in known:
            rows[m] = known[m]
            continue
        near = min(known, key=lambda k: (abs(math.log(k / m)), k))
        rows[m] = msgspec.structs.replace(known[near], origin="predicted", tokens=near)
    return rows


def origins_of(rows: Mapping[int, Row]) -> dict[str, dict[str, Any]]:
    """The origin of each row."""
    found = {}
    for m, row in rows.items():
        told = {k: v for k, v in msgspec.structs.asdict(row).items() if v is not None}
        del told["config"]
        found[str(m)] = told
    return found


def write(
    folder: Path, kernels: Iterator[Mapping[str, Any]], device: str, *, as_json: bool
) -> None:
    """Write vLLM's files for a device model, and the origin of their rows."""
    files = dict(tabulate(kernels, device))
    if not files:
        raise CommandError(
            f"no fused_moe configuration is known for {device} or a device of its architecture, nothing was "
            "written: import vLLM's files with 'plevel import', and name a device as PyTorch does"
        )
    make_folder(folder)
    origins = {name: origins_of(rows) for name, rows in files.items()}
    for name, rows in files.items():
        with whole(folder / name) as file:
            file.write((json.dumps({str(m): row.config for m, row in rows.items()}, indent=4) + "\n").encode())
    with whole(folder / PROVENANCE) as file:
        file.write((json.dumps(origins, indent=1) + "\n").encode())
    lines = [f"wrote {folder}, for {device}:"]
    for name, rows in files.items():
        counts = Counter(row.origin for row in rows.values())
        lines.append(f"  {name}: " + ", ".join(f"{n} {origin}" for origin, n in counts.most_common()))
    told = {"folder": str(folder), "format": "vllm-moe", "files": origins}
    tell("\n".join(lines), told, as_json=as_json)
