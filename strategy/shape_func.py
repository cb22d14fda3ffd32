"""Shapes at run time: by type relations, and by shape functions where they depend on values.

    register_shape_func("arange", True, arange_shape_func)

A shape function gets the shape of each input tensor, or its data if the output's shape depends on them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from strategy.expr import Call, Constant, Expr, ExprError, Tuple, TupleGetItem, Var, post_order
from strategy.op import TypeRelationError, register_op_attr
from strategy.reference import evaluate
from strategy.types import TensorType, TupleType

F = TypeVar("F", bound=Callable[..., object])
Shape = tuple[int, ...]
ShapeFunction = Callable[[Any, Sequence[Any]], Sequence[Shape]]


class ShapeError(ValueError):
    """Shapes at run time do not fit an operator."""


def register_shape_func(
    name: str, data_dependent: bool | Sequence[bool], func: ShapeFunction | None = None, level: int = 10
) -> Callable[[F], F]:
    """Register `func(attrs, inputs) -> [shape per output]`: `func`, or what it decorates.

    Args:
        name: the operator.
        data_dependent: True if `func` gets the inputs' values instead of their shapes; one bool for all
            inputs, or one per input.
        func: takes and returns shapes as tuples of integers.
        level: the level of the attribute.
    """
    dependent = data_dependent if isinstance(data_dependent, bool) else tuple(data_dependent)

    def register(function: F) -> F:
        register_op_attr(name, "FShapeFunc", (dependent, function), level)
        return function

    if func is not None:
        register(func)
    return register


def run_time_shape(expr: Expr, inputs: Mapping[str, Any]) -> Any:
    """The shape of `expr` for these inputs, or a tuple of shapes.

    Only values that shapes depend on are computed, by the operators' references.

    Raises:
        ExprError: a variable has no value. OpError: an operator has no type relation. ShapeError: the shapes do not
            fit an operator.
    """
    import numpy as np

    types: dict[Expr, Any] = {}
    for node in post_order(expr):
        if isinstance(node, Var):
            if node.name not in inputs:
                raise ExprError(f"variable {node.name!r} has no value: give one")
            value, declared = np.asarray(inputs[node.name]), node.type
            dtype = declared.dtype if isinstance(declared, TensorType) else value.dtype.name
            types[node] = TensorType(value.shape, dtype)
        elif isinstance(node, Constant):
            types[node] = node.checked_type
        elif isinstance(node, Tuple):
            types[node] = TupleType([types[f] for f in node.fields])
        elif isinstance(node, TupleGetItem):
            types[node] = types[node.tuple_value].fields[node.index]
        elif isinstance(node, Call):
            types[node] = _output(node, [types[arg] for arg in node.args], inputs)
    return _shape(types[expr])


def _shape(kind: Any) -> Any:
    return tuple(map(_shape, kind.fields)) if isinstance(kind, TupleType) else kind.concrete_shape


def _output(node: Call, given: Sequence[Any], inputs: Mapping[str, Any]) -> Any:
    """The type of a call's output, of inputs whose types have numbers only."""
    op = node.op
    tensors: list[tuple[Expr, Shape]] = []
    for arg, kind in zip(node.args, given, strict=True):
        if isinstance(kind, TupleType):
            tensors += [(TupleGetItem(arg, i), _shape(field)) for i, field in enumerate(kind.fields)]
        else:
            tensors.append((arg, _shape(kind)))
    try:
        found: Any = op.infer_type(given, node.attrs)
        if (registered := op.get_attr("FShapeFunc")) is None:
            return found
        dependent, function = registered
        needed = (dependent,) * len(tensors) if isinstance(dependent, bool) else dependent
        shapes = function(node.attrs, [
            evaluate(tensor, inputs) if value else shape for (tensor, shape), value in zip(tensors, needed, strict=True)
        ])  # fmt: skip
    except TypeRelationError as error:
        raise ShapeError(str(error)) from error
    except ShapeError as error:
        raise ShapeError(f"{op.name}: {error}") from error
    fields = found.fields if isinstance(found, TupleType) else [found]
    made = [TensorType(map(int, shape), f.dtype) for shape, f in zip(shapes, fields, strict=True)]
    return TupleType(made) if isinstance(found, TupleType) else made[0]
