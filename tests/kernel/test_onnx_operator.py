"""ONNX nodes as networks, beside ONNX's own reference, and what they refuse. Little is compiled."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="the onnx extra is not installed")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from plevel.comparison import error_of  # noqa: E402
from plevel.onnx.file import read_model  # noqa: E402
from plevel.onnx.network import import_model  # noqa: E402
from strategy import compile as compiler  # noqa: E402
from strategy.expr import Constant, Tuple, post_order  # noqa: E402
from strategy.network.graph import NetworkError  # noqa: E402
from strategy.network.group import groups  # noqa: E402
from strategy.network.normal import normalize  # noqa: E402
from strategy.ops.non_max_suppression import all_class_non_max_suppression  # noqa: E402
from strategy.ops.unique import unique  # noqa: E402
from strategy.reference import evaluate  # noqa: E402

N = helper.make_node
RANDOM = np.random.default_rng(0)


def normal(*shape: int) -> Any:
    return RANDOM.standard_normal(shape).astype("float32")


def model_of(nodes: list[Any], inputs: dict[str, Any], constants: dict[str, Any], opset: int = 18) -> Any:
    """A model whose output is y; constants that are tensors of ONNX are taken as they are."""
    weights = [
        c if isinstance(c, TensorProto) else numpy_helper.from_array(np.asarray(c), n) for n, c in constants.items()
    ]
    given = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in inputs.items()
    ]
    graph = helper.make_graph(nodes, "small", given, [onnx.ValueInfoProto(name="y")], weights)
    domains = (("", opset), ("com.microsoft", 1))
    inferred = onnx.shape_inference.infer_shapes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid(d, v) for d, v in domains], ir_version=9)
    )
    kind = inferred.graph.output[0].type.tensor_type
    kind.elem_type = kind.elem_type or TensorProto.FLOAT
    kind.shape.SetInParent()  # unknown, where another domain's operator gives it
    return inferred


def import_file(model: Any, path: Path) -> Any:
    (path / "model.onnx").write_bytes(model.SerializeToString())
    return import_model(read_model(path / "model.onnx", {})[0])[0]


PRELU = [N("PRelu", ["x", "s"], ["y"])]
X = {"x": normal(4)}
IMAGE = {"x": normal(1, 4, 5, 6)}
BEHIND = [N("Reshape", ["x", "h"], ["a"]), N("PRelu", ["a", "s"], ["y"])]
POW = [N("Pow", ["x", "e"], ["y"])]
BYTES = {"x": RANDOM.integers(0, 256, (1, 4, 5, 6), dtype="uint8")}
WINDOWS = {"w": RANDOM.integers(-128, 128, (4, 2, 3, 3), dtype="int8"), "z": np.uint8(131), "v": np.int8([0])}
ROWS = {"x": RANDOM.integers(0, 256, (2, 3, 5), dtype="uint8")}
MATRIX = {"w": RANDOM.integers(-128, 128, (5, 7), dtype="int8"), "z": np.uint8(131), "v": np.int8(-3)}
STEPS = {"s": np.float32(0.02), "t": np.float32(0.9), "q": np.uint8(120)}
SLICE = [N("Slice", ["x", "b", "e"], ["y"])]
TINY = np.float16([168, 504]) * np.float16(2**-24)  # once and thrice the 1e-5 of 16 bits
CHANNELS = {"a": np.float32([0.1, 0.2, 0.3, 2]), "b": np.int32([9, 99, -999, 0])}


def graph_of(nodes: list[Any], inputs: dict[str, Any], outputs: dict[str, Any]) -> Any:
    """A graph within a node; its values have the shapes of arrays."""
    given, made = (
        [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in of.items()]
        for of in (inputs, outputs)
    )
    return helper.make_graph(nodes, "inner", given, made)


ROW, STEP, GOES = np.zeros(4, "float32"), np.int64(0), np.bool_(True)
SIDES = {
    "then_branch": graph_of([N("Exp", ["x"], ["a"])], {}, {"a": ROW}),
    "else_branch": graph_of([N("Neg", ["c"], ["d"]), N("Add", ["x", "d"], ["b"])], {}, {"b": ROW}),
}
# The values of x times 2, 4, 6; beside their sum.
BODY = graph_of(
    [
        N("Add", ["h", "x"], ["v"]), N("Cast", ["i"], ["j"], to=1), N("Mul", ["v", "j"], ["o"]),
        N("Less", ["i", "last"], ["more"]),
    ], {"i": STEP, "going": GOES, "h": ROW}, {"more": GOES, "v": ROW, "o": ROW},
)
EACH = graph_of(
    [N("Mul", ["h", "e"], ["m"]), N("Add", ["m", "f"], ["v"]), N("Neg", ["v"], ["o"])],
    {"h": ROW, "e": ROW, "f": ROW}, {"v": ROW, "o": ROW},
)


def nested_loops(depth: int) -> Any:
    """The body of a loop of `n` steps that has another one within, and so on; the last one has no nodes."""
    inner = [] if depth == 0 else [N("Loop", ["n", "", f"h{depth}"], [f"v{depth}"], body=nested_loops(depth - 1))]
    given = {f"i{depth}": STEP, f"c{depth}": GOES, f"h{depth}": ROW}
    return graph_of(inner, given, {f"c{depth}": GOES, f"{'v' if depth else 'h'}{depth}": ROW})


COMPUTED: dict[str, tuple[list[Any], dict[str, Any], dict[str, Any], *tuple[int, ...]]] = {
    "prelu of the last axis": (PRELU, {"x": normal(2, 4, 4)}, {"s": normal(4)}),
    "prelu of the last axis, rank 2": (PRELU, {"x": normal(2, 4, 4)}, {"s": normal(1, 4)}),
    "prelu of channels": (PRELU, {"x": normal(2, 4, 4)}, {"s": normal(4, 1)}),
    "prelu of rows": (PRELU, {"x": normal(3, 4)}, {"s": normal(4)}),
    "prelu of one slope": (PRELU, {"x": normal(2, 4, 4)}, {"s": normal(1)}),
    "prelu behind a reshape": (BEHIND, {"x": normal(2, 4, 4)}, {"h": [8, 4], "s": normal(4)}),
    "prelu of channels behind a reshape": (BEHIND, {"x": normal(16, 4)}, {"h": [4, 4, 4], "s": normal(4, 1)}),
    "a factor twice": (
        [N("Sigmoid", ["x"], ["a"]), N("Mul", ["x", "a"], ["b"]), N("Mul", ["x", "b"], ["y"])], {"x": normal(3, 4)}, {}
    ),
    "a power of a higher rank": (POW, {"x": normal(3)}, {"e": np.float32([[2]])}),
    "a root of a higher rank": (POW, {"x": abs(normal(3))}, {"e": np.float32([[0.5]])}),
    "a power of an integer": (POW, {"x": normal(3)}, {"e": np.int64(-1)}),
    "a product of vectors": ([N("MatMul", ["x", "z"], ["y"])], {"x": normal(4), "z": normal(4)}, {}),
    "a product of large integers": (
        [N("MatMul", ["x", "c"], ["y"])], {"x": np.int64([[2**40, 3], [-5, 2**62]])}, {"c": np.int64([[3, 1], [-1, 4]])}
    ),
    "a layer of integers": (
        [N("Gemm", ["x", "c", "d"], ["y"], transB=1)], {"x": np.int32([[1, -2, 3]])},
        {"c": np.int32([[4, 5, 6], [7, 8, 9]]), "d": np.int32([10, 20])},
    ),
    "an input unchanged": ([N("Identity", ["x"], ["y"])], {"x": normal(4)}, {}),
    "a pad of constants": (
        [N("Pad", ["c", "p"], ["a"]), N("Add", ["x", "a"], ["y"])], {"x": normal(4)}, {"c": normal(2), "p": [1, 1]}
    ),
    "pads": (
        [
            N("Pad", ["x", "p", "v", "o"], ["a"]), N("Pad", ["x", "r"], ["b"], mode="reflect"),
            N("Pad", ["x", "r"], ["c"], mode="edge"), N("Add", ["b", "c"], ["d"]),
            N("Concat", ["a", "d"], ["y"], axis=0),
        ], {"x": normal(3, 4)}, {"p": [1, 0], "v": np.float32(2.5), "o": [0], "r": [1, 0, 1, 0]},
    ),
    "elements at coordinates": (
        [N("GatherND", ["x", "i"], ["a"]), N("GatherND", ["x", "j"], ["b"], batch_dims=1), N("Add", ["a", "b"], ["y"])],
        {"x": normal(2, 3, 4)}, {"i": [[0, 2], [-1, -3]], "j": [[1], [-1]]},
    ),
    "elements that are written": (
        [
            N("ScatterElements", ["x", "i", "u"], ["a"], axis=1), N("ScatterND", ["a", "j", "u"], ["b"]),
            N("ScatterElements", ["b", "i", "u"], ["c"], axis=-1, reduction="add"),
            N("ScatterElements", ["c", "i", "u"], ["d"], axis=-1, reduction="max"),
            N("ScatterND", ["d", "k", "w"], ["y"], reduction="add"),
        ], {"x": normal(3, 4), "u": normal(2, 4)},
        {"i": [[1, -1, 0, 2], [0, 1, 2, 3]], "j": [[2], [-3]], "k": [[0, 1], [0, -3], [2, 3]], "w": normal(3)},
    ),
    "pads of axes in another order": (
        [N("Pad", ["x", "p", "", "o"], ["y"])], {"x": normal(3, 4)}, {"p": [1, 2, 0, 1], "o": [-1, 0]}
    ),
    "a one-hot of constants": (
        [N("OneHot", ["i", "d", "v"], ["a"]), N("Add", ["x", "a"], ["y"])], {"x": normal(2, 4)},
        {"i": [1, 3], "d": 4, "v": np.float32([0, 1])},
    ),
    "a range of constants": (
        [N("Range", ["b", "e", "d"], ["a"]), N("Add", ["x", "a"], ["y"])], {"x": normal(4)},
        {"b": np.float32(0), "e": np.float32(2), "d": np.float32(0.5)},
    ),
    "a transposed convolution": (
        [N("ConvTranspose", ["x", "w", "b"], ["y"], strides=[2, 3], pads=[1, 0, 0, 2], output_padding=[1, 0])],
        IMAGE, {"w": normal(4, 3, 3, 3), "b": normal(3)},
    ),
    "an image at another size": (
        [N("Resize", ["x", "", "", "z"], ["y"], mode="linear", axes=[2, 3])], IMAGE, {"z": [7, 4]}
    ),
    "an image by cubic interpolation": (
        [N("Resize", ["x", "", "s"], ["y"], mode="cubic", coordinate_transformation_mode="align_corners")], IMAGE,
        {"s": np.float32([1, 1, 2, 3])},
    ),
    "an image by the nearest pixels": (
        [N("Resize", ["x", "", "", "z"], ["y"], nearest_mode="ceil", coordinate_transformation_mode="asymmetric")],
        IMAGE, {"z": [1, 4, 8, 9]},
    ),
    "an image at half the height": (
        [N("Resize", ["x", "", "", "z"], ["y"], mode="linear", coordinate_transformation_mode="half_pixel_symmetric")],
        IMAGE, {"z": [1, 4, 2, 9]},
    ),
    "an image of one row": (
        [N("Resize", ["x", "", "", "z"], ["y"], mode="linear", coordinate_transformation_mode="pytorch_half_pixel")],
        IMAGE, {"z": [1, 4, 1, 9]},
    ),
    **{
        f"an image at places of a grid, {mode} {padding}": (
            [N("GridSample", ["x", "g"], ["y"], mode=mode, padding_mode=padding, align_corners=align)],
            {**IMAGE, "g": normal(1, 3, 5, 2)}, {}, 20,
        )
        for mode, padding, align in (("linear", "reflection", 0), ("nearest", "border", 1), ("cubic", "zeros", 1))
    },
    **{
        f"regions of images, {attrs}": (
            [N("RoiAlign", ["x", "r", "b"], ["y"], output_height=4, output_width=3, **attrs)],
            {"x": normal(2, 3, 8, 9), "b": np.int64([0, 1, 1, 0]), "r": np.float32(
                [[0, 0, 9, 9], [-3, -2, 4, 5.5], [2, 3, 2.2, 3.1], [7, 1, 30, 4]]
            )}, {},
        )
        for attrs in (
            {"sampling_ratio": 2, "spatial_scale": 0.5},
            {"sampling_ratio": 3, "coordinate_transformation_mode": "output_half_pixel"},
        )
    },
    **{
        f"windows whose elements are moved, {attrs}": (
            [N("DeformConv", ["x", "w", "o", *more], ["y"], **attrs)],
            {"x": normal(2, 4, 5, 6), "o": normal(2, groups * 8, 4, 5), "m": normal(2, groups * 4, 4, 5)},
            {"w": normal(6, 4 // attrs.get("group", 1), 2, 2), "b": normal(6)}, 19,
        )
        for groups, more, attrs in (
            (1, [], {}), (2, ["b", "m"], {"offset_group": 2, "group": 2}),
            (1, ["", "m"], {"pads": [1, 0, 0, 1], "dilations": [2, 2]}),
        )
    },
    "bits of integers of the same width": ([N("BitCast", ["x"], ["y"], to=TensorProto.INT8)], BYTES, {}, 26),
    "a volume at places of a grid": (
        [N("GridSample", ["x", "g"], ["y"], padding_mode="reflection")],
        {"x": normal(2, 1, 3, 4, 5), "g": normal(2, 2, 3, 5, 3)}, {}, 20,
    ),
    **{
        f"a tensor of {len(size)} dimensions resized, {mode}": (
            [N("Resize", ["x", "", "", "z"], ["y"], mode=mode, axes=[*range(2, 2 + len(size))])],
            {"x": normal(1, 2, *(5, 3, 4)[: len(size)])}, {"z": size},
        )
        for mode, size in (("linear", [8]), ("nearest", [3]), ("linear", [7, 5, 6]), ("cubic", [4]))
    },
    "an image upsampled": ([N("Upsample", ["x", "s"], ["y"])], IMAGE, {"s": np.float32([1, 1, 2, 2])}, 9),
    "depth to space": ([N("DepthToSpace", ["x"], ["y"], blocksize=2, mode="CRD")], IMAGE, {}),
    "space to depth": ([N("SpaceToDepth", ["x"], ["y"], blocksize=2)], {"x": normal(1, 3, 4, 6)}, {}),
    "a pool that ends beyond the image": (
        [N("MaxPool", ["x"], ["y"], kernel_shape=[2, 3], strides=[2, 2], ceil_mode=1)], IMAGE, {}
    ),
    "an image in integers": (
        [N("QuantizeLinear", ["x", "s", "z"], ["y"])], IMAGE,
        {"s": np.float32([0.1, 0.02, 3, 0.1]), "z": np.int8([0, 3, -9, 1])},
    ),
    "an image of integers": (
        [N("DequantizeLinear", ["x", "s", "z"], ["y"])], BYTES, {"s": np.float32(0.1), "z": np.uint8(7)}, 19
    ),
    "products of diagonals": (
        [N("Einsum", ["x", "w"], ["y"], equation="...ii,jij->...ji")], {"x": normal(2, 3, 3)}, {"w": normal(4, 3, 4)}
    ),
    "integers of 16 bits": (
        [N("QuantizeLinear", ["x", "s", "z"], ["i"]), N("DequantizeLinear", ["i", "s", "z"], ["y"])], IMAGE,
        {"s": np.float32([0.1, 0.02, 3, 0.1]), "z": np.uint16([0, 3, 40_000, 1])}, 21,
    ),
    "blocks of integers": (
        [
            N("QuantizeLinear", ["x", "s", "z"], ["i"], axis=2, block_size=2), N("Abs", ["i"], ["j"]),
            N("DequantizeLinear", ["j", "s", "z"], ["y"], axis=2, block_size=2),
        ], IMAGE, {"s": abs(normal(1, 4, 3, 6)) + 0.1, "z": np.full((1, 4, 3, 6), 3, "int8")}, 21,
    ),
    "integers whose scale is data": (
        [N("Mul", ["s", "two"], ["t"]), N("DequantizeLinear", ["x", "t", "z"], ["y"])], {**BYTES, "s": np.float32(0.1)},
        {"two": np.float32(2), "z": np.uint8(7)}, 19,
    ),
    "a convolution of integers": (
        [N("ConvInteger", ["x", "w", "z", "v"], ["y"], group=2, pads=[1, 0, 1, 2], strides=[1, 2])], BYTES, WINDOWS
    ),
    "a convolution of integers of a line": (
        [N("ConvInteger", ["x", "w", "z", "v"], ["y"], group=2, pads=[1, 2], strides=[2], dilations=[2])],
        {"x": BYTES["x"][..., 0]}, {**WINDOWS, "w": WINDOWS["w"][..., 0], "v": np.int8(0)},
    ),
    "a convolution of integers, requantized": (
        [N("QLinearConv", ["x", "s", "z", "w", "a", "v", "t", "q", "b"], ["y"], group=2, auto_pad="SAME_UPPER")],
        BYTES, {**WINDOWS, **STEPS, **CHANNELS},
    ),
    "a product of integers": ([N("MatMulInteger", ["x", "w", "z", "v"], ["y"])], ROWS, MATRIX),
    "a product of integers, requantized": (
        [N("QLinearMatMul", ["x", "s", "z", "w", "t", "v", "t", "q"], ["y"])], ROWS, {**MATRIX, **STEPS}
    ),
    "products of matrices of integers": (
        [N("MatMulInteger", ["x", "w", "z", "v"], ["y"])], ROWS, {**MATRIX, "w": np.stack([MATRIX["w"], -MATRIX["w"]])}
    ),
    "products of matrices of integers, requantized": (
        [N("QLinearMatMul", ["x", "s", "z", "w", "t", "v", "t", "q"], ["y"])], {"x": ROWS["x"][0]},
        {**MATRIX, **STEPS, "w": np.stack([MATRIX["w"], MATRIX["w"][::-1]])},
    ),
    "bounds of integers": (
        [N("Clip", ["i", "a", "b"], ["c"]), N("Sub", ["c", "n"], ["y"])], {"i": np.int64([0, 2**60, 2**62])},
        {"a": 2**60 - 1, "b": 2**60 + 1, "n": 2**60},
    ),
    "bounds out of order": (
        [N("Clip", ["x", "a", "b"], ["y"])], {"x": normal(4)}, {"a": np.float32(3), "b": np.float32(1)}
    ),
    "a remainder of unsigned integers": (
        [N("Mod", ["x", "n"], ["y"], fmod=1)], {"x": np.uint8([7, 200, 3])}, {"n": np.uint8([4, 3, 5])}
    ),
    "activations of operator set 17": (
        [N("Elu", ["x"], ["a"], alpha=0.5), N("Selu", ["a"], ["b"]), N("Softsign", ["b"], ["c"]),
         N("ThresholdedRelu", ["c"], ["y"], alpha=-0.25)], {"x": normal(3, 8)}, {}, 17
    ),
    "a bound that is computed": (
        [N("Clip", ["x", "a", "b"], ["y"])], {"x": normal(4), "a": np.float32(-0.25)}, {"b": np.float32(0.5)}
    ),
    "places among what differs": (
        [N("Unique", ["x"], ["a", "b", "y"])], {"x": RANDOM.integers(0, 5, (4, 6)).astype("float32")}, {}
    ),
    "a quotient by no power of two": (
        [N("Div", ["x", "d"], ["a"]), N("Floor", ["a"], ["y"])], {"x": np.float32([41, 82, 123])},
        {"d": np.float32(41)},
    ),
    "a quotient by a small number of 16 bits": (
        [N("Div", ["x", "d"], ["y"])], {"x": TINY}, {"d": np.float16(1e-5)}
    ),
    "the gelu of a higher rank": (
        [
            N("Div", ["x", "r"], ["a"]), N("Erf", ["a"], ["b"]), N("Add", ["b", "o"], ["c"]),
            N("Mul", ["x", "c"], ["d"]), N("Mul", ["d", "h"], ["y"]),
        ],
        {"x": normal(4)}, {"r": np.float32(2**0.5), "o": np.float32(1), "h": np.float32([[0.5]])},
    ),
    "a slice to far behind the end": (SLICE, {"x": normal(8)}, {"b": [0], "e": [1_000_000]}),
    "a slice of the last elements": (SLICE, {"x": normal(8)}, {"b": [-3], "e": [1_000_000]}),
    "unnamed parts": ([N("Split", ["x"], ["", "y", ""], num_outputs=3)], {"x": normal(8)}, {}),
    "fewer names than parts": ([N("Split", ["x"], ["a", "y"], num_outputs=3)], {"x": normal(8)}, {}),
    "unnamed parts of version 13": ([N("Split", ["x"], ["", "y"])], {"x": normal(8)}, {}, 13),
    "an unnamed output of constants": (
        [N("Unique", ["c"], ["a", "", "i", "n"]), N("Gather", ["n", "i"], ["g"]), N("Mul", ["x", "g"], ["y"])],
        {"x": np.int64([1, 2, 3])}, {"c": np.float32([4, 3, 4])},
    ),
    "integers of a named kind": (
        [N("QuantizeLinear", ["x", "s"], ["y"], output_dtype=TensorProto.INT8)], {"x": normal(8)},
        {"s": np.float32(0.1)}, 21,
    ),
    "numbers of 16 bits as integers": (
        [N("QuantizeLinear", ["x", "s", "z"], ["y"])], {"x": IMAGE["x"].astype("float16")},
        {"s": np.float16(0.125), "z": np.int8(7)}, 19,
    ),
    "numbers of 16 bits as integers, with a scale that is data": (
        [N("Mul", ["s", "two"], ["t"]), N("QuantizeLinear", ["x", "t", "z"], ["y"])],
        {"x": IMAGE["x"].astype("float16"), "s": np.float16(0.125)}, {"two": np.float16(2), "z": np.uint8(7)}, 19,
    ),
    "weights of 4 bits": (
        [N("DequantizeLinear", ["w", "s", "z"], ["d"], axis=0, block_size=2), N("MatMul", ["x", "d"], ["y"])],
        {"x": normal(3, 4)},
        {
            "w": np.arange(-8, 8).reshape(4, 4).astype(ml_dtypes.int4), "s": abs(normal(2, 4)),
            "z": np.arange(-4, 4).reshape(2, 4).astype(ml_dtypes.int4),
        }, 21,
    ),
    "integers in steps of others": (
        [N("QuantizeLinear", ["x", "s", "z"], ["y"])], {"x": BYTES["x"].astype("int32") * 4 - 500},
        {"s": np.float32(8), "z": np.int8(3)}, 13,
    ),
    "integers as numbers of 16 bits": (
        [N("DequantizeLinear", ["x", "s", "z"], ["y"])], BYTES, {"s": np.float16(0.125), "z": np.uint8(7)}, 19
    ),
    "a sum without axes": ([N("ReduceSum", ["x"], ["y"])], {"x": normal()}, {}),
    "the largest": ([N("TopK", ["x", "k"], ["v", "i"], axis=0), N("Sub", ["v", "v"], ["a"]), N(
        "Cast", ["i"], ["j"], to=1), N("Sub", ["v", "j"], ["y"])], {"x": normal(5, 3)}, {"k": [2]}),
    "the smallest places": ([N("TopK", ["x", "k"], ["v", "y"], largest=0)], {"x": normal(5, 3)}, {"k": [2]}),
    "sums of what is behind": (
        [N("CumSum", ["x", "a"], ["y"], exclusive=1, reverse=1)], {"x": normal(3, 4)}, {"a": np.int64(-1)}
    ),
    "elements by row": (
        [N("GatherElements", ["x", "i"], ["y"], axis=1)], {"x": normal(2, 4)}, {"i": [[0, -1, 2], [3, 0, -4]]}
    ),
    "a triangle": ([N("Trilu", ["x", "k"], ["y"], upper=0)], {"x": normal(3, 4)}, {"k": np.int64(-1)}),
    "tiles": ([N("Tile", ["x", "k"], ["y"])], {"x": normal(3, 4)}, {"k": [2, 3]}),
    "remainders": ([N("Mod", ["x", "k"], ["y"])], {"x": np.arange(-5, 5)}, {"k": [3, -3] * 5}),
    "remainders of floats": (
        [N("Mod", ["x", "k"], ["y"], fmod=1)], {"x": normal(4) * 9}, {"k": np.float32([3, -2] * 2)}
    ),
    "the infinity below": (
        [N("IsInf", ["x"], ["y"], detect_positive=0)], {"x": np.float32([np.inf, -np.inf, np.nan, 1])}, {}
    ),
    "places of the last of the largest": (
        [N("ArgMax", ["x"], ["y"], axis=-1, select_last_index=1)], {"x": np.float32([[1, 3, 3, 2], [0, 0, 0, -1]])}, {}
    ),
    "what is small as 0": ([N("Shrink", ["x"], ["y"], lambd=0.4, bias=0.3)], {"x": normal(9)}, {}, 9),
    **{
        f"{name} of small and large numbers": (
            [N(name, ["x"], ["y"])], {"x": np.float32([-88, -2, -0.9, -1e-3, 0, 1e-6, 0.5, 1, 3, 89])}, {}
        )
        for name in ("Sinh", "Cosh", "Asinh", "Atan")
    },
    **{
        f"{name} of its range": ([N(name, ["x"], ["y"])], {"x": np.float32([-end, -0.9, -1e-3, 0, 1e-6, 0.5, end])}, {})
        for name, end in (("Tan", 1), ("Asin", 1), ("Acos", 1), ("Atanh", 0.9999))
    },
    "areas of a hyperbola": ([N("Acosh", ["x"], ["y"])], {"x": np.float32([1, 1 + 1e-6, 2, 1e4, 1e25])}, {}),
    **{
        f"bits by {name}": (
            [N(name, ["x", "z"], ["a"]), N("BitwiseNot", ["a"], ["y"])],
            {"x": np.int32([[-1, 2, 2**31 - 1]]), "z": np.int32([[5], [-9]])}, {},
        )
        for name in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")
    },
    **{
        f"bits of {a.dtype} that go {way}": (
            [N("BitShift", ["x", "z"], ["a"], direction=way), N("BitwiseNot", ["a"], ["y"])], {"x": a, "z": b}, {}
        )
        for way in ("LEFT", "RIGHT")
        for a, b in ((np.uint8([255, 1, 9]), np.uint8([1, 9, 8])), (np.uint64([2**63, 7, 7]), np.uint64([1, 2, 64])))
    },
    **{
        f"a shrink of {a.dtype}": ([N("Shrink", ["x"], ["y"], lambd=1.5, bias=0.5)], {"x": a}, {})
        for a in (np.int8([-5, -2, -1, 0, 2]), np.uint8([0, 1, 2, 3, 255]))
    },
    "a dropout's mask": (
        [N("Dropout", ["x"], ["a", "m"]), N("Cast", ["m"], ["b"], to=1), N("Add", ["a", "b"], ["y"])], X, {}
    ),
    "places of the smallest": ([N("ArgMin", ["x"], ["y"], axis=1)], {"x": normal(3, 4)}, {}),
    "the product of rows": ([N("ReduceProd", ["x", "k"], ["y"])], {"x": normal(3, 4)}, {"k": [1]}),
    "the largest pixel": ([N("GlobalMaxPool", ["x"], ["y"])], IMAGE, {}),
    "one hot": (
        [N("OneHot", ["x", "d", "v"], ["y"], axis=1)], {"x": np.int64([[0, -1], [2, 7]])},
        {"d": np.int64(3), "v": np.float32([-1, 5])},
    ),
    **{
        f"einsum {equation}": ([N("Einsum", list(given), ["y"], equation=equation)], given, {})
        for equation, given in {
            "bqhd,bkhd->bhqk": {"q": normal(2, 3, 2, 4), "k": normal(2, 5, 2, 4)},
            "bi, ij, bj -> b": {"a": normal(2, 3), "w": normal(3, 4), "c": normal(2, 4)},
            "ij,j": {"a": normal(2, 3), "c": normal(3)}, "ij->j": {"a": normal(2, 3)}, "i,j->ji": {
                "a": normal(2), "c": normal(3)},
            "...ij->...ji": {"a": normal(2, 3, 4)}, "...d,d": {"a": normal(2, 3, 4), "c": normal(4)},
            "b...k,...kn->...bn": {"a": normal(2, 1, 3, 4), "c": normal(5, 3, 4, 6)},
        }.items()
    },
    **{
        f"{name} of rank {len(size)}{''.join(map(str, attrs.values()))}": (
            [N(name, ["x"], ["y"], kernel_shape=size, **attrs)], {"x": normal(2, 3, *(7, 6, 5)[: len(size)])}, {}
        )
        for name, size, attrs in (
            ("MaxPool", [3], {"strides": [2], "pads": [1, 0]}), ("AveragePool", [2], {}),
            ("AveragePool", [3], {"pads": [1, 1], "count_include_pad": 1}),
            ("MaxPool", [3, 2, 2], {"strides": [2, 1, 3], "pads": [1, 0, 1, 1, 1, 0]}),
            ("AveragePool", [3, 2, 1], {"strides": [1, 2, 2], "pads": [1, 1, 0, 0, 1, 0]}),
        )
    },
    "quotients of integers": (
        [N("Div", ["x", "d"], ["y"])], {"x": np.int64([[7, -7, 8, 0], [-9, 1, -1, 5]])}, {"d": np.int64([2, 2, -3, 4])}
    ),
    "quotients of the least integer": (
        [N("Div", ["x", "d"], ["y"])], {"x": np.int8([-128, -128, -128, 5])}, {"d": np.int8([3, 2, 1, -128])}
    ),
    "a quotient of bytes": ([N("Div", ["x", "d"], ["y"])], BYTES, {"d": np.uint8(7)}),
    **{
        name: ([N(name, ["x"], ["y"], axes=[1], keepdims=0)], {"x": normal(2, 3, 4)}, {}, 17)
        for name in ("ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSumExp")
    },
    **{
        f"{name} of no axes": (
            [N(name, ["x"], ["y"], noop_with_empty_axes=1)], {"x": abs(normal(2, 3)) * sign + sign}, {}
        )
        for name, sign in (("ReduceL1", -1), ("ReduceL2", -1), ("ReduceSumSquare", -1), ("ReduceLogSum", 1))
    },
    "the norm of one number": ([N("ReduceL2", ["x"], ["y"])], {"x": np.float32(-3)}, {}, 17),
    "the logarithm of a sum": ([N("ReduceLogSum", ["x"], ["y"])], {"x": abs(normal(2, 3)) + 1}, {}),
    "a mean of tensors": ([N("Mean", ["x", "a", "x"], ["y"])], X, {"a": normal(1)}),
    "columns by their norms": ([N("LpNormalization", ["x"], ["y"], axis=0)], {"x": normal(3, 4)}, {}),
    **{
        f"a recurrent layer, {name}": (
            [N(kind, ["x", "w", "r", *more], outputs.split(), hidden_size=5, **attrs)],
            {"x": normal(3, 2, 4)},
            {
                "w": normal(d, gates * 5, 4), "r": normal(d, gates * 5, 5), "b": normal(d, 2 * gates * 5),
                "h": normal(d, 2, 5), "c": normal(d, 2, 5), "p": normal(d, 15),
            },
        )
        for name, kind, gates, d, more, outputs, attrs in (
            ("LSTM", "LSTM", 4, 1, ["b", "", "h", "c"], "y", {}),
            ("LSTM of no state before", "LSTM", 4, 1, [], "a q y", {}),
            ("LSTM both ways", "LSTM", 4, 2, ["b", "", "h"], "a y", {"direction": "bidirectional"}),
            ("GRU", "GRU", 3, 1, ["b", "", "h"], "y", {}),
            ("GRU, its product first", "GRU", 3, 1, ["b", "", "h"], "a y", {"linear_before_reset": 1}),
            ("RNN", "RNN", 1, 1, ["b"], "y", {}),
            ("RNN from the end", "RNN", 1, 1, ["b", "", "h"], "y", {"direction": "reverse"}),
            ("LSTM that sees its cell", "LSTM", 4, 1, ["b", "", "h", "c", "p"], "y", {}),
        )
    },
    "an operator by its parts": ([N("Elu", ["x"], ["a"], alpha=2.0), N("Selu", ["a"], ["y"])], X, {}),
    "parts of parts": ([N("ReduceL2", ["x", "k"], ["y"], keepdims=0)], {"x": normal(3, 4)}, {"k": [1]}),
    "groups normed by parts": (
        [N("GroupNormalization", ["x", "s", "t"], ["y"], num_groups=2)], IMAGE, {"s": normal(4), "t": normal(4)}, 21
    ),
    "a branch of data": (
        [N("ReduceSum", ["x"], ["s"], keepdims=0), N("Less", ["s", "z"], ["l"]), N("If", ["l"], ["y"], **SIDES)],
        X, {"z": np.float32(0), "c": normal(4)},
    ),
    "the other branch of data": (
        [N("ReduceSum", ["x"], ["s"]), N("Less", ["z", "s"], ["l"]), N("If", ["l"], ["y"], **SIDES)],
        X, {"z": np.float32(0), "c": normal(4)}, 17,
    ),
    "a branch of a constant": ([N("If", ["l"], ["y"], **SIDES)], X, {"l": False, "c": normal(4)}),
    "a loop": (
        [N("Loop", ["n", "g", "x"], ["s", "p"], body=BODY), N("Add", ["s", "p"], ["y"])], X,
        {"n": 5, "last": 2, "g": True},
    ),
    "a loop that only its condition ends": (
        [N("Loop", ["n", "g", "x"], ["s", "p"], body=BODY), N("Add", ["s", "p"], ["y"])], X,
        {"n": 2**63 - 1, "last": 2, "g": True},
    ),
    "the branch of a constant beside one that has no kernel": (
        [N("If", ["l"], ["y"], then_branch=graph_of([N("Det", ["x"], ["d"])], {}, {"d": ROW}), else_branch=SIDES[
            "else_branch"
        ])], X, {"l": False, "c": normal(4)},
    ),
    "a loop of no steps": (
        [N("Loop", ["", "g", "x"], ["s"], body=graph_of([*BODY.node], {"i": STEP, "going": GOES, "h": ROW}, {
            "more": GOES, "v": ROW}
        )), N("Neg", ["s"], ["y"])], X, {"g": False, "last": 2},
    ),
    "steps": (
        [N("Scan", ["c", "x", "w"], ["s", "p"], body=EACH, num_scan_inputs=2), N("Add", ["s", "p"], ["y"])],
        {"x": normal(3, 4)}, {"c": normal(4), "w": normal(3, 4)},
    ),
    **{
        f"1 at the largest of axis {axis}": (
            [N("Hardmax", ["x"], ["y"], axis=axis)], {"x": np.float32([[[1, 3, 3], [0, -1, -2]]])}, {}
        )
        for axis in (2, 0)
    },
    **{
        f"the places of the largest elements, {attrs}": (
            [N("MaxPool", ["x"], ["m", "i"], kernel_shape=[3, 2], **attrs), N("Cast", ["i"], ["y"], to=1)],
            {"x": normal(2, 3, 6, 5).round(1)}, {},
        )
        for attrs in ({"strides": [2, 1], "pads": [1, 0, 2, 1]}, {"ceil_mode": 1, "strides": [2, 2]})
    },
    "the largest elements put back": (
        [
            N("MaxPool", ["x"], ["m", "i"], kernel_shape=[2, 3], strides=[2, 3]),
            N("MaxUnpool", ["m", "i"], ["y"], kernel_shape=[2, 3], strides=[2, 3]),
        ], {"x": normal(2, 3, 4, 6)}, {},
    ),
    **{
        f"a root of sums of powers of {p}, {rank} dimensions": (
            [N("LpPool", ["x"], ["y"], kernel_shape=[3] * rank, strides=[2] * rank, p=p, pads=[1, 0] * rank)],
            {"x": normal(1, 2, *(8, 6, 7)[:rank])}, {},
        )
        for p, rank in ((1, 1), (2, 2), (3, 3))
    },
    **{
        f"a transposed convolution of {attrs}": (
            [N("ConvTranspose", ["x", "w"], ["y"], strides=[2, 3], **attrs)], IMAGE, {"w": normal(4, 3, 3, 3)}
        )
        for attrs in (
            {"auto_pad": "SAME_UPPER"}, {"auto_pad": "SAME_LOWER"},
            {"output_shape": [10, 18], "auto_pad": "SAME_UPPER"},
        )
    },
    "columns as an image": (
        [N("Col2Im", ["x", "s", "k"], ["y"], strides=[2, 1], dilations=[1, 2], pads=[1, 0, 0, 1])],
        {"x": normal(1, 12, 6)}, {"s": [5, 5], "k": [2, 3]},
    ),
    "an identity above the diagonal": ([N("EyeLike", ["x"], ["y"], k=1)], {"x": normal(3, 5)}, {}),
    "an identity of integers": ([N("EyeLike", ["x"], ["y"], k=-1, dtype=TensorProto.INT32)], {"x": normal(3, 3)}, {}),
    **{
        f"a norm's {what}": (
            [N("LayerNormalization", ["x", "s"], outputs, axis=1, epsilon=0.1)], {"x": normal(2, 3, 4)},
            {"s": normal(3, 4)},
        )
        for what, outputs in (("mean", ["a", "y"]), ("deviation", ["a", "", "y"]))
    },
    **{
        f"elements that are written by {how}": (
            [
                N("ScatterElements", ["x", "i", "u"], ["a"], axis=1, reduction=how),
                N("ScatterND", ["a", "j", "v"], ["y"], reduction=how),
            ],
            {"x": RANDOM.integers(-9, 9, (3, 4)), "u": RANDOM.integers(-9, 9, (2, 4))},
            {"i": [[1, -1, 1, 2], [0, 1, 2, 3]], "j": [[2], [-1]], "v": RANDOM.integers(-9, 9, (2, 4))},
        )
        for how in ("mul", "max", "min")
    },
    **{
        f"bools that are written by {how}": (
            [N("ScatterElements", ["x", "i", "u"], ["y"], reduction=how)],
            {"x": np.bool_([True, False, True]), "u": np.bool_([False, True, True])}, {"i": [0, 1, 1]},
        )
        for how in ("mul", "max", "min")
    },
    "a power of floats by integers": (POW, {"x": normal(4), "e": np.int64([2, 3, 0, 1])}, {}),
    "a power of integers by floats": (POW, {"x": np.int32([2, -3, 4]), "e": np.float32([3, 3, 0.5])}, {}),
    "a square of integers": (POW, {"x": np.int32([2, -3, 4])}, {"e": np.float32([[2]])}),
    "a root of integers": (POW, {"x": np.int32([2, 9, 4])}, {"e": np.float32(0.5)}),
    "all of bools": ([N("ReduceMin", ["x", "a"], ["y"])], {"x": normal(3, 4) > -1}, {"a": [1]}, 20),
    "any of bools": ([N("ReduceMax", ["x", "a"], ["y"])], {"x": normal(3, 4) > 1}, {"a": [1]}, 20),
    "a pad of what is at the other end": (
        [N("Pad", ["x", "p"], ["y"], mode="wrap")], {"x": normal(3, 4)}, {"p": [1, 0, 2, 3]}, 19
    ),
    **{
        f"sequences backwards along axis {time}": (
            [N("ReverseSequence", ["x", "l"], ["y"], time_axis=time, batch_axis=1 - time)],
            {"x": normal(4, 4, 2), "l": np.int64([1, 4, 3, 2])}, {},
        )
        for time in (0, 1)
    },
    **{
        f"a cache with new rows, {mode}": (
            [N("TensorScatter", ["x", "u", "b"], ["y"], mode=mode)],
            {"x": normal(2, 3, 4, 5), "u": normal(2, 3, 2, 5), "b": np.int64([0, 2 + (mode == "circular")])}, {}, 24,
        )
        for mode in ("linear", "circular")
    },
    **{
        f"a Fourier transform of {shape}, {attrs}": (
            [N("DFT", ["x", "n"], ["y"], **attrs)], {"x": normal(*shape)}, {"n": n}, 19
        )
        for shape, n, attrs in (
            ((2, 5, 1), 5, {"axis": 1, "onesided": 1}), ((2, 6, 2), 4, {"axis": 1}),
            ((2, 5, 2), 8, {"axis": 1, "inverse": 1}),
            ((3, 4, 2, 1), 3, {"axis": 0}), ((2, 6, 1), 6, {"axis": 1, "onesided": 1}),
        )
    },
    **{
        f"the inverse of one side of {n}": (
            [N("DFT", ["x", "n"], ["y"], axis=1, inverse=1, onesided=1)],
            {"x": np.stack([(f := np.fft.rfft(normal(2, n))).real, f.imag], -1).astype("float32")}, {"n": n}, 19,
        )
        for n in (5, 6)
    },
    "frames' Fourier transforms": (
        [N("STFT", ["x", "s", "w"], ["y"])], {"x": normal(2, 20, 1)}, {"s": 3, "w": abs(normal(8))}
    ),
    "frames' Fourier transforms of both sides": (
        [N("STFT", ["x", "s", "", "n"], ["y"], onesided=0)], {"x": normal(1, 12, 2)}, {"s": 4, "n": 5}
    ),
    "attention with a cache and no mask": (
        [N("Attention", ["x", "x", "x", "", "p", "p"], ["y"], is_causal=1)],
        {"x": normal(1, 2, 3, 4), "p": normal(1, 2, 2, 4)}, {}, 24,
    ),
    **{
        f"{size} by {mode}{' without what is outside' if out else ''}{', smoothed' if anti else ''}, {policy}": (
            [N(
                "Resize", ["x", "", "", "z"], ["y"], mode=mode, exclude_outside=out, antialias=anti,
                keep_aspect_ratio_policy=policy, axes=[2, 3],
            )],
            IMAGE, {"z": size},
        )
        for mode, out, anti, size, policy in (
            ("linear", 0, 1, [3, 2], "stretch"), ("cubic", 0, 1, [5, 3], "stretch"), ("cubic", 1, 0, [7, 9], "stretch"),
            ("linear", 0, 0, [7, 9], "not_larger"), ("nearest", 0, 0, [7, 9], "not_smaller"),
        )
    },
    "a resize by scales that are no ratio": (
        [N("Resize", ["x", "", "s"], ["y"], mode="linear", coordinate_transformation_mode="half_pixel_symmetric")],
        IMAGE, {"s": np.float32([1, 1, 0.7, 1.3])},
    ),
    "a resize of channels": ([N("Resize", ["x", "", "", "z"], ["y"], mode="linear")], IMAGE, {"z": [1, 7, 5, 6]}),
    "a crop": (
        [N(
            "Resize", ["x", "r", "", "z"], ["y"], mode="linear", coordinate_transformation_mode="tf_crop_and_resize",
            axes=[3, 2], extrapolation_value=9.0,
        )], IMAGE, {"r": np.float32([0.1, -0.2, 0.8, 0.9]), "z": [5, 4]},
    ),
    "bytes of a range of data": ([N("DynamicQuantizeLinear", ["x"], ["y", "s", "z"])], {"x": normal(3, 4)}, {}),
    "the scale of a range of data": ([N("DynamicQuantizeLinear", ["x"], ["b", "y", "z"])], {"x": normal(3, 4)}, {}),
    "a product of integers whose zero points are of rows and columns": (
        [N("MatMulInteger", ["x", "w", "z", "v"], ["y"])], {"x": ROWS["x"][0], "z": np.uint8([[3], [200], [131]])},
        {"w": MATRIX["w"], "v": np.int8([5, -9, 0, 1, 2, 3, 4])},
    ),
    "a product of integers around a zero point of data": (
        [N("MatMulInteger", ["x", "w", "z", "v"], ["y"])], {**ROWS, "z": np.uint8(131)},
        {"w": MATRIX["w"], "v": np.int8(-3)},
    ),
    "a convolution of integers around a zero point of data": (
        [N("ConvInteger", ["x", "w", "z", "v"], ["y"], group=2, pads=[1, 0, 1, 2], strides=[1, 2])],
        {**BYTES, "z": np.uint8(131)}, {"w": WINDOWS["w"], "v": WINDOWS["v"]},
    ),
    "dropout of no training": (
        [N("Dropout", ["x", "r", "t"], ["y"])], {"x": normal(4)}, {"r": np.float32(0.5), "t": False}
    ),
    "sequences of parts": (
        [
            N("SplitToSequence", ["x", "three"], ["s"]), N("ConcatFromSequence", ["s"], ["a"], axis=0),
            N("SplitToSequence", ["x"], ["t"], axis=1, keepdims=0), N("SequenceAt", ["t", "last"], ["l"]),
            N("SequenceInsert", ["t", "l", "one"], ["u"]), N("SequenceErase", ["u", "last"], ["v"]),
            N("ConcatFromSequence", ["v"], ["b"], axis=-1, new_axis=1), N("SequenceLength", ["s"], ["n"]),
            N("Cast", ["n"], ["m"], to=1), N("Add", ["a", "b"], ["c"]), N("Mul", ["c", "m"], ["y"]),
        ], {"x": normal(4, 4)}, {"three": np.int64(3), "last": np.int64(-1), "one": np.int64(1)},
    ),
    "a sequence of constants": (
        [
            N("SequenceConstruct", ["c", "d"], ["s"]), N("SequenceAt", ["s", "one"], ["a"]),
            N("SequenceEmpty", [], ["e"]), N("SequenceInsert", ["e", "x"], ["f"]),
            N("SequenceInsert", ["f", "a"], ["g"]), N("ConcatFromSequence", ["g"], ["y"], axis=0),
        ], {"x": normal(3)}, {"c": normal(2), "d": normal(4), "one": np.int64(1)},
    ),
}


@pytest.mark.parametrize("name", COMPUTED)
def test_a_model_computes_what_onnx_does(name: str, tmp_path: Path) -> None:
    from onnx.reference import ReferenceEvaluator

    nodes, inputs, constants, *opset = COMPUTED[name]
    model = model_of(nodes, inputs, constants, *opset)
    network = import_file(model, tmp_path)
    (expected,) = ReferenceEvaluator(model).run(None, inputs)
    for form in (network, normalize(network)):
        (found,) = evaluate(form.root, inputs)
        assert np.shape(found) == np.shape(expected)
        assert form.outputs["y"].tensor_type.dtype == expected.dtype
        assert error_of(found, expected) < 1e-6


FEW = normal(3, 2, 4)
AS_DATA: dict[str, tuple[Any, dict[str, Any], int]] = {
    "a softmax of several axes": (N("Softmax", ["x"], ["y"], axis=1), {}, 12),
    "a norm of a batch": (
        N("BatchNormalization", ["x", "s", "s", "s", "v"], ["y"]), {"s": normal(2), "v": np.float32([2, 3])}, 12
    ),
    "the largest of a row": (N("GlobalMaxPool", ["x"], ["y"]), {}, 17),
    "a part backwards": (
        N("Slice", ["x", "s", "e", "o", "p"], ["y"]), {"s": [-5], "e": [-9], "o": [2], "p": [-1]}, 17
    ),
    "a recurrent layer": (
        N("GRU", ["x", "w", "r", "", "", "h"], ["y"], hidden_size=2, direction="reverse"),
        {"w": normal(1, 6, 4), "r": normal(1, 6, 2), "h": normal(1, 2, 2)}, 17,
    ),
}


@pytest.mark.parametrize("name", AS_DATA)
def test_constants_are_computed_as_data_are(name: str, tmp_path: Path) -> None:
    """ONNX's own reference, which computes most of them, is wrong for these."""
    node, constants, opset = AS_DATA[name]
    found = []
    for data in (True, False):
        given, weights = ({"x": FEW}, constants) if data else ({}, constants | {"x": FEW})
        network = normalize(import_file(model_of([node], given, weights, opset), tmp_path))
        assert data or isinstance(network.outputs["y"], Constant)
        found.append(evaluate(network.root, given)[0])
    assert np.shape(found[0]) == np.shape(found[1])
    assert error_of(*found) < 1e-6


