"""Building of a network's kernels: the child that compiles a workload to an object, and packs its constants."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace as replace_struct

from strategy.compile.entry import Entry
from strategy.compile.export import merge, pack_once, table_rows
from strategy.compile.lower import Lowered, lower
from strategy.fault import CompileError, InstantiationError, find_fault
from strategy.record import convert, to_json
from strategy.select.dispatch import DispatchTable
from strategy.signature import PREPARE, Role, Signature
from strategy.space import Config
from strategy.target import Target, cpu_target
from strategy.workload import Workload
from workers.array_file import read_array
from workers.builder import shorten
from workers.fork import Channel
from workers.guard import size_bytes


class Packing(msgspec.Struct, frozen=True):
    """A constant of a workload, in a file of `write_array`, and the file for its packed bytes."""

    argument: str
    source: str
    dtype: str
    packed: str


class BuildTable(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A request: the implementations of a dispatch table, and the path and prefix of its object's functions."""

    table: DispatchTable
    path: str
    prefix: str
    packings: tuple[Packing, ...] = ()


class BuildKernel(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A request: an implementation with its configuration, and the object's path and function."""

    workload: Workload
    target: Target
    implementation: str
    config: Config
    path: str
    symbol: str
    packings: tuple[Packing, ...] = ()


_REQUEST: Any = BuildKernel | BuildTable


class BuiltKernel(msgspec.Struct, frozen=True, kw_only=True):
    """The answer: the kernel's signature, or an error.

    Args:
        table: the dispatch table, with one packing of each constant for all of its rows.
        source: in C, the function that calls the rows of a table.
    """

    signature: Signature | None = None
    table: DispatchTable | None = None
    source: str = ""
    error: str = ""


def serve(channel: Channel) -> None:
    """The child's loop."""
    while True:
        request = convert(channel.receive(), _REQUEST)
        channel.mark(0)
        channel.send(to_json(build(request)))


def build(request: BuildKernel | BuildTable) -> BuiltKernel:
    """Build one kernel, and pack those constants that it takes packed."""
    try:
        if isinstance(request, BuildTable):
            return _build_table(request)
        lowered = lower(request.workload, request.target, request.implementation, request.config)
        _write(lowered, request)
        _pack(lowered, request.packings)
    except (InstantiationError, CompileError) as error:
        return BuiltKernel(error=shorten(str(error)))
    except Exception as error:
        fault = find_fault(error)
        at = f"{fault}: " if fault else ""
        return BuiltKernel(error=shorten(f"{at}{type(error).__name__}: {error}"))
    return BuiltKernel(signature=lowered.signature)


def _build_table(request: BuildTable) -> BuiltKernel:
    table = pack_once(request.table)
    rows = table_rows(table)
    entry = Entry("plevel", table.workload, rows, request.prefix)
    arguments = tuple(p.argument for p in entry.parameters)
    if len({a.name for a in arguments}) < len(arguments):
        raise CompileError("its rows pack a constant in several ways")
    merge(rows, request.prefix).compile(checks=False).write_object(Path(request.path))
    for p in entry.parameters:
        if p.argument.role is Role.PREPARED:
            _pack(rows[p.row].lowered, [g for g in request.packings if g.argument == p.argument.name])
    signature = replace_struct(rows[0].lowered.signature, arguments=arguments)
    return BuiltKernel(signature=signature, table=table, source="\n".join(entry.main()))


def _write(lowered: Lowered, request: BuildKernel) -> None:
    import tvm

    function = lowered.module["main"].with_attr("global_symbol", request.symbol)
    module = tvm.IRModule({request.symbol: function})
    replace(lowered, module=module).compile(checks=False).write_object(Path(request.path))


def _pack(lowered: Lowered, packings: Sequence[Packing]) -> None:
    """Pack on this host, whatever host the kernel is for."""
    import tvm

    wanted = [p for p in packings if PREPARE + p.argument in _prepared(lowered)]
    if not wanted:
        return
    functions = {v: f for v, f in lowered.module.functions.items() if v.name_hint in _prepared(lowered)}
    host: Any = replace(lowered, module=tvm.IRModule(functions), target=cpu_target()).compile(checks=False)
    for packing in wanted:
        argument = next(a for a in lowered.arguments if a.name == packing.argument)
        # Of hundreds of megabytes: neither is copied once more.
        source = tvm.runtime.tensor(read_array(packing.source, packing.dtype, mapped=True))
        packed = host.prepare(argument, source)
        size = size_bytes(packed.shape, str(packed.dtype))
        Path(packing.packed).write_bytes((ctypes.c_char * size).from_address(packed.data_ptr()))


def _prepared(lowered: Lowered) -> frozenset[str]:
    return frozenset(a.preparation or "" for a in lowered.arguments if a.role is Role.PREPARED)
