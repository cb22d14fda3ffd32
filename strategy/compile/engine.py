"""The compile engine: compiled functions of graphs, cached until their selections change."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

from strategy.attrs import Attrs
from strategy.compile.artefact import Artefact
from strategy.compile.export import lower_row
from strategy.compile.function import (
    MAX_FUNCTIONS,
    CompiledFunction,
    Kernel,
    Recent,
    SymbolicFunction,
    constant_tensors,
    pack,
)
from strategy.compile.fusion import Group, Operand, describe, fuse
from strategy.compile.lower import Lowered, lower
from strategy.expr import Call, Constant, Expr, TupleGetItem, Var, free_vars, post_order
from strategy.fault import CompileError, InstantiationError
from strategy.inference import infer_type
from strategy.op import Op, TypeRelationError
from strategy.schedule import ScheduleError
from strategy.select import NO_RECORDS, Database, Selection, SelectionError, select
from strategy.select.dispatch import DispatchTable, dispatch
from strategy.signature import Role
from strategy.target import Target
from strategy.types import Dim, TensorType, Type
from strategy.workload import Workload

logger = logging.getLogger("plevel.compile")

MAX_KERNELS = 1024


class CompileEngine:
    """A compiler of graphs with a cache.

    Functions are cached by operator, attributes, types, target and selection; graphs by structure, target and
    selections, so that new measurements take effect. With symbolic dimensions, each function is compiled
    once for each used row of its dispatch table.
    """

    def __init__(self) -> None:
        self._kernels: Recent[Artefact] = Recent(MAX_KERNELS)
        self._functions: Recent[tuple[list[Selection], CompiledFunction]] = Recent(MAX_FUNCTIONS)
        self._symbolic: Recent[SymbolicFunction] = Recent(MAX_FUNCTIONS)
        self._lock = threading.RLock()

    def compile(
        self, expr: Expr, target: Target | str | None = None, database: Database | None = None
    ) -> CompiledFunction | SymbolicFunction:
        """Compile a graph for `target`, selecting by `database`.

        The default target is the current one (`with target:`), else this host.

        Raises:
            TypeRelationError: the graph's types conflict. SelectionError: an operator has no valid
                implementation. CompileError: the selected one cannot be compiled.
        """
        target = Target.parse(target or Target.current() or "cpu")
        records: Database = NO_RECORDS if database is None else database
        infer_type(expr)
        with self._lock:
            if all(_is_constant(v.checked_type) for v in free_vars(expr)):
                return self._concrete(expr, target=target, records=records)
            # The function keeps `records` alive, so that their id is not reused while it is a key.
            key = (structure(expr), target, id(records))
            symbolic = self._symbolic.get(key)
            if symbolic is None:
                symbolic = SymbolicFunction(
                    expr, partial(self._tabulate, expr, target=target, records=records)
                )
                self._symbolic.put(key, symbolic)
            else:
                symbolic.refresh()
            return symbolic

    def _concrete(self, expr: Expr, *, target: Target, records: Database) -> CompiledFunction:
        key = (structure(expr), target)
        groups = [(g, *describe(g)) for g in fuse(expr)]
        selections = [_select(w, target, records) for _, w, _ in groups]
        known = self._functions.get(key)
        if known is not None and known[0] == selections:
            return known[1]
        constants = constant_tensors(expr)
        kernels = []
        for (group, _, sources), selection in zip(groups, selections, strict=True):
            artefact = self._artefact_of(selection)
            inputs = _inputs(artefact, sources)
            packed = pack(artefact, inputs, constants)
            kernels.append(Kernel(selection, group.names, artefact, inputs, group.output, packed))
        function = CompiledFunction(expr, target, kernels, constants)
        self._functions.put(key, (selections, function))
        return function

    def _tabulate(
        self, expr: Expr, *, target: Target, records: Database
    ) -> Callable[[Expr], CompiledFunction]:
        """Builder of a graph's function for given sizes, each part by its dispatch table."""
        constants = constant_tensors(expr)
        nodes = post_order(expr)
        parts = [_Part(group, _tabulate(group, target, records)) for group in fuse(expr)]

        def specialize(sized: Expr) -> CompiledFunction:
            infer_type(sized)
            twin: dict[Expr, Expr] = dict(zip(nodes, post_order(sized), strict=True))
            kernels = []
            for part in parts:
                group = part.group.moved(twin)
                workload, sources = describe(group)
                with self._lock:
                    selection, artefact = self._choose(part.table, workload, target, records)
                    inputs = _inputs(artefact, sources)
                    packed = part.packed.get(id(artefact))
                    if packed is None:
                        packed = artefact, pack(artefact, inputs, constants)
                        part.packed.put(id(artefact), packed)
                kernels.append(
                    Kernel(selection, group.names, artefact, inputs, group.output, packed[1])
                )
            return CompiledFunction(sized, target, kernels, constants)

        return specialize

    def _choose(
        self, table: DispatchTable | None, workload: Workload, target: Target, records: Database
    ) -> tuple[Selection, Artefact]:
        """Compile a part by the table's row for this size, or for this size alone if it has no row."""
        dims = None if table is None else table.workload.match(workload)
        if table is not None and dims is not None and min(dims.values(), default=1) > 0:
            try:
                row = table.row(**dims)
                shape = table.workload.bind(table.pinned(row.holds))
                key = (shape.key, target, row.implementation, row.version, row.config)
                artefact = self._compiled(key, lambda: lower_row(table, row))
            except (SelectionError, InstantiationError) as error:
                logger.info("%s: compiled for this size: %s", workload, error)
            else:
                selection = Selection(
                    workload=workload, target=target, implementation=row.implementation,
                    version=row.version, config=row.config, reason=row.reason, level=None,
                    explanation=f"its row of the dispatch table: {table.explain_row(row)}",
                )
                _tell(selection)
                return selection, artefact
        selection = _select(workload, target, records)
        return selection, self._artefact_of(selection)

    def _artefact_of(self, s: Selection) -> Artefact:
        key = (s.workload.key, s.target, s.implementation, s.version, s.config)
        try:
            return self._compiled(key, lambda: lower(s.workload, s.target, s.implementation, s.config))
        except InstantiationError as error:
            raise CompileError(f"{s.workload}: {error}") from error

    def _compiled(self, key: tuple[Any, ...], make: Callable[[], Lowered]) -> Artefact:
        artefact = self._kernels.get(key)
        if artefact is None:
            artefact = make().compile()
            self._kernels.put(key, artefact)
        return artefact


