"""ONNX models as networks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import onnx.shape_inference

from plevel.comparison import Reference, make_inputs
from plevel.onnx.file import Symbols
from plevel.onnx.operator import OPERATORS, Node
from strategy.expr import Constant, Expr, Tuple, Var
from strategy.network.graph import Network, NetworkError
from strategy.network.plan import Port
from strategy.network.size import MOST, NAMES, PROBED, make_sizes
from strategy.types import DTYPES, TensorType

FOLDED = 1 << 28  # elements of a constant that is computed
_OF_TYPES = frozenset({"Shape", "Size"})  # constant, whatever their input is
# Drawn anew at each call; a Dropout is left to its operator.
_RANDOM = frozenset({
    "Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike",
})  # fmt: skip
_OF_SIZES = frozenset({"ConstantOfShape", "Expand", "Range"})
_SHOWN = 1024  # elements of a constant that may say how large an output is

@dataclass(frozen=True)
class Unknown:
    """A node that plevel has no operator for, and its outputs' types where they are known."""

    node: Any
    outputs: tuple[TensorType, ...]


def import_model(model: Any, *, inferred: Any = None, symbolic: bool = False) -> tuple[Network, tuple[Unknown, ...]]:
    """The network of a checked model, and the nodes that it leaves out.

    Args:
        inferred: the model with the types of its values: what is left out is then an input of the rest. Without
            it, nothing may be left out.
        symbolic: whether large extents stand for symbolic sizes.

    Raises:
        NetworkError: operators that plevel has none for, all at once; what one cannot compute; a missing value.
    """
    return _Importer(model, inferred, symbolic).network()


def import_symbolic(model: Any, symbols: Symbols) -> Network:
    """The network of a checked model for all values of its symbolic sizes; raise as `import_model`."""
    names = list(symbols.places)
    if not names:
        return import_model(model)[0]
    if len(names) > len(NAMES):
        listed = ", ".join(names)
        raise NetworkError(
            f"{len(names)} symbolic sizes ({listed}), and a library takes at most {len(NAMES)}: give some with --dim"
        )
    found = []
    fixed = {n for weight in model.graph.initializer for n in weight.dims}
    fixed.update(dim.dim_value for given in model.graph.input for dim in given.type.tensor_type.shape.dim)
    for sizes in make_sizes([(1, MOST)] * len(names), fixed):
        symbols.bind(sizes.probes)
        try:
            found.append(replace(import_model(model, symbolic=True)[0], sizes=sizes))
        except NetworkError as error:
            listed = ", ".join(f"{n} is {name}" for n, name in zip(sizes.names, names, strict=True))
            raise NetworkError(f"{sizes.shown(error)}; {listed}: give sizes with --dim") from error
    return replace(found[0], twin=found[1])