def test_what_onnx_s_reference_lacks_is_computed(tmp_path: Path) -> None:
    x = IMAGE["x"]
    near = [x[:, max(0, c - 1) : c + 2] for c in range(4)]
    response = x / (2 + 0.1 * np.stack([(part**2).sum(1) for part in near], 1)) ** 0.75
    lrn = N("LRN", ["x"], ["y"], size=3, alpha=0.3, bias=2.0)
    by_sums = N("LpNormalization", ["x"], ["y"], p=1, axis=1)
    of_zeros = [N("Mul", ["x", "z"], ["a"]), N("LpNormalization", ["a"], ["y"])]
    table, few = normal(1, 4, 5, 6), np.int64([[[[5, 0, -1]]]])
    less = [N("GatherElements", ["t", "i"], ["a"], axis=3), N("Add", ["x", "a"], ["y"])]
    for nodes, constants, expected in (
        ([lrn], {}, response), ([by_sums], {}, x / abs(x).sum(1, keepdims=True)),
        (of_zeros, {"z": np.float32(0)}, 0 * x),
        (less, {"t": table, "i": few}, x[..., :3] + table[:, :1, :1, [5, 0, -1]]),
    ):
        given = {"x": x[..., : expected.shape[-1]]}
        network = import_file(model_of(nodes, given, constants), tmp_path)
        assert error_of(evaluate(network.root, given)[0], expected) < 1e-6


