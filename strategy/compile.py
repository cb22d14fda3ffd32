"""The compile engine: a call graph becomes functions, each with the implementation selected for it.

    function = compile(relu(dense(x, w) + bias), target, database)
    y = function(x_value)
    function.explain()

The logger `plevel.compile` tells, at level INFO, which implementation each call uses and why.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, TypeVar

import msgspec

from strategy.array import RunError, bind, checked, empty_tensor, to_tensor
from strategy.attrs import Attrs
from strategy.expr import (
    Call,
    Constant,
    Expr,
    Tuple,
    TupleGetItem,
    Var,
    free_vars,
    post_order,
    substitute,
)
from strategy.fusion import Operand, describe, fuse, resolve
from strategy.inference import infer_type
from strategy.lower import Artefact, CompileError, InstantiationError, Role, lower
from strategy.op import Op
from strategy.select import Database, History, Measured, Reason, Selection, select
from strategy.space import Config
from strategy.target import Target
from strategy.types import Dim, TensorType, TupleType, Type
from strategy.workload import Workload

logger = logging.getLogger("plevel.compile")

T = TypeVar("T")
MAX_KERNELS = 1024
MAX_FUNCTIONS = 128


class NoRecords:
    """A database without records: selection goes by plevel."""

    def measured(self, workload: Workload, target: Target, device: str | None) -> Sequence[Measured]:
        return ()

    def instances(
        self, workload: Workload, target: Target, device: str | None
    ) -> Sequence[tuple[Workload, Sequence[Measured]]]:
        return ()

    def history(self, workload: Workload) -> Sequence[History]:
        return ()


_NO_RECORDS = NoRecords()


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Which implementation a function uses, and why. `calls` are the operators that it computes."""

    calls: tuple[str, ...]
    workload: str
    implementation: str
    version: str
    config: Config
    reason: Reason
    explanation: str


@dataclass(frozen=True)
class _Kernel:
    """A compiled function in its place: what it reads, and the node that it computes."""

    selection: Selection
    calls: tuple[str, ...]
    artefact: Artefact
    sources: tuple[Operand, ...]
    output: Call

    def explain(self) -> Explanation:
        s = self.selection
        return Explanation(
            calls=self.calls, workload=s.workload.key, implementation=s.implementation,
            version=s.version, config=s.config, reason=s.reason, explanation=s.explanation,
        )  # fmt: skip


class CompiledFunction:
    """A graph compiled for one target, called with NumPy arrays in the order of `variables`.

    Thread-safe: it keeps nothing between calls but prepared constants.
    """

    def __init__(self, expr: Expr, target: Target, kernels: Sequence[_Kernel]) -> None:
        self.expr = expr
        self.target = target
        self.variables = free_vars(expr)
        self._kernels = tuple(kernels)
        self._constants: dict[Expr, Any] = {
            n: to_tensor(n.value) for n in post_order(expr) if isinstance(n, Constant)
        }
        # Each constant is packed once, here.
        self._prepared = [self._prepare(k) for k in self._kernels]

    def _prepare(self, kernel: _Kernel) -> dict[int, Any]:
        found = {}
        for place, (argument, (node, _)) in enumerate(
            zip(kernel.artefact.arguments, kernel.sources, strict=False)
        ):
            if argument.role is Role.PREPARED:
                found[place] = kernel.artefact.prepare(argument, self._constants[node])
        return found

    def explain(self) -> list[Explanation]:
        """For each function, in the order in which they run, its implementation and why."""
        return [k.explain() for k in self._kernels]

    def __call__(self, *arrays: Any, **named: Any) -> Any:
        """The value of the graph: an array, or a tuple of what it is a tuple of.

        Raises:
            RunError: an array is missing, unknown, or of another type than its variable.
        """
        given = bind(self.variables, arrays, named)
        values: dict[Operand, Any] = {(n, None): t for n, t in self._constants.items()}
        for variable in self.variables:
            values[variable, None] = to_tensor(checked(variable, given[variable.name], variable.checked_type))
        _use_threads(self.target)
        for kernel, prepared in zip(self._kernels, self._prepared, strict=True):
            inputs = [prepared.get(i, values.get(s)) for i, s in enumerate(kernel.sources)]
            kinds = kernel.output.checked_type
            fields = kinds.fields if isinstance(kinds, TupleType) else (kinds,)
            outputs = [empty_tensor(f) for f in fields]
            kernel.artefact.main(*inputs, *outputs)
            for index, value in enumerate(outputs):
                values[kernel.output, index if isinstance(kinds, TupleType) else None] = value
        return self._result(self.expr, values)

    def _result(self, node: Expr, values: Mapping[Operand, Any]) -> Any:
        if isinstance(node, Tuple):
            return tuple(self._result(f, values) for f in node.fields)
        if isinstance(node.checked_type, TupleType):
            return tuple(values[node, i].numpy() for i in range(len(node.checked_type.fields)))
        return values[resolve(node)].numpy()


