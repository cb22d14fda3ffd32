"""Nodes of a frozen ATen graph, as the other files read them."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import optimization_hint

aten = torch.ops.aten
RESHAPES = (aten.reshape.default, aten.view.default, aten._unsafe_view.default)
EXPANDS = aten.expand.default
CONVERT = torch.ops.prims.convert_element_type.default
ATTENTION = aten._scaled_dot_product_flash_attention_for_cpu.default
DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}  # of kernels in a graph
MOST_AXES = 8  # of a kernel's tensors (`runtime.c`)
UNKNOWN = 128  # for a size that depends on values
Extent = int | str  # a symbolic one is the text of its expression


@dataclass(frozen=True)
class Source:
    """Origin of a kernel's input: the value of a node, its axes permuted, then in `shape` if that is given."""

    node: Node
    axes: tuple[int, ...]
    shape: tuple[Extent, ...] | None = None

    @property
    def extents(self) -> tuple[Extent, ...]:
        found = extents(self.node)
        return self.shape or tuple(found[axis] for axis in self.axes)

    @property
    def dtype(self) -> torch.dtype:
        return dtype(self.node)

    def constant(self, module: GraphModule) -> Any:
        """The input as a tensor where the node is a frozen parameter, else None."""
        value = constant(module, self.node)
        if value is None:
            return None
        turned = value.permute(self.axes)
        return turned if self.shape is None else turned.reshape(self.shape)


@dataclass(frozen=True)
class Number:
    """A number of the graph as a kernel's input of one element."""

    value: float
    dtype: torch.dtype
    extents: tuple[Extent, ...] = (1,)

    def constant(self, module: GraphModule) -> Any:
        return torch.full((1,), self.value, dtype=self.dtype, device="cpu")


@dataclass(frozen=True)
class Joined:
    """Frozen parameters one after the other, as one input."""

    parts: tuple[Source, ...]

    @property
    def extents(self) -> tuple[Extent, ...]:
        first = self.parts[0].extents
        return sum(int(p.extents[0]) for p in self.parts), *first[1:]

    @property
    def dtype(self) -> torch.dtype:
        return self.parts[0].dtype

    def constant(self, module: GraphModule) -> Any:
        return torch.cat([p.constant(module) for p in self.parts])


Origin = Source | Number | Joined


def constant(module: GraphModule, node: Any) -> Any:
    """The tensor of a frozen parameter; None where the node is none."""
    if not isinstance(node, Node) or node.op != "get_attr":
        return None
    found: Any = module
    for part in str(node.target).split("."):
        found = getattr(found, part)
    return found.detach()


def is_plain(node: Any) -> bool:
    """Return whether the node's value is a tensor that kernels take: of `DTYPES`, of the host, with elements."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    return (
        isinstance(value, torch.Tensor)
        and value.dtype in DTYPES
        and value.device.type == "cpu"
        and value.layout == torch.strided
        and value.ndim <= MOST_AXES
        and 0 not in extents(node)
    )


def is_alike(node: Any, like: Node) -> bool:
    """Return whether the node's value is plain, and of the dtype of another's."""
    return is_plain(node) and dtype(node) == dtype(like)


def is_of_integers(node: Node) -> bool:
    """Return whether a product is of a weight that PyTorch has quantised (PT2E).

    Inductor finds integers in such products, and plevel does in the whole graph.
    """
    if not is_call(node, aten.mm.default, aten.addmm.default, aten.convolution.default):
        return False
    weight: Any = node.args[2 if node.target == aten.addmm.default else 1]
    while is_call(weight, *RESHAPES, aten.permute.default, aten.clone.default, CONVERT):
        weight = weight.args[0]
    return isinstance(weight, Node) and str(weight.target).startswith("quantized_decomposed.dequantize_")


def dtype(node: Node) -> torch.dtype:
    found: torch.dtype = node.meta["val"].dtype
    return found


def extents(node: Node) -> tuple[Extent, ...]:
    """The shape of a node's value. Comparing symbolic sizes themselves would make guards."""
    return tuple(map(extent_of, node.meta["val"].shape))


def extent_of(size: Any) -> Extent:
    if isinstance(size, int):
        return size
    expression = size.node.expr
    return int(expression) if expression.is_number else str(expression)


def is_static(node: Node) -> bool:
    return all(isinstance(extent, int) for extent in extents(node))


def hint(value: Any) -> Any:
    """A size, or a tensor of no memory, with the sizes of the call that is compiled for.

    A size that depends on values, which no call knows before, is a guess.
    """
    if isinstance(value, torch.SymInt):
        return optimization_hint(value, fallback=UNKNOWN)
    if isinstance(value, torch.Tensor):
        return torch.empty([hint(size) for size in value.shape], device="meta")
    return value


def is_call(node: Any, *targets: Any) -> bool:
    return isinstance(node, Node) and node.op == "call_function" and node.target in targets


def only_user(node: Node, *targets: Any) -> Node | None:
    """The one node that reads this one, where it calls one of `targets`."""
    users = list(node.users)
    return users[0] if len(users) == 1 and is_call(users[0], *targets) else None


def through_reshapes(node: Node) -> Node:
    """The last of the reshapes that alone read the node; itself where there is none."""
    while (user := only_user(node, *RESHAPES)) is not None and is_plain(user):
        node = user
    return node


def through_views(node: Node) -> Node:
    """The node behind reshapes, which has the same elements in memory."""
    while is_call(node, *RESHAPES) and isinstance(node.args[0], Node):
        node = node.args[0]
    return node


def flops(module: GraphModule) -> Iterator[tuple[Node, int]]:
    """The nodes with the values whose floating-point operations PyTorch counts, with that number."""
    from torch.utils.flop_counter import flop_registry

    # Attention of processors is the one that it leaves out.
    known = flop_registry | {
        ATTENTION.overloadpacket: flop_registry[aten._scaled_dot_product_flash_attention]
    }
    for node in module.graph.nodes:
        count = known.get(getattr(node.target, "overloadpacket", None))
        out = node.meta.get("val")
        if count is None or out is None:
            continue
        values = [hint(a.meta["val"] if isinstance(a, Node) else a) for a in node.args]
        out = [hint(o) for o in out] if isinstance(out, tuple) else hint(out)
        made = int(count(*values, **node.kwargs, out_val=out))
        parts = (u for u in node.users if u.target is operator.getitem)
        yield min(parts, key=lambda part: part.args[1], default=node), made


def name_of(node: Node) -> str:
    """The operator that computes a node's value."""
    return str(node.args[0].target if node.target is operator.getitem else node.target)
