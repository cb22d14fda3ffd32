"""ONNX models as networks."""
# Over 300 lines: nodes in one walk, those of constants and of sizes among them, and the values to compare with.

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import add
from typing import Any

import numpy as np
import onnx
import onnx.defs
import onnx.external_data_helper
import onnx.helper
import onnx.inliner
import onnx.numpy_helper

from plevel.comparison import Reference, make_inputs
from plevel.onnx import (  # noqa: F401  (they register their operators)
    attention,
    elementary,
    image,
    microsoft,
    movement,
    operator,
    quantized,
    recurrent,
    resize,
    sequence,
    signal,
)
from plevel.onnx.constant import (
    FailedError,
    SizeError,
    compute,
    compute_at_call,
    is_symbolic,
    large_numbers,
    quotients,
)
from plevel.onnx.control import CONTROL
from plevel.onnx.file import Symbols
from plevel.onnx.node import OPERATORS, Node
from plevel.onnx.part import WIDE, parts_of
from plevel.onnx.sequence import SEQUENCES
from plevel.onnx.types import SHOWN, infer_types, known_types, nested, own_graphs, read_type, within
from strategy.expr import Call, Constant, Expr, Tuple, Var, post_order
from strategy.network.derivation import derive_all
from strategy.network.extent import Extent, Symbol
from strategy.network.graph import Network, NetworkError, require_known
from strategy.network.plan import Port
from strategy.network.probe import make_sizes
from strategy.network.rewriter import extents
from strategy.network.size import MOST, NAMES, PROBED, Sizes
from strategy.reference import evaluate
from strategy.types import DTYPES, TensorType