class SymbolicFunction:
    """A graph with symbolic dimensions: compiled for each combination of them that it is called with."""

    def __init__(self, engine: CompileEngine, expr: Expr, target: Target, database: Database) -> None:
        self.expr = expr
        self.target = target
        self.variables = free_vars(expr)
        self._engine = engine
        self._database = database
        self._found: dict[tuple[int, ...], CompiledFunction] = {}

    def explain(self) -> list[Explanation]:
        """The functions of every combination of dimensions met so far."""
        return [e for f in self._found.values() for e in f.explain()]

    def refresh(self) -> None:
        """Selects anew at the next call, by what the database knows then."""
        self._found = {}

    def at(self, dims: Mapping[str, int]) -> CompiledFunction:
        """The function for these values of the symbolic dimensions.

        Raises:
            RunError: a dimension has no value.
        """
        replacements: dict[Expr, Expr] = {}
        for v in self.variables:
            kind = v.checked_type
            assert isinstance(kind, TensorType)
            replacements[v] = Var(v.name, TensorType([_sized(v, d, dims) for d in kind.shape], kind.dtype))
        key = tuple(dims[name] for name in sorted(dims))
        if key not in self._found:
            graph = substitute(self.expr, replacements)
            found = self._engine.compile(graph, self.target, self._database)
            assert isinstance(found, CompiledFunction)
            self._found[key] = found
        return self._found[key]

    def __call__(self, *arrays: Any, **named: Any) -> Any:
        """The value of the graph; arrays must agree on each symbolic dimension."""
        given = bind(self.variables, arrays, named)
        dims: dict[str, int] = {}
        for v in self.variables:
            array = checked(v, given[v.name], v.checked_type)
            assert isinstance(v.checked_type, TensorType)
            for dim, size in zip(v.checked_type.shape, array.shape, strict=True):
                if dim.op == "var" and not dim.is_constant and dims.setdefault(str(dim), size) != size:
                    raise RunError(f"{v.name}: dimension {dim} is {size} here, but {dims[str(dim)]} elsewhere")
        return self.at(dims)(**given)


class CompileEngine:
    """Compiles graphs, and keeps what it compiled.

    A function is kept by operator, attributes, types, target and what was selected for it; a graph
    by its structure, target and selections, so that new measurements take effect.
    """

    def __init__(self) -> None:
        self._kernels: _Store[Artefact] = _Store(MAX_KERNELS)
        self._functions: _Store[tuple[list[Selection], CompiledFunction]] = _Store(MAX_FUNCTIONS)
        self._symbolic: _Store[SymbolicFunction] = _Store(MAX_FUNCTIONS)
        self._lock = threading.RLock()

    def compile(
        self, expr: Expr, target: Target | str, database: Database | None = None
    ) -> CompiledFunction | SymbolicFunction:
        """The graph as a function for `target`, by what `database` knows of its operators.

        Raises:
            TypeRelationError: the graph's types conflict. SelectionError: an operator has no valid
                implementation. CompileError: the selected one cannot be compiled.
        """
        target = Target.parse(target)
        records: Database = _NO_RECORDS if database is None else database
        infer_type(expr)
        key = (structure(expr), target)
        with self._lock:
            if not all(_is_constant(v.checked_type) for v in free_vars(expr)):
                symbolic = self._symbolic.get((*key, id(records)))
                if symbolic is None:
                    symbolic = SymbolicFunction(self, expr, target, records)
                    self._symbolic.put((*key, id(records)), symbolic)
                symbolic.refresh()
                return symbolic
            groups = [(g, *describe(g)) for g in fuse(expr)]
            selections = [select(w, target, records) for _, w, _ in groups]
            for selection in selections:
                logger.info("%s: %s: %s", selection.workload, selection.implementation, selection.explanation)
            known = self._functions.get(key)
            if known is not None and known[0] == selections:
                return known[1]
            kernels = []
            for (group, _, sources), selection in zip(groups, selections, strict=True):
                artefact = self._artefact(selection)
                inputs = [a.name for a in artefact.arguments if a.role is not Role.OUTPUT]
                names = tuple(c.op.name for c in group.calls)
                kernels.append(
                    _Kernel(selection, names, artefact, tuple(sources[n] for n in inputs), group.output)
                )
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


class _Store(Generic[T]):
    """The values used last, `limit` of them."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._values: OrderedDict[Any, T] = OrderedDict()

    def get(self, key: Any) -> T | None:
        if key in self._values:
            self._values.move_to_end(key)
        return self._values.get(key)

    def put(self, key: Any, value: T) -> None:
        self._values[key] = value
        if len(self._values) > self._limit:
            self._values.popitem(last=False)


@cache
def default_engine() -> CompileEngine:
    """The engine that `compile` uses."""
    return CompileEngine()


def compile(
    expr: Expr, target: Target | str = "cpu", database: Database | None = None
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


def _sized(variable: Var, dim: Dim, dims: Mapping[str, int]) -> int:
    if not dim.is_constant and str(dim) not in dims:
        raise RunError(f"{variable.name}: dimension {dim} has no value")
    return int(dim) if dim.is_constant else dims[str(dim)]


def _use_threads(target: Target) -> None:
    """Lets the runtime use as many threads as the code was made for."""
    # Read once, when the runtime starts; its own count is wrong on small machines.
    os.environ.setdefault("TVM_NUM_THREADS", str(max(os.cpu_count() or 1, target.threads)))
    import tvm

    threads = tvm.get_global_func("runtime.NumThreads")
    if threads() == target.threads:
        return
    tvm.get_global_func("runtime.config_threadpool")(1, target.threads)
    if threads() != target.threads:
        logger.warning(
            "%s is for %d threads, but the runtime has %d: set TVM_NUM_THREADS before TVM starts",
            target, target.threads, threads(),
        )  # fmt: skip