_ACTIVATIONS = [
    "Relu", "Sigmoid", "Softsign", "HardSigmoid", "LeakyRelu", "ThresholdedRelu", "Elu", "ScaledTanh", "Affine",
]


def _recurrent(random: Any, i: int) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """A layer with attributes and lengths of its sequences as the number says."""
    kind, gates, parts = (("LSTM", 4, 3), ("GRU", 3, 2), ("RNN", 1, 1))[i % 3]
    attrs: dict[str, Any] = {"hidden_size": 2, "direction": ("forward", "reverse", "bidirectional")[i // 3 % 3]}
    d = 1 + (attrs["direction"] == "bidirectional")
    names = ["x", "w", "r", "b", "l" if i % 2 else "", "h", *(["c", "p"][: 2 - i % 2] if kind == "LSTM" else [])]
    attrs |= {"clip": 0.7} if i % 5 == 0 else {"linear_before_reset": 1} if kind == "GRU" else {}
    if i % 4 == 3:
        attrs["activations"] = random.choice(_ACTIVATIONS, parts * d).tolist()
        attrs |= {f"activation_{n}": random.uniform(0.2, 0.9, 1 + i // 4 % 7).tolist() for n in ("alpha", "beta")}
    shapes = {"w": (d, gates * 2, 4), "r": (d, gates * 2, 2), "b": (d, gates * 4), "h": (d, 3, 2), "c": (d, 3, 2)}
    shapes["p"] = (d, 6)
    constants = {n: normal(*shape) for n, shape in shapes.items() if n in names}
    lengths = {"l": random.integers(1, 6, 3).astype("int32")} if i % 2 else {}
    return N(kind, names, ["y"], **attrs), {"x": normal(5, 3, 4)} | lengths, constants


def _resized(random: Any, i: int) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    mode = ("linear", "cubic", "nearest")[i % 3]
    # Of the nearest, half_pixel_symmetric has places at halves, where the last bit decides.
    modes = "half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric"
    modes = modes[:4] * 2 if mode == "nearest" else modes
    attrs = {"mode": mode, "coordinate_transformation_mode": modes[i // 3 % 5], "axes": [2, 3]}
    attrs |= {"nearest_mode": str(random.choice(["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]))}
    attrs |= {} if mode == "nearest" else {"antialias": i // 15 % 2}
    attrs |= {"exclude_outside": i // 30 % 2} if mode == "cubic" else {}
    given = {"x": normal(1, 2, *random.integers(3, 9, 2))}
    if i % 2:
        attrs["keep_aspect_ratio_policy"] = str(random.choice(["stretch", "not_larger", "not_smaller"]))
        return N("Resize", ["x", "", "", "z"], ["y"], **attrs), given, {"z": random.integers(2, 13, 2)}
    return N("Resize", ["x", "", "s"], ["y"], **attrs), given, {"s": random.uniform(0.4, 2.2, 2).astype("float32")}


def _transposed(random: Any, i: int) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    rank = 1 + i % 3
    size, strides, dilations = ([int(n) for n in random.integers(1, m, rank)] for m in (4, 4, 3))
    given = {"x": normal(1, 2, *random.integers(3, 6, rank))}
    attrs: dict[str, Any] = {"strides": strides, "dilations": dilations}
    if i % 2:
        attrs["auto_pad"] = ("SAME_UPPER", "SAME_LOWER")[i // 2 % 2]
    if i % 4 < 3:
        whole = zip(given["x"].shape[2:], size, strides, dilations, strict=True)
        attrs["output_shape"] = [int((n - 1) * s + (k - 1) * d + 1 - random.integers(-1, 3)) for n, k, s, d in whole]
    return N("ConvTranspose", ["x", "w"], ["y"], **attrs), given, {"w": normal(2, 3, *size)}


def test_activations_take_the_numbers_that_are_given_in_turn(tmp_path: Path) -> None:
    """ONNX's own reference leaves the numbers of activations out."""
    names = ["ThresholdedRelu", "Sigmoid", "ScaledTanh", "Affine", "Elu", "HardSigmoid"]
    alpha, beta = [0.3, 0.7, 1.5, 0.4], [0.6, 0.25]  # of the first four that take one, and the first two
    about = {"direction": "bidirectional", "activations": names, "activation_alpha": alpha, "activation_beta": beta}
    weights = {"w": normal(2, 4, 3), "r": normal(2, 4, 1)}
    given = {"x": normal(1, 5, 3)}
    model = model_of([N("LSTM", ["x", "w", "r"], ["y"], hidden_size=1, **about)], given, weights)
    network = import_file(model, tmp_path)
    expected = np.zeros((1, 2, 5, 1))
    for d, (gate, inner, outer) in enumerate((
        (lambda v: np.where(v > 0.3, v, 0), lambda v: 1 / (1 + np.exp(-v)), lambda v: 0.7 * np.tanh(0.6 * v)),
        (lambda v: 1.5 * v + 0.25, lambda v: np.where(v < 0, 0.4 * np.expm1(v), v),
         lambda v: np.clip(0.2 * v + 0.5, 0, 1)),
    )):
        let_in, let_out, _, new = (given["x"][0] @ w for w in weights["w"][d][:, :, None])
        expected[0, d] = gate(let_out) * outer(gate(let_in) * inner(new))
    assert error_of(evaluate(network.root, given)[0], expected) < 1e-5


@pytest.mark.parametrize("make", [_recurrent, _resized, _transposed])
def test_attributes_are_those_of_onnx_runtime(make: Any) -> None:
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    runtime.set_default_logger_severity(4)
    random, compared, refused = np.random.default_rng(0), 0, []
    for i in range(90):
        node, given, constants = make(random, i)
        model = model_of([node], given, constants, 19)
        try:
            session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
            (expected,) = session.run(None, given)
            network = import_model(model)[0]
        except NetworkError as error:
            refused.append(str(error))
            continue
        except Exception:  # of any type: attributes that do not fit
            continue
        assert error_of(evaluate(network.root, given)[0], expected) < 1e-4, node
        compared += 1
    assert all("than ONNX says" in said for said in refused)  # they differ
    assert compared > 60


@pytest.mark.parametrize(("dtype", "most"), [("float32", 2e-6), ("float64", 1e-12)])
def test_hyperbolic_functions_are_precise_near_zero_and_near_the_largest_numbers(dtype: str, most: float) -> None:
    x = np.asarray([-3e38, -1.5, -1e-7, 0, 1e-20, 1e-40, 0.3, 1, 4, 1e17, 1e19, 3e38], dtype)
    for name, exact, given in (
        ("Asinh", np.arcsinh, x), ("Acosh", np.arccosh, x[-5:]), ("Sinh", np.sinh, x[abs(x) < 5])
    ):
        model = model_of([N(name, ["x"], ["y"])], {"x": given}, {})
        (found,) = np.asarray(compiler.compile(import_model(model)[0].root, "cpu")(given)).reshape(1, -1)
        np.testing.assert_allclose(found, exact(given.astype(float)), rtol=most, err_msg=name)


def test_frames_of_a_signal_without_parts_are_transformed() -> None:
    """A signal as PyTorch's older exporter writes it, and ONNX Runtime reads it."""
    constants = {"s": np.int64(2), "n": np.int64(4)}
    node, x = N("STFT", ["x", "s", "", "n"], ["y"]), normal(2, 8)
    network = import_model(model_of([node], {"x": x}, constants))[0]
    exact = np.fft.rfft(np.lib.stride_tricks.sliding_window_view(x, 4, 1)[:, ::2])
    assert error_of(evaluate(network.root, {"x": x})[0], np.stack([exact.real, exact.imag], -1)) < 1e-6


def test_axes_of_older_versions_are_taken_together() -> None:
    """ONNX's own reference takes one axis alone."""
    x = np.float32([[[1, 3, 3], [0, -1, -2]]])
    (found,) = evaluate(import_model(model_of([N("Hardmax", ["x"], ["y"])], {"x": x}, {}, 11))[0].root, {"x": x})
    assert found.tolist() == [[[0, 1, 0], [0, 0, 0]]]


def test_methods_of_sampling_have_other_names_in_version_16(tmp_path: Path) -> None:
    given, found = {**IMAGE, "g": normal(1, 3, 5, 2)}, []
    for mode, opset in (("bilinear", 16), ("linear", 20), ("bicubic", 16), ("cubic", 20)):
        node = N("GridSample", ["x", "g"], ["y"], mode=mode)
        found += evaluate(import_file(model_of([node], given, {}, opset), tmp_path).root, given)
    np.testing.assert_array_equal(found[::2], found[1::2])
    assert not np.array_equal(found[0], found[2])


def test_a_root_of_sums_has_zeros_where_it_ends_beyond_the_image(tmp_path: Path) -> None:
    """The count is ONNX Runtime's: ONNX's own reference takes less of them for the whole window."""
    given, found = {"x": normal(1, 2, 6, 7)}, []
    for attrs in ({"ceil_mode": 1, "pads": [1, 1, 1, 1]}, {"pads": [1, 1, 2, 1]}):
        node = N("LpPool", ["x"], ["y"], kernel_shape=[3, 3], strides=[2, 2], **attrs)
        found.append(evaluate(import_file(model_of([node], given, {}), tmp_path).root, given))
    np.testing.assert_array_equal(*found)


def test_places_may_count_columns_first(tmp_path: Path) -> None:
    x = np.arange(24.0, dtype="float32").reshape(1, 2, 3, 4)
    nodes = [N("MaxPool", ["x"], ["m", "y"], kernel_shape=[2, 3], storage_order=1)]
    (found,) = evaluate(import_file(model_of(nodes, {"x": x}, {}), tmp_path).root, {"x": x})
    assert found.tolist() == [[[[7, 10], [8, 11]], [[19, 22], [20, 23]]]]


def test_space_goes_to_channels_in_either_order(tmp_path: Path) -> None:
    """Of version 28, which ONNX's own reference may lack."""
    x = normal(1, 3, 4, 6)
    model = model_of([N("SpaceToDepth", ["x"], ["y"], blocksize=2)], {"x": x}, {})
    model.graph.node[0].attribute.append(helper.make_attribute("mode", "CRD"))
    (found,) = evaluate(import_model(model)[0].root, {"x": x})
    expected = x.reshape(1, 3, 2, 2, 3, 2).transpose(0, 1, 3, 5, 2, 4).reshape(1, 12, 2, 3)
    np.testing.assert_array_equal(found, expected)


def test_steps_go_backwards_and_along_other_axes(tmp_path: Path) -> None:
    """As in ONNX Runtime: ONNX's own reference does not take directions."""
    x, start, more = normal(4, 3), normal(4), normal(3, 4)
    node = N(
        "Scan", ["c", "x", "w"], ["s", "y"], body=EACH, num_scan_inputs=2, scan_input_directions=[1, 0],
        scan_input_axes=[1, 0], scan_output_axes=[1], scan_output_directions=[1],
    )
    model = model_of([node], {"x": x}, {"c": start, "w": more})
    state, made = start, []
    for i in range(3):
        state = state * x[:, 2 - i] + more[i]
        made.append(-state)
    (found,) = evaluate(import_file(model, tmp_path).root, {"x": x})
    assert error_of(found, np.stack(made[::-1], 1)) < 1e-6


def test_a_weight_of_a_step_is_one_constant() -> None:
    body = graph_of([N("Add", ["h", "w"], ["v"])], {"i": STEP, "going": GOES, "h": ROW}, {"going": GOES, "v": ROW})
    body.initializer.append(onnx.numpy_helper.from_array(normal(4), "w"))
    model = model_of([N("Loop", ["n", "", "x"], ["y"], body=body)], X, {"n": 3})
    (found,) = import_model(model)[0].outputs.values()
    assert sum(isinstance(node, Constant) for node in post_order(found)) == 1


def test_what_graphs_within_a_node_that_is_left_out_read_is_computed(tmp_path: Path) -> None:
    nodes = [
        N("Neg", ["x"], ["n"]), N("ReduceMax", ["x"], ["r"], keepdims=0), N("Cast", ["r"], ["l"], to=TensorProto.BOOL),
        N("If", ["l"], ["y"], then_branch=graph_of([N("Bernoulli", ["n"], ["d"])], {}, {"d": ROW}), else_branch=BRANCH),
    ]
    model = model_of(nodes, X, {})
    network, left = import_model(model, inferred=model)
    assert [unknown.node.op_type for unknown in left] == ["If"]
    assert {"n", "l"} <= network.outputs.keys()


def test_a_function_of_the_model_is_read(tmp_path: Path) -> None:
    model = model_of([N("Identity", ["x"], ["y"])], X, {})
    model.opset_import.append(helper.make_opsetid("own", 1))
    body = helper.make_function("own", "Twice", ["a"], ["b"], [N("Add", ["a", "a"], ["b"])], model.opset_import[:1])
    model.functions.append(body)
    model.graph.node[0].CopyFrom(N("Twice", ["x"], ["y"], domain="own"))
    (found,) = evaluate(import_file(model, tmp_path).root, X)
    np.testing.assert_array_equal(found, X["x"] * 2)


def test_a_slice_backwards_from_before_the_beginning_has_the_first_element(tmp_path: Path) -> None:
    """As the standard says: ONNX's own reference takes it for a slice of NumPy's, which has none."""
    constants = {"b": [-100], "e": [-1000], "a": [0], "t": [-1]}
    model = model_of([N("Slice", ["x", *constants], ["y"])], X, constants)
    (found,) = evaluate(import_file(model, tmp_path).root, X)
    assert found.tolist() == X["x"][:1].tolist()
    assert [d.dim_value for d in model.graph.output[0].type.tensor_type.shape.dim] == [1]


def test_sums_of_integers_are_rescaled_in_their_kernel(tmp_path: Path) -> None:
    for name, product in (("convolution", "qconv2d"), ("product", "qdense")):
        nodes, inputs, constants, *_ = COMPUTED[f"a {name} of integers, requantized"]
        network = normalize(import_file(model_of(nodes, inputs, constants), tmp_path))
        assert [g.anchor.op.name for g in groups(network) if g.anchor.op.name != "reshape"] == [product]


def run_onnx(node: Any, inputs: dict[str, Any]) -> list[Any]:
    """The outputs of a node by ONNX's own reference."""
    from onnx.reference import ReferenceEvaluator

    kinds = ((n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in inputs.items())
    given = [helper.make_tensor_value_info(*k) for k in kinds]
    graph = helper.make_graph([node], "small", given, [onnx.ValueInfoProto(name=n) for n in node.output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    return list(ReferenceEvaluator(model).run(None, inputs))


@pytest.mark.parametrize("center", [0, 1])
@pytest.mark.parametrize(("most", "overlap", "bound"), [(5, 0.5, 0.2), (100, 0.05, -2.0), (3, 0.0, 2.0)])
def test_boxes_are_chosen_as_onnx_does(center: int, most: int, overlap: float, bound: float) -> None:
    boxes, scores = np.abs(normal(2, 40, 4)), normal(2, 3, 40)
    names = {"b": boxes, "s": scores, "m": np.int64([most]), "o": np.float32([overlap]), "t": np.float32([bound])}
    node = N("NonMaxSuppression", [*names], ["y"], center_point_box=center)
    (expected,) = run_onnx(node, names)
    chosen = all_class_non_max_suppression(Constant(boxes), Constant(scores), most, overlap, bound, bool(center))
    rows, count = evaluate(Tuple(chosen), {})
    assert rows.shape == (2 * 3 * min(most, 40), 3)
    assert rows[: count[0]].tolist() == expected.tolist()
    assert (rows[count[0] :] == -1).all()


def test_elements_that_differ_are_those_of_onnx() -> None:
    data = RANDOM.integers(-9, 9, 30).astype("float32")
    expected = run_onnx(N("Unique", ["x"], ["y", "i", "v", "c"]), {"x": data})
    values, indices, inverse, number, counts = evaluate(Tuple(unique(Constant(data), True, "int64")), {})
    for found, wanted in zip((values, indices, counts), (*expected[:2], expected[3]), strict=True):
        assert found[: number[0]].tolist() == wanted.tolist()
        assert (found[number[0] :] == (-1 if found is indices else 0)).all()
    assert inverse.tolist() == expected[2].tolist()


NEAREST = N("Resize", ["x", "s"], ["y"], mode="nearest")
PIXELS: dict[str, tuple[Any, list[float], int, list[int]]] = {
    "fewer of version 10": (NEAREST, [1, 1, 1, 0.6], 10, [0, 2, 4, 5, 7, 9]),
    "fewer of version 10, and more rows": (NEAREST, [1, 1, 2, 0.4], 10, [0, 3, 5, 8] * 2),
    "fewer by a scale that is no ratio": (NEAREST, [1, 1, 1, 0.55], 10, [0, 2, 4, 6, 8]),
    "a scale below 0.7 in float64": (NEAREST, [1, 1, 1, 0.7], 10, [0, 2, 3, 5, 6, 8, 9]),
    "a scale below 1.3 in float64": (
        N("Upsample", ["x", "s"], ["y"]), [1, 1, 1, 1.3], 9, [0, 0, 1, 2, 3, 3, 4, 5, 6, 6, 7, 8, 9]
    ),
    "scales as an attribute": (
        N("Upsample", ["x"], ["y"], scales=[1.0, 1.0, 2.0, 1.0]), [], 7, [*range(10), *range(10)]
    ),
}


@pytest.mark.parametrize("name", PIXELS)
def test_older_versions_take_the_pixels_of_onnx_runtime(name: str, tmp_path: Path) -> None:
    """ONNX's own reference rounds otherwise: ONNX Runtime rounds up where an axis shrinks."""
    node, scales, opset, pixels = PIXELS[name]
    inputs = {"x": np.arange(10, dtype="float32").reshape(1, 1, 1, 10)}
    network = import_file(model_of([node], inputs, {"s": np.float32(scales)} if scales else {}, opset), tmp_path)
    (found,) = evaluate(network.root, inputs)
    assert found.ravel().tolist() == pixels


@pytest.mark.sample(2)
@pytest.mark.parametrize(("bits", "level", "signed", "dtype"), [
    (4, 0, True, "float32"), (4, 4, False, "float32"), (8, 4, False, "float32"), (4, 0, False, "float16"),
    (8, 0, False, "float16"),
])
def test_a_product_with_few_bits(bits: int, level: int, signed: bool, dtype: str, tmp_path: Path) -> None:
    k, n, size = 1000, 16, 32
    point = 8 if signed else 14 if bits == 4 else 220  # far from the usual one
    numbers = np.clip(np.rint(RANDOM.normal(point, 2, (n, 32, size))), 0, 2**bits - 1).astype("uint8")
    points = np.full((n, 32), point, "uint8")
    scales = (1 + RANDOM.random((n, 32))).astype(dtype) / 50

    def packed(of: Any) -> Any:
        return of if bits == 8 else of[..., ::2] | of[..., 1::2] << 4

    names = ["x", "w", "s", *([] if signed else ["z"])]
    attrs = {"K": k, "N": n, "block_size": size, "accuracy_level": level, "bits": bits}
    if bits == 4:
        del attrs["bits"]  # the default
    node = N("MatMulNBits", names, ["y"], domain="com.microsoft", **attrs)
    constants = {"w": packed(numbers), "s": scales, "z": packed(points)}
    given = {"x": (normal(2, 1, k) + 2).astype(dtype)}
    model = model_of([node], given, {name: constants[name] for name in names[1:]})
    network = import_file(model, tmp_path)
    weight = ((numbers.astype(float) - point) * scales.astype(float)[..., None]).reshape(n, -1)[:, :k]
    exact = given["x"].astype(float) @ weight.T
    if dtype == "float16":
        found = compiler.compile(network.root, "cpu")(given["x"])
    else:
        (found,) = evaluate(network.root, given)
    assert error_of(np.asarray(found, float).reshape(exact.shape), exact) < (2e-2 if level else 2e-3)


ADD = N("Add", ["x", "a"], ["y"])
BRANCH = helper.make_graph(
    [N("Constant", [], ["b"], value=numpy_helper.from_array(normal(4)))], "branch", [],
    [helper.make_tensor_value_info("b", TensorProto.FLOAT, [4])],
)
SHORT = TensorProto(name="a", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
SHORT.external_data.add(key="location", value="short")
UNKNOWN = graph_of([N("Det", ["x"], ["d"])], {}, {"d": ROW})
REFUSED: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "of axes \\[5\\] do not fit": ([N("Pad", ["x", "p", "", "o"], ["y"])], {"p": [1, 1], "o": [5]}),
    "pads \\[1\\] of axes": ([N("Pad", ["x", "p"], ["y"])], {"p": [1]}),
    "2 coordinates for 1 axes": (
        [N("ScatterND", ["x", "i", "u"], ["y"])], {"i": [[0, 1]], "u": np.float32([1])}
    ),
    "windows that leave gaps": (
        [
            N("Reshape", ["x", "h"], ["a"]),
            N("MaxPool", ["a"], ["y"], auto_pad="SAME_UPPER", kernel_shape=[1], strides=[4]),
        ],
        {"h": [1, 1, 4]},
    ),
    "how large its output is depends on data": (
        [N("Reshape", ["x", "h"], ["a"]), N("NonMaxSuppression", ["a", "s"], ["y"])],
        {"h": [1, 1, 4], "s": np.float32([[[1]]])},
    ),
    "how large it is depends on data": (
        [N("Unique", ["x"], ["a", "b", "c"]), N("ReduceMax", ["a"], ["y"], keepdims=0)], {}
    ),
    "plevel compares single elements, and sorts them": ([N("Unique", ["x"], ["a", "b", "y"], sorted=0)], {}),
    "auto_pad of dilated windows": (
        [
            N("Reshape", ["x", "h"], ["a"]),
            N("MaxPool", ["a"], ["y"], kernel_shape=[2], dilations=[2], auto_pad="SAME_UPPER"),
        ], {"h": [1, 1, 4]},
    ),
    "training_mode": ([N("Dropout", ["x", "r", "t"], ["y"])], {"r": np.float32(0.5), "t": True}),
    "training_mode: ": ([N("Dropout", ["c", "r", "t"], ["a"]), ADD], {"c": normal(4), "r": np.float32(0.5), "t": True}),
    "no kernel for: RandomNormal": ([N("RandomNormal", [], ["a"], shape=[4]), ADD], {}),
    "its branches give .*export the model with one": (
        [
            N("ReduceMax", ["x"], ["r"], keepdims=0), N("Cast", ["r"], ["c"], to=9),
            N("If", ["c"], ["y"], then_branch=BRANCH, else_branch=graph_of([N("Exp", ["r"], ["d"])], {}, {"d": ROW})),
        ], {},
    ),
    "the number of its steps depends on data": (
        [N("Cast", ["x"], ["q"], to=TensorProto.INT64), N("ReduceMax", ["q"], ["n"], keepdims=0), N(
            "Loop", ["n", "", "x"], ["y", "o"], body=BODY
        )], {"last": 2},
    ),
    "plevel unrolls loops of at most": (
        [N("Loop", ["n", "", "x"], ["y", "o"], body=BODY)], {"n": 1 << 15, "last": 1 << 20}
    ),
    "plevel unrolls loops of at most .*": ([N("Loop", ["n", "", "x"], ["y"], body=nested_loops(3))], {"n": 200}),
    "plevel unrolls loops of at most .* nodes and steps": (
        [N("Loop", ["", "g", "x"], ["y"], body=nested_loops(0))], {"g": True}
    ),
    "unrolls loops of at most .* nodes": ([N("Loop", ["n", "g", "x"], ["y"], body=nested_loops(0))], {
        "n": 2**63 - 1, "g": True
    }),
    "its outputs of each step no elements": ([N("Loop", ["n", "", "x"], ["y", "o"], body=BODY)], {"n": 0, "last": 2}),
    "1 operator that plevel has no kernel for: Det \\(1\\)": (
        [N("If", ["c"], ["y"], then_branch=UNKNOWN, else_branch=BRANCH)], {"c": True},
    ),
    "2 operators that plevel has no kernel for: Det \\(3\\), Bernoulli \\(1\\)": (
        [
            N("Det", ["x"], ["e"]), N("Cast", ["e"], ["l"], to=TensorProto.BOOL),
            N("If", ["l"], ["f"], then_branch=UNKNOWN, else_branch=BRANCH), N("Bernoulli", ["f"], ["g"]),
            N("Loop", ["n", "", "g"], ["y"], body=graph_of(
                [N("If", ["l"], ["o"], then_branch=BRANCH, else_branch=UNKNOWN)],
                {"i": STEP, "going": GOES, "h": ROW}, {"going": GOES, "o": ROW},
            )),
        ], {"n": 2},
    ),
    "no kernel for: RandomUniformLike": ([N("RandomUniformLike", ["c"], ["a"]), ADD], {"c": normal(4)}),
    "no kernel for: Bernoulli": ([N("Bernoulli", ["c"], ["a"]), ADD], {"c": np.float32([0.5] * 4)}),
    "a constant of more than": (
        [N("Mul", ["b", "c"], ["d"]), N("ReduceMax", ["d"], ["a"], keepdims=0), ADD],
        {"b": np.ones((20000, 1), "float32"), "c": np.ones((1, 20000), "float32")},
    ),
    "a constant of more": (
        [N("Pad", ["b", "p"], ["d"]), N("ReduceMax", ["d"], ["a"], keepdims=0), ADD],
        {"b": normal(2), "p": [0, 1 << 29]},
    ),
    "initializer 'a'": ([ADD], {"a": SHORT}),
    "its first dimension must be the channels of": (
        [N("Reshape", ["x", "h"], ["a"]), N("ConvTranspose", ["a", "w"], ["y"], strides=[2, 2])],
        {"h": [1, 4, 1, 1], "w": normal(3, 2, 3, 3)},
    ),
    "its attribute K is missing": ([N("MatMulNBits", ["x", "c", "c"], ["y"], domain="com.microsoft", block_size=32)], {
        "c": normal(4)
    }),
    "which ONNX Runtime leaves as it was": (
        [N("Resize", ["x", "r", "", "z"], ["y"], coordinate_transformation_mode="tf_crop_and_resize")],
        {"r": np.float32([0.2, 0.8]), "z": [4]},
    ),
    "delta is 0: write another": ([N("Range", ["b", "e", "d"], ["a"]), ADD], {"b": 0.0, "e": 1.0, "d": 0.0}),
    "scales: nan of axis 0: write a finite number": ([N("Resize", ["x", "", "c"], ["y"])], {"c": np.float32([np.nan])}),
    "scales: inf of axis 0: write a finite number": ([N("Resize", ["x", "", "c"], ["y"])], {"c": np.float32([np.inf])}),
    "scales: 0 of axis 0: write a finite number": ([N("Resize", ["x", "", "c"], ["y"])], {"c": np.float32([0])}),
    "scales has 0 entries for 1 axes": ([N("Resize", ["x", "", "c"], ["y"])], {"c": normal(0)}),
    "node 'b' \\(Sqrt\\): ": (
        [N("Cast", ["x"], ["a"], to=TensorProto.INT64), N("Sqrt", ["a"], ["b"]), N("Cast", ["b"], ["y"], to=1)], {}
    ),
    "a norm of order 3": ([N("LpNormalization", ["x"], ["y"], p=3)], {}),
    "position 3 in a sequence of 1": (
        [N("SequenceConstruct", ["x"], ["s"]), N("SequenceAt", ["s", "p"], ["y"])], {"p": np.int64(3)}
    ),
    "its output 1 is used": (
        [
            N("Reshape", ["x", "h"], ["a"]), N("BatchNormalization", ["a", *"ssss"], ["b", "i", "j"]),
            N("Neg", ["i"], ["y"]),
        ], {"h": [1, 1, 4], "s": np.float32([0.5])},
    ),
    "its activations Cube: plevel has Sigmoid, Tanh": (
        [N("Reshape", ["x", "h"], ["a"]), N("RNN", ["a", "w", "w"], ["y"], hidden_size=1, activations=["Cube"])],
        {"h": [4, 1, 1], "w": normal(1, 1, 1)},
    ),
    "Affine without alpha and beta": (
        [N("Reshape", ["x", "h"], ["a"]), N(
            "RNN", ["a", "w", "w"], ["y"], hidden_size=1, activations=["Affine"], activation_alpha=[0.5]
        )], {"h": [4, 1, 1], "w": normal(1, 1, 1)},
    ),
    "a transform of 4097 numbers": (
        [N("Reshape", ["x", "h"], ["a"]), N("DFT", ["a", "n"], ["y"], axis=1)], {"h": [1, 4, 1], "n": 4097}
    ),
    "a window of 2 for frames of 3": (
        [N("Reshape", ["x", "h"], ["a"]), N("STFT", ["a", "s", "w", "n"], ["y"])],
        {"h": [1, 4, 1], "s": 1, "w": normal(2), "n": 3},
    ),
    "makes smaller than ONNX says": (
        [N("Reshape", ["x", "h"], ["a"]), N("ConvTranspose", ["a", "w"], ["y"], strides=[2], auto_pad="SAME_UPPER")],
        {"h": [1, 1, 4], "w": normal(1, 1, 1)},
    ),
    "num_outputs = 2000000: at most": ([N("Split", ["x"], ["y"], num_outputs=2_000_000)], {}),
    "num_outputs = 1000 for an axis of 4": ([N("Split", ["x"], ["y"], num_outputs=1000)], {}),
    "20000 steps: plevel unrolls at most": (
        [N("Reshape", ["x", "h"], ["a"]), N("Tile", ["a", "t"], ["b"]), N(
            "RNN", ["b", "w", "w"], ["y"], hidden_size=1
        )],
        {"h": [4, 1, 1], "t": [5000, 1, 1], "w": normal(1, 1, 1)},
    ),
    "blocks of 4 elements from 1 rows": (
        [N("Reshape", ["x", "h"], ["a"]), N("Col2Im", ["a", "s", "k"], ["y"])],
        {"h": [1, 1, 4], "s": [3, 3], "k": [2, 2]}
    ),
    "plevel has at most 16777216 of an axis": (
        [N("Reshape", ["x", "h"], ["a"]), N("Resize", ["a", "", "", "z"], ["y"], mode="cubic", antialias=1)],
        {"h": [1, 1, 1, 4], "z": [1, 1, 1, 1 << 23]},
    ),
    "sampling_ratio 0, mode 'avg': plevel has means of a fixed number": (
        [N("Reshape", ["x", "h"], ["a"]), N("RoiAlign", ["a", "r", "b"], ["y"])],
        {"h": [1, 1, 2, 2], "r": normal(1, 4), "b": [0]},
    ),
    "output_shape other than \\[4\\]": (
        [N("Reshape", ["x", "h"], ["a"]), N("Cast", ["a"], ["i"], to=7), N(
            "MaxUnpool", ["a", "i", "s"], ["y"], kernel_shape=[1]
        )], {"h": [1, 1, 4], "s": [1, 1, 5]},
    ),
    **{
        said: (
            [
                N("Cast", ["x"], ["a"], to=TensorProto.UINT8),
                N("QLinearSigmoid", given, ["b"], domain="com.microsoft"), N("Cast", ["b"], ["y"], to=1),
            ], {"s": np.float32(0.1), "z": np.uint8(0)},
        )
        for said, given in {
            "a tensor or its scale is missing": ["a", "", "z", "s", "z"],
            "the scale of the output is missing": ["a", "s", "z", "", "z"],
        }.items()
    },
    "scales of rows": (
        [
            N("Cast", ["x"], ["a"], to=TensorProto.UINT8), N("Reshape", ["a", "h"], ["b"]),
            N("QLinearMatMul", ["b", "r", "z", "w", "s", "z", "s", "z"], ["y"]),
        ],
        {"h": [2, 2], "w": np.uint8([[1, 2], [3, 4]]), "z": np.uint8(0), "s": np.float32(1), "r": np.float32([1, 2])},
    ),
    "scales of rows: ": (
        [
            N("Cast", ["x"], ["a"], to=TensorProto.UINT8), N("Reshape", ["a", "h"], ["b"]),
            N("QLinearMatMul", ["b", "s", "z", "w", "s", "z", "r", "z"], ["y"]),
        ],
        {"h": [2, 2], "w": np.uint8([[1, 2], [3, 4]]), "z": np.uint8(0), "s": np.float32(1), "r": np.float32([1, 2])},
    ),
    "sizes has 2 entries for 1 axes": ([N("Resize", ["x", "", "", "c"], ["y"])], {"c": [4, 4]}),
}


@pytest.mark.parametrize("beyond", [[0, 4], [0, -5], [-4, 3], [3, 0]])
def test_what_is_written_beyond_an_axis_goes_nowhere(beyond: list[int], tmp_path: Path) -> None:
    x, given = normal(3, 4), {"i": np.asarray([beyond, [1, 2]]), "u": normal(2)}
    network = import_file(model_of([N("ScatterND", ["x", "i", "u"], ["y"])], {"x": x, **given}, {}), tmp_path)
    expected = x.copy()
    expected[1, 2] = given["u"][1]
    np.testing.assert_array_equal(evaluate(network.root, {"x": x, **given})[0], expected)


def _pool_attributes(random: Any, rank: int) -> dict[str, Any]:
    size = random.integers(1, 5, rank).tolist()
    found: dict[str, Any] = {"kernel_shape": size, "strides": random.integers(1, 4, rank).tolist()}
    found["ceil_mode"] = int(random.integers(2))
    pad = random.choice(["pads", "SAME_UPPER", "SAME_LOWER", "VALID"])
    if pad == "pads":
        found["pads"] = [int(random.integers(n)) for n in size * 2]
    else:
        found["auto_pad"] = str(pad)
    if not pad.startswith("SAME"):
        found["dilations"] = random.integers(1, 3, rank).tolist()
    return found


def test_pools_are_those_of_onnx_runtime(tmp_path: Path) -> None:
    """With pads on either side, windows that end beyond them, dilations and every auto_pad, of each rank."""
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    runtime.set_default_logger_severity(4)
    random, compared, refused = np.random.default_rng(0), 0, []
    for i in range(300):
        rank = 1 + i % 3
        attrs = _pool_attributes(random, rank)
        if i % 2:
            attrs["count_include_pad"] = int(random.integers(2))
        given = {"x": normal(1, 2, *random.integers(8, 11, rank))}
        model = model_of([N("AveragePool" if i % 2 else "MaxPool", ["x"], ["y"], **attrs)], given, {}, 19)
        try:
            session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
            (expected,) = session.run(None, given)
        except Exception:  # of any type: windows that do not fit
            continue
        try:
            network = import_file(model, tmp_path)
        except NetworkError as error:
            refused.append(str(error))
            continue
        assert error_of(evaluate(network.root, given)[0], expected) < 1e-5, attrs
        compared += 1
    assert all(re.search("leave gaps|is smaller than the window", said) for said in refused)
    assert compared > 200


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_not_computed_is_refused_by_name(message: str, tmp_path: Path) -> None:
    nodes, constants = REFUSED[message]
    (tmp_path / "short").write_bytes(b"12345678")
    with pytest.raises(NetworkError, match=message):
        import_file(model_of(nodes, X, constants), tmp_path)


def test_bits_of_floats_are_refused(tmp_path: Path) -> None:
    model = model_of([N("BitCast", ["x"], ["y"], to=TensorProto.INT32)], X, {}, 26)
    with pytest.raises(NetworkError, match=r"BitCast.*float32"):
        import_file(model, tmp_path)


def test_a_node_whose_types_have_no_kernel_is_left_out_of_workloads() -> None:
    nodes, constants = REFUSED["node 'b' \\(Sqrt\\): "]
    model = model_of(nodes, X, constants)
    _, unknown = import_model(model, inferred=model)
    assert [u.node.op_type for u in unknown] == ["Sqrt"]
