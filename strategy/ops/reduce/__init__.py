"""Reductions over axes: sum, mean, max, min and prod; as in NumPy, some have the names of builtins."""

from strategy.ops.reduce.gradient import kept, shared_out
from strategy.ops.reduce.operator import (
    ReduceAttrs,
    max,  # noqa: A004
    mean,
    min,  # noqa: A004
    prod,
    reduced_axes,
    reduced_rows,
    reduced_shape,
    sum,  # noqa: A004
    sum_peaks,
)

__all__ = [
    "ReduceAttrs", "kept", "max", "mean", "min", "prod", "reduced_axes", "reduced_rows", "reduced_shape", "shared_out",
    "sum", "sum_peaks",
]
