"""Selections as shared libraries: built in killable children, in parallel, and kept by digest on disk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from plevel.kernel_selection import Chosen
from plevel.torch.store import (
    MOVED_BY,
    digest_of,
    folder,
    is_loadable,
    move,
    prune,
    temporary,
    touch,
)
from plevel.torch.table_builder import BuildTable, Interface
from strategy.compile.entry import common_code
from strategy.record import JobEntry
from strategy.select.dispatch import DispatchTable
from strategy.signature import Argument
from strategy.target import Target
from strategy.workload import Workload
from workers.builder import Build
from workers.fork import Limits
from workers.pool import Ask, Over, ask_all
from workers.scratch import check_room

BUILD_TIMEOUT_S = 120.0
_ONE = Limits(module="workers.builder")
_TABLE = Limits(module="plevel.torch.table_builder", forks=True)
_interfaces = msgspec.json.Decoder(Interface)


@dataclass(frozen=True)
class Kernel:
    """A library on disk: the file's name is the digest of its selection, or of its table for symbolic sizes."""

    selection: Chosen
    path: Path

    @cached_property
    def digest(self) -> str:
        return self.path.stem

    @cached_property
    def _interface(self) -> Interface:
        return _interfaces.decode(self.path.with_name(self.path.name + ".json").read_bytes())

    @property
    def is_built(self) -> bool:
        """True if signature and library are on disk, neither of them damaged, and this host can load the library."""
        with suppress(OSError, msgspec.MsgspecError):
            return is_loadable(self.path) and bool(self._interface)
        return False

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """Those of the library's function, the output last."""
        return self._interface.arguments

    @property
    def inputs(self) -> tuple[Argument, ...]:
        """The arguments but for the output."""
        return self.arguments[:-1]

    @property
    def packs(self) -> Mapping[str, str]:
        """The workload's inputs of packed arguments that are named otherwise."""
        return self._interface.packs

    @property
    def dims(self) -> tuple[str, ...]:
        """The workload's symbolic dimensions."""
        return self.selection.dims if isinstance(self.selection, DispatchTable) else ()

    @property
    def implementation(self) -> str:
        s = self.selection
        return self._interface.implementation if isinstance(s, DispatchTable) else s.implementation

    @property
    def explanation(self) -> str:
        s = self.selection
        return self._interface.explanation if isinstance(s, DispatchTable) else s.explanation


def kernel_digest(s: Chosen) -> str:
    """The digest that tells a kernel from all others, in the graph, in Inductor's caches and on disk."""
    if isinstance(s, DispatchTable):
        rows = [(r.holds, r.implementation, r.version, r.config.to_json()) for r in s.rows]
        return digest_of(s.workload.key, s.target.to_json(), list(map(str, s.conditions)), common_code(), *rows)
    return chosen_digest(s.workload.key, s.target, s)


def chosen_digest(workload: str, target: Target, chosen: Any) -> str:
    """The digest of a kernel with the implementation, version and configuration that `chosen` has."""
    return digest_of(workload, target.to_json(), chosen.implementation, chosen.version, chosen.config.to_json())


def build(
    selections: Iterable[Chosen], ask: Ask = ask_all
) -> tuple[dict[Workload, Kernel], dict[Workload, str]]:
    """The kernels of selections, and the reasons of those that cannot be built, by their workloads.

    Only what is not on disk is built.

    Args:
        ask: has children build kernels.

    Raises:
        FolderError, ScratchError: the folder cannot be written, or the disk is full, which is no fault of a kernel.
        TimeoutError: so was the time; the next who asks finds those that were built.
    """
    kept = folder()
    kernels = {s.workload: Kernel(s, kept / f"{kernel_digest(s)}.so") for s in selections}
    missing = [k for k in kernels.values() if not k.is_built]
    for kernel in kernels.values():
        touch(kernel.path)
    errors = {k.selection.workload: e for k, e in _build_all(missing, ask) if e} if missing else {}
    if errors:
        check_room(kept, MOVED_BY)
    prune()
    return {w: k for w, k in kernels.items() if w not in errors}, errors


def _build_all(missing: Sequence[Kernel], ask: Ask) -> list[tuple[Kernel, str | None]]:
    with temporary() as made:
        paths = [made / kernel.path.name for kernel in missing]
        requests = [
            # The entry of a table is C code, whose compiler starts programs.
            (_TABLE if k.dims else _ONE, _request(k.selection, str(path)))
            for k, path in zip(missing, paths, strict=True)
        ]
        answers = ask(requests, BUILD_TIMEOUT_S)
        found = [(k, _keep(k, p, a)) for k, p, a in zip(missing, paths, answers, strict=True)]
    if any(isinstance(answer, Over) for answer in answers):
        raise TimeoutError("no time was left to build its kernels")
    return found


def _keep(kernel: Kernel, path: Path, answer: Any) -> str | None:
    """Keep one built kernel; the reason where it could not be built."""
    if isinstance(answer, Exception):
        return str(answer)
    if answer.get("error"):
        return f"{answer['error']} {answer.get('message', '')}".strip()
    # The signature first: a library without one would be taken for a kernel.
    for name in (f"{path.name}.json", path.name):
        move(path.with_name(name), kernel.path.with_name(name))
    return None


def _request(s: Chosen, path: str) -> Build | BuildTable:
    if isinstance(s, DispatchTable):
        return BuildTable(table=s, path=path)
    entry = JobEntry(
        index=0, task_id=0, implementation=s.implementation, version=s.version, config=s.config
    )
    return Build(workload=s.workload, target=s.target, entry=entry, path=path)
