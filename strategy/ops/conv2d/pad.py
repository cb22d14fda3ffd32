"""Zeros around the data of a convolution."""

from __future__ import annotations

from typing import Any

from strategy.schedule import stage


def pad_zeros(data: Any, padding: tuple[int, int, int, int]) -> Any:
    """The TE tensor [n, c, h, w] with zeros at top, left, bottom and right; itself where there are none.

    A stage of its own: a bound check per multiplication would cost more than the copy.
    """
    from tvm import topi

    if not any(padding):
        return data
    top, left, bottom, right = padding
    return topi.nn.pad(data, (0, 0, top, left), (0, 0, bottom, right), name="padded", attrs=stage("padded"))


def schedule_padding(sch: Any, padded: Any, lanes: int) -> None:
    """Copies channels in parallel, rows by vectors."""
    n, c, _, x = sch.get_loops(padded)
    _, vector = sch.split(x, [None, lanes])
    sch.vectorize(vector)
    sch.parallel(sch.fuse(n, c))
