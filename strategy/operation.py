"""The operations of expressions, on numbers and on NumPy arrays."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any


def _log2(a: Any) -> Any:
    if isinstance(a, int | float):
        return math.log2(a)
    import numpy as np

    return np.log2(a)


def _choose(test: Any, a: Any, b: Any) -> Any:
    if isinstance(test, bool):
        return a if test else b
    import numpy as np

    return np.where(test, a, b)


def _item(value: Any, index: int) -> Any:
    # A tuple-valued knob (a split); arrays of such values have one column per part.
    return value[index] if isinstance(value, tuple | list) else value[..., index]


_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "min": lambda a, b: _choose(a <= b, a, b),
    "max": lambda a, b: _choose(a >= b, a, b),
    "ceildiv": lambda a, b: -(-a // b),
    "log2": _log2,
    "item": _item,
    "if": _choose,
}
COMPARISON: dict[str, Callable[..., Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
_LOGIC: dict[str, Callable[..., Any]] = {
    # Bitwise forms work on bools and on arrays of them.
    "and": operator.and_,
    "or": operator.or_,
    "not": lambda a: a ^ True,
}
OPERATIONS = _ARITHMETIC | COMPARISON | _LOGIC
ARITY = {"log2": 1, "not": 1, "if": 3}
NEGATION = {"<": ">=", ">=": "<", ">": "<=", "<=": ">", "==": "!=", "!=": "=="}
MIRROR = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}
PREFIX = {"min", "max", "ceildiv", "log2", "not", "if", "item"}  # written as functions
