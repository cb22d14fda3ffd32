"""Deployment of a network: selected kernels, packed weights and their plan as one shared library."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from plevel.kernel_selection import Choose, Chosen, measured_s
from strategy.compile.fusion import Group
from strategy.expr import Constant
from strategy.network.blocking import choose_blocks, is_blocked
from strategy.network.derivation import name_extents
from strategy.network.graph import Network, NetworkError
from strategy.network.group import describe, groups, require_twin, require_types
from strategy.network.integer import multiply_integers
from strategy.network.library import Manifest, prefix_of, symbol_of, write_library
from strategy.network.library import describe as describe_library
from strategy.network.normal import normalize
from strategy.network.plan import Plan, Weight, is_view, make_plan
from strategy.network.separable import JOINED, choose_joined
from strategy.network.size import Sizes
from strategy.record import convert
from strategy.select import SelectionError
from strategy.select.dispatch import DispatchTable
from strategy.target import Target
from strategy.workload import Workload
from workers.array_file import write_array
from workers.fork import Limits
from workers.network_builder import BuildKernel, BuildTable, BuiltKernel, Packing
from workers.pool import Ask, ask_all
from workers.scratch import temporary_folder

BUILD_TIMEOUT_S = 300.0
_BUILDER = Limits(module="workers.network_builder")


@dataclass(frozen=True)
class Deployed:
    """A library on disk with its plan."""

    library: Path
    header: Path
    manifest: Path
    description: Manifest
    plan: Plan


@dataclass(frozen=True)
class Draft:
    """A normal network with the selected kernels of its workloads, which are not built yet."""

    network: Network
    target: Target
    groups: Sequence[Group]
    sites: Mapping[Workload, Sequence[Mapping[str, Constant]]]
    selections: Mapping[Workload, Chosen]

    @property
    def has_measured_blocks(self) -> bool:
        """A blocked layout of one of its images is the choice of records."""
        return any(map(is_blocked, self._measured))

    @property
    def has_measured_pairs(self) -> bool:
        """A depthwise convolution is joined with the pointwise one behind it by the choice of records."""
        return any(workload.op == JOINED for workload in self._measured)

    @property
    def _measured(self) -> list[Workload]:
        return [w for w, chosen in self.selections.items() if not math.isnan(measured_s(chosen))]

    def write(self, path: Path, *, name: str, about: str) -> Deployed:
        """Build the kernels, and write the library to `path`, its header and its manifest beside it.

        Raises:
            NetworkError: a kernel cannot be built; names all of them.
            CompileError: the library cannot be linked.
            SandboxError: no children can be started to build in.
            ScratchError: the disk of temporary files is full.
        """
        return write_all({path: self}, name=name, about=about)[0]


def write_all(
    drafts: Mapping[Path, Draft], *, name: str, about: str, ask: Ask = ask_all, appended: bool = False
) -> list[Deployed]:
    """Write libraries of one network in several layouts, each to its path; kernels that they share are built once.

    Args:
        ask: has children build kernels.
        appended: as of `write_library`.

    Raises:
        NetworkError, CompileError, SandboxError, ScratchError: as `Draft.write`, for any of them.
    """
    with temporary_folder() as made:
        kernels = _build_all(drafts.values(), made, ask)
        for array in made.glob("*.npy"):  # which are packed now
            array.unlink()
        last = list(drafts)[-1:]
        return [
            _write(one, kernels, path, name, about, made, keep=[path] != last, appended=appended)
            for path, one in drafts.items()
        ]


def _write(
    one: Draft, built: Mapping[Workload, BuiltKernel], path: Path, name: str, about: str, made: Path, *, keep: bool,
    appended: bool,
) -> Deployed:
    """Write one library; files of packed weights are kept for the next, or deleted as soon as they are read."""
    kernels = {workload: built[workload] for workload in one.selections}
    plan = make_plan(one.network, one.groups, {w: k.signature for w, k in kernels.items() if k.signature})
    weights = made / "weights"
    _write_weights(plan, weights, made, keep=keep)
    objects = [_object(made, workload) for workload in kernels]
    tables = [k.source for k in kernels.values() if k.source]
    chosen = {w: kernels[w].table or s for w, s in one.selections.items()}
    description = describe_library(plan, name, about, one.target, chosen)
    write_library(
        plan, path, description, one.target, objects=objects, weights=weights, tables=tables, appended=appended
    )
    return Deployed(path, path.with_suffix(".h"), path.with_suffix(".json"), description, plan)


def draft(
    network: Network, target: Target, choose: Choose, *, blocks: bool = True, pairs: bool = True
) -> Draft:
    """Select the kernels of a network; raise `NetworkError`, which names all workloads without one.

    Args:
        blocks: whether images are of blocked layouts where records say that this is faster, or are expected to.
        pairs: whether depthwise and pointwise convolutions in them are joined, likewise.
    """
    normal = normalize(multiply_integers(network, target))
    if blocks and normal.sizes is None:
        normal = choose_blocks(normal, target, partial(_seconds, choose))
        normal = choose_joined(normal, partial(_seconds, choose)) if pairs else normal
    found = groups(normal)
    if normal.sizes and normal.twin and normal.twin.sizes:
        twin = normalize(normal.twin)
        name_extents(normal, twin)
        require_twin(found, normal.sizes, groups(twin), normal.twin.sizes)
        require_types(found, normal.sizes)
    sites: dict[Workload, list[dict[str, Constant]]] = {}
    for group in found:
        if not is_view(group):
            workload, constants = _constants(group, normal.sizes)
            sites.setdefault(workload, []).append(constants)
    return Draft(normal, target, found, sites, _choose_all(list(sites), choose))


def deploy(network: Network, target: Target, choose: Choose, path: Path, *, name: str, about: str) -> Deployed:
    """Write a network's library; raise as `draft` and `Draft.write` do."""
    return draft(network, target, choose).write(path, name=name, about=about)


