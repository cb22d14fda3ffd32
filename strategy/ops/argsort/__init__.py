"""argsort and sort: the order of the elements along an axis, and the elements in it."""

from strategy.ops.argsort.operator import ArgsortAttrs, argsort, sort

__all__ = ["ArgsortAttrs", "argsort", "sort"]
