"""The space of depthwise convolutions with channels in the lanes: pixels whose sums stay in registers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from strategy.cpu.tile import round_up, up_to, whole_blocks
from strategy.ops.conv2d.operator import Conv2DAttrs
from strategy.ops.conv2d.product import usual_window
from strategy.space import ConfigSpace, Knob, divisors, knob
from strategy.target import Target

_ROWS = (1, 2, 3, 4, 7)
_COLUMNS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 14)
_MOST_TASKS = 64
_WINDOW = Knob("window", ["unrolled", "rows", "loops"])
_PAD = Knob("pad", ["tile", "task", "apart", "inline"])
_NO_PAD = Knob("pad", ["apart"])


def space_of_pixels(
    attrs: Conv2DAttrs, window: Sequence[int], out_h: int, out_w: int, target: Target, fits: Callable[[int], bool],
    order: Sequence[Knob] = (),
) -> ConfigSpace:
    """The pixels whose sums are kept, tasks of rows, and where the padding is made.

    Rows of tiles pad what they read (`tile`), tasks a part of an image at a time, all are padded before (`apart`), or
    bounds are checked where the image is read (`inline`).

    Args:
        window: its height and width.
        fits: the fallback takes the fewest tasks for which it is true, else the most.
        order: knobs of the order of tiles, of which the fallback takes the first values.
    """
    tiles = {r: -(-out_h // r) for r in _ROWS if r <= out_h}
    tasks = sorted({d for count in tiles.values() for d in divisors(count) if d <= _MOST_TASKS})

    def fallback() -> dict[str, Any]:
        # Few idle pixels, many at a time: of one row, whose bounds are checked together.
        fitting = [c for c in _COLUMNS if c <= out_w and c + 3 <= target.vector_registers]
        parts = [d for d in divisors(tiles[1]) if d <= _MOST_TASKS]
        columns = min(fitting, key=lambda c: round_up(out_w, c) * (1 + 1 / c))
        return {
            "rows": 1,
            "columns": columns,
            "tasks": next(filter(fits, parts), parts[-1]),
            **{k.name: k.values[0] for k in order},
            "pad": "inline" if any(attrs.padding) else "apart",
            "window": usual_window("unrolled", window, columns),
        }

    return ConfigSpace(
        [
            Knob("rows", tuple(tiles)),
            up_to("columns", _COLUMNS, out_w),
            Knob("tasks", tuple(tasks)),
            *order,
            _PAD if any(attrs.padding) else _NO_PAD,
            _WINDOW,
        ],
        [
            knob("rows") * knob("columns") + 3 <= target.vector_registers,
            whole_blocks(out_h, "rows", "tasks"),
        ],
        derived={"accumulators": knob("rows") * knob("columns")},
        fallback=fallback,
    )
