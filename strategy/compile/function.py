"""Compiled graphs: functions of NumPy arrays that explain their implementations."""

from __future__ import annotations

import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from strategy.compile.array import RunError, bind, checked, empty_tensor, to_tensor
from strategy.compile.artefact import Artefact
from strategy.compile.fusion import Operand, peel, resolve
from strategy.expr import Call, Constant, Expr, Tuple, Var, free_vars, post_order, substitute
from strategy.extern import load_library
from strategy.select import Reason, Selection
from strategy.signature import Role
from strategy.space import Config
from strategy.target import Target
from strategy.types import Dim, TensorType, TupleType

logger = logging.getLogger("plevel.compile")

T = TypeVar("T")
MAX_FUNCTIONS = 128


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """The implementation of a function, and the reason. `calls` are the operators that it computes."""

    calls: tuple[str, ...]
    workload: str
    implementation: str
    version: str
    config: Config
    reason: Reason
    explanation: str


@dataclass(frozen=True)
class Kernel:
    """A compiled function in a graph: its inputs, and the node that it computes.

    `packed` has the packed constants by index of the argument.
    """

    selection: Selection
    calls: tuple[str, ...]
    artefact: Artefact
    sources: tuple[Operand, ...]
    output: Call
    packed: Mapping[int, Any]

    def explain(self) -> Explanation:
        s = self.selection
        return Explanation(
            calls=self.calls, workload=s.workload.key, implementation=s.implementation,
            version=s.version, config=s.config, reason=s.reason, explanation=s.explanation,
        )


class CompiledFunction:
    """A graph compiled for one target, called with NumPy arrays in the order of `variables`.

    Thread-safe, as it keeps only constants between calls.
    """

    def __init__(
        self, expr: Expr, target: Target, kernels: Sequence[Kernel], constants: Mapping[Expr, Any]
    ) -> None:
        self.expr = expr
        self.target = target
        self.variables = free_vars(expr)
        self._kernels = tuple(kernels)
        self._libraries = {k.artefact.signature.library for k in kernels} - {None}
        self._constants = constants

    def explain(self) -> list[Explanation]:
        """The implementation of each function with the reason, in the order of execution."""
        return [k.explain() for k in self._kernels]

    def __call__(self, *arrays: Any, **named: Any) -> Any:
        """The value of the graph: an array, or a tuple.

        Raises:
            RunError: an array is missing, unknown, or of another type than its variable.
        """
        given = bind(self.variables, arrays, named)
        values: dict[Operand, Any] = {(n, None): t for n, t in self._constants.items()}
        for variable in self.variables:
            values[variable, None] = to_tensor(checked(variable, given[variable.name], variable.checked_type))
        _use_threads(self.target)
        for role in self._libraries:
            load_library(str(role)).set_threads(self.target.threads)
        for kernel in self._kernels:
            inputs = [kernel.packed.get(i, values.get(s)) for i, s in enumerate(kernel.sources)]
            kinds = kernel.output.checked_type
            fields = kinds.fields if isinstance(kinds, TupleType) else (kinds,)
            outputs = [empty_tensor(f) for f in fields]
            kernel.artefact.main(*inputs, *outputs)
            for index, value in enumerate(outputs):
                values[kernel.output, index if isinstance(kinds, TupleType) else None] = value
        return self._result(self.expr, values)

    def _result(self, node: Expr, values: Mapping[Operand, Any]) -> Any:
        node = peel(node)
        if isinstance(node, Tuple):
            return tuple(self._result(f, values) for f in node.fields)
        if isinstance(node.checked_type, TupleType):
            return tuple(values[node, i].numpy() for i in range(len(node.checked_type.fields)))
        return values[resolve(node)].numpy()


def constant_tensors(expr: Expr) -> dict[Expr, Any]:
    """The constants of a graph as tensors of the runtime."""
    return {n: to_tensor(n.value) for n in post_order(expr) if isinstance(n, Constant)}


def pack(
    artefact: Artefact, sources: Sequence[Operand], constants: Mapping[Expr, Any]
) -> dict[int, Any]:
    """The packed constants of a function, by index of the argument."""
    return {
        place: artefact.prepare(argument, constants[node])
        for place, (argument, (node, _)) in enumerate(zip(artefact.arguments, sources, strict=False))
        if argument.role is Role.PREPARED
    }


class Recent(Generic[T]):
    """A cache of the `limit` most recently used values. Thread-safe."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._values: OrderedDict[Any, T] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Any) -> T | None:
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def put(self, key: Any, value: T) -> None:
        with self._lock:
            self._values[key] = value
            if len(self._values) > self._limit:
                self._values.popitem(last=False)

    def all(self) -> list[T]:
        """The values, the most recently used last."""
        with self._lock:
            return list(self._values.values())


class SymbolicFunction:
    """A graph with symbolic dimensions, assembled for each combination of sizes that it is called with.

    Types are inferred for each; the `MAX_FUNCTIONS` most recently used are kept.
    """

    def __init__(self, expr: Expr, make: Callable[[], Callable[[Expr], CompiledFunction]]) -> None:
        self.expr = expr
        self.variables = free_vars(expr)
        self._make = make
        self.refresh()

    def explain(self) -> list[Explanation]:
        """The functions of all cached combinations of dimensions."""
        return [e for f in self._found.all() for e in f.explain()]

    def refresh(self) -> None:
        """Select again, from the database's current records."""
        self._specialize = self._make()
        self._found: Recent[CompiledFunction] = Recent(MAX_FUNCTIONS)

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
        known = self._found  # `refresh` may replace it concurrently
        found = known.get(key)
        if found is None:
            found = self._specialize(substitute(self.expr, replacements))
            known.put(key, found)
        return found

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


def _sized(variable: Var, dim: Dim, dims: Mapping[str, int]) -> int:
    if not dim.is_constant and str(dim) not in dims:
        raise RunError(f"{variable.name}: dimension {dim} has no value")
    return int(dim) if dim.is_constant else dims[str(dim)]


def _use_threads(target: Target) -> None:
    """Set the runtime's threads to those that the code was compiled for."""
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
        )