class _Importer:
    def __init__(self, model: Any, inferred: Any, symbolic: bool) -> None:
        self.symbolic = symbolic
        self.graph = model.graph
        self.opsets = {o.domain or "ai.onnx": o.version for o in model.opset_import}
        self.values: dict[str, Expr] = {}
        self.unsized: set[str] = set()
        self.inferred = None if inferred is None else _types(inferred.graph)
        self.unknown: list[Unknown] = []
        self.left: list[Var] = []
        self.read: dict[str, Expr] = {}

    def network(self) -> tuple[Network, tuple[Unknown, ...]]:
        if self.inferred is None:
            self._refuse_unknown()
        for tensor in self.graph.initializer:
            self.values[tensor.name] = _initial(tensor)
        inputs = []
        for given in self.graph.input:
            if given.name not in self.values:
                inputs.append(Var(given.name, _type(given)))
                self.values[given.name] = inputs[-1]
        for node in self.graph.node:
            self._add(node)
        outputs = {o.name: self._value(o.name, "the model's outputs") for o in self.graph.output}
        names = {value: name for name, value in self.values.items() if not isinstance(value, Tuple)}
        return Network((*inputs, *self.left), self.read | outputs, names), tuple(self.unknown)

    def _refuse_unknown(self) -> None:
        known = {"", *(tensor.name for tensor in self.graph.initializer)}  # at compile time
        counts: Counter[str] = Counter()
        for node in self.graph.node:
            computed = _is_standard(node) and node.op_type not in _RANDOM and known.issuperset(node.input)
            if node.op_type in _OF_TYPES or computed:
                known.update(node.output)
            elif _name(node) not in OPERATORS:
                counts[_name(node)] += 1
        if counts:
            listed = ", ".join(f"{name} ({n})" for name, n in counts.most_common())
            raise NetworkError(f"{len(counts)} operators that plevel has no kernel for: {listed}")

    def _value(self, name: str, reader: str) -> Expr:
        if name in self.unsized:
            raise NetworkError(f"{reader} reads {name!r:.80}, and how large it is depends on data: leave that out")
        if name not in self.values:
            raise NetworkError(f"{reader} reads {name!r:.80}, which nothing gives: an initializer is missing")
        return self.values[name]

    def _add(self, node: Any) -> None:
        reader = f"node {node.name or node.output[0]!r:.80} ({node.op_type})"
        args = [self._value(name, reader) if name else None for name in node.input]
        try:
            made: Sequence[Expr | None] | None = self._computed(node, args)
            if made is None:
                function = OPERATORS.get(_name(node))
                if function is None:
                    self._leave(node)
                    return
                found = function(Node(node, self.opsets, symbolic=self.symbolic), *args)
                made = list(found) if isinstance(found, tuple) else [found]
                for value in made:
                    if value is not None:
                        value.checked_type  # noqa: B018  (errors of types are this node's)
                self.unsized.update(n for n, value in zip(node.output, made, strict=False) if n and value is None)
        except (ValueError, ArithmeticError, IndexError, TypeError, MemoryError) as error:
            if self.inferred is not None:
                self._leave(node)
                return
            raise NetworkError(f"{reader}: {' '.join(str(error).split())[:300]}") from error
        missing = [i for i, name in enumerate(node.output) if name and i >= len(made)]
        if missing:
            raise NetworkError(f"{reader}: its output {missing[0]} is used, which plevel does not compute")
        self.values.update((n, value) for n, value in zip(node.output, made, strict=False) if value is not None)

    def _computed(self, node: Any, args: Sequence[Expr | None]) -> list[Expr | None] | None:
        """The outputs of a node of constants, by ONNX's own reference; None for an unnamed one."""
        arrays = [a.value if isinstance(a, Constant) else None for a in args]
        if node.op_type in _OF_TYPES and args and args[0] is not None:
            extents = np.asarray(args[0].tensor_type.concrete_shape, np.int64)
            if node.op_type == "Size":
                return [Constant(extents.prod(dtype=np.int64))]
            about = {a.name: a.i for a in node.attribute}
            return [Constant(extents[about.get("start", 0) : about.get("end", len(extents))])]
        if any(a is not None and x is None for a, x in zip(args, arrays, strict=True)):
            return None
        if node.op_type in _RANDOM or not _is_standard(node):
            return None
        large = (x.size and np.abs(x).max() >= PROBED for x in arrays if x is not None)
        if self.symbolic and node.op_type in _OF_SIZES and any(large):
            return None  # its output's extents may be symbolic
        if any(a.HasField("g") or a.graphs for a in node.attribute):
            return None
        from onnx.reference import ReferenceEvaluator

        given = {n: x for n, x in zip(node.input, arrays, strict=True) if x is not None}
        graph = onnx.helper.make_graph(
            [node], "constant",
            [_info(n, onnx.helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in given.items()],
            [_info(n, 0) for n in node.output if n],
        )  # fmt: skip
        opsets = [onnx.helper.make_opsetid("" if d == "ai.onnx" else d, v) for d, v in self.opsets.items()]
        model = onnx.helper.make_model(graph, opset_imports=opsets)
        model.graph.initializer.extend(onnx.numpy_helper.from_array(x, n) for n, x in given.items() if x.size <= _SHOWN)
        if _size(model, node.output) > FOLDED:
            raise NetworkError(f"a constant of more than {FOLDED} elements")
        try:
            found = ReferenceEvaluator(model).run(None, given)
        except Exception as error:
            raise NetworkError(f"it cannot be computed: {type(error).__name__}: {error}") from error
        left = iter(found)
        return [_constant(np.asarray(next(left)), name) if name else None for name in node.output]

    def _leave(self, node: Any) -> None:
        """Leave a node out: its outputs are inputs of what follows, and its inputs are outputs."""
        assert self.inferred is not None
        # What it reads is computed for it.
        self.read.update({name: self.values[name] for name in node.input if name})
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


def _info(name: str, kind: int, shape: Sequence[int] | None = None) -> Any:
    return onnx.helper.make_tensor_value_info(name, kind, shape)


def _size(model: Any, names: Iterable[str]) -> int:
    """The elements of values, as far as their types can be inferred."""
    try:
        graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    except (onnx.shape_inference.InferenceError, RuntimeError) as error:
        raise NetworkError(f"its size cannot be inferred: {error}") from error
    return sum(kind.size for name, kind in _types(graph).items() if name in names)


def _name(node: Any) -> str:
    return node.op_type if _is_standard(node) else f"{node.domain}.{node.op_type}"


def _is_standard(node: Any) -> bool:
    return node.domain in ("", "ai.onnx")


def _initial(tensor: Any) -> Constant:
    try:
        array = onnx.numpy_helper.to_array(tensor)
    except (ValueError, TypeError) as error:
        raise NetworkError(f"initializer {tensor.name!r:.80}: {error}") from error
    return _constant(array, tensor.name)


def _constant(array: Any, name: str) -> Constant:
    if array.dtype.name not in DTYPES:
        raise NetworkError(f"{name!r:.80} is of {array.dtype.name}, which plevel has no kernels for")
    return Constant(np.asarray(array, order="C"))


def _type(value: Any) -> str:
    kind = value.type.tensor_type
    if not value.type.HasField("tensor_type") or not kind.HasField("shape"):
        raise NetworkError(f"{value.name!r:.80} is no tensor of known rank")
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type).name
    if dtype not in DTYPES:
        raise NetworkError(f"{value.name!r:.80} is of {dtype}, which plevel has no kernels for")
    return f"{dtype}[{','.join(str(d.dim_value) for d in kind.shape.dim)}]"