_OF_TYPES = frozenset({"Shape", "Size"})  # constant, whatever their input is
# Drawn anew at each call; a Dropout is left to its operator.
_RANDOM = frozenset({
    "Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike",
})
# By ONNX's own reference, in some of their versions or variants: constants of them are computed by plevel's operators.
_MISCOMPUTED = frozenset({
    "AveragePool", "BatchNormalization", "ConvTranspose", "GRU", "GlobalMaxPool", "GridSample", "Hardmax", "LRN",
    "LSTM", "LogSoftmax", "LpNormalization", "LpPool", "MaxPool", "RNN", "ReduceSumSquare", "Resize", "RoiAlign",
    "Softmax", "Upsample",
})
_OF_SIZES = frozenset({"ConstantOfShape", "Expand", "Range", "Slice", "Tile"})
# Operands of these are values, which may be computed at the call, and no extents.
_OF_VALUES = frozenset({
    "Abs", "Add", "Cast", "Ceil", "Clip", "Concat", "Cos", "Div", "Equal", "Erf", "Exp", "Floor", "Greater",
    "GreaterOrEqual", "Identity", "IsInf", "IsNaN", "Less", "LessOrEqual", "Log", "Max", "Min", "Mod", "Mul", "Neg",
    "Pow", "Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Sin", "Sqrt", "Sub", "Sum", "Tanh", "Where",
})
# Products by the ranks of weights of 8 bits, whose integers they may multiply, and what only shows these otherwise.
_PRODUCTS = {"Conv": (3, 4), "Gemm": (2,), "MatMul": (2,)}
_VIEWS = frozenset({"Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
_PARTS = "plevel.parts"  # the domain of functions that are the parts of a node
_WIDER = {"int4": "int8", "uint4": "uint8"}
_QUANTISED = re.compile(r"^QLinear|^QGemm|uantizeLinear$")  # operators with scales
_IN_MESSAGE = 1 << 30  # bytes of weights; the rest is far below as much
_UNROLLED = 1 << 14  # times that a graph within a node is read, or a node of one

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Unknown:
    """A node that plevel has no operator for, and its outputs' types where they are known."""

    node: Any
    outputs: tuple[TensorType, ...]


def import_model(
    model: Any, *, inferred: Any = None, sizes: Sizes | None = None
) -> tuple[Network, tuple[Unknown, ...]]:
    """The network of a checked model, and the nodes that it leaves out.

    Args:
        inferred: the model with the types of its values: what is left out is then an input of the rest. Without
            it, nothing may be left out.
        sizes: those that large extents stand for.

    Raises:
        NetworkError: operators that plevel has none for, all at once; what one cannot compute; a missing value.
    """
    return _Importer(model, inferred, sizes).network()


def import_symbolic(model: Any, symbols: Symbols) -> Network:
    """The network of a checked model for all values of its symbolic sizes; raise as `import_model`."""
    names = symbols.names
    if not names:
        return import_model(model)[0]
    if len(names) > len(NAMES):
        listed = ", ".join(names)
        raise NetworkError(
            f"{len(names)} symbolic sizes ({listed}), and a library takes at most {len(NAMES)}: give some with --dim"
        )
    fixed = {n for weight in model.graph.initializer for n in weight.dims}
    fixed.update(dim.dim_value for given in model.graph.input for dim in given.type.tensor_type.shape.dim)
    fixed.update(large_numbers(model.graph))
    known = _input_extents(symbols)
    while True:  # until no further extents are found: behind quotients there may be others
        found: list[Network] = []
        try:
            both = make_sizes([(1, MOST)] * len(names), fixed, known)
        except ValueError as error:
            raise NetworkError(f"{error}: give sizes with --dim") from error
        for sizes in both:
            symbols.bind(sizes.probes)
            importer = _Importer(model, None, sizes)
            failure = None
            try:
                found.append(importer.network()[0])
            except NetworkError as error:
                listed = ", ".join(f"{n} is {name}" for n, name in zip(sizes.names, names, strict=True))
                equal = ", or say which are equal with --dim NAME=OTHER" if len(names) > 1 else ""
                failure = NetworkError(f"{sizes.shown(error)}; {listed}: give sizes with --dim{equal}")
            assert importer.sizes is not None
            if importer.sizes.has_quotients and importer.sizes.known != sizes.known:
                known = importer.sizes.known
                break
            if failure:
                raise failure
        else:
            return replace(found[0], twin=found[1])


def _input_extents(symbols: Symbols) -> tuple[Extent, ...]:
    """The extents of the inputs' axes as they depend on the sizes."""
    pairs = enumerate(zip(symbols.names, NAMES, strict=False))
    own = {name: Extent.of(Symbol(place, short)) for place, (name, short) in pairs} | {"": Extent.number(1)}
    each = ([own[name] * factor for name, factor in formula.items()] for _, formula in symbols.axes)
    return tuple(reduce(add, terms) for terms in each)


class _Importer:
    def __init__(self, model: Any, inferred: Any, sizes: Sizes | None) -> None:
        self.sizes = sizes
        self.limits: list[tuple[int, int]] = []
        self.weights = {tensor.name: tensor for tensor in model.graph.initializer}
        model = _expanded(model)
        self.graph = model.graph
        self.weights = {tensor.name: tensor for tensor in self.graph.initializer} | self.weights
        self.opsets = {o.domain or "ai.onnx": o.version for o in model.opset_import}
        self.values: dict[str, Expr] = {}
        self.unsized: set[str] = set()
        self.numbers: set[str] = set()  # made of sizes alone at the call, and thus no extents
        self.parts: dict[str, np.ndarray] = {}  # of sizes, among these
        self.integers: dict[Expr, Constant | None] = {}  # numbers of constant integers, and their values once computed
        self.inferred = None if inferred is None else known_types(inferred.graph)
        self.learned: set[Expr] = set()  # whose extents are known
        self.unrolled = 0
        self.unknown: list[Unknown] = []
        self.left: list[Var] = []
        self.read: dict[str, Expr] = {}

    def network(self) -> tuple[Network, tuple[Unknown, ...]]:
        if self.inferred is None:
            self._refuse_unknown(self.graph)
        others = {n for node in _nodes(self.graph) if node.op_type != "DequantizeLinear" for n in node.input}
        others.update(output.name for graph in nested(self.graph) for output in graph.output)
        for name, tensor in self.weights.items():
            self.values[name] = _initial(tensor, widened=name not in others)
        inputs = []
        for given in self.graph.input:
            if given.name not in self.values:
                try:
                    inputs.append(Var(given.name, read_type(given)))
                except ValueError as error:
                    raise NetworkError(f"input {given.name!r:.80}: {error}") from error
                self.values[given.name] = inputs[-1]
        for node in self.graph.node:
            self._add(node)
        if not self.graph.output:
            raise NetworkError("it has no outputs: export it with some")
        outputs = {o.name: self._value(o.name, "the model's outputs") for o in self.graph.output}
        if len(outputs) < len(self.graph.output):
            raise NetworkError("it lists an output twice: list it once")
        for name, value in outputs.items():
            if isinstance(value, Tuple):
                raise NetworkError(f"output {name!r:.80} is a sequence: give its tensors as outputs of their own")
        names = {value: name for name, value in self.values.items() if not isinstance(value, Tuple)}
        try:
            sizes = self.sizes
            if sizes is not None:
                sizes = sizes.limited([(sizes.encode(a), sizes.encode(b)) for a, b in self.limits])
        except ValueError as error:
            raise NetworkError(str(error)) from error
        return Network((*inputs, *self.left), self.read | outputs, names, sizes), tuple(self.unknown)

    def _refuse_unknown(self, graph: Any) -> None:
        """Refuse a graph with operators that plevel has none for, those of graphs within it included.

        Of an If whose condition is constant one branch is read, and checked then.
        """
        known = {"", *self.weights}  # at compile time

        def is_known(names: Iterable[str]) -> bool:
            return all(n in known or isinstance(self.values.get(n), Constant) for n in names)

        counts: Counter[str] = Counter()
        pending = [graph]
        while pending:
            each = pending.pop()
            known.update(tensor.name for tensor in each.initializer)
            for node in each.node:
                computed = _is_computable(node) and is_known(node.input)
                if node.op_type in _OF_TYPES or computed:
                    known.update(node.output)
                elif _name(node) not in OPERATORS and _name(node) not in CONTROL:
                    counts[_name(node)] += 1
                elif not (node.op_type == "If" and is_known(node.input)):
                    pending += own_graphs(node)
        require_known(counts)

    def _value(self, name: str, reader: str) -> Expr:
        if name in self.unsized:
            raise NetworkError(f"{reader} reads {name!r:.80}: how large it is depends on data, end the model before it")
        if name not in self.values:
            raise NetworkError(f"{reader} reads {name!r:.80}, which no input, node or initializer gives")
        return self.values[name]

    def _add(self, node: Any) -> None:
        reader = f"node {node.name or next(iter(node.output), '')!r:.80} ({node.op_type})"
        args = [self._value(name, reader) if name else None for name in node.input]
        try:
            shows = _shows_integers(node, args) or (node.op_type in _VIEWS and args[0] in self.integers)
            args = [a if shows and i == 0 else self._weight(node, i, a) for i, a in enumerate(args)]
            made: Sequence[Expr | None] | None = None if shows else self._computed(node, args)
            if made is None:
                function = OPERATORS.get(_name(node))
                if _name(node) in CONTROL:
                    function = partial(CONTROL[_name(node)], read=self._read)
                if function is None and self.inferred is not None:
                    self._leave(node)
                    return
                if function is None:
                    raise NetworkError("plevel has no kernel for it")
                given = {n for n, a in zip(node.input, args, strict=True) if n and not isinstance(a, Constant)}
                if given <= self.numbers and not shows and _name(node) not in CONTROL:
                    self.numbers.update(node.output)
                if node.op_type in _OF_VALUES:
                    args = [self._at_call(a) for a in args]
                read = Node(node, self.opsets, self.sizes, self.limits, [self.parts.get(name) for name in node.input])
                found = function(read, *args)
                self.sizes = self.sizes and self.sizes.knowing(read.known)
                made = list(found) if isinstance(found, tuple | list) else [found]
                if shows and isinstance(made[0], Call):
                    self.integers.setdefault(made[0])
                for value in made:
                    if value is not None:
                        value.checked_type  # noqa: B018  (errors of types are this node's)
                        self._learn(value)
                self.unsized.update(n for n, value in zip(node.output, made, strict=False) if n and value is None)
        except (ValueError, ArithmeticError, LookupError, TypeError, MemoryError) as error:
            if self.inferred is not None:
                self._leave(node)
                return
            said = " ".join(str(error).split())[:300]
            for name in sorted(self.numbers.intersection(node.input)):
                said += f": {name!r:.80} depends on a symbolic size and is no sum of products of sizes"
            raise NetworkError(f"{reader}: {said}") from error
        missing = [i for i, name in enumerate(node.output) if name and i >= len(made)]
        if missing:
            raise NetworkError(f"{reader}: its output {missing[0]} is used, which plevel does not compute")
        self.values.update((n, value) for n, value in zip(node.output, made, strict=False) if value is not None)

    def _weight(self, node: Any, place: int, value: Expr | None) -> Expr | None:
        """An operand: the numbers of constant integers as integers to a product, and as their values to others."""
        if value is None or value not in self.integers:
            return value
        if place == 1 and len(extents(value)) in _PRODUCTS.get(_name(node), ()):
            return value
        found = self.integers[value]
        if found is None:
            found = self.integers[value] = Constant(np.asarray(evaluate(value, {}), "float32", order="C"))
        return found

    def _read(self, graph: Any) -> Callable[[Sequence[Expr]], list[Expr]]:
        """The function that gives the outputs of a graph within a node; nothing in it is left out."""
        constants = {t.name: _initial(t) for t in graph.initializer}  # once for all steps
        self._refuse_unknown(graph)

        def outputs(given: Sequence[Expr]) -> list[Expr]:
            self.unrolled += 1 + len(graph.node)
            if self.unrolled > _UNROLLED:
                raise NetworkError(f"plevel unrolls loops of at most {_UNROLLED} nodes and steps in all")
            outer = self.values, self.unsized, self.inferred
            self.values, self.unsized, self.inferred = self.values | constants, set(self.unsized), None
            try:
                self.values.update(zip((value.name for value in graph.input), given, strict=True))
                for node in graph.node:
                    self._add(node)
                return [self._value(o.name, f"graph {graph.name!r:.80}") for o in graph.output]
            finally:
                self.values, self.unsized, self.inferred = outer

        return outputs

    def _computed(self, node: Any, args: Sequence[Expr | None]) -> list[Expr | None] | None:
        """The outputs of a node of constants, by ONNX's own reference; None for an unnamed one."""
        arrays = [a.value if isinstance(a, Constant) else None for a in args]
        if node.op_type in _OF_TYPES and args and args[0] is not None:
            extents = np.asarray(args[0].tensor_type.concrete_shape, np.int64)
            if node.op_type == "Size":
                return [Constant(extents.prod(dtype=np.int64))]
            about = {a.name: a.i for a in node.attribute}
            return [Constant(extents[about.get("start", 0) : about.get("end", len(extents))])]
        for name in node.output:
            self.parts.pop(name, None)  # of an earlier step of a loop
        if not self.parts.keys().isdisjoint(node.input):
            return self._of_parts(node, args)
        if any(a is not None and x is None for a, x in zip(args, arrays, strict=True)):
            return None
        if not _is_computable(node) or node.op_type == "Slice":  # backwards the reference loses elements
            return None
        large = (x.size and np.abs(x).max() >= PROBED for x in arrays if x is not None)
        if self.sizes is not None and node.op_type in _OF_SIZES and any(large):
            return None  # its output's extents may be symbolic
        given = {n: x for n, x in zip(node.input, arrays, strict=True) if x is not None}
        if self.sizes is not None:
            self.sizes = self.sizes.knowing(quotients(node, given, self.sizes))
        try:
            left = iter(compute(node, given, self.opsets, self.sizes))
        except SizeError:
            if node.op_type not in _OF_VALUES:
                raise
            return self._of_parts(node, args)
        except FailedError:
            if _name(node) in OPERATORS:
                return None  # ONNX's reference refuses some of what ONNX has
            raise
        return [_constant(next(left), name) if name else None for name in node.output]

    def _of_parts(self, node: Any, args: Sequence[Expr | None]) -> list[Expr | None] | None:
        """A constant for the extents that a node makes of sizes and their parts; None where it makes others."""
        assert self.sizes is not None
        given: list[np.ndarray | None] = []
        for name, value in zip(node.input, args, strict=True):
            if value is not None and name not in self.parts and not isinstance(value, Constant):
                return None
            given.append(self.parts.get(name, value.value if isinstance(value, Constant) else None))
        if not args or args[0] is None:
            return None
        own = np.dtype(args[0].tensor_type.dtype)
        named = (onnx.helper.tensor_dtype_to_np_dtype(a.i) for a in node.attribute if a.name == "to")
        to, parts = next(named, own), parts_of(node, given, own, self.sizes, self.opsets)
        if parts is None:
            return None
        each = parts.reshape(-1).tolist()
        if not all(part.is_extent for part in each):
            self.parts[node.output[0]] = parts
            return None
        if not (to.kind in "iu" or to in WIDE):
            return None
        probes = self.sizes.probes
        numbers = [part.extent.at(probes) for part in each]
        self.sizes = self.sizes.knowing(p.extent * (1 if n > 0 else -1) for p, n in zip(each, numbers, strict=True))
        return [_constant(np.asarray(numbers).astype(to).reshape(parts.shape), node.output[0])]

    def _at_call(self, value: Expr | None) -> Expr | None:
        """A value; computed at the call where numbers of it stand for sizes."""
        if isinstance(value, Constant) and self.sizes is not None and is_symbolic(value.value, self.sizes):
            return compute_at_call(value.value, self.sizes)
        return value

    def _learn(self, value: Expr) -> None:
        """Learn the extents of a value, and of those that it is computed from."""
        if self.sizes is None:
            return
        self.sizes = derive_all(value, self.sizes, self.learned)
        self.learned.update(post_order(value, but=self.learned))

    def _leave(self, node: Any) -> None:
        """Leave a node out: its outputs are inputs of what follows, and its inputs are outputs."""
        assert self.inferred is not None
        # The values that it reads are computed for it, those that graphs within it read included.
        inner = (n for graph in within(node) for each in graph.node for n in each.input)
        names = (*node.input, *inner, *(o.name for graph in within(node) for o in graph.output))
        for name in names:
            value = self.values.get(name)
            if isinstance(value, Tuple):
                self.read.update({f"{name}.{i}": part for i, part in enumerate(value.fields)})
            elif value is not None:
                self.read[name] = value
        types = []
        for name in node.output:
            if not name:
                continue
            kind = self.inferred.get(name)
            if kind is None:
                raise NetworkError(
                    f"{node.op_type} gives {name!r:.80}, whose size is not known: nothing behind it can be read"
                )
            types.append(kind)
            self.left.append(Var(name, kind))
            self.values[name] = self.left[-1]
        self.unknown.append(Unknown(node, tuple(types)))


def _expanded(model: Any) -> Any:
    """A model with the parts that ONNX or the model has of operators, in the place of those that plevel lacks.

    It may lack large weights: Protobuf copies none of 2 GiB.
    """
    if not (model.functions or any(map(_has_parts, _nodes(model.graph)))):
        return model
    own = [("", name) for name in OPERATORS.keys() | _RANDOM]
    try:  # parts may depend on types
        typed = infer_types(model)
        weights = (onnx.helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in typed.graph.initializer)
        typed.graph.value_info.extend(weights)
        for node in filter(_has_parts, _nodes(typed.graph)):  # which read attributes that are left out
            known = {a.name for a in node.attribute}
            more = onnx.defs.get_schema(node.op_type).attributes.values()
            node.attribute.extend(a.default_value for a in more if a.name not in known and a.default_value.name)
        _write_parts(typed)
        return onnx.inliner.inline_selected_functions(typed, own, exclude=True, inline_schema_functions=True)
    except (ValueError, TypeError, RuntimeError):  # an older ONNX, which does not have it
        return model


def _write_parts(model: Any) -> None:
    """Write the parts of nodes with omitted inputs as functions of the model, as ONNX's inliner does not take those."""
    version = next((o.version for o in model.opset_import if _is_standard(o)), 1)
    types = {v.name: v.type for g in nested(model.graph) for v in (*g.input, *g.value_info, *g.output)}
    for i, node in enumerate(filter(_has_parts, list(_nodes(model.graph)))):
        schema = onnx.defs.get_schema(node.op_type, version, "")
        if all(node.input) or not schema.has_context_dependent_function:
            continue
        given = [types.get(name, onnx.TypeProto()).SerializeToString() for name in node.input]
        versions = (v for v in schema.context_dependent_function_opset_versions if v <= version)
        body = onnx.FunctionProto.FromString(
            schema.get_context_dependent_function_with_opset_version(max(versions), node.SerializeToString(), given)
        )
        body.name, body.domain = f"{node.op_type}{i}", _PARTS
        model.functions.append(body)
        node.op_type, node.domain = body.name, _PARTS
    if any(function.domain == _PARTS for function in model.functions):
        model.opset_import.append(onnx.helper.make_opsetid(_PARTS, 1))


def _nodes(graph: Any) -> Iterator[Any]:
    return (node for each in nested(graph) for node in each.node)


def _has_parts(node: Any) -> bool:
    if not _is_standard(node) or node.op_type in OPERATORS or node.op_type in _RANDOM:
        return False
    if not onnx.defs.has(node.op_type):
        return False
    schema = onnx.defs.get_schema(node.op_type)
    return bool(schema.has_function or schema.has_context_dependent_function)


def _without_weights(model: Any) -> dict[str, np.ndarray]:
    """Take the weights of a model out of it where they are too large for a message, which has at most 2 GiB."""
    tensors = [t for t in model.graph.initializer if math.prod(t.dims) > SHOWN and t.raw_data]
    if sum(len(t.raw_data) for t in tensors) < _IN_MESSAGE:
        return {}
    found = {}
    for tensor in tensors:
        found[tensor.name] = onnx.numpy_helper.to_array(tensor)
        onnx.external_data_helper.set_external_data(tensor, "weights")  # which is not read
        tensor.ClearField("raw_data")
    return found


def _name(node: Any) -> str:
    return node.op_type if _is_standard(node) else f"{node.domain}.{node.op_type}"


def _is_standard(node: Any) -> bool:
    return node.domain in ("", "ai.onnx")


def _is_computable(node: Any) -> bool:
    """Return whether ONNX's reference computes a node of constants at compile time."""
    graphs = any(a.HasField("g") or a.graphs for a in node.attribute)
    return _is_standard(node) and node.op_type not in _RANDOM | _MISCOMPUTED | SEQUENCES and not graphs


def _shows_integers(node: Any, args: Sequence[Expr | None]) -> bool:
    """Return whether a node makes numbers of float32 from constant matrices of 8 bits, by scales of one axis."""
    if node.op_type != "DequantizeLinear" or not all(a is None or isinstance(a, Constant) for a in args):
        return False
    x, scale, *_ = args
    if x is None or scale is None or any(a.name == "output_dtype" and a.i for a in node.attribute):
        return False
    of_one_axis = all(a is None or len(extents(a)) < 2 for a in args[1:])
    is_matrix = len(extents(x)) > 1 and x.tensor_type.dtype in ("int8", "uint8")
    return of_one_axis and is_matrix and scale.tensor_type.dtype == "float32"


def _initial(tensor: Any, *, widened: bool = False) -> Constant:
    """The value of an initializer; integers of 4 bits in bytes if they may be, as their numbers alone are read."""
    try:
        array = onnx.numpy_helper.to_array(tensor)
    except KeyError as error:
        raise NetworkError(f"initializer {tensor.name!r:.80}: ONNX has no dtype {error}") from error
    except (ValueError, TypeError) as error:
        raise NetworkError(f"initializer {tensor.name!r:.80}: {error}") from error
    wider = _WIDER.get(array.dtype.name) if widened else None
    return _constant(array.astype(wider) if wider else array, tensor.name)


def _constant(array: Any, name: str) -> Constant:
    if array.dtype.name not in DTYPES:
        raise NetworkError(f"{name!r:.80} is of {array.dtype.name}, which plevel has no kernels for")
    return Constant(np.asarray(array, order="C"))


def run_model(model: Any, wanted: Sequence[str]) -> Reference:
    """The values of a model's outputs and of the `wanted` names, on random inputs.

    By ONNX Runtime where it is installed, else by ONNX's own reference, which does not decide: it is wrong for some
    operators, such as LRN of more than one row.
    """
    from importlib.util import find_spec

    known = {t.name for t in model.graph.initializer}
    ports = [Port(v.name, TensorType.parse(read_type(v)), 0) for v in model.graph.input if v.name not in known]
    inputs = make_inputs(ports)
    given = {p.name: array for p, array in zip(ports, inputs, strict=True)}
    outputs = [o.name for o in model.graph.output]
    more = [n for n in dict.fromkeys(wanted) if n not in outputs and n not in given]
    made = {name for node in model.graph.node for name in node.output}
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    more = [n for n in more if n in made]
    whole.graph.output.extend(onnx.ValueInfoProto(name=n) for n in more)
    names = [*outputs, *more]
    by_runtime = find_spec("onnxruntime") is not None
    weights = _without_weights(whole) if by_runtime else {}
    try:
        if by_runtime:
            found = _run(whole, weights, given, names)
        else:
            from onnx.reference import ReferenceEvaluator

            found = ReferenceEvaluator(whole).run(names, given)
    except Exception as error:
        said = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        raise NetworkError(f"its reference fails: {said}") from error
    moved = partial(_moved, whole, weights, given, outputs) if by_runtime else None
    values = dict(zip(names, found, strict=True))
    return Reference(inputs, found[: len(outputs)], values, decides=by_runtime, moved=moved)


def _run(model: Any, weights: Arrays, given: Arrays, names: Sequence[str]) -> list[Any]:
    """The values of these names by ONNX Runtime, with weights that are beside the message."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # Further levels compute quantised parts by kernels of integers, which may round to another step.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    if weights:
        values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in weights.values()]
        options.add_external_initializers(list(weights), values)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found: list[Any] = session.run(names, given)
    return found


def _moved(model: Any, weights: Arrays, given: Arrays, names: Sequence[str], part: float) -> list[Any]:
    """The values of these names where inputs, weights and the scales of integers are off by a part, up or down."""
    random = np.random.default_rng(0)

    def move(array: np.ndarray) -> np.ndarray:
        if array.dtype.kind != "f":
            return array
        return (array * (1 + part * random.choice([-1, 1], array.shape))).astype(array.dtype)

    off = onnx.ModelProto()
    off.CopyFrom(model)
    scales = {name for node in _nodes(off.graph) if _QUANTISED.search(node.op_type) for name in node.input}
    for tensor in off.graph.initializer:
        # Few numbers may be a size, or a place.
        if tensor.name not in weights and (len(tensor.dims) > 1 or tensor.name in scales):
            array = onnx.numpy_helper.to_array(tensor)
            tensor.CopyFrom(onnx.numpy_helper.from_array(move(array), tensor.name))
    heavy, inputs = ({name: move(array) for name, array in each.items()} for each in (weights, given))
    return _run(off, heavy, inputs, names)

