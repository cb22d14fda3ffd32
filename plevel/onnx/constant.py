"""Nodes of constants, computed by ONNX's own reference; numbers among them may stand for symbolic sizes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import onnx.shape_inference

from plevel.onnx.types import SHOWN, known_types, nested
from strategy.expr import Constant, Expr, call
from strategy.network import layer
from strategy.network.extent import Extent, Symbol
from strategy.network.graph import NetworkError
from strategy.network.size import PROBED, Sizes

FOLDED = 1 << 28  # elements of a constant that is computed of smaller ones
# Equal, smaller and greater than each other, below most numbers, and with different rests.
_TRIED = (
    (1, 1, 1, 1, 1, 1, 1, 1), (2, 3, 5, 4, 7, 6, 9, 8), (7, 5, 3, 6, 2, 9, 4, 11), (4, 8, 6, 5, 9, 3, 10, 7),
    (13, 12, 10, 11, 15, 14, 9, 16),
)

Given = Mapping[str, np.ndarray]


class FailedError(NetworkError):
    """ONNX's reference fails."""


class SizeError(NetworkError):
    """A value depends on a symbolic size otherwise than as a sum of products of sizes."""


def compute(node: Any, given: Given, opsets: Mapping[str, int], sizes: Sizes | None) -> list[np.ndarray]:
    """The outputs of a node, unnamed ones left out.

    Args:
        given: its inputs.
        sizes: those that large numbers of the inputs may stand for.

    Raises:
        NetworkError: an output that is too large or of unknown size.
        FailedError: the reference fails.
        SizeError: an output is no sum of products of sizes, such as the lesser of a size and a number.
    """
    found = run_node(node, given, opsets)
    if sizes is not None and any(is_symbolic(array, sizes) for array in given.values()):
        for values in (tried[: len(sizes.probes)] for tried in _TRIED):
            actual = run_node(node, {name: _at(array, sizes, values) for name, array in given.items()}, opsets)
            if not all(map(np.array_equal, (_at(array, sizes, values) for array in found), actual)):
                raise SizeError("its value depends on a symbolic size and is no sum of products of sizes")
    return found


def quotients(node: Any, given: Given, sizes: Sizes) -> list[Extent]:
    """The quotients of sizes by numbers that a node computes, of integers."""
    if node.op_type != "Div" or any(array.dtype.kind not in "iu" or array.size > SHOWN for array in given.values()):
        return []
    pairs = [(encode(int(x), sizes), int(y)) for x, y in np.broadcast(*(given[n] for n in node.input)) if x > 0]
    return [extent // by for extent, by in pairs if isinstance(extent, Extent) and 0 < by < PROBED]


def compute_at_call(array: np.ndarray, sizes: Sizes) -> Expr:
    """A constant, of whose numbers some stand for sizes, as a library computes it."""
    numbers = [layer.reshape(_number(value, sizes), (1,)) for value in array.reshape(-1).tolist()]
    found = layer.reshape(layer.concatenate(numbers, 0), array.shape)
    return call("cast", found, dtype=array.dtype.name)


def large_numbers(graph: Any) -> Iterator[int]:
    """Whole numbers of a model's small constants, as large as those that stand for sizes: such as -1e9 of a mask."""
    graphs = list(nested(graph))
    given = [a for g in graphs for node in g.node if node.op_type == "Constant" for a in node.attribute]
    values = [n for a in given for n in (a.f, a.i)]
    for tensor in (*(t for g in graphs for t in g.initializer), *(a.t for a in given if a.HasField("t"))):
        if math.prod(tensor.dims) <= SHOWN:
            with suppress(ValueError, TypeError):  # of one that is broken, as its reader says
                values += onnx.numpy_helper.to_array(tensor).reshape(-1).tolist()
    for value in values:
        if isinstance(value, int | float) and float(value).is_integer() and abs(value) >= PROBED:
            yield abs(int(value))


def _number(value: Any, sizes: Sizes) -> Expr:
    """A number in float64, which has all integers up to 2⁵³."""
    extent = encode(value, sizes)
    if not isinstance(extent, Extent):
        return Constant(np.asarray(value, "float64"))
    found = _counted(extent, sizes)
    return found if value > 0 else call("negative", found)


def _counted(extent: Extent, sizes: Sizes) -> Expr:
    found: Expr = Constant(np.zeros((), "float64"))
    for product, factor in extent.terms:
        term: Expr = Constant(np.asarray(factor, "float64"))
        for variable in product:
            if isinstance(variable, Symbol):
                each = layer.count(sizes.probes[variable.place], found)
            else:
                dividend = _counted(variable.dividend, sizes)
                each = call("floor_divide", dividend, Constant(np.asarray(variable.divisor, "float64")))
            term = call("multiply", term, each)
        found = call("add", found, term)
    return found


def run_node(node: Any, given: Given, opsets: Mapping[str, int]) -> list[np.ndarray]:
    from onnx.reference import ReferenceEvaluator

    graph = onnx.helper.make_graph(
        [node], "constant",
        [_info(n, onnx.helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in given.items()],
        [_info(n, 0) for n in node.output if n],
    )
    imports = [onnx.helper.make_opsetid("" if d == "ai.onnx" else d, v) for d, v in opsets.items()]
    model = onnx.helper.make_model(graph, opset_imports=imports)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(x, n) for n, x in given.items() if x.size <= SHOWN)
    if _size(model, node.output) > max([FOLDED, *(x.size for x in given.values())]):  # a weight may be turned or cast
        raise NetworkError(f"it gives a constant of more than {FOLDED} elements: make it an initializer")
    try:
        with np.errstate(all="ignore"):  # infinities and NaN are values
            return [np.asarray(array) for array in ReferenceEvaluator(model).run(None, dict(given))]
    except Exception as error:
        raise FailedError(f"it cannot be computed: {type(error).__name__}: {error}") from error


def is_symbolic(array: np.ndarray, sizes: Sizes) -> bool:
    """Return whether numbers of a constant stand for symbolic sizes."""
    return array.size <= SHOWN and any(isinstance(encode(v, sizes), Extent) for v in array.reshape(-1).tolist())


def _at(array: np.ndarray, sizes: Sizes, values: Sequence[int]) -> np.ndarray:
    """A constant as it is at these values of the sizes."""
    if not is_symbolic(array, sizes):
        return array
    found = [encode(value, sizes) for value in array.reshape(-1).tolist()]
    each = [
        (-extent.at(values) if value < 0 else extent.at(values)) if isinstance(extent, Extent) else value
        for value, extent in zip(array.reshape(-1).tolist(), found, strict=True)
    ]
    return np.array(each, array.dtype).reshape(array.shape)


def encode(value: Any, sizes: Sizes) -> int | Extent | None:
    """The size that a number, or its opposite, stands for; None where it is no whole one."""
    if isinstance(value, float) and not value.is_integer():
        return None
    return sizes.encode(abs(int(value))) if isinstance(value, int | float) else None


def _info(name: str, kind: int, shape: Sequence[int] | None = None) -> Any:
    return onnx.helper.make_tensor_value_info(name, kind, shape)


def _size(model: Any, names: Sequence[str]) -> int:
    """The elements of values, as far as their types can be inferred."""
    try:
        graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    except (onnx.shape_inference.InferenceError, RuntimeError) as error:
        raise NetworkError(f"its size cannot be inferred: {error}") from error
    return sum(kind.size for name, kind in known_types(graph).items() if name in names)
