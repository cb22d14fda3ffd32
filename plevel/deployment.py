"""Deployment of a network: selected kernels, packed weights and their plan as one shared library."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from plevel.kernel_selection import Choose
from strategy.compile.fusion import Group, describe
from strategy.expr import Constant
from strategy.network.graph import Network, NetworkError
from strategy.network.group import groups
from strategy.network.library import Manifest, symbol_of, write_library
from strategy.network.library import describe as describe_library
from strategy.network.normal import normalize
from strategy.network.plan import Plan, Weight, is_view, make_plan
from strategy.record import convert, to_json
from strategy.select import Selection, SelectionError
from strategy.signature import Signature
from strategy.target import Target
from strategy.workload import Workload
from workers.fork import Limits
from workers.network_builder import BuildKernel, BuiltKernel, Packing
from workers.pool import ask_all

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


def deploy(
    network: Network,
    target: Target,
    choose: Choose,
    path: Path,
    *,
    name: str,
    about: str,
) -> Deployed:
    """Write a network's library to `path`, its header and its manifest beside it.

    Raises:
        NetworkError: a kernel cannot be selected or built; names all of them.
        CompileError: the library cannot be linked.
        SandboxError: no children can be started to build in.
    """
    normal = normalize(network)
    found = groups(normal)
    sites: dict[Workload, list[dict[str, Constant]]] = {}
    for group in found:
        if not is_view(group):
            workload, constants = _constants(group)
            sites.setdefault(workload, []).append(constants)
    selections = _choose_all(list(sites), choose)
    with tempfile.TemporaryDirectory(prefix="plevel-") as folder:
        made = Path(folder)
        signatures = _build_all(selections, sites, made)
        plan = make_plan(normal, found, signatures)
        weights = made / "weights"
        _write_weights(plan, weights, made)
        objects = [_object(made, workload) for workload in selections]
        header = write_library(plan, path, name, about, target, objects=objects, weights=weights)
    description = describe_library(plan, name, about, target, selections)
    manifest = path.with_suffix(".json")
    manifest.write_bytes(msgspec.json.format(msgspec.json.encode(to_json(description))) + b"\n")
    return Deployed(path, header, manifest, description, plan)


def _constants(group: Group) -> tuple[Workload, dict[str, Constant]]:
    workload, sources = describe(group)
    return workload, {n: node for n, (node, _) in sources.items() if isinstance(node, Constant)}


def _choose_all(workloads: Sequence[Workload], choose: Choose) -> dict[Workload, Selection]:
    selections, errors = {}, {}
    for workload in workloads:
        try:
            chosen = choose(workload)
            assert isinstance(chosen, Selection)  # sizes are fixed
            selections[workload] = chosen
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


def _build_all(
    selections: dict[Workload, Selection], sites: dict[Workload, list[dict[str, Constant]]], made: Path
) -> dict[Workload, Signature]:
    requests = []
    for workload, s in selections.items():
        packings = {
            Packing(n, str(_source(made, node)), str(_packed(made, node, workload, n))): None
            for constants in sites[workload]
            for n, node in constants.items()
        }
        requests.append(
            (_BUILDER, BuildKernel(
                workload=workload, target=s.target, implementation=s.implementation, config=s.config,
                path=str(_object(made, workload)), symbol=symbol_of(workload), packings=tuple(packings),
            ))
        )  # fmt: skip
    signatures, errors = {}, {}
    for workload, answer in zip(selections, ask_all(requests, BUILD_TIMEOUT_S), strict=True):
        built = BuiltKernel(error=str(answer)) if isinstance(answer, Exception) else convert(answer, BuiltKernel)
        if built.signature is None:
            errors[workload] = f"{selections[workload].implementation}: {built.error}"
        else:
            signatures[workload] = built.signature
    _refuse(errors)
    return signatures


def _write_weights(plan: Plan, path: Path, made: Path) -> None:
    with path.open("wb") as file:
        for w in plan.weights:
            file.seek(w.offset)
            file.write(_bytes(w, made))


def _bytes(weight: Weight, made: Path) -> bytes:
    if weight.packed_for is None:
        return np.ascontiguousarray(weight.node.value).tobytes()
    return _packed(made, weight.node, *weight.packed_for).read_bytes()


def _object(made: Path, workload: Workload) -> Path:
    return made / f"{workload.digest}.o"


def _source(made: Path, node: Constant) -> Path:
    """The file of a constant's array, written once."""
    path = made / f"{id(node.value)}.npy"
    if not path.exists():
        np.save(path, node.value)
    return path


def _packed(made: Path, node: Constant, workload: Workload, argument: str) -> Path:
    return made / f"{id(node.value)}-{workload.digest}-{argument}"
