"""Tuning logs of other tools and of plevel as streams: bytes to records, and back.

Readers take a `Source` and yield records, their attachments, and rejected entries; they keep a bounded part of
the file in memory, evaluate nothing, and never raise because of its content.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path, PurePath

import msgspec

from service.formats import (
    autotvm,
    flashinfer,
    foreign,
    helion,
    kernel_tuner,
    metaschedule,
    native,
    rocm_aiter,
    triton,
    tunableop,
    vllm,
)
from service.formats.admission import admitted
from service.formats.entry import Attachment, ImportedRecord, Item, Reason, Rejected, Summary, Task
from service.formats.source import Joined, Source
from strategy.target import Target

__all__ = [
    "Attachment",
    "Format",
    "FormatError",
    "ImportedRecord",
    "Item",
    "Joined",
    "Reason",
    "Rejected",
    "Source",
    "Summary",
    "Task",
    "admitted",
    "detect",
    "grouped",
    "read",
]


class Format(StrEnum):
    PLEVEL = "plevel"
    AUTOTVM = "autotvm"
    KERNEL_TUNER = "kernel_tuner"
    METASCHEDULE = "metaschedule"
    FOREIGN = "foreign"
    TRITON = "triton"
    HELION = "helion"
    VLLM = "vllm"
    TUNABLEOP = "tunableop"
    AITER = "aiter"
    FLASHINFER = "flashinfer"


class FormatError(ValueError):
    """A file in none of the supported formats."""


_HEAD = 1 << 16
_METASCHEDULE = re.compile(rb'\[\s*(?:"-?[0-9]{1,20}"\s*,\s*"|[0-9]{1,20}\s*,\s*\[)')
# Of plevel's own formats, whatever writes their JSON.
_KIND = re.compile(rb'\{(?:.*?,)?\s*"kind"\s*:\s*"(plevel-records|record|attachment|foreign)"')
_PICKLED = re.compile(rb"[a-z][^\t{]{0,1000}\t[A-Za-z0-9+/=]+\t")
# One document over many lines, none of which identifies it.
_DOCUMENT = re.compile(
    rb'"(?:tune_params|tune_params_keys|device_name|kernel_name|cache)"\s*:'
    rb'|"results"\s*:\s*\[\s*\{\s*"(?:timestamp|configuration|objectives|times|invalidity)"\s*:'
)
# Objects that a part of their first bytes identifies.
_OBJECTS = {
    Format.HELION: helion.HEAD,
    Format.FLASHINFER: re.compile(rb'"flashinfer_version"|\{\s*"\(\'[^"]*"\s*:\s*\[\s*"'),
    Format.VLLM: re.compile(rb'^\{\s*"(?:triton_version|\d+)"\s*:[^\0]{0,200}?"?BLOCK_SIZE_M"?'),
}
_NAMES = {
    "database_workload.json": Format.METASCHEDULE,
    "database_tuning_record.json": Format.METASCHEDULE,
}


def detect(head: bytes, name: str = "") -> Format:
    """The format of a file by the first bytes of its content, and by its name if these do not suffice.

    Damaged lines are skipped: the first line that resembles a format decides.

    Raises:
        FormatError: no line resembles any format.
    """
    head = head[:_HEAD].removeprefix(b"\xef\xbb\xbf").lstrip()
    for line in head.split(b"\n"):
        found = _of_line(line.lstrip())
        if found is not None:
            return found
    if head[:1] == b"{":
        for form, pattern in _OBJECTS.items():
            if pattern.search(head):
                return form
        if vllm.NAME.fullmatch(PurePath(name).name.removesuffix(".gz")):
            return Format.VLLM
        if _DOCUMENT.search(head):
            return Format.KERNEL_TUNER
    by_name = _NAMES.get(PurePath(name).name.removesuffix(".gz"))
    if by_name is not None:
        return by_name
    what = "has no known format" if head else "is empty"
    raise FormatError(f"{name or 'the file'} {what}: import one of: {', '.join(Format)}")


def grouped(paths: Sequence[Path]) -> list[list[Path]]:
    """Group files that are read as one (`Joined`), in order.

    A MetaSchedule tuning file follows its workloads, which are found beside it if they are not named; every other
    file stands alone.
    """
    groups: list[list[Path]] = []
    for path in paths:
        workloads = path.with_name("database_workload.json")
        if path.name == "database_tuning_record.json" and workloads.is_file():
            groups.append([workloads, path])
        elif (
            path.name != workloads.name
            or path.with_name("database_tuning_record.json") not in paths
        ):
            groups.append([path])
    return groups


def _of_line(line: bytes) -> Format | None:
    if kind := _KIND.match(line):
        return Format.FOREIGN if kind[1] == b"foreign" else Format.PLEVEL
    if line[:1] == b"{" and b'"configs_timings"' in line:
        return Format.TRITON
    if tunableop.LINE.match(line):
        return Format.TUNABLEOP
    if rocm_aiter.HEADER.match(line):
        return Format.AITER
    if line[:1] == b"{" and (
        (b'"input"' in line and b'"result"' in line)
        or all(key in line for key in (b'"i"', b'"r"', b'"v"'))
    ):
        return Format.AUTOTVM
    if _METASCHEDULE.match(line):
        return Format.METASCHEDULE
    return Format.AUTOTVM if _PICKLED.match(line) else None


def read(
    source: Source,
    form: Format | None = None,
    target: Target | None = None,
    device_model: str = "",
) -> Iterator[Item]:
    """Yield all items of a file in order; items that databases cannot store are rejected.

    Args:
        source: the file.
        form: its format; by default it is detected.
        target: the target of a file that names only a device, or none.
        device_model: the device model of a file that names none.

    Raises:
        FormatError: the format is not given and cannot be detected.
    """
    form = detect(source.head, source.name) if form is None else form
    return admitted(_READERS[form](source, target, device_model))


def _on(model: str, items: Iterator[Item]) -> Iterator[Item]:
    """The items, of which records whose target names no device model are of this one."""
    for item in items:
        if model and isinstance(item, ImportedRecord) and not item.device_model:
            item = msgspec.structs.replace(item, device_model=model)  # noqa: PLW2901
        yield item


_READERS: dict[Format, Callable[[Source, Target | None, str], Iterator[Item]]] = {
    Format.PLEVEL: lambda source, *_: native.read(source),
    Format.AUTOTVM: lambda source, _, model: _on(model, autotvm.read(source)),
    Format.METASCHEDULE: lambda source, _, model: _on(model, metaschedule.read(source)),
    # Files that may not name their device.
    Format.KERNEL_TUNER: kernel_tuner.read,
    Format.FOREIGN: foreign.read,
    Format.TRITON: triton.read,
    Format.HELION: helion.read,
    Format.VLLM: vllm.read,
    Format.TUNABLEOP: tunableop.read,
    Format.AITER: rocm_aiter.read,
    Format.FLASHINFER: flashinfer.read,
}
