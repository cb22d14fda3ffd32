"""unique: the elements of a vector that differ, in order."""

from strategy.ops.unique.operator import UniqueAttrs, unique

__all__ = ["UniqueAttrs", "unique"]
