"""The calls of a network that become one kernel."""

from __future__ import annotations

from strategy.compile.fusion import Group, fuse
from strategy.expr import Call
from strategy.network.graph import Network
from strategy.network.normal import extents

PRODUCTS = frozenset({
    "dense", "batch_matmul", "conv2d", "conv2d_transpose", "matmul_nbits", "qdense", "qconv2d"
})  # fmt: skip
# The epilogues that products of PyTorch models are tuned with (`plevel/torch/epilogue.py`).
_UNARY = frozenset(
    "relu sigmoid tanh gelu clip silu mish hardswish hardsigmoid leaky_relu".split()
)
_BINARY = frozenset({"add", "multiply"})
_RESCALED = frozenset({"requantize", "dequantize"})  # which broadcast their scales alone


def groups(network: Network) -> list[Group]:
    """The kernels of a normal network, in an order in which they can run; reshapes are by themselves."""
    return fuse(network.root, _may_join)


def _may_join(group: Group, call: Call) -> bool:
    if group.anchor.op.name not in PRODUCTS:
        return group.anchor.op.name != "reshape"
    if call.op.name == "bias_add":
        return len(group.calls) == 1
    if call.op.name in _BINARY:
        shapes = [extents(arg) for arg in call.args]
        return len(set(call.args)) == 2 and all(s in (extents(call), ()) for s in shapes)
    return call.op.name in _UNARY | _RESCALED
