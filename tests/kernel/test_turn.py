"""Tiles that are turned by shuffles, of any number of rows and lanes, beside NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from strategy.cpu.passes import processor_pipeline
from strategy.cpu.turn import fit_side_by_side, turn, turned_width
from strategy.target import Target


def turned(rows: int, lanes: int, dtype: str) -> Any:
    """A function of tiles [3, rows, 2 lanes] that writes them transposed, and how far apart it keeps the columns."""
    import tvm
    from tvm import s_tir, te

    tiles = te.placeholder((3, rows, 2 * lanes), dtype, name="tiles")
    made = te.compute((3, 2 * lanes, rows), lambda tile, o, p: tiles[tile, p, o], name="turned")
    out = te.compute((3, 2 * lanes, rows), lambda *place: made[place] + made[place], name="out")
    sch = s_tir.Schedule(te.create_prim_func([tiles, out], index_dtype_override="int64"))
    block = sch.get_sblock("turned")
    task, *_ = sch.get_loops(sch.get_sblock("out"))
    sch.compute_at(block, task, preserve_unit_loops=True)
    sch.parallel(task)
    _, column = sch.split(sch.get_loops(block)[-2], [None, lanes])
    turn(sch, task, column, 3, rows, lanes, dtype)
    target = tvm.target.Target(Target.parse("cpu").to_tvm())
    with tvm.transform.PassContext(opt_level=3):
        return tvm.compile(sch.mod, target=target, tir_pipeline=processor_pipeline())


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("rows", "lanes", "dtype"),
    [
        (2, 16, "float32"), (5, 16, "float32"), (8, 16, "float32"), (11, 16, "float32"),
        (16, 16, "float32"), (17, 16, "float32"), (28, 16, "float32"), (7, 8, "float64"), (9, 8, "float32"),
        (3, 4, "float32"), (13, 4, "float64"), (5, 2, "float64"),
    ],
)
def test_any_tile(rows: int, lanes: int, dtype: str) -> None:
    import tvm

    data = np.random.default_rng(0).random((3, rows, 2 * lanes)).astype(dtype)
    out = tvm.runtime.tensor(np.full((3, 2 * lanes, rows), 77, dtype))
    turned(rows, lanes, dtype)["main"](tvm.runtime.tensor(data), out)
    np.testing.assert_array_equal(out.numpy(), 2 * data.transpose(0, 2, 1))


def test_columns_lie_apart_by_what_is_stored_at_once() -> None:
    assert [turned_width(rows, 8) for rows in (1, 3, 7, 8, 9, 13, 16, 19)] == [1, 4, 8, 8, 9, 16, 16, 20]


def test_tiles_beside_each_other_write_within_the_lines_they_are_in() -> None:
    assert fit_side_by_side(28, 14, 16)
    assert not fit_side_by_side(44, 11, 16)  # the last tile would write 33 to 48, in columns 48 apart
    assert not fit_side_by_side(78, 13, 8)
    assert all(fit_side_by_side(width, 1, lanes) for width in range(1, 99) for lanes in (2, 4, 8, 16))