def _types(graph: Any) -> dict[str, TensorType]:
    """The known types of a graph's values."""
    found = {}
    for value in (*graph.value_info, *graph.output):
        dims = value.type.tensor_type.shape.dim
        known = value.type.tensor_type.HasField("shape") and all(d.HasField("dim_value") for d in dims)
        if known and value.type.tensor_type.elem_type:
            found[value.name] = TensorType.parse(_type(value))
    return found


def run_model(model: Any, wanted: Sequence[str]) -> Reference:
    """The values of a model's outputs and of the `wanted` names, on random inputs.

    By ONNX Runtime where it is installed, else by ONNX's own reference.
    """
    from importlib.util import find_spec

    known = {t.name for t in model.graph.initializer}
    ports = [Port(v.name, TensorType.parse(_type(v)), 0) for v in model.graph.input if v.name not in known]
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
    try:
        if find_spec("onnxruntime") is not None:
            import onnxruntime

            session = onnxruntime.InferenceSession(whole.SerializeToString(), providers=["CPUExecutionProvider"])
            found = session.run(names, given)
        else:
            from onnx.reference import ReferenceEvaluator

            found = ReferenceEvaluator(whole).run(names, given)
    except Exception as error:
        said = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        raise NetworkError(f"its reference fails: {said}") from error
    return Reference(inputs, found[: len(outputs)], dict(zip(names, found, strict=True)))
