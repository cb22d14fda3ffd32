"""Implementations of float32 for bfloat16 and float16: inputs are widened as they are read, sums are rounded once.

What an implementation pads, packs or copies is widened there. No processor needs instructions for narrow floats for
that, and those of some are slower.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

from strategy.op_strategy import OpImplementation, OpStrategy
from strategy.schedule import accumulator, stage
from strategy.target import Target
from strategy.types import TensorType

NARROW = ("bfloat16", "float16")


def serves(inputs: Sequence[TensorType], out_type: TensorType) -> bool:
    """Return whether `for_types` gives implementations: inputs of one dtype of floats, and a result of it.

    Of narrow inputs the result may be float32, too, as sums are.
    """
    (dtype, *more) = {t.dtype for t in inputs}
    results = (dtype, "float32") if dtype in NARROW else (dtype,)
    return not more and dtype in (*NARROW, "float32", "float64") and out_type.dtype in results


def for_types(
    found: OpStrategy,
    inputs: Sequence[TensorType],
    copied: Mapping[str, Callable[[Any, Any], bool]] = MappingProxyType({}),
) -> OpStrategy:
    """Implementations with a space, of float32 and float64, for inputs that may be narrow.

    Args:
        copied: by names of those that read their first input many times where it lies, whether they do, by the
            attributes and the configuration: it is widened into a copy, the stage `padded`.
    """
    if inputs[0].dtype not in NARROW:
        return found
    return found.changed(lambda one: _widen(one, copied.get(one.name, lambda attrs, config: False)))


def _widen(found: OpImplementation, copied: Callable[[Any, Any], bool]) -> OpImplementation:
    """The implementation for narrow inputs, by its functions for those of their sums."""
    space, prepare = found.space, found.prepare

    def wide_space(attrs: Any, inputs: Sequence[TensorType], out_type: TensorType, target: Target) -> Any:
        assert space is not None
        return space(attrs, [wide_type(t) for t in inputs], wide_type(out_type), target)

    def wide_prepare(attrs: Any, inputs: Sequence[TensorType], *config: Any) -> dict[int, Callable[[Any], Any]]:
        assert prepare is not None
        packs = prepare(attrs, [wide_type(t) for t in inputs], *config)
        return {index: partial(_pack_wide, pack) for index, pack in packs.items()}

    def compute(attrs: Any, inputs: Sequence[Any], out_type: TensorType, config: Any) -> list[Any]:
        from tvm import te

        first, *more = inputs
        wide = [_wide(first, "padded" if copied(attrs, config) else None), *map(_wide, more)]
        (out,) = found.compute(attrs, wide, wide_type(out_type), config)
        return [te.compute(out.shape, lambda *i: out(*i).astype(out_type.dtype), name="rounded")]

    return replace(found, compute=compute, space=space and wide_space, prepare=prepare and wide_prepare)


def _pack_wide(pack: Callable[[Any], Any], tensor: Any) -> Any:
    return pack(_wide(tensor))


def wide_type(of: TensorType) -> TensorType:
    """The type with the dtype of its sums."""
    return TensorType(of.shape, accumulator(of.dtype))


def _wide(tensor: Any, mark: str | None = None) -> Any:
    """The TE tensor in the dtype of its sums: a stage of its own with a mark, else inlined."""
    from tvm import te

    dtype = accumulator(str(tensor.dtype))
    if dtype == str(tensor.dtype):
        return tensor
    return te.compute(
        tensor.shape, lambda *i: tensor(*i).astype(dtype), name=mark or "widened", attrs=stage(mark) if mark else None
    )
