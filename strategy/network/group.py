"""The calls of a network that become one kernel."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from strategy.compile import fusion
from strategy.compile.fusion import Group, Operand, fuse, tensor_type_of
from strategy.expr import Call, Constant, Expr, Var
from strategy.network.extent import Extent
from strategy.network.graph import Network, NetworkError
from strategy.network.rewriter import extents
from strategy.network.size import Sizes, extents_at
from strategy.types import TensorType, TupleType, Type, may_equal
from strategy.workload import Workload

PRODUCTS = frozenset({
    "dense", "batch_matmul", "conv2d", "conv2d_transpose", "matmul_nbits", "qdense", "qconv2d",
    "depthwise_separable_conv2d", "grouped_dense",
})
# The epilogues that products of PyTorch models are tuned with (`plevel/torch/epilogue.py`).
_UNARY = frozenset(
    "relu sigmoid tanh gelu clip silu mish hardswish hardsigmoid leaky_relu".split()
)
_BINARY = frozenset({"add", "multiply"})
_TRIED = (0, 1, 2, 3, 5, 8, 13, 22, 37, 62)  # above the least sizes
_TRIED_RESTS = 64  # of the rests that sizes leave in quotients
_RESCALED = frozenset({"requantize", "dequantize"})  # which broadcast their scales alone
# Of sums of integers alone: an error of others would decide between two. The range of what is cast is known, as a
# trial's random sums exceed that of narrow dtypes.
_ROUNDED = {"round": {"dequantize"}, "quantize": {"dequantize"}, "cast": {"dequantize", "clip"}}


def groups(network: Network) -> list[Group]:
    """The kernels of a normal network, in an order in which they can run; reshapes are by themselves."""
    return fuse(network.root, _may_join)


def describe(group: Group, sizes: Sizes | None) -> tuple[Workload, dict[str, Operand]]:
    """As `fusion.describe`: extents that depend on sizes are symbolic, each calculation a dimension of its own."""
    if sizes is None:
        return fusion.describe(group)
    names: dict[Extent, str] = {}

    def show(kind: Type) -> str:
        assert isinstance(kind, TensorType)
        shape = [e if isinstance(e, int) else names.setdefault(e, f"m{len(names)}") for e in sizes.encoded(kind)]
        return str(TensorType(shape, kind.dtype))

    return fusion.describe(group, show)


def require_twin(found: Sequence[Group], sizes: Sizes, others: Sequence[Group], other: Sizes) -> None:
    """Check that a network does the same at two sets of probes of its sizes.

    Raises:
        NetworkError: an attribute or a constant of an operator depends on a size.
    """
    for mine, theirs in zip_longest(_forms(found, sizes), _forms(others, other)):
        if mine is None or theirs is None or not _alike(mine, theirs):
            name = (mine or theirs)[0]
            raise NetworkError(
                f"an attribute or a constant of {name} depends on a symbolic size, and a library has fixed ones: "
                "compile the model with fixed sizes, once for each that matters, or with a multiple of a size where "
                "strides divide it"
            )


def require_types(found: Sequence[Group], sizes: Sizes) -> None:
    """Check that the types of a network whose sizes have quotients fit its operators at some sizes, too.

    An extent between those that are known, such as 2*((n + 1)//2), may have been taken for another one, n + 1.

    Raises:
        NetworkError: they do not.
    """
    if not sizes.has_quotients:
        return
    calls = [call for group in found for call in group.calls]
    sizes = sizes.within(kind for call in calls for kind in _tensors(call.checked_type))
    rests = (max(sizes.periods) * i // _TRIED_RESTS for i in range(_TRIED_RESTS))
    tried = {tuple(min(s.low + n, s.high) for s in sizes.sizes) for n in (*_TRIED, *rests)}
    different = {_signature(call, sizes): call for call in calls}
    for call in different.values():
        if not all(_fits(call, sizes, values) for values in tried):
            shown = ", ".join(str(e) for kind in _tensors(call.checked_type) for e in sizes.encoded(kind))
            raise NetworkError(
                f"plevel cannot tell how the shape of a {call.op.name} depends on the sizes, [{shown}] is wrong: "
                "compile the model with fixed sizes, or with multiples of sizes"
            )


def _signature(call: Call, sizes: Sizes) -> tuple[Any, ...]:
    shapes = [(t.dtype, sizes.encoded(t)) for node in (*call.args, call) for t in _tensors(node.checked_type)]
    return call.op.name, str(call.attrs.to_json()), tuple(shapes)


def _fits(call: Call, sizes: Sizes, values: Sequence[int]) -> bool:
    """Return whether the type of a call is what its operator has at these values of the sizes."""

    def at(kind: Type) -> Type:
        if isinstance(kind, TupleType):
            return TupleType([at(field) for field in kind.fields])
        assert isinstance(kind, TensorType)
        return TensorType(extents_at(sizes.encoded(kind), values), kind.dtype)

    given, made = [at(arg.checked_type) for arg in call.args], at(call.checked_type)
    if call.op.name == "reshape":  # whose attribute is its shape
        return [t.size for t in _tensors(given[0])] == [t.size for t in _tensors(made)]
    try:
        return may_equal(call.op.infer_type(given, call.attrs), made)
    except ValueError:  # the types do not fit each other
        return False


def _tensors(kind: Type) -> Sequence[TensorType]:
    return [t for t in (kind.fields if isinstance(kind, TupleType) else (kind,)) if isinstance(t, TensorType)]


def _forms(found: Sequence[Group], sizes: Sizes) -> list[tuple[Any, ...]]:
    """Of each group: its operator, its workload or shape, where its inputs are from, and its constants."""
    place: dict[Expr, int] = {group.output: i for i, group in enumerate(found)}
    forms = []
    for group in found:
        workload, sources = describe(group, sizes)
        shapes = [sizes.encoded(t) for t in _tensors(group.output.checked_type)]
        # A reshape is a view: its attribute is its shape.
        same = shapes if group.anchor.op.name == "reshape" else (shapes, workload.key)
        given = [sizes.encoded(tensor_type_of(operand)) for operand in sources.values()]
        constants = [node.value for node, _ in sources.values() if isinstance(node, Constant)]
        origins = [(node.name if isinstance(node, Var) else place.get(node), i) for node, i in sources.values()]
        forms.append((group.anchor.op.name, (same, given), origins, constants))
    return forms


def _alike(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    return a[:3] == b[:3] and all(np.array_equal(m, t, equal_nan=True) for m, t in zip(a[3], b[3], strict=True))


def _may_join(group: Group, call: Call) -> bool:
    if group.anchor.op.name not in PRODUCTS:
        return group.anchor.op.name != "reshape"
    is_real = group.output.op.name == "dequantize"
    if call.op.name == "bias_add":
        scaled_by_rows = group.names[-2:] == ("dequantize", "multiply")
        return len(group.calls) == 1 or is_real or scaled_by_rows
    if call.op.name == "multiply" and is_real and (*extents(call)[:-1], 1) in map(extents, call.args):
        return True  # by the scale of each row
    if call.op.name in _BINARY:
        shapes = [extents(arg) for arg in call.args]
        whole, one = extents(call), ()
        # A bias of blocked channels, as `blocking` makes it.
        bias = (1, whole[1], 1, 1, whole[-1]) if len(whole) == 5 and len(group.calls) == 1 else one
        return len(set(call.args)) == 2 and all(s in (whole, one, bias) for s in shapes)
    if needed := _ROUNDED.get(call.op.name):
        return needed.issubset(group.names)
    return call.op.name in _UNARY | _RESCALED
