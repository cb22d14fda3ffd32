"""The operator registry: interfaces, type relations and computes of operators.

An operator is registered once, by chained calls as in TVM's `RELAY_REGISTER_OP`:

    register_op("cumsum").describe("…").add_argument("data", "Tensor", "…")
        .set_attrs_type(ScanopAttrs).set_support_level(3).add_type_rel("Cumsum", scanop_rel)
        .set_attr("TOpPattern", TOpPattern.kOpaque)
        .example({"data": "float32[5,19]"}, {"axis": 1})
"""
# Over 300 lines: one registry, with a function for each attribute that is registered.

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self, TypeVar

from strategy.attrs import Attrs
from strategy.condition import Clause, SpecializedCondition
from strategy.generic_func import GenericFunc, keep_bodies
from strategy.suggestion import suggest
from strategy.types import IncompleteType, TensorType, Type, may_equal

if TYPE_CHECKING:
    from importlib.metadata import Distribution, EntryPoint

F = TypeVar("F")
logger = logging.getLogger("plevel.op")


class OpError(ValueError):
    """A registration is wrong, or an operator is not registered."""


class TypeRelationError(ValueError):
    """The types do not fit an operator; the message names operator, argument and types."""


class UnknownTypeError(Exception):
    """A type relation cannot go on until a type is known."""


class TOpPattern(IntEnum):
    """The dependence of an operator's output on its inputs, for fusion; with TVM's names and order."""

    kElemWise = 0
    kBroadcast = 1
    kInjective = 2
    kCommReduce = 3
    kOutEWiseFusable = 4
    kOpaque = 8


@dataclass(frozen=True)
class Argument:
    name: str
    kind: str
    description: str


class TypeReporter:
    """The reporter of a type relation, which assigns unknown types and checks claims.

    `types` are those of the inputs, then of the outputs; an assignment to a known type must agree with it.
    """

    def __init__(self, op: Op, types: Sequence[Type]) -> None:
        self.op = op
        self.types = list(types)
        # Claims that passed undecided.
        self.assumed: list[Clause] = []

    def name(self, index: int) -> str:
        """Name of the type at `index` in messages."""
        if index < len(self.op.arguments):
            return self.op.arguments[index].name
        return "output" if index == len(self.types) - 1 else f"input {index}"

    def assign(self, index: int, found: Type) -> None:
        """Assign the type at `index`.

        Raises:
            TypeRelationError: another type is known.
        """
        known = self.types[index]
        if isinstance(known, IncompleteType):
            self.types[index] = found
        elif not may_equal(known, found):
            raise TypeRelationError(
                f"{self.op.name}: {self.name(index)} is {known}, but must be {found}"
            )

    def check(self, claim: bool | Clause | SpecializedCondition, index: int, remedy: str) -> None:
        """Raise `TypeRelationError` for the argument at `index` if `claim` is certainly false.

        Undecided clauses over symbolic dimensions pass, and are checked at run time (`Workload.assumptions`).
        """
        if isinstance(claim, Clause | SpecializedCondition):
            decided = claim.decide()
            holds = decided is not False
            if decided is None:
                clauses = (claim,) if isinstance(claim, Clause) else claim.clauses
                self.assumed += [c for c in clauses if c.decide() is None]
        else:
            holds = bool(claim)
        if not holds:
            raise TypeRelationError(
                f"{self.op.name}: {self.name(index)} is {self.types[index]}: {remedy}"
            )

    def tensor(self, index: int) -> TensorType | None:
        """The tensor type at `index`, None while unknown; raise if it is a tuple."""
        found = self.types[index]
        if isinstance(found, IncompleteType):
            return None
        if not isinstance(found, TensorType):
            raise TypeRelationError(
                f"{self.op.name}: {self.name(index)} must be one tensor, got {found}"
            )
        return found

    def known(self, index: int) -> TensorType:
        """As `tensor`; while the type is unknown, the relation ends here, and is run again later."""
        found = self.tensor(index)
        if found is None:
            raise UnknownTypeError
        return found


@dataclass(frozen=True)
class Example:
    """A small workload of an operator: the types of its inputs by name, and its attributes."""

    inputs: Mapping[str, str]
    attrs: Mapping[str, Any]


# With attributes of the operator's own type.
TypeRelation = Callable[[Sequence[Type], Any, TypeReporter], bool]


