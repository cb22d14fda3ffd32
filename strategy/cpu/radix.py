"""Sorting of keys by their digits, from the lowest on, in computes that are written as loops.

A pass moves keys and indices to where the count of smaller digits says, and keeps the order of equal ones; one whose
digits are all equal is left out. There are no comparisons, so that the time does not depend on the order.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from strategy.cpu.loop import allocate
from strategy.order import sort_key


class Radix:
    """The arrays in which keys of a dtype are sorted with their indices, and the passes over them.

    Args:
        capacity: the greatest number of keys.
        dtype: that of the values whose `sort_key` orders them.
        bits: of a digit.
    """

    def __init__(self, capacity: int, dtype: str, bits: int, *, is_ascend: bool) -> None:
        from tvm import tirx

        self._capacity, self._bits, self._bins = capacity, bits, 1 << bits
        self._kind = str(sort_key(tirx.Var("x", dtype)).ty.dtype)
        self._passes = -(-int(self._kind.removeprefix("int")) // bits)
        # In the order of unsigned numbers; of a descending one all bits are turned.
        self._turned = tirx.min_value(self._kind) if is_ascend else tirx.max_value(self._kind)
        place = partial(allocate, scope="global")
        self._keys, self._order = place(2 * capacity, self._kind), place(2 * capacity, "int32")
        self._counts, self._state = place(self._passes * self._bins, "int32"), place(2, "int32")

    def clear(self) -> None:
        """Forget all keys."""
        from tvm.script.ir_builder import tirx as script

        with script.serial(0, self._passes * self._bins) as n:
            self._counts[n] = 0

    def put(self, at: Any, value: Any, index: Any) -> None:
        """Take in the value with its index as the key of number `at`, those before it being there."""
        self._keys[at] = sort_key(value) ^ self._turned
        self._order[at] = index
        for turn in range(self._passes):
            slot = self._slot(self._keys[at], turn)
            self._counts[slot] = self._counts[slot] + 1

    def sort(self, count: Any) -> None:
        """Put the first `count` keys in order."""
        from tvm import tirx
        from tvm.script.ir_builder import tirx as script

        keys, order, counts, state, capacity = self._keys, self._order, self._counts, self._state, self._capacity
        state[0] = 0  # the half of both arrays that is in order
        for turn in range(self._passes):
            differs = counts[self._slot(keys[state[0] * capacity], turn)] < count
            if not isinstance(capacity, int):  # there may be no key to read
                differs = tirx.if_then_else(count > 0, differs, tirx.const(0, "bool"))
            with script.If(differs), script.Then():
                state[1] = 0
                with script.serial(0, self._bins) as n:
                    found = script.bind(counts[turn * self._bins + n])
                    counts[turn * self._bins + n] = state[1]
                    state[1] = state[1] + found
                with script.serial(0, count) as j:
                    key = script.bind(keys[state[0] * capacity + j])
                    at = script.bind(counts[self._slot(key, turn)])
                    counts[self._slot(key, turn)] = at + 1
                    keys[(1 - state[0]) * capacity + at] = key
                    order[(1 - state[0]) * capacity + at] = order[state[0] * capacity + j]
                state[0] = 1 - state[0]

    def key(self, place: Any) -> Any:
        """The key at a place in order; equal numbers have equal keys."""
        return self._keys[self._state[0] * self._capacity + place]

    def index(self, place: Any) -> Any:
        """The index of the value at a place in order."""
        return self._order[self._state[0] * self._capacity + place]

    def _slot(self, key: Any, turn: int) -> Any:
        """The counter of a key's digit; below those of later passes."""
        from tvm import tirx

        digit = (key >> tirx.const(turn * self._bits, self._kind)) & tirx.const(self._bins - 1, self._kind)
        return tirx.Cast("int32", digit) + turn * self._bins
