"""Types of a model's values."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import onnx
import onnx.helper
import onnx.shape_inference

from strategy.network.graph import NetworkError
from strategy.types import DTYPES, TensorType

SHOWN = 1024  # elements of a constant that may say how large an output is


def infer_types(model: Any, *, data_prop: bool = False) -> Any:
    """A copy of the model with the types of its values, and with inputs in place of its large weights.

    ONNX infers types from a message, which has at most 2 GiB.
    """
    weights = model.graph.initializer
    small = [tensor for tensor in weights if math.prod(tensor.dims) <= SHOWN]
    large = [tensor for tensor in weights if math.prod(tensor.dims) > SHOWN]
    given = {value.name for value in model.graph.input}
    more = [onnx.helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in large if t.name not in given]
    kept = "name", "node", "output", "value_info", "sparse_initializer"
    fields = {name: getattr(model.graph, name) for name in kept}
    graph = onnx.GraphProto(**fields, input=[*model.graph.input, *more], initializer=small)
    fields = {name: getattr(model, name) for name in ("ir_version", "opset_import", "functions")}
    return onnx.shape_inference.infer_shapes(onnx.ModelProto(**fields, graph=graph), data_prop=data_prop)


def nested(graph: Any) -> Iterator[Any]:
    """A graph, and those within its nodes."""
    pending = [graph]
    while pending:
        yield (found := pending.pop())
        for node in found.node:
            pending += own_graphs(node)


def within(node: Any) -> Iterator[Any]:
    """The graphs of a node's attributes, and those within their nodes."""
    return (found for graph in own_graphs(node) for found in nested(graph))


def own_graphs(node: Any) -> list[Any]:
    """The graphs of a node's attributes."""
    return [g for a in node.attribute for g in (*([a.g] if a.HasField("g") else ()), *a.graphs)]


def read_type(value: Any) -> str:
    """A value's type as text; raise `NetworkError` where it has no known rank, or a dtype without kernels."""
    kind = value.type.tensor_type
    if not value.type.HasField("tensor_type") or not kind.HasField("shape"):
        raise NetworkError(f"{value.name!r:.80} is no tensor of known rank")
    if kind.elem_type not in onnx.TensorProto.DataType.values():
        raise NetworkError(f"{value.name!r:.80} is of dtype {kind.elem_type}, which ONNX has not")
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type).name
    if dtype not in DTYPES:
        raise NetworkError(f"{value.name!r:.80} is of {dtype}, which plevel has no kernels for")
    return f"{dtype}[{','.join(str(d.dim_value) for d in kind.shape.dim)}]"


def known_types(graph: Any) -> dict[str, TensorType]:
    """The known types of a graph's values."""
    found = {}
    for value in (*graph.value_info, *graph.output):
        dims = value.type.tensor_type.shape.dim
        known = value.type.tensor_type.HasField("shape") and all(d.HasField("dim_value") for d in dims)
        if known and value.type.tensor_type.elem_type:
            found[value.name] = TensorType.parse(read_type(value))
    return found
