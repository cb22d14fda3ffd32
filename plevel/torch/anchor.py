"""Products, attention, softmax and norms of a frozen ATen graph as calls of plevel's operators."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch.fx import GraphModule, Node

from plevel.torch.node import (
    ATTENTION,
    CONVERT,
    DTYPES,
    EXPANDS,
    Extent,
    Joined,
    Number,
    Origin,
    Source,
    aten,
    constant,
    dtype,
    extents,
    is_alike,
    is_call,
    is_of_integers,
    is_plain,
    is_static,
)
from plevel.torch.rowwise import read_rowwise
from strategy.expr import Call, Constant, Expr, Var, call
from workers.reference import numpy_dtype


@dataclass
class Reader:
    """Inputs of calls, with the nodes of the graph that they stand for."""

    module: GraphModule
    sources: dict[Expr, Origin] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)  # of symbolic extents, in the order of reading

    def read(self, node: Node, axes: tuple[int, ...] | None = None) -> Expr:
        """The node's value, its axes permuted, as an input: a constant where it is a frozen parameter."""
        return self._take(Source(node, axes or tuple(range(len(extents(node))))))

    def read_as(self, node: Node, shape: tuple[Extent, ...]) -> Expr:
        """The node's elements in another shape, as an input."""
        return self._take(Source(node, tuple(range(len(extents(node)))), shape))

    def number(self, value: float, like: Node) -> Expr:
        """A number of the dtype of a node's value."""
        return self._note(Number(value, dtype(like)))

    def join(self, parts: Sequence[Expr]) -> Expr:
        """Constants one after the other, as one."""
        return self._note(Joined(tuple(s for p in parts if isinstance(s := self.sources[p], Source))))

    def _take(self, source: Source) -> Expr:
        if constant(self.module, source.node) is not None:
            return self._note(source)
        extents = ",".join(str(e) if isinstance(e, int) else self._name(e) for e in source.extents)
        return self._note(source, Var(source.node.name, f"{DTYPES[source.dtype]}[{extents}]"))

    def _name(self, extent: str) -> str:
        """The same for equal calculations, whatever the graph calls its sizes."""
        return self.names.setdefault(extent, "mnpqrstuvw"[len(self.names)])

    def _note(self, origin: Origin, made: Expr | None = None) -> Expr:
        # A constant's value is not read here, and takes no memory.
        if made is None:
            zero = np.zeros((), numpy_dtype(DTYPES[origin.dtype]))
            made = Constant(np.broadcast_to(zero, tuple(map(int, origin.extents))))
        self.sources[made] = origin
        return made


def shape_of(node: Node) -> tuple[Extent, ...]:
    """The shape in which a node's product is computed: lines that are convolved are images of one row."""
    return _image(extents(node)) if is_call(node, aten.convolution.default) else extents(node)


def _image(shape: tuple[Extent, ...]) -> tuple[Extent, ...]:
    return (*shape[:2], 1, shape[2]) if len(shape) == 3 else shape


def find_calls(reader: Reader, node: Node) -> tuple[Call, ...] | None:
    """The product that a node computes as calls of plevel's operators: the product itself, and its bias.

    None for other nodes, and for products that plevel has no operator for.
    """
    read = _READERS.get(node.target) if node.op == "call_function" else None
    if read is None or not is_plain(node) or is_of_integers(node):
        return None
    if read is not _attention and not all(isinstance(e, int) for e in extents(node)[1:]):
        return None
    found: tuple[Call, ...] | None = read(reader, node)
    return found


def _mm(reader: Reader, node: Node) -> tuple[Call, ...] | None:
    return _dense(reader, *node.args)


def _addmm(reader: Reader, node: Node) -> tuple[Call, ...] | None:
    bias, data, weight = node.args
    if node.kwargs or not is_alike(bias, node):
        return None
    calls = _dense(reader, data, weight)
    return None if calls is None else _biased(reader, calls, bias, extents(node))


def _dense(reader: Reader, data: Any, weight: Any) -> tuple[Call, ...] | None:
    """The product with a weight that is constant, or stored as dense takes it."""
    if not (is_plain(data) and is_plain(weight)):
        return None
    if constant(reader.module, weight) is not None:
        return (call("dense", reader.read(data), reader.read(weight, (1, 0))),)
    if not is_static(weight):
        return None  # a sum over a symbolic size has no kernel
    turned = _turned(reader, weight, (1, 0))
    return None if turned is None else (call("dense", reader.read(data), turned),)