@dataclass(frozen=True)
class _Part:
    """Calls of a symbolic graph that become one function, and the constants packed for its rows."""

    group: Group
    table: DispatchTable | None
    packed: Recent[tuple[Artefact, dict[int, Any]]] = field(default_factory=lambda: Recent(MAX_FUNCTIONS))


def _tabulate(group: Group, target: Target, records: Database) -> DispatchTable | None:
    """The dispatch table of a part with symbolic dimensions, None if it has none for all sizes."""
    names: dict[str, str] = {}

    def show(kind: Type) -> str:
        assert isinstance(kind, TensorType)
        return str(TensorType([_name(dim, names) for dim in kind.shape], kind.dtype))

    try:
        workload, _ = describe(group, show)
        return None if workload.is_constant else dispatch(workload, target, records)
    except (SelectionError, TypeRelationError, ScheduleError) as error:
        logger.info("%s: compiled for each size: %s", group.anchor.op.name, error)
        return None


def _name(dim: Dim, names: dict[str, str]) -> Dim:
    """A dimension for compilation: arithmetic on symbols becomes another symbol."""
    if dim.is_constant or dim.op == "var":
        return dim
    return Dim(names.setdefault(str(dim), f"_{len(names)}"))


def _inputs(artefact: Artefact, sources: Mapping[str, Operand]) -> tuple[Operand, ...]:
    return tuple(sources[a.name] for a in artefact.arguments if a.role is not Role.OUTPUT)


def _select(workload: Workload, target: Target, records: Database) -> Selection:
    found = select(workload, target, records)
    _tell(found)
    return found


def _tell(s: Selection) -> None:
    logger.info("%s: %s: %s", s.workload, s.implementation, s.explanation)


@cache
def default_engine() -> CompileEngine:
    """The engine that `compile` uses."""
    return CompileEngine()


def compile(
    expr: Expr, target: Target | str | None = None, database: Database | None = None
) -> CompiledFunction | SymbolicFunction:
    """Compile a graph; equal graph, target and selections give the same object.

    Raises:
        As `CompileEngine.compile`.
    """
    return default_engine().compile(expr, target, database)


def structure(expr: Expr) -> tuple[Any, ...]:
    """Key of a graph's function: nodes, types, attributes, and the constants' arrays."""
    number: dict[Expr, int] = {}
    shape: list[tuple[Any, ...]] = []
    for node in post_order(expr):
        inputs = tuple(number[i] for i in node.inputs)
        if isinstance(node, Var):
            what: tuple[Op | Type | Attrs | str | int, ...] = (node.name, node.checked_type)
        elif isinstance(node, Constant):
            what = (id(node.value),)
        elif isinstance(node, Call):
            what = (node.op, node.attrs)
        elif isinstance(node, TupleGetItem):
            what = (node.index,)
        else:
            what = ()
        number[node] = len(shape)
        shape.append((type(node), *what, inputs))
    return tuple(shape)


def _is_constant(kind: Type) -> bool:
    return isinstance(kind, TensorType) and kind.is_constant
