"""NumPy arrays as arguments of compiled functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from strategy.compile.artefact import ALIGNMENT
from strategy.expr import Var
from strategy.types import TensorType, Type


class RunError(ValueError):
    """The arrays do not fit the function; the message names the variable."""


def bind(variables: Sequence[Var], arrays: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Arrays given in order or by name, by the variables' names.

    Raises:
        RunError: one is missing, given twice, or unknown.
    """
    names = [v.name for v in variables]
    if len(arrays) > len(names):
        raise RunError(f"{len(arrays)} arrays given for {len(names)} variables: {', '.join(names)}")
    given = dict(zip(names, arrays, strict=False))
    for name, array in named.items():
        if name not in names:
            raise RunError(f"unknown variable {name!r}: expected {', '.join(names)}")
        if name in given:
            raise RunError(f"variable {name!r} is given twice")
        given[name] = array
    for v in variables:
        if v.name not in given:
            raise RunError(f"variable {v.name!r} is missing: {v.checked_type}")
    return given


def checked(variable: Var, value: Any, kind: Type) -> Any:
    """`value` as a NumPy array of the variable's type; symbolic dimensions take any extent.

    Raises:
        RunError: it has another dtype or shape.
    """
    import numpy as np

    array = np.asarray(value)
    assert isinstance(kind, TensorType)
    fits = array.dtype.name == kind.dtype and array.ndim == kind.ndim and all(
        (d == n).decide() is not False for d, n in zip(kind.shape, array.shape, strict=True)
    )
    if not fits:
        raise RunError(
            f"{variable.name} must be {kind}, got {array.dtype.name}[{','.join(map(str, array.shape))}]"
        )
    return array


def to_tensor(array: Any) -> Any:
    """A NumPy array for the runtime: the array itself if it is aligned, else a copy."""
    import numpy as np
    import tvm

    if not array.size:  # NumPy's strides of no elements are not those that functions check
        return tvm.runtime.empty(array.shape, array.dtype.name)
    # NumPy's DLPack supports its own dtypes only, not bfloat16.
    own = array.dtype.kind != "V"
    if own and array.flags.c_contiguous and array.flags.writeable and array.ctypes.data % ALIGNMENT == 0:
        return tvm.runtime.from_dlpack(array)
    return tvm.runtime.tensor(np.ascontiguousarray(array).reshape(array.shape))


def empty_tensor(kind: Type) -> Any:
    import tvm

    assert isinstance(kind, TensorType)
    return tvm.runtime.empty(kind.concrete_shape, kind.dtype)
