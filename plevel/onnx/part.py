"""Numbers that an ONNX file computes of symbolic sizes before it has extents: fractions of sizes, and rests."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import onnx.helper

from plevel.onnx.constant import encode, run_node
from plevel.onnx.types import SHOWN
from strategy.network.extent import Extent
from strategy.network.size import NAMES, Sizes

WIDE = (np.float32, np.float64)  # dtypes that have all sizes below 2²⁴
_MOST = 64  # parts of a number that a size is multiplied by, so that no float is rounded
_LARGE = tuple((1 << 40 + 2 * i) + (2 << i) - 1 for i in range(len(NAMES)))  # sizes
_MOVES = frozenset({
    "Concat", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Tile", "Transpose",
    "Unsqueeze",
})


@dataclass(frozen=True)
class Part:
    """An extent divided by a number, in lowest terms."""

    extent: Extent
    divisor: int

    @classmethod
    def of(cls, extent: Extent, divisor: int = 1) -> Part:
        common = math.gcd(divisor, *(factor for _, factor in extent.terms))
        return cls(extent // common, divisor // common)

    @property
    def is_extent(self) -> bool:
        """Return whether it is a whole number, and no rest: large at large sizes."""
        return self.divisor == 1 and (not self.extent.variables or abs(self.extent.at(_LARGE)) >= min(_LARGE) >> 10)


def parts_of(
    node: Any, given: Sequence[np.ndarray | None], dtype: np.dtype[Any], sizes: Sizes, opsets: Mapping[str, int]
) -> np.ndarray | None:
    """The parts that a node makes of sizes, as an array of objects; None where it makes something else.

    Args:
        given: its inputs, of numbers, some of which stand for sizes, or of parts; None where one is left out.
        dtype: that of its first input.
    """
    if any(array is not None and array.size > SHOWN for array in given):
        return None
    try:
        if node.op_type in _MOVES:
            return _moved(node, given, sizes, opsets)
        make = _FUNCTIONS.get(node.op_type)
        if make is None or not (dtype.kind in "iu" or dtype in WIDE):
            return None
        each = [_parts(array, sizes) for array in given if array is not None]
        function = partial(make, _About(node, dtype))
        return np.asarray(np.frompyfunc(function, len(each), 1)(*each), object)
    except ValueError:
        return None


def _moved(
    node: Any, given: Sequence[np.ndarray | None], sizes: Sizes, opsets: Mapping[str, int]
) -> np.ndarray | None:
    """The parts where ONNX's reference moves the numbers of their places to."""
    named: dict[str, np.ndarray] = {}
    known: list[Part] = []
    for i, (name, array) in enumerate(zip(node.input, given, strict=True)):
        if array is None:
            continue
        if i == 0 or node.op_type == "Concat":
            parts = _parts(array, sizes)
            named[name] = np.arange(len(known), len(known) + parts.size).reshape(parts.shape)
            known += parts.reshape(-1).tolist()
        else:
            named[name] = array
    (places,) = run_node(node, named, opsets)
    found = np.empty(places.shape, object)
    for i, place in enumerate(places.reshape(-1).tolist()):
        found.reshape(-1)[i] = known[place]
    return found


def _parts(array: np.ndarray, sizes: Sizes) -> np.ndarray:
    return array if array.dtype == object else np.asarray(np.frompyfunc(lambda n: _part(n, sizes), 1, 1)(array), object)


def _part(value: Any, sizes: Sizes) -> Part:
    """A size, its opposite, or a number of few parts; raise `ValueError` for another number."""
    if isinstance(value, bool | np.bool_) or not math.isfinite(value):
        raise ValueError(f"{value} is no part of a size")
    if isinstance(extent := encode(value, sizes), Extent):
        return Part(extent if value > 0 else extent * -1, 1)
    ratio = Fraction(value)
    if ratio.denominator > _MOST:
        raise ValueError(f"{value} has too many parts")
    return Part(Extent.number(ratio.numerator), ratio.denominator)


class _About:
    """A node's attributes, and the dtype of its operands."""

    def __init__(self, node: Any, dtype: np.dtype[Any]) -> None:
        self.attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        self.dtype = dtype

    @property
    def is_whole(self) -> bool:
        return self.dtype.kind in "iu"


def _is_rounded(part: Part) -> bool:
    """Return whether a float is only near it, such as a third."""
    return bool(part.divisor & (part.divisor - 1))


def _add(about: _About, x: Part, y: Part) -> Part:
    found = Part.of(x.extent * y.divisor + y.extent * x.divisor, x.divisor * y.divisor)
    if about.dtype == np.float32 and _is_rounded(found):
        raise ValueError("a sum that is rounded again")
    return found


def _subtract(about: _About, x: Part, y: Part) -> Part:
    return _add(about, x, Part(y.extent * -1, y.divisor))


def _multiply(about: _About, x: Part, y: Part) -> Part:
    if _is_rounded(x) or _is_rounded(y):
        raise ValueError("a product that is rounded again")
    return Part.of(x.extent * y.extent, x.divisor * y.divisor)


def _divide(about: _About, x: Part, y: Part) -> Part:
    """A quotient of floats by a number: of integers below 2²⁴ it is rounded to no integer that it is not."""
    if about.is_whole or y.extent.variables or (by := y.extent.at(())) <= 0:
        raise ValueError("another quotient")
    return Part.of(x.extent * y.divisor, x.divisor * by)


def _rest(about: _About, x: Part, y: Part) -> Part:
    if not about.is_whole or about.attributes.get("fmod") or y.extent.variables or (by := y.extent.at(())) <= 0:
        raise ValueError("another rest")
    return Part.of(x.extent % by)


def _cast(about: _About, x: Part) -> Part:
    """The part itself, or what is left of it as an integer, rounded towards 0."""
    to = onnx.helper.tensor_dtype_to_np_dtype(about.attributes["to"])
    if to in WIDE:
        return x
    if to.kind not in "iu" or (x.divisor > 1 and any(factor < 0 for _, factor in x.extent.terms)):
        raise ValueError("another number")
    return Part.of(x.extent // x.divisor)


_FUNCTIONS: dict[str, Callable[..., Part]] = {
    "Add": _add, "Sub": _subtract, "Mul": _multiply, "Div": _divide, "Mod": _rest, "Cast": _cast,
    "Neg": lambda about, x: Part(x.extent * -1, x.divisor),
    "Floor": lambda about, x: Part.of(x.extent // x.divisor),
    "Ceil": lambda about, x: Part.of((x.extent + (x.divisor - 1)) // x.divisor),
    "Round": lambda about, x: Part.of(x.extent.rounded(x.divisor)),
}
