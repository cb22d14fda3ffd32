"""NumPy references: helpers, and evaluation of graphs by them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from strategy.attrs import Attrs
from strategy.expr import Call, Constant, Expr, ExprError, Tuple, TupleGetItem, Var, post_order
from strategy.op import OpError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


def widened(array: Any) -> Any:
    """Convert floating-point arrays to float64; integers and bools stay."""
    import numpy as np

    array = np.asarray(array)
    # bfloat16 is from another package, with a kind of its own.
    return array.astype(np.float64) if array.dtype.kind in "fV" else array


def summed(array: Any, out_dtype: str | None) -> Any:
    """Convert floating-point arrays to float64, and integers to the dtype in which they are summed."""
    array = widened(array)
    return array if out_dtype is None or array.dtype.kind == "f" else array.astype(out_dtype)


def norm_condition(data: Any, axis: int, epsilon: float) -> Any:
    """√(mean(x²) / (variance + ε)) along an axis: x less the mean is as inexact as x, and is divided by the deviation.

    It is about 1 of many numbers around 0; of few, which may all be nearly equal, it has no limit.
    """
    import numpy as np

    square, variance = np.mean(data * data, axis, keepdims=True), np.var(data, axis, keepdims=True)
    return np.broadcast_to(np.sqrt(square / (variance + epsilon)), data.shape)


class Peaks(NamedTuple):
    """Inputs that show a missing element of a sum (`register_peaks`).

    Attributes:
        rows: a view of the first input, whose last axis is summed, or a part of each sum.
        height: so large are elements of which a few are most of a sum.
        shift: a number that is added to the other elements of these rows.
    """

    rows: Any
    height: float
    shift: float = 0.0


def norm_peaks(rows: Any) -> Peaks:
    """`register_peaks` of a norm: the square of each is the sum of all others, if those are 1."""
    return Peaks(rows, math.sqrt(rows.shape[-1]))


def axis_peaks(attrs: Any, inputs: Sequence[Any]) -> Peaks:
    """`register_peaks` of a norm of the first input along `axis`."""
    import numpy as np

    return norm_peaks(np.moveaxis(inputs[0], attrs.axis, -1))


def numpy_function(name: str) -> Callable[..., Any]:
    """NumPy's function of a name, looked up at each call."""

    def function(*given: Any) -> Any:
        import numpy as np

        return getattr(np, name)(*given)

    return function


def wide(function: Callable[..., Any]) -> Callable[[Attrs, Sequence[Any]], Any]:
    """A reference for an operator without attributes: `function` of its widened inputs."""

    def reference(attrs: Attrs, inputs: Sequence[Any]) -> Any:
        return function(*map(widened, inputs))

    return reference


def evaluate(expr: Expr, inputs: Mapping[Any, ArrayLike]) -> Any:
    """The value of the graph by the operators' NumPy references, with values of variables, or of their names.

    Returns an array, or a tuple. Arrays have the precision of the references (float64 if possible), not the inferred
    dtype.

    Raises:
        ExprError: a variable has no value. OpError: an operator has no reference.
    """
    import numpy as np

    values: dict[Expr, Any] = {}
    for node in post_order(expr):
        if isinstance(node, Var):
            key = node if node in inputs else node.name
            if key not in inputs:
                raise ExprError(f"variable {node.name!r} has no value: give one")
            values[node] = np.asarray(inputs[key])
        elif isinstance(node, Constant):
            values[node] = node.value
        elif isinstance(node, Tuple):
            values[node] = tuple(values[f] for f in node.fields)
        elif isinstance(node, TupleGetItem):
            values[node] = values[node.tuple_value][node.index]
        elif isinstance(node, Call):
            reference = node.op.get_attr("FReference")
            if reference is None:
                raise OpError(f"{node.op.name} has no reference: add one with register_reference")
            flat: list[Any] = []
            for arg in node.args:
                value = values[arg]
                flat.extend(value) if isinstance(value, tuple) else flat.append(value)
            with np.errstate(invalid="ignore"):  # as of an infinity that is cast to integers, and not chosen then
                values[node] = reference(node.attrs, flat)
    return values[expr]