def _seconds(choose: Choose, workload: Workload) -> float:
    try:
        return measured_s(choose(workload))
    except SelectionError:
        return math.inf


def _constants(group: Group, sizes: Sizes | None) -> tuple[Workload, dict[str, Constant]]:
    workload, sources = describe(group, sizes)
    return workload, {n: node for n, (node, _) in sources.items() if isinstance(node, Constant)}


def _choose_all(workloads: Sequence[Workload], choose: Choose) -> dict[Workload, Chosen]:
    selections, errors = {}, {}
    for workload in workloads:
        try:
            selections[workload] = choose(workload)
        except SelectionError as error:
            errors[workload] = str(error)
    _refuse(errors)
    return selections


def _refuse(errors: dict[Workload, str]) -> None:
    if errors:
        counts = Counter(workload.op for workload in errors)
        listed = ", ".join(f"{op} ({n})" for op, n in counts.items())
        first, why = next(iter(errors.items()))
        raise NetworkError(f"no kernel for {len(errors)} of its workloads: {listed}; {first}: {why}")


# LLVM's code names functions that TVM's runtime looks up in this way.
_CALLED = re.compile(rb"__tvm_func_handle_init\.([\w.]+)")


def _build_all(drafts: Iterable[Draft], made: Path, ask: Ask) -> dict[Workload, BuiltKernel]:
    selections: dict[Workload, Chosen] = {}
    sites: defaultdict[Workload, list[Mapping[str, Constant]]] = defaultdict(list)
    for one in drafts:
        selections |= one.selections
        for workload, constants in one.sites.items():
            sites[workload] += constants
    requests: list[tuple[Limits, BuildKernel | BuildTable]] = []
    for workload, s in selections.items():
        packings = {
            Packing(n, str(_source(made, node)), node.type.dtype, str(_packed(made, node, workload, n))): None
            for constants in sites[workload]
            for n, node in constants.items()
        }
        path, needed = str(_object(made, workload)), tuple(packings)
        if isinstance(s, DispatchTable):
            request: BuildKernel | BuildTable = BuildTable(
                table=s, path=path, prefix=prefix_of(workload), packings=needed
            )
        else:
            request = BuildKernel(
                workload=workload, target=s.target, implementation=s.implementation, config=s.config,
                path=path, symbol=symbol_of(workload), packings=needed,
            )
        requests.append((_BUILDER, request))
    kernels, errors = {}, {}
    for workload, answer in zip(selections, ask(requests, BUILD_TIMEOUT_S), strict=True):
        built = BuiltKernel(error=str(answer)) if isinstance(answer, Exception) else convert(answer, BuiltKernel)
        if built.signature is None:
            chosen = selections[workload]
            tried = "a dispatch table" if isinstance(chosen, DispatchTable) else chosen.implementation
            errors[workload] = f"{tried}: {built.error}"
        elif called := _CALLED.search(_object(made, workload).read_bytes()):
            remedy = ": export the model with that size fixed" if workload.symbols else ""
            errors[workload] = f"it calls {called[1].decode()} of TVM's runtime, which a library is without{remedy}"
        else:
            kernels[workload] = built
    _refuse(errors)
    return kernels


def _write_weights(plan: Plan, path: Path, made: Path, *, keep: bool) -> None:
    with path.open("wb") as file:
        for w in plan.weights:
            file.seek(w.offset)
            file.write(_bytes(w, made, keep=keep))


def _bytes(weight: Weight, made: Path, *, keep: bool) -> bytes:
    if weight.packed_for is None:
        return np.ascontiguousarray(weight.node.value).tobytes()
    packed = _packed(made, weight.node, *weight.packed_for)
    found = packed.read_bytes()
    if not keep:
        packed.unlink()
    return found


def _object(made: Path, workload: Workload) -> Path:
    return made / f"{workload.digest}.o"


def _source(made: Path, node: Constant) -> Path:
    """The file of a constant's array, written once."""
    path = made / f"{id(node.value)}.npy"
    if not path.exists():
        write_array(path, node.value)
    return path


def _packed(made: Path, node: Constant, workload: Workload, argument: str) -> Path:
    return made / f"{id(node.value)}-{workload.digest}-{argument}"