def _turned(reader: Reader, node: Any, axes: tuple[int, ...]) -> Expr | None:
    """The matrices before a transposition, as an input; None where there is none.

    Autocast converts them behind it.
    """
    node = _same_elements(node)
    behind = node
    while is_call(behind, CONVERT):
        behind = behind.args[0]
    if not is_call(behind, aten.permute.default) or tuple(a % len(axes) for a in behind.args[1]) != axes:
        return None
    return reader.read(_same_elements(node.args[0])) if behind is node else reader.read(node, axes)


def _biased(
    reader: Reader, calls: tuple[Call, ...], bias: Node, shape: tuple[Extent, ...]
) -> tuple[Call, ...] | None:
    if extents(bias) == (shape[1],):
        return (*calls, call("bias_add", calls[-1], reader.read(bias), axis=1))
    if extents(bias) == shape:
        return (*calls, call("add", calls[-1], reader.read(bias)))
    return None


def _bmm(reader: Reader, node: Node) -> tuple[Call, ...] | None:
    operands: list[Expr] = []
    turned: list[bool] = []
    for given in map(_same_elements, node.args):
        if not (is_plain(given) and is_static(given)):
            return None  # of symbolic sizes there is only a plain loop
        found = _turned(reader, given, (0, 2, 1))
        operands.append(reader.read(given) if found is None else found)
        turned.append(found is not None)
    return (call("batch_matmul", *operands, transpose_a=turned[0], transpose_b=turned[1]),)


def _same_elements(node: Any) -> Any:
    """The node behind expansions and conversions that change nothing, as Inductor leaves them."""
    while (
        is_call(node, EXPANDS, CONVERT)
        and is_alike(node.args[0], node)
        and extents(node) == extents(node.args[0])
    ):
        node = node.args[0]
    return node


def _convolution(reader: Reader, node: Node) -> tuple[Call, ...] | None:
    data, weight, bias, strides, padding, dilation, transposed, _, groups = node.args
    if transposed or not (is_plain(data) and is_plain(weight)) or len(extents(weight)) not in (3, 4):
        return None
    lifted = 4 - len(extents(weight))
    found = call(
        "conv2d", *(reader.read_as(v, _image(extents(v))) for v in (data, weight)),
        strides=(1,) * lifted + tuple(strides), padding=((0,) * lifted + tuple(padding)) * 2,
        dilation=(1,) * lifted + tuple(dilation), groups=groups,
    )
    if bias is None:
        return (found,)
    return _biased(reader, (found,), bias, shape_of(node)) if is_plain(bias) else None


def _attention(reader: Reader, node: Node) -> tuple[Call, ...] | None:
    """The first value of PyTorch's attention on processors, where nothing reads the second."""
    of, place = node.args
    if not (place == 0 and is_call(of, ATTENTION) and len(of.users) == 1):
        return None
    query, key, value, *rest = of.args
    dropout, is_causal = rest[0] if rest else 0.0, len(rest) > 1 and rest[1]
    mask = of.kwargs.get("attn_mask")
    given = [_same_elements(n) for n in (query, key, value)] + ([] if mask is None else [_broadcast(mask)])
    if dropout or not all(is_alike(n, node) for n in given) or not isinstance(extents(given[0])[3], int):
        return None
    name = "attention" if mask is None else "attention_bias"
    scale = of.kwargs.get("scale")
    return (call(name, *map(reader.read, given), is_causal=is_causal, scale=scale),)


def _broadcast(node: Any) -> Any:
    """The node behind expansions, of the same number of axes."""
    while is_call(node, EXPANDS) and len(extents(node)) == len(extents(node.args[0])):
        node = node.args[0]
    return node


_READERS: Mapping[Any, Any] = {
    aten.mm.default: _mm,
    aten.addmm.default: _addmm,
    aten.bmm.default: _bmm,
    aten.convolution.default: _convolution,
    operator.getitem: _attention,
    aten.div.Tensor: read_rowwise,
    aten.add.Tensor: read_rowwise,
    aten.mul.Tensor: read_rowwise,
    CONVERT: read_rowwise,
}
