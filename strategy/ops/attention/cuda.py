"""Attention by tensor cores in one pass over the keys, without scores in memory.

    attention_flash.cuda   by mma.sync, with parts of the keys for few queries; sm_80 and later
    attention_wgmma.cuda   many queries by Hopper's wgmma: `wgmma.py`

The queries of all heads that share keys are rows of one matrix, as they lie in memory, so that one token of many heads
fills a tile, too. Powers are rounded to the dtype of the values, as is usual for this method; all sums are in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strategy.condition import SpecializedCondition
from strategy.cuda.library import (
    FOURTH,
    LEFT,
    OUTPUT,
    RIGHT,
    THIRD,
    Handwritten,
    call_in_place,
    number_of,
    schedule_in_place,
)
from strategy.cuda.limit import GRID, REGISTERS_PER_THREAD, DeviceLimits, limits_of
from strategy.cuda.program import Launch, Pointer, Scalar, times
from strategy.cuda.staging import PTX_TYPES
from strategy.cuda.template import C_TYPES, Template
from strategy.op import get_registered_op
from strategy.op_strategy import OpStrategy
from strategy.ops.attention import wgmma
from strategy.ops.attention.flash_kernel import ATTEND, JOIN, SHARED, macros_of, tiles_of
from strategy.ops.attention.operator import NAMES, AttentionAttrs, constant_inner, factor
from strategy.schedule import integer
from strategy.space import Config, ConfigSpace, Knob, knob
from strategy.target import Target
from strategy.types import TensorType

_LARGEST_DEPTH = 256  # and width: sums of one more would not fit the registers
_LARGEST_SCALE = 2.0**127  # that float32 has
_PARTS = (1, 2, 4, 8, 16, 32, 64)
_MANY_PARTS = 4  # `wgmma` takes about half as long for a tile
_JOIN_ROWS = 4  # of a block, a warp each


def _strategy(attrs: AttentionAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target) -> OpStrategy:
    """The plain schedule, and tensor cores where they have the dtype."""
    op = "attention_bias" if len(inputs) > 3 else "attention"
    strategy: OpStrategy = _generic[op].default(attrs, inputs, out_type, target)
    if takes(attrs, inputs, out_type, limits_of(target)):
        strategy.add_implementation(compute, schedule_in_place, "attention_flash.cuda", 15, space=space)
        _, heads, m, _ = attrs.order(inputs[0].shape)
        each = int(heads) // int(attrs.order(inputs[1].shape)[1])
        if wgmma.takes(attrs, inputs, out_type, limits_of(target)):
            # The parts that flash takes of the keys fill multiprocessors which tiles of queries alone leave idle.
            parts = integer(space(attrs, inputs, out_type, target).fallback, "parts")
            with SpecializedCondition(m >= -(-wgmma.FEWEST_ROWS // each)):
                strategy.add_implementation(
                    wgmma.compute, schedule_in_place, "attention_wgmma.cuda", 16 if parts < _MANY_PARTS else 14,
                    space=wgmma.space,
                )
    return strategy


def takes(attrs: AttentionAttrs, inputs: Sequence[TensorType], out_type: TensorType, limits: DeviceLimits) -> bool:
    """True if heads can be copied in 16 bytes and their sums kept, and tensor cores have the dtype."""
    batch, heads, _, depth = attrs.order(inputs[0].shape)
    return (
        limits.capability >= 80
        and out_type.dtype in PTX_TYPES
        and constant_inner(attrs, inputs)
        and all(int(e) % 8 == 0 and int(e) <= _LARGEST_DEPTH for e in (depth, out_type.shape[3]))
        and all(not e.is_constant or int(e) <= GRID[2] for e in (batch, heads))
        and abs(factor(attrs, int(depth))) <= _LARGEST_SCALE
    )


def space(attrs: AttentionAttrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target) -> ConfigSpace:
    """Warps, tiles of 16 queries of each, keys of a block, stages of copies, and parts of the keys."""
    batch, heads, m, depth = attrs.order(inputs[0].shape)
    _, groups, n, _ = attrs.order(inputs[1].shape)
    limits = limits_of(target)
    rows = int(heads) // int(groups) * (int(m) if m.is_constant else 64)
    keys = int(n) if n.is_constant else 512
    matrices = int(groups) * (int(batch) if batch.is_constant else 1)
    steps, bands = -(-int(depth) // 16), -(-int(out_type.shape[3]) // 16)

    sizes = [b for b in (16, 32, 64, 128) if b == 16 or b < 2 * keys]

    def bytes_of(warps: Any, tiles: Any, block_n: Any, stages: Any) -> Any:
        key_row, value_row = steps * 32 + 16, bands * 32 + 16
        return warps * tiles * 16 * key_row + block_n * (key_row + value_row) * stages

    def registers_of(tiles: Any, block_n: Any, keep: Any) -> Any:
        # A thread holds sums, scores, queries, a fragment of the other operand, and addresses.
        return tiles * (bands * 8 + block_n // 2 + keep * steps * 4) + 44

    def fallback() -> dict[str, Any]:
        enough, keep = next((w for w in (1, 2) if w * 16 >= rows), 4), int(steps <= 8)
        warps, block_n = next(
            (warps, size) for warps in (4, 2, 1) for size in reversed(sizes)
            if warps <= enough and size <= 64 and bytes_of(warps, 1, size, 2) <= limits.shared_bytes
            and registers_of(1, size, keep) <= REGISTERS_PER_THREAD
        )
        blocks = -(-rows // (warps * 16)) * matrices
        useful = min(2 * limits.multiprocessors // blocks, -(-keys // (2 * block_n)))
        return {
            "warps": warps, "tiles": 1, "block_n": block_n, "stages": 2, "keep": keep,
            "parts": max(p for p in _PARTS if p == 1 or p <= useful),
        }

    warps, tiles, block_n, stages, keep = (knob(name) for name in ("warps", "tiles", "block_n", "stages", "keep"))
    registers = registers_of(tiles, block_n, keep)
    return ConfigSpace(
        [
            Knob("warps", [w for w in (1, 2, 4, 8) if w == 1 or w * 8 < rows]),
            Knob("tiles", [1, 2] if rows > 16 else [1]),
            Knob("block_n", sizes),
            Knob("stages", [2, 3, 4]),
            Knob("keep", [0, 1]),
            Knob("parts", [p for p in _PARTS if p == 1 or p * 16 <= keys]),
        ],
        [
            bytes_of(warps, tiles, block_n, stages) <= limits.shared_bytes,
            registers <= REGISTERS_PER_THREAD,
            registers * warps * limits.warp <= limits.registers,
        ],
        derived={"rows": warps * tiles * 16, "shared": bytes_of(warps, tiles, block_n, stages)},
        fallback=fallback,
    )


def compute(attrs: AttentionAttrs, inputs: Sequence[Any], out_type: TensorType, config: Config) -> list[Any]:
    """One launch, or with several parts two; batch and numbers of queries and keys may be symbolic."""
    query, key, value = inputs[:3]
    batch, heads, m, depth = attrs.order(query.shape)
    _, groups, n, _ = attrs.order(key.shape)
    groups, width = int(groups), int(value.shape[3])
    dtype, parts, each = str(query.dtype), integer(config, "parts"), int(heads) // groups
    knobs = {name.upper(): integer(config, name) for name in ("warps", "tiles", "block_n", "stages", "keep", "parts")}
    macros: dict[str, int | str] = {
        **knobs, "SUM": C_TYPES["float32" if parts > 1 else dtype], "JOIN_ROWS": _JOIN_ROWS, **macros_of(attrs, inputs),
    }
    high = knobs["WARPS"] * knobs["TILES"] * 16
    key_row, value_row = -(-int(depth) // 16) * 32 + 16, -(-width // 16) * 32 + 16
    tiles = tiles_of(times(each, number_of(m)), high)
    buffers = [Pointer(name) for name in (LEFT, RIGHT, THIRD, FOURTH)[: len(inputs)]]
    sizes = Scalar("int32", number_of(m)), Scalar("int32", number_of(n))
    launch = Launch(
        "attention_flash", (*buffers, Pointer(OUTPUT), *sizes),
        (times(tiles, parts), groups, number_of(batch)), (knobs["WARPS"] * 32, 1, 1),
        high * key_row + knobs["BLOCK_N"] * (key_row + value_row) * knobs["STAGES"],
    )
    source = Template(SHARED + ATTEND.replace("KIND", PTX_TYPES[dtype]), macros, (), (launch,)).code
    step = Handwritten(source, launch)
    shape = attrs.order((batch, heads, m, width))
    if parts == 1:
        return [call_in_place(step, inputs, shape, dtype, "attention")]
    found = call_in_place(step, inputs, (parts, *shape[:3], width + 2), "float32", "parts")
    rows = times(times(number_of(batch), int(heads)), number_of(m))
    join = Launch(
        "attention_join", (Pointer(LEFT), Pointer(OUTPUT), Scalar("int32", rows)),
        (tiles_of(rows, _JOIN_ROWS), 1, 1), (_JOIN_ROWS * 32, 1, 1),
    )
    return [call_in_place(Handwritten(JOIN, join), [found], shape, dtype, "attention")]


_generic = {name: get_registered_op(name).get_attr("FTVMStrategy") for name in NAMES}
for _name in NAMES:
    _generic[_name].register(["cuda", "gpu"], _strategy)
