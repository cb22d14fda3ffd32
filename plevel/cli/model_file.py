"""Model files: the workloads of a network with the number of calls of each, in TOML or JSON.

    target = "cpu -thread-pool=openmp -constants=cold"

    [[workloads]]
    op = "dense"
    inputs = ["data=float32[128,768]", "weight=float32[768,768]:const"]
    weight = 48

`target`, by default `cpu`, is what `--target` replaces. `attrs` is a table of attributes; `weight`, 1 by
default, is the number of calls of the workload.
In place of `op`, `inputs` and `attrs`, `workload` holds the workload as printed, its epilogue included.
In JSON: `{"workloads": [{"op": …, "inputs": […], "weight": 48}]}`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from plevel.cli import option
from plevel.cli.error import UsageError
from plevel.reading import read_file

if TYPE_CHECKING:
    from strategy.record import RunWorkload
    from strategy.target import Target
    from strategy.workload import Workload

MAX_WORKLOADS = 1000
MAX_BYTES = 16 << 20


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    op: str | None = None
    inputs: list[str] = []
    attrs: dict[str, Any] = {}
    workload: str | None = None
    weight: Annotated[float, msgspec.Meta(gt=0, le=1e12)] = 1.0


class _Model(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    target: str | None = None
    workloads: Annotated[list[_Entry], msgspec.Meta(min_length=1, max_length=MAX_WORKLOADS)]


@dataclass(frozen=True)
class Model:
    """A model file's distinct workloads, and the target that it names."""

    path: Path
    workloads: tuple[RunWorkload, ...]
    target: str | None

    def read_target(self, spec: str | None, threads: int | None) -> Target:
        """The target of `--target`, else that of the file, else this host's processor."""
        if spec is None and self.target is not None:
            return option.read_target(self.target, threads, name=f"{self.path}: target")
        return option.read_target(spec or "cpu", threads)


def read_model(path: Path, *, far: bool = False) -> Model:
    """A model file, its workloads validated; the weights of duplicates are added.

    If `far`, operators that are not installed here are accepted: the service may have them.

    Raises:
        UsageError: the file cannot be read; names the entry and the field at fault.
    """
    from strategy.record import RunWorkload

    found: dict[str, RunWorkload] = {}
    read = _read(path)
    for i, entry in enumerate(read.workloads):
        try:
            workload = _workload(entry, far=far)
        except UsageError as error:
            raise UsageError(f"{path}: workloads[{i}]: {error}") from error
        before = found.get(workload.key)
        weight = entry.weight + (before.weight if before is not None else 0.0)
        found[workload.key] = RunWorkload(workload=workload, weight=weight)
    return Model(path, tuple(found.values()), read.target)


def write_model(workloads: Sequence[RunWorkload], head: str, target: str) -> str:
    """The text of a model file that `read_model` reads, with `head` as comments at its top."""
    lines = [*(f"# {line}" for line in head.splitlines()), f"target = {_quote(target)}"]
    for w in workloads:
        lines += ["", "[[workloads]]", f"workload = {_quote(w.workload.key)}", f"weight = {w.weight:.17g}"]
    return "\n".join(lines) + "\n"


def _quote(text: str) -> str:
    """A string of TOML: as it stands where it can be."""
    return f"'{text}'" if "'" not in text else msgspec.json.encode(text).decode()


def _workload(entry: _Entry, *, far: bool) -> Workload:
    if entry.workload is not None:
        if entry.op is not None or entry.inputs or entry.attrs:
            raise UsageError("workload: it holds op, inputs and attrs: leave those out")
        return option.parse_workload(entry.workload, far=far)
    if entry.op is None or not entry.inputs:
        raise UsageError("write op and inputs, or workload as it is printed")
    return option.make_workload(entry.op, entry.inputs, entry.attrs, far=far)


def _read(path: Path) -> _Model:
    try:
        data = read_file(path, MAX_BYTES, "this is no model file")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    try:
        text = data.decode()
        if path.suffix == ".json":
            return msgspec.json.decode(text, type=_Model)
        return msgspec.convert(tomllib.loads(text), type=_Model)
    except (ValueError, RecursionError, msgspec.DecodeError) as error:  # ValueError: of an integer's length, too
        raise UsageError(
            f'{path}: {option.explain_field(error, _Model)}: write it as [[workloads]] with op = "relu", '
            'inputs = ["data=float32[64]"], attrs = {} and weight = 1, or with workload and weight'
        ) from error
