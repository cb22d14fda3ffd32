"""Shape functions: the shapes of an operator's outputs at run time.

    register_shape_func("cumsum", False, scan_shape_func)

A shape function gets the shape of each input tensor, or its data if the output's shape depends on them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from strategy.attrs import Attrs
from strategy.expr import Call, Constant, Expr, ExprError, Tuple, TupleGetItem, Var, post_order
from strategy.op import Op, OpError, register_op_attr
from strategy.reference import evaluate

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


def data_dependence(op: Op, count: int) -> tuple[bool, ...]:
    """For each of `count` input tensors, True if the shape function of `op` needs its value."""
    dependent, _ = _registered(op)
    return (dependent,) * count if isinstance(dependent, bool) else dependent


def output_shapes(op: Op, attrs: Attrs, inputs: Sequence[Any]) -> list[Shape]:
    """The shapes of the outputs, given the inputs' shapes, or values if `op` needs them.

    Raises:
        OpError: no shape function is registered. ShapeError: the shapes do not fit the operator.
    """
    _, function = _registered(op)
    try:
        return [tuple(int(n) for n in shape) for shape in function(attrs, inputs)]
    except ShapeError as error:
        raise ShapeError(f"{op.name}: {error}") from error


def _registered(op: Op) -> tuple[bool | tuple[bool, ...], ShapeFunction]:
    found: tuple[bool | tuple[bool, ...], ShapeFunction] | None = op.get_attr("FShapeFunc")
    if found is None:
        raise OpError(f"{op.name} has no shape function: register one with register_shape_func")
    return found


def run_time_shape(expr: Expr, inputs: Mapping[str, Any]) -> Any:
    """The shape of `expr` for these inputs, or a tuple of shapes.

    Only values that shapes depend on are computed, by the operators' references.

    Raises:
        ExprError: a variable has no value. OpError, ShapeError: as `output_shapes`.
    """
    import numpy as np

    shapes: dict[Expr, Any] = {}
    for node in post_order(expr):
        if isinstance(node, Var):
            if node.name not in inputs:
                raise ExprError(f"variable {node.name!r} has no value: give one")
            shapes[node] = np.shape(inputs[node.name])
        elif isinstance(node, Constant):
            shapes[node] = node.value.shape
        elif isinstance(node, Tuple):
            shapes[node] = [shapes[f] for f in node.fields]
        elif isinstance(node, TupleGetItem):
            shapes[node] = shapes[node.tuple_value][node.index]
        elif isinstance(node, Call):
            tensors: list[Expr] = []
            known: list[Any] = []
            for arg in node.args:
                if isinstance(shapes[arg], list):  # a tuple's
                    tensors += [TupleGetItem(arg, i) for i in range(len(shapes[arg]))]
                    known += shapes[arg]
                else:
                    tensors.append(arg)
                    known.append(shapes[arg])
            needed = data_dependence(node.op, len(tensors))
            given = [
                evaluate(t, inputs) if n else shape
                for t, shape, n in zip(tensors, known, needed, strict=True)
            ]
            found = output_shapes(node.op, node.attrs, given)
            shapes[node] = found[0] if len(found) == 1 else found
    return tuple(shapes[expr])


def elemwise_shape_func(attrs: Any, inputs: Sequence[Shape]) -> list[Shape]:
    """The output has the shape of the first input."""
    return [inputs[0]]


def like_shape_func(attrs: Any, inputs: Sequence[Shape]) -> list[Shape]:
    """The output has the shape of the second input."""
    return [inputs[1]]


def broadcast_shape_func(attrs: Any, inputs: Sequence[Shape]) -> list[Shape]:
    """The inputs broadcast as NumPy does."""
    import numpy as np

    try:
        return [np.broadcast_shapes(*inputs)]
    except ValueError as error:
        raise ShapeError(f"{' and '.join(map(str, inputs))} do not broadcast") from error


def reduce_shape_func(attrs: Any, inputs: Sequence[Shape]) -> list[Shape]:
    """The reduced axes (`strategy.ops.reduce.ReduceAttrs`) are removed, or 1 with `attrs.keepdims`."""
    shape = inputs[0]
    rank = len(shape)
    named = {a % rank for a in (range(rank) if attrs.axis is None else attrs.axis)}
    reduced = [i for i in range(rank) if (i in named) != attrs.exclude]
    if attrs.keepdims:
        return [tuple(1 if i in reduced else n for i, n in enumerate(shape))]
    return [tuple(n for i, n in enumerate(shape) if i not in reduced)]


def concatenate_shape_func(attrs: Any, inputs: Sequence[Shape]) -> list[Shape]:
    """The sum of extents along `attrs.axis`; all others are equal."""
    first = inputs[0]
    axis = attrs.axis % len(first)
    for shape in inputs[1:]:
        if len(shape) != len(first) or any(
            n != m for i, (n, m) in enumerate(zip(shape, first, strict=True)) if i != axis
        ):
            raise ShapeError(f"{shape} and {first} differ on other axes than {axis}")
    return [(*first[:axis], sum(s[axis] for s in inputs), *first[axis + 1 :])]


def scan_shape_func(attrs: Any, inputs: Sequence[Shape]) -> list[Shape]:
    """The shape of the input, flattened if `attrs.axis` is None."""
    return [inputs[0] if attrs.axis is not None else (math.prod(inputs[0]),)]