class Op:
    """An operator: its interface, and attributes that other packages may replace.

    An attribute has a level: registering it again at the same level is an error, at a lower one it is ignored, and
    at a higher one it replaces the attribute.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.description = ""
        self.arguments: list[Argument] = []
        self.examples: list[Example] = []
        self.support_level = 10
        self.attrs_type: type[Attrs] = Attrs
        self.type_rel_name = ""
        self.type_rel: TypeRelation | None = None
        self._num_inputs = 0
        self._attrs: dict[str, tuple[Any, int]] = {}

    def describe(self, text: str) -> Self:
        self.description = text
        return self

    @property
    def num_inputs(self) -> int | None:
        """Number of inputs: of the arguments, where it is not set; None if neither says it."""
        return self._num_inputs or len(self.arguments) or None

    def set_num_inputs(self, n: int) -> Self:
        """Set the number of inputs of an operator whose arguments are not described."""
        self._num_inputs = n
        return self

    def add_argument(self, name: str, kind: str, description: str) -> Self:
        """Add the next argument; `kind` is `Tensor`, or `Tuple` for any number of tensors."""
        self.arguments.append(Argument(name, kind, description))
        return self

    def set_support_level(self, level: int) -> Self:
        """Set the support level: 1 is essential, higher ones are less central."""
        self.support_level = level
        return self

    def set_attrs_type(self, attrs_type: type[Attrs]) -> Self:
        self.attrs_type = attrs_type
        return self

    def add_type_rel(self, name: str, relation: TypeRelation) -> Self:
        """Set `relation(types, attrs, reporter) -> bool`, False while a type that it needs is unknown.

        `types` are those of the arguments, then of the output; any may be incomplete. The relation derives and checks
        types by the reporter, whose errors it lets pass.
        """
        self.type_rel_name, self.type_rel = name, relation
        return self

    def set_attr(self, key: str, value: Any, level: int = 10) -> Self:
        """Set an attribute, unless it is known at a higher level.

        Raises:
            OpError: it is known at this level.
        """
        if key in self._attrs:
            known = self._attrs[key][1]
            if level == known:
                raise OpError(
                    f"{self.name}: attribute {key} is already registered at level {level}: "
                    "use a higher level to replace it"
                )
            if level < known:
                return self
        self._attrs[key] = (value, level)
        return self

    def example(self, inputs: Mapping[str, str], attrs: Mapping[str, Any] | None = None) -> Self:
        """Declare a workload that tests run in every accepted dtype and compare with NumPy.

        All examples together must cover every implementation. Use extents below and above a vector's width (5, 19).
        """
        self.examples.append(Example(inputs, attrs or {}))
        return self

    def get_attr(self, key: str, default: Any = None) -> Any:
        return self._attrs[key][0] if key in self._attrs else default

    def reset_attr(self, key: str) -> None:
        """Remove an attribute of this operator."""
        self._attrs.pop(key, None)

    def solve(self, reporter: TypeReporter, attrs: Attrs) -> bool:
        """Run the type relation; return whether it had the types that it needs.

        Raises:
            OpError: there is none. TypeRelationError: the types do not fit.
        """
        if self.type_rel is None:
            raise OpError(f"{self.name} has no type relation: add one with add_type_rel")
        try:
            return self.type_rel(reporter.types, attrs, reporter)
        except UnknownTypeError:
            return False

    def infer_type(self, inputs: Sequence[Type], attrs: Attrs) -> Type:
        """The output's type; raise as `relate`."""
        return self.relate(inputs, attrs)[0]

    def relate(self, inputs: Sequence[Type], attrs: Attrs) -> tuple[Type, list[Clause]]:
        """The output's type, and what it assumes of symbolic dimensions.

        Raises:
            TypeRelationError: the inputs do not fit or do not determine the output.
        """
        if self.num_inputs is not None and len(inputs) != self.num_inputs:
            names = ", ".join(a.name for a in self.arguments)
            raise TypeRelationError(
                f"{self.name} takes {self.num_inputs} inputs ({names}), got {len(inputs)}"
            )
        reporter = TypeReporter(self, [*inputs, IncompleteType("output")])
        self.solve(reporter, attrs)
        out = reporter.types[-1]
        if isinstance(out, IncompleteType):
            shown = ", ".join(map(str, inputs))
            raise TypeRelationError(
                f"{self.name}: inputs ({shown}) do not determine the output's type"
            )
        return out, reporter.assumed

    def __repr__(self) -> str:
        return f"Op({self.name})"


