"""The reference of operators as Markdown: their inputs, attributes and registered parts.

`make operators` writes it to docs/operator-reference.md.
"""

from __future__ import annotations

from strategy.attrs import REQUIRED
from strategy.op import Op, TOpPattern, all_ops

_PARTS = (("FPrimalGradient", "gradient"), ("FShapeFunc", "shape function"), ("FFlops", "FLOP count"))
# The peer whose name an operator has, and names of attributes; None: its name is its own.
NAMED_AFTER: dict[str, str | None] = {
    **{name: f"Relay's {name}" for name in (
        "abs", "add", "all", "any", "argmax", "argmin", "argsort", "atan", "bitwise_and", "bitwise_or", "bitwise_xor",
        "broadcast_to", "broadcast_to_like", "cast", "ceil", "clip", "collapse_sum_like", "concatenate", "cos",
        "cumprod", "cumsum", "divide", "equal", "erf", "exp", "expand_dims", "floor", "floor_divide", "floor_mod",
        "gather", "gather_nd", "greater", "greater_equal", "isinf", "isnan", "layout_transform", "left_shift", "less",
        "less_equal", "log", "logical_and", "logical_not", "logical_or", "logical_xor", "logsumexp", "max", "maximum",
        "mean", "min", "minimum", "multiply", "negative", "not_equal", "one_hot", "ones_like", "power", "prod",
        "repeat", "reshape", "reshape_like", "reverse", "right_shift", "rsqrt", "scatter_add", "sigmoid",
        "sign", "sin", "split", "sqrt", "squeeze", "stack", "std", "strided_slice", "subtract", "sum", "take", "tanh",
        "tile", "topk", "transpose", "trilu", "unique", "variance", "where", "zeros_like",
    )},
    **{name: f"Relay's nn.{name}" for name in (
        "adaptive_avg_pool2d", "adaptive_max_pool2d", "avg_pool2d", "batch_matmul", "batch_norm", "bias_add", "conv2d",
        "conv2d_transpose", "dense", "depth_to_space", "global_avg_pool2d", "group_norm", "instance_norm", "layer_norm",
        "leaky_relu", "log_softmax", "max_pool2d", "pad", "prelu", "relu", "softmax", "space_to_depth",
    )},
    "conv2d_backward_weight": "Relay's nn.conv2d_backward_weight",
    **{name: f"Relay's image.{name}" for name in ("grid_sample", "resize2d")},
    "all_class_non_max_suppression": "Relay's vision.all_class_non_max_suppression",
    **{name: f"Relay's qnn.{name}" for name in ("dequantize", "quantize", "requantize")},
    "qconv2d": "Relay's qnn.conv2d", "qdense": "Relay's qnn.dense",
    "attention": "ONNX's Attention", "gelu": "ONNX's Gelu",
    "hardsigmoid": "ONNX's HardSigmoid", "hardswish": "ONNX's HardSwish", "mish": "ONNX's Mish",
    "rms_norm": "ONNX's RMSNormalization", "rotary_embedding": "ONNX's RotaryEmbedding", "round": "ONNX's Round",
    "scatter": "ONNX's ScatterElements", "silu": "ONNX's Swish", "softplus": "ONNX's Softplus",
    "matmul_nbits": "ONNX Runtime's MatMulNBits",
    "cummax": "PyTorch's cummax", "grouped_dense": "PyTorch's grouped_mm", "dynamic_slice": "XLA's DynamicSlice",
    **dict.fromkeys((
        "attention_bias", "conv2d_backward_data", "depthwise_separable_conv2d", "dynamic_slice_backward", "geglu",
        "max_pool2d_backward", "softmax_bias", "strided_slice_backward", "swiglu", "take_backward",
    )),
}


def reference() -> str:
    """The whole reference, operators in alphabetical order."""
    head = (
        "# Operators\n\nWritten from the registry by `make operators`; do not edit.\n"
        "[Layouts, narrow types and NaN](semantics.md) has the rules that they share; [Add an operator](operators.md)\n"
        "has the parts of one.\n"
    )
    return "\n".join([head, *(section(op) for op in all_ops().values())])


def section(op: Op) -> str:
    """One operator: description, inputs, attributes with type, default and bounds, and the peer of its name."""
    lines = [f"## {op.name}", "", op.description, "", "| input | | |", "| --- | --- | --- |"]
    lines += [f"| `{a.name}` | {a.kind} | {_cell(a.description)} |" for a in op.arguments]
    fields = op.attrs_type.fields().values()
    if fields:
        lines += ["", "| attribute | type | default | bounds | |", "| --- | --- | --- | --- | --- |"]
        lines += [
            f"| `{f.name}` | {_cell(f'`{f.type_name}`')} | "
            f"{'required' if f.default is REQUIRED else f'`{f.default!r}`'} | {_cell(f.bounds)} | "
            f"{_cell(f.description)} |"
            for f in fields
        ]
    pattern = TOpPattern(op.get_attr("TOpPattern", TOpPattern.kOpaque)).name
    parts = [text for key, text in _PARTS if op.get_attr(key) is not None]
    after = NAMED_AFTER.get(op.name)
    named = "" if after is None else f"Named after {after}. "
    level = f"Support level {op.support_level}, pattern `{pattern}`"
    lines += ["", f"{named}{level}; has: {', '.join(parts) or 'no more'}.", ""]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
