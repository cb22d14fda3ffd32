"""Selections as shared libraries: built in killable children, in parallel, and kept by digest on disk."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from queue import Empty, SimpleQueue

import msgspec

from plevel.torch.store import digest_of, folder
from strategy.host import usable_cores
from strategy.record import JobEntry, convert, to_json
from strategy.select import Selection
from strategy.signature import Argument, Signature
from strategy.workload import Workload
from workers.builder import Build, Built
from workers.fork import Limits
from workers.sandbox import Child, Died, ForkServer, Late

BUILD_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Kernel:
    """A library on disk: the file's name is the digest of its selection."""

    selection: Selection
    path: Path

    @cached_property
    def digest(self) -> str:
        return self.path.stem

    @cached_property
    def signature(self) -> Signature:
        return msgspec.json.decode(
            self.path.with_name(self.path.name + ".json").read_bytes(), type=Signature
        )

    @property
    def inputs(self) -> tuple[Argument, ...]:
        """The arguments but for the output, which comes last."""
        return self.signature.arguments[:-1]


def kernel_digest(s: Selection) -> str:
    """The digest that tells a kernel from all others, in the graph, in Inductor's caches and on disk."""
    return digest_of(
        s.workload.key, s.target.to_json(), s.implementation, s.version, s.config.to_json()
    )


def build(selections: Iterable[Selection]) -> tuple[dict[Workload, Kernel], dict[Workload, str]]:
    """The kernels of selections, and the reasons of those that cannot be built, by their workloads.

    Only what is not on disk is built.
    """
    kept = folder()
    kernels = {s.workload: Kernel(s, kept / f"{kernel_digest(s)}.so") for s in selections}
    missing = [k for k in kernels.values() if not k.path.exists()]
    errors = {k.selection.workload: e for k, e in _build_all(missing) if e} if missing else {}
    return {w: k for w, k in kernels.items() if w not in errors}, errors


def _build_all(missing: Sequence[Kernel]) -> list[tuple[Kernel, str | None]]:
    with (
        tempfile.TemporaryDirectory(dir=folder()) as made,
        ForkServer(Path(made)) as server,
        ThreadPoolExecutor(min(usable_cores(), len(missing))) as threads,
    ):
        idle: SimpleQueue[Child] = SimpleQueue()

        def make(kernel: Kernel) -> tuple[Kernel, str | None]:
            try:
                child = idle.get_nowait()
            except Empty:
                child = server.spawn(Limits(module="workers.builder"))
            error = _ask(child, kernel, Path(made))
            if child.alive:
                idle.put(child)
            return kernel, error

        try:
            done = list(threads.map(make, missing))
        except BaseException:  # Ctrl-C, above all: what is not begun yet is not waited for
            threads.shutdown(wait=False, cancel_futures=True)
            raise
        while not idle.empty():
            idle.get().kill()
    return done


def _ask(child: Child, kernel: Kernel, made: Path) -> str | None:
    """Has a child build one kernel; the reason where it could not."""
    s = kernel.selection
    entry = JobEntry(
        index=0, task_id=0, implementation=s.implementation, version=s.version, config=s.config
    )
    path = made / kernel.path.name
    try:
        child.send(
            to_json(Build(workload=s.workload, target=s.target, entry=entry, path=str(path)))
        )
        built = convert(child.receive(BUILD_TIMEOUT_S), Built)
    except (Died, Late) as error:
        return str(error)
    if built.error is not None:
        return f"{built.error}: {built.message}"
    # The signature first: a library without one would be taken for a kernel.
    for name in (f"{path.name}.json", path.name):
        (made / name).replace(kernel.path.with_name(name))
    return None
