"""The compile engine: a call graph becomes functions, each with the implementation selected for it.

    function = compile(relu(dense(x, w) + bias), target, database)
    y = function(x_value)
    function.explain()

The logger `plevel.compile` tells, at level INFO, which implementation each call uses and why.
"""

from __future__ import annotations

import logging
import threading
from functools import cache, partial
from typing import Any

from strategy.attrs import Attrs
from strategy.expr import Call, Constant, Expr, TupleGetItem, Var, free_vars, post_order
from strategy.function import (
    MAX_FUNCTIONS,
    CompiledFunction,
    Kernel,
    Recent,
    SymbolicFunction,
)
from strategy.fusion import describe, fuse
from strategy.inference import infer_type
from strategy.lower import Artefact, CompileError, InstantiationError, lower
from strategy.op import Op
from strategy.select import NO_RECORDS, Database, Selection, select
from strategy.signature import Role
from strategy.target import Target
from strategy.types import TensorType, Type

logger = logging.getLogger("plevel.compile")

MAX_KERNELS = 1024


class CompileEngine:
    """Compiles graphs, and keeps what it compiled.

    A function is kept by operator, attributes, types, target and what was selected for it; a graph
    by its structure, target and selections, so that new measurements take effect.
    """

    def __init__(self) -> None:
        self._kernels: Recent[Artefact] = Recent(MAX_KERNELS)
        self._functions: Recent[tuple[list[Selection], CompiledFunction]] = Recent(MAX_FUNCTIONS)
        self._symbolic: Recent[SymbolicFunction] = Recent(MAX_FUNCTIONS)
        self._lock = threading.RLock()

    def compile(
        self, expr: Expr, target: Target | str | None = None, database: Database | None = None
    ) -> CompiledFunction | SymbolicFunction:
        """The graph as a function for `target`, by what `database` knows of its operators.

        Without a target it is for the current one (`with target:`), else for this host.

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
            # The function keeps `records`, so that their id is theirs alone as long as it is a key.
            key = (structure(expr), target, id(records))
            symbolic = self._symbolic.get(key)
            if symbolic is None:
                specialize = partial(self._concrete, target=target, records=records)
                symbolic = SymbolicFunction(expr, specialize)
                self._symbolic.put(key, symbolic)
            symbolic.refresh()
            return symbolic

    def _concrete(self, expr: Expr, *, target: Target, records: Database) -> CompiledFunction:
        infer_type(expr)
        key = (structure(expr), target)
        groups = [(g, *describe(g)) for g in fuse(expr)]
        selections = [select(w, target, records) for _, w, _ in groups]
        for s in selections:
            logger.info("%s: %s: %s", s.workload, s.implementation, s.explanation)
        with self._lock:
            known = self._functions.get(key)
            if known is not None and known[0] == selections:
                return known[1]
            kernels = []
            for (group, _, sources), selection in zip(groups, selections, strict=True):
                artefact = self._artefact(selection)
                names = tuple(c.op.name for c in group.calls)
                inputs = tuple(sources[a.name] for a in artefact.arguments if a.role is not Role.OUTPUT)
                kernels.append(Kernel(selection, names, artefact, inputs, group.output))
            function = CompiledFunction(expr, target, kernels)
            self._functions.put(key, (selections, function))
            return function

    def _artefact(self, s: Selection) -> Artefact:
        key = (s.workload.key, s.target, s.implementation, s.version, s.config)
        artefact = self._kernels.get(key)
        if artefact is None:
            try:
                lowered = lower(s.workload, s.target, s.implementation, s.config)
            except InstantiationError as error:
                raise CompileError(f"{s.workload}: {error}") from error
            artefact = lowered.compile()
            self._kernels.put(key, artefact)
        return artefact


@cache
def default_engine() -> CompileEngine:
    """The engine that `compile` uses."""
    return CompileEngine()


def compile(
    expr: Expr, target: Target | str | None = None, database: Database | None = None
) -> CompiledFunction | SymbolicFunction:
    """The graph as a function; the same graph, target and selections give the same object.

    Raises:
        As `CompileEngine.compile`.
    """
    return default_engine().compile(expr, target, database)


def structure(expr: Expr) -> tuple[Any, ...]:
    """What makes two graphs the same function: nodes, types, attributes, and the constants' arrays."""
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
