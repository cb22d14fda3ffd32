"""Rules of data movement: reshapes and transposes meet, move behind other operators, or vanish in what reads them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from strategy.expr import Call, Constant, Expr
from strategy.network.rewriter import Rewriter, behind, extents, is_product
from strategy.network.size import PROBED
from strategy.op import TOpPattern

_RESCALING = frozenset({"quantize", "dequantize", "requantize"})
_RESHAPES = frozenset({"reshape", "squeeze", "expand_dims"})
_LEAST_COLUMNS = 32  # of a product of its own; narrower ones take longer together than one, and what copies its parts


def join_reshapes(rewriter: Rewriter, node: Call) -> Expr | None:
    return rewriter.reshaped(node.args[0], extents(node)) if node.op.name in _RESHAPES else None


def sink_unary(rewriter: Rewriter, node: Call) -> Expr | None:
    """The operator before the reshape."""
    is_unary = node.op.get_attr("TOpPattern") == TOpPattern.kElemWise and len(node.args) == 1
    if not is_unary and not (node.op.name in _RESCALING and all(not extents(x) for x in node.args[1:])):
        return None
    source = behind(node.args[0])
    if source is None or not rewriter.is_only(node.args[0]):
        return None
    return rewriter.reshaped(rewriter.call(node.op, [source, *node.args[1:]], node.attrs), extents(node))


def sink_binary(rewriter: Rewriter, node: Call) -> Expr | None:
    """The operator before the reshape of one operand, where the other can be broadcast or reshaped to it."""
    if node.op.get_attr("TOpPattern") != TOpPattern.kBroadcast or len(node.args) != 2:
        return None
    if node.attrs.fields():
        return None  # an axis, which is another one before the reshape
    # Of two reshapes that of a product, whose epilogue the operator can be.
    for place in sorted((0, 1), key=lambda i: not is_product(behind(node.args[i]))):
        arg, other = node.args[place], node.args[1 - place]
        source = behind(arg)
        if source is None or not rewriter.is_only(arg) or extents(arg) != extents(node):
            continue
        fitting = _fit(rewriter, other, extents(node), extents(source))
        moves = fitting is not None and behind(fitting) is not None and behind(other) is None
        if fitting is None or (moves and (is_product(other) or not is_product(source))):
            continue  # a reshape would only change sides
        operands = [source, fitting] if place == 0 else [fitting, source]
        # A reshape of the other operand now would be sunk the other way, and so on.
        stays = behind(fitting) is not None
        made = rewriter.call(node.op, operands, node.attrs, without=sink_binary if stays else None)
        return rewriter.reshaped(made, extents(node))
    return None


def _fit(
    rewriter: Rewriter, other: Expr, shape: tuple[int, ...], wanted: tuple[int, ...]
) -> Expr | None:
    """An operand that broadcasts to `wanted` as it now does to `shape`."""
    given = extents(other)
    if given == shape:
        return rewriter.reshaped(other, wanted)
    significant = given[next((i for i, n in enumerate(given) if n != 1), len(given)) :]
    if not significant:
        return rewriter.reshaped(other, ())
    if len(significant) == 1 and significant[0] == shape[-1] == wanted[-1]:
        return rewriter.reshaped(other, significant)
    if [n for n in shape if n != 1] != [n for n in wanted if n != 1]:
        return None
    # Only axes of extent 1 come or go, as around a convolution of one dimension.
    whole = (1,) * (len(shape) - len(given)) + given
    kept = iter([own for own, n in zip(whole, shape, strict=True) if n != 1])
    return rewriter.reshaped(other, tuple(1 if n == 1 else next(kept) for n in wanted))


def axes_of(node: Expr) -> tuple[int, ...] | None:
    """The order of axes of a transpose, None for other nodes."""
    if not (isinstance(node, Call) and node.op.name == "transpose"):
        return None
    rank, axes = len(extents(node)), node.attrs.to_json().get("axes")
    return tuple(range(rank))[::-1] if axes is None else tuple(a % rank for a in axes)


def join_transposes(rewriter: Rewriter, node: Call) -> Expr | None:
    """One transpose of two, and none that keeps the order."""
    axes = axes_of(node)
    if axes is None:
        return None
    inner, source = axes_of(node.args[0]), node.args[0]
    if inner is not None and isinstance(source, Call):
        return rewriter.make("transpose", source.args[0], axes=tuple(inner[a] for a in axes))
    moved = [a for a in axes if extents(source)[a] != 1]
    if moved == sorted(moved):  # the elements stay in their order
        return rewriter.reshaped(source, extents(node))
    return None


def _part(node: Expr) -> tuple[int, int, int] | None:
    """Axis, begin and end of a slice without gaps along one axis of known extent."""
    if not (isinstance(node, Call) and node.op.name == "strided_slice"):
        return None
    shape = extents(node.args[0])
    parts = node.attrs.parts(shape)
    if len(parts) != 1:
        return None
    ((axis, (start, step, count)),) = parts.items()
    return (axis, start, start + count) if step == 1 and count and shape[axis] < PROBED else None


def _take(rewriter: Rewriter, node: Expr, axis: int, begin: int, end: int) -> Expr:
    return rewriter.make("strided_slice", node, begin=(begin,), end=(end,), strides=(1,), axes=(axis,))


def slice_before_transpose(rewriter: Rewriter, node: Call) -> Expr | None:
    """The part of what a transpose reads, where its own elements lie in the wanted order."""
    found, axes = _part(node), axes_of(node.args[0]) if node.args else None
    if found is None or axes is None:
        return None
    axis, begin, end = found
    moved = [a for a, extent in zip(axes, extents(node), strict=True) if extent != 1]
    if moved != sorted(moved):
        return None
    part = _take(rewriter, node.args[0].inputs[0], axes[axis], begin, end)
    return rewriter.make("transpose", part, axes=axes)


def slice_before_reshape(rewriter: Rewriter, node: Call) -> Expr | None:
    """The part of a product or a transpose before its reshape, where it is one there, too."""
    found, source = _part(node), behind(node.args[0]) if node.args else None
    if found is None or source is None or (_dense(source) is None and axes_of(source) is None):
        return None
    axis, begin, end = found
    shown, own = extents(node.args[0]), extents(source)
    before = math.prod(shown[:axis])
    place = next((i for i, n in enumerate(own) if math.prod(own[:i]) == before and n % shown[axis] == 0), None)
    if place is None or not shown[axis] <= own[place] < PROBED:
        return None
    inner = own[place] // shown[axis]
    if inner not in (math.prod(shown[axis + 1 : i]) for i in range(axis + 1, len(shown) + 1)):
        return None
    return rewriter.reshaped(_take(rewriter, source, place, begin * inner, end * inner), extents(node))


def _dense(node: Expr) -> tuple[Call, Constant | None] | None:
    """A product with constant weights, and the constant bias after it."""
    bias = None
    if isinstance(node, Call) and node.op.name == "bias_add" and isinstance(node.args[1], Constant):
        if node.attrs.to_json().get("axis", 1) % len(extents(node)) != len(extents(node)) - 1:
            return None
        bias = node.args[1]
        node = node.args[0]
    if isinstance(node, Call) and node.op.name == "dense" and isinstance(node.args[1], Constant):
        return node, bias
    return None


def _is_divided(node: Expr, readers: Sequence[Expr]) -> bool:
    """Return whether a product is read by wide slices of its columns alone, each column at most once."""
    parts = [_part(reader) for reader in readers if extents(reader.inputs[0]) == extents(node)]
    columns = sorted((p[1], p[2]) for p in parts if p is not None and p[0] == len(extents(node)) - 1)
    return (
        0 < len(columns) == len(readers)
        and all(end - begin >= _LEAST_COLUMNS for begin, end in columns)
        and all(a[1] <= b[0] for a, b in itertools.pairwise(columns))
    )


def divide_product(rewriter: Rewriter, node: Call) -> Expr | None:
    """A product of its own for some columns of one that is read in such parts only, which are then not copied."""
    found = _part(node)
    pair = _dense(node.args[0]) if node.args else None
    if found is None or pair is None or not _is_divided(node.args[0], rewriter.readers[node.args[0]]):
        return None
    (product, bias), (axis, begin, end) = pair, found
    if axis != len(extents(product)) - 1 or (bias is not None and len(rewriter.readers[product]) > 1):
        return None  # rows; before its bias it is read whole, too
    made = rewriter.call(product.op, [product.args[0], _rows(product.args[1], begin, end)], product.attrs)
    return made if bias is None else rewriter.make("bias_add", made, _rows(bias, begin, end), axis=1)


def _rows(constant: Expr, begin: int, end: int) -> Constant:
    assert isinstance(constant, Constant)
    return Constant(np.ascontiguousarray(constant.value[begin:end]))


def leave_rows(rewriter: Rewriter, node: Call) -> Expr | None:
    """A product whose rows stay in their order, for one between two transposes of them.

    Of [sequence, batch * heads, depth], heads with their own sequence, a transpose of heads and sequence is left.
    """
    if not _swaps_first(node) or not rewriter.is_only(node.args[0]):
        return None
    source = node.args[0]
    value = behind(source) or source
    pair = _dense(value)
    turned = behind(pair[0].args[0]) if pair else None
    if pair is None or turned is None or not _swaps_first(turned) or rewriter.uses[value] > 1:
        return None
    (product, bias), (first, second, *_), shown = pair, extents(turned), extents(source)
    if 0 in extents(turned) or shown[0] != first or shown[1] % second:
        return None
    if math.prod(extents(turned)[2:]) % extents(product.args[0])[1]:
        return None  # its rows have elements of several that are turned
    rows = rewriter.reshaped(turned.inputs[0], extents(product.args[0]))
    made = rewriter.call(product.op, [rows, product.args[1]], product.attrs)
    if bias is not None:
        made = rewriter.make("bias_add", made, bias, axis=1)
    heads = rewriter.reshaped(made, (second, first, shown[1] // second, *shown[2:]))
    axes = (0, 2, 1, *range(3, len(extents(heads))))
    return rewriter.reshaped(rewriter.make("transpose", heads, axes=axes), extents(node))


def _swaps_first(node: Expr) -> bool:
    """Return whether the node is a transpose of its first two axes alone."""
    axes = axes_of(node)
    return axes is not None and axes == (1, 0, *range(2, len(axes)))


def attend_by_tokens(rewriter: Rewriter, node: Call) -> Expr | None:
    """Attention in the layout of the products before it, for one of transposed queries, keys and values."""
    if node.op.name not in ("attention", "attention_bias") or "layout" in node.attrs.to_json():
        return None
    turned = [_by_tokens(rewriter, arg) for arg in node.args[:3]]
    if any(t is None for t in turned):
        return None
    operands = [t for t in turned if t is not None]
    made = rewriter.make(node.op.name, *operands, *node.args[3:], **node.attrs.to_json(), layout="BSHD")
    return rewriter.make("transpose", made, axes=(0, 2, 1, 3))


def _by_tokens(rewriter: Rewriter, node: Expr) -> Expr | None:
    """[batch, sequence, heads, depth] of what a transpose gives as [batch, heads, sequence, depth]."""
    if axes_of(node) is not None:
        found = rewriter.make("transpose", node, axes=(0, 2, 1, 3))
        return found if axes_of(found) is None else None
    source = behind(node)
    if source is None or axes_of(source) != (1, 0, 2) or extents(node) != (1, *extents(source)):
        return None
    _, heads, sequence, depth = extents(node)
    return rewriter.reshaped(source.inputs[0], (1, sequence, heads, depth))


def turn_operand(rewriter: Rewriter, node: Call) -> Expr | None:
    """The attribute of batch_matmul for a transpose of an operand's matrices."""
    if node.op.name != "batch_matmul":
        return None
    args = list(node.args)
    given = node.attrs.to_json()
    turned = [given.get("transpose_a", False), given.get("transpose_b", True)]
    for place, arg in enumerate(args):
        inner = _swapped(rewriter, arg)
        if inner is not None:
            args[place], turned[place] = inner, not turned[place]
    if args == list(node.args):
        return None
    return rewriter.make("batch_matmul", *args, **given | {"transpose_a": turned[0], "transpose_b": turned[1]})


def _swapped(rewriter: Rewriter, node: Expr) -> Expr | None:
    """The same matrices not transposed, where the node transposes them last; its batch may be reshaped."""
    source = behind(node) or node
    axes = axes_of(source)
    if axes is None or not isinstance(source, Call) or extents(source)[-2:] != extents(node)[-2:]:
        return None
    if axes[-2] < axes[-1]:
        return None
    back = (*axes[:-2], axes[-1], axes[-2])
    made = rewriter.make("transpose", source.args[0], axes=back)
    return rewriter.reshaped(made, (extents(node)[0], extents(node)[2], extents(node)[1]))