_ops: dict[str, Op] = {}
# The modules that register operators, named by `strategy`, as other modules must not import them.
_modules: list[str] = []


def register_module(module: str) -> None:
    """Declare a module that registers operators, which the first look-up of an operator imports."""
    _modules.append(module)


def register_op(name: str) -> Op:
    """Register a new operator; raise `OpError` if the name is taken."""
    if name in _ops:
        raise OpError(f"operator {name} is already registered: choose another name")
    _ops[name] = Op(name)
    return _ops[name]


# While packages are loaded, of this thread or task.
_loads: ContextVar[bool] = ContextVar("loads", default=False)


def _load_installed() -> None:
    """Import plevel's operators, and those of packages in the entry-point group `plevel.ops`.

    A package whose operators cannot be loaded is skipped with a warning. One that looks an operator up while it is
    loaded loads no others, whose registrations would be undone with its own.
    """
    if not _loads.get():
        _load_all()


@cache
def _load_all() -> Mapping[str, Any]:
    """Import them; return what the strategies of plevel's own operators are without the packages."""
    for module in _modules:
        import_module(module)
    own = {name: _strategy_of(op) for name, op in _ops.items()}
    for package, entry in _entries():
        before = {op: (dict(op._attrs), list(op.examples)) for op in _ops.values()}
        put_back = keep_bodies()
        loads = _loads.set(True)
        try:
            entry.load()
        except BaseException as error:  # another package may raise anything, as a panic of Rust's
            # Undo its registrations.
            put_back()
            for name, op in list(_ops.items()):
                if op not in before:
                    del _ops[name]
                else:
                    op._attrs, op.examples = before[op]
            if isinstance(error, KeyboardInterrupt):
                raise
            logger.warning(
                "plevel: the operators of package %s (%s = %s in plevel.ops) are left out: %s: %s: "
                "correct or remove the package",
                package, entry.name, entry.value, type(error).__name__, " ".join(str(error).split()),
            )
        finally:
            _loads.reset(loads)
    return own


def _entries() -> Iterator[tuple[str, EntryPoint]]:
    """The entry points of packages with operators, with the packages' names.

    A package whose entry points cannot be read is skipped with a warning, whether it has operators or not.
    """
    from importlib import metadata  # slow to import

    def is_hidden(package: Distribution, name: str) -> bool:
        """Return whether another of its name is before it on the path, maybe one without operators."""
        try:
            return metadata.distribution(name).read_text("entry_points.txt") != package.read_text("entry_points.txt")
        except metadata.PackageNotFoundError:  # it has no name
            return False

    seen = set()
    for package in metadata.distributions():
        try:
            found = package.entry_points.select(group="plevel.ops")
        except Exception as error:  # its file was damaged
            logger.warning(
                "plevel: the entry points of package %s cannot be read: %s: %s: install it again, or remove it",
                _name_of(package), type(error).__name__, " ".join(str(error).split()),
            )
            continue
        if found and (name := _name_of(package)) not in seen and not is_hidden(package, name):
            seen.add(name)
            yield from ((name, entry) for entry in found)


def _name_of(package: Distribution) -> str:
    name: str | None = None
    with suppress(Exception):  # its metadata are missing, which some releases of Python raise for
        name = package.name
    return name or f"without a name in {package.locate_file('')}"


def _strategy_of(op: Op) -> Any:
    """The strategy of an operator, by the bodies that it has now."""
    strategy = op.get_attr("FTVMStrategy")
    return strategy.bodies if isinstance(strategy, GenericFunc) else strategy


def has_own_strategy(op: Op) -> bool:
    """Return whether plevel's own code offers all implementations of an operator: no other package has added one."""
    own = _load_all()
    return op.name in own and own[op.name] == _strategy_of(op)


def find_op(name: str) -> Op | None:
    """The operator of a name, None if it is not installed."""
    _load_installed()
    return _ops.get(name)


# Names of PyTorch, ONNX and BLAS, and what has their operators here.
_ELSEWHERE = {
    "addmm": "dense", "bmm": "batch_matmul", "conv": "conv2d", "fc": "dense", "gemm": "dense", "linear": "dense",
    "matmul": "dense or batch_matmul", "mm": "dense", "scaled_dot_product_attention": "attention", "sdpa": "attention",
}


