"""Products of matrices on a GPU, for dense, batch_matmul and convolutions.

A product is [batch, m, k] · [batch, n, k]ᵀ of operands that are read through functions: a matrix, a padded one, or
the windows of an image. Extents are padded to whole tiles with zeros, and results beyond are not stored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from strategy.schedule import compute_stage, integer
from strategy.space import Config

Read = Callable[..., Any]  # of (batch, row, step)
Loops = tuple[Any, Any, Any]


@dataclass(frozen=True)
class Product:
    """The extents of a product; batch and m may be symbolic, as TE expressions."""

    batch: Any
    m: Any
    n: Any
    k: Any


def accumulator(dtype: str) -> str:
    """The dtype in which products are summed: float32 for narrower floats."""
    return "float32" if dtype in ("float16", "bfloat16") else dtype


def compute_product(
    product: Product, a: Read, b: Read, dtype: str, config: Config, *, turns: bool = False
) -> Any:
    """The product [batch, m, n], padded to whole tiles, in the dtype in which it is summed.

    With a knob `split_k`, that many parts of k are summed by separate blocks, and the product, which then is not
    padded, is the sum of the parts.

    Args:
        turns: pass the readers a step as two numbers, the block of `block_k` steps and the step within it,
            so that TVM can hoist what depends on the block alone.
    """
    from tvm import te, tirx

    sum_dtype = accumulator(dtype)
    block_m, block_n, block_k = (
        integer(config, name) for name in ("block_m", "block_n", "block_k")
    )
    parts = integer(config, "split_k") if "split_k" in config else 1
    m, n, k = (
        (extent + block - 1) // block * block
        for extent, block in (
            (product.m, block_m), (product.n, block_n), (product.k, block_k * parts)
        )
    )

    def padded(operand: Read, extent: Any, rows: Any, name: str) -> Any:
        bounds = [(extent, rows), (product.k, k)]

        def read(batch: Any, row: Any, *at: Any) -> Any:
            step = at[0] * block_k + at[1] if turns else at[0]
            inside = [
                index < found
                for index, (found, whole) in zip((row, step), bounds, strict=True)
                if not (isinstance(found, int) and found == whole)
            ]
            value = operand(batch, row, *at)
            if not inside:
                return value
            return tirx.if_then_else(tirx.all(*inside), value, tirx.const(0, dtype))

        steps = (k // block_k, block_k) if turns else (k,)
        return compute_stage(name, (product.batch, rows, *steps), read)

    left, right = padded(a, product.m, m, "a"), padded(b, product.n, n, "b")
    depth = k // parts
    step = te.reduce_axis((0, depth), name="step")

    def term(part: Any, i: Any, j: Any) -> Any:
        batch, at = (part, step) if parts == 1 else (part // parts, part % parts * depth + step)
        steps = (at // block_k, at % block_k) if turns else (at,)
        return te.sum(
            left[batch, i, *steps].astype(sum_dtype) * right[batch, j, *steps].astype(sum_dtype),
            axis=step,
        )

    count = product.batch * parts
    whole = compute_stage("product", (count, m, n), term)
    if parts == 1:
        return whole
    stored = compute_stage("parts", (count, product.m, product.n), lambda *at: whole[at])

    def total(batch: Any, i: Any, j: Any) -> Any:
        found = stored[batch * parts, i, j]
        for part in range(1, parts):
            found = found + stored[batch * parts + part, i, j]
        return found

    return te.compute((product.batch, product.m, product.n), total, name="total")


_SIZES = (16, 32, 64, 128, 256)


def block_sizes(extent: int) -> list[int]:
    """Block sizes less than twice the extent."""
    return [s for s in _SIZES if s < 2 * extent] or [_SIZES[0]]
