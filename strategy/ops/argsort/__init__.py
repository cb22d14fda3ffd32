"""argsort: the order of the elements along an axis."""

from strategy.ops.argsort.operator import ArgsortAttrs, argsort

__all__ = ["ArgsortAttrs", "argsort"]