def _meant(name: str) -> str:
    """`, did you mean dense?` for a name of another framework, or one that is nearly an operator's."""
    elsewhere = _ELSEWHERE.get(name.lower())
    return suggest(name, _ops) if elsewhere is None else f", did you mean {elsewhere}?"


def get_op(name: str) -> Op:
    """The operator of a name; raise `OpError`, which says what lists them, as they are a hundred."""
    op = find_op(name)
    if op is None:
        near, known = _meant(name), "those of 'plevel ops'"
        if "." in name and not near:  # of a package, or of another tool's log
            known += "; from imported records of other tools 'plevel select --foreign' answers"
        raise OpError(f"unknown operator {name!r:.80}{near}; known: {known}")
    return op


def all_ops() -> Mapping[str, Op]:
    """All registered operators by name."""
    _load_installed()
    return dict(sorted(_ops.items()))


def get_registered_op(name: str) -> Op:
    """The operator of a name for registrations, which loads no operators."""
    if name not in _ops:
        raise OpError(f"operator {name} is not registered: call register_op first")
    return _ops[name]


def register_op_attr(name: str, key: str, value: Any = None, level: int = 10) -> Callable[[F], F]:
    """Set an attribute of an operator to `value`, or to the decorated function.

    Raises:
        OpError: the operator is not registered, or has the attribute at this level.
    """
    op = get_registered_op(name)

    def decorate(found: F) -> F:
        op.set_attr(key, found, level)
        return found

    if value is not None:
        decorate(value)
    return decorate


def register_compute(name: str, compute: Any = None, level: int = 10) -> Callable[[F], F]:
    """Register `compute(attrs, inputs, out_type) -> [te.Tensor]`, the same for all targets."""
    return register_op_attr(name, "FTVMCompute", compute, level)


def register_strategy(name: str, strategy: Any = None, level: int = 10) -> Callable[[F], F]:
    """Register `strategy(attrs, inputs, out_type, target) -> OpStrategy`, generic or for all targets."""
    return register_op_attr(name, "FTVMStrategy", strategy, level)


def register_reference(name: str, reference: Any = None, level: int = 10) -> Callable[[F], F]:
    """Register `reference(attrs, inputs) -> array`: NumPy's answer, in float64 if possible.

    The tensors of an argument of kind `Tuple` are separate inputs. Every implementation is checked against the
    reference before it is timed.
    """
    return register_op_attr(name, "FReference", reference, level)


def register_flops(name: str, flops: Any = None, level: int = 10) -> Callable[[F], F]:
    """Register `flops(attrs, inputs, out_type) -> int`: floating-point operations of one call."""
    return register_op_attr(name, "FFlops", flops, level)


def register_least_flops(name: str, flops: Any = None, level: int = 10) -> Callable[[F], F]:
    """Register the FLOPs of the best known algorithm, or a lower bound of them.

    Needed only if implementations have fewer operations than `register_flops` (winograd, skipped zeros), as times
    beyond the device's peak are refused.
    """
    return register_op_attr(name, "FLeastFlops", flops, level)


def register_terms(name: str, terms: Any = None, level: int = 10) -> Callable[[F], F]:
    """Register `terms(attrs, inputs, out_type) -> int`: the number of terms summed into an output element.

    Used for tolerances; needed only if neither FLOPs nor the inputs' sizes determine it.
    """
    return register_op_attr(name, "FTerms", terms, level)


def register_condition(name: str, condition: Any = None, level: int = 10) -> Callable[[F], F]:
    """Register `condition(attrs, inputs) -> array`: by how much each output element magnifies a rounding of an input.

    Used for tolerances; needed only if the operator subtracts numbers that may be nearly equal, and scales the rest.
    """
    return register_op_attr(name, "FCondition", condition, level)


def register_peaks(name: str, peaks: Any = None, level: int = 10) -> Callable[[F], F]:
    """Register `peaks(attrs, inputs) -> Peaks` of an operator whose results depend on a sum of each row.

    With a few elements that are most of the sum a result without one of them is no rounding of the right one. The
    result alone is rounded.
    """
    return register_op_attr(name, "FPeaks", peaks, level)


def axis_terms(attrs: Any, inputs: Sequence[TensorType], out_type: Type) -> int:
    """As many terms as the first input has elements along `axis`."""
    return int(inputs[0].shape[attrs.axis])
