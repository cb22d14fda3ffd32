"""Configurations of vLLM's and SGLang's `fused_moe` kernel: `E=…,N=…,device_name=….json`, M → configuration.

SGLang's end with `_down.json` where they are of the second product only.
The files have no times, so each row is advice. Experts, width and device are in the file's name only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import PurePath
from typing import Any

from service.formats.entry import ImportedRecord, Item, Reason, RejectError
from service.formats.foreign import Place, each, key_of, make_task, read_document
from service.formats.source import Source
from strategy.target import Target

NAME = re.compile(
    r"E=(?P<E>\d{1,9}),N=(?P<N>\d{1,9}),device_name=(?P<device>[^,/\\]+?)(?P<rest>(?:,[^/\\]*?)?)(?P<down>_down)?\.json"
)
# `block_shape=[128,128]` has a comma of its own; SGLang has a space behind it.
_REST = re.compile(r",([a-z_]+)=((?:\[[^\]]*\])|[^,]*)")
_NOT_ROWS = ("triton_version",)


def read(source: Source, target: Target | None = None, device_model: str = "") -> Iterator[Item]:
    """The rows of a file as advice; a given device model takes precedence over the name's."""
    return read_document(source, lambda data: _rows(data, source.name, target, device_model))


def _rows(
    data: dict[str, Any], name: str, target: Target | None, device_model: str
) -> Iterable[Item]:
    named = NAME.fullmatch(PurePath(name).name.removesuffix(".gz"))
    if named is None:
        raise RejectError(
            Reason.FIELD,
            "the file's name has no E=…,N=…,device_name=…: keep the name under which vLLM finds it",
        )
    place = Place(target, device_model or named["device"].replace("_", " "))
    environment = {k: data[k] for k in _NOT_ROWS if isinstance(data.get(k), str)}
    rest = {k: v.replace(" ", "") for k, v in _REST.findall(named["rest"])}
    attrs = {"E": int(named["E"]), "N": int(named["N"]), **rest}
    if named["down"]:
        attrs["down"] = True

    def record(entry: tuple[str, Any]) -> ImportedRecord:
        m, config = entry
        if not (m.isascii() and m.isdigit() and 0 < len(m) < 10):
            raise RejectError(Reason.FIELD, f"{m!r:.40} is not a number of tokens")
        if not isinstance(config, dict):
            raise RejectError(Reason.CONFIG, f"{m}: expected an object")
        return ImportedRecord(
            source="vllm", task=make_task("vllm", "fused_moe", {**attrs, "M": int(m)}, place.target),
            config_key=key_of(config), device_model=place.model, environment=environment,
        )

    return each(((k, v) for k, v in data.items() if k not in _NOT_ROWS), record)


def file_name(attrs: dict[str, Any], device_model: str) -> str:
    """The name under which vLLM looks for a kernel's configurations on a device."""
    rest = "".join(
        f",{k}={attrs[k]}" for k in _ORDER if k in attrs
    ) + "".join(f",{k}={v}" for k, v in attrs.items() if k not in {"E", "N", "M", *_ORDER})
    device = device_model.replace(" ", "_")
    return f"E={attrs['E']},N={attrs['N']},device_name={device}{rest}.json"


_ORDER = ("dtype", "block_shape", "per_channel_quant")
