"""Operators on this host's CPU: plevel's implementations beside PyTorch, which calls oneDNN.

    python benchmarks/operators_cpu.py --layers resnet50                  # tune 64 trials each, then time
    python benchmarks/operators_cpu.py --layers bert --tuned tuned.json   # keep what tuning found
    python benchmarks/operators_cpu.py --layers bert --tuned tuned.json --trials 0  # time that again
    python benchmarks/operators_cpu.py --layers memory --trials 0         # untuned: fallbacks

Groups of rows, float32, batch 1 (weights and biases are constant):

- resnet50, depthwise, pointwise: the distinct convolutions of ResNet-50, and those of MobileNetV2.
- windows: convolutions of other networks: of 32 groups (ResNeXt-50), dilated (DeepLab), 1×1 with stride 2, and
  batches of 8.
- first: the first layers of YOLOv5, VGG, EfficientNet, Stable Diffusion, AlexNet, ViT and ResNet.
- layouts: convolutions of images [n, h, w, c] by weights [h, w, c, o].
- bert, llama: the products of attention, scores and values, for prompts and for one new token. Nothing
  is constant, so packing is inside the timed function.
- attention: the whole of it, of prompts and of one new token, and what stands around it in LLaMA.
- epilogues: products with what BERT-base and ResNet-50 put after them, tuned and timed as one function.
- narrow: products and convolutions in float32, bfloat16, and 8-bit integers with zero points, requantised (PyTorch's
  quantised linear and conv2d), those of images [n, h, w, c] and depthwise ones too.
- experts: rows of one token, and of 128 tokens, by the weights of two experts each of eight.
- memory: operators that memory bounds, at sizes of BERT-base and ResNet-50.
- chains: elementwise operators with what follows them, softmax with scale and mask, pooling of [n, h, w, c].
- images: transposed convolutions, resizing, adaptive pooling and pixel shuffle, at sizes of U-Net, FPN and ESPCN.
- axes: softmax along other axes than the last, scans of one long row, sorts, and norms of groups.
- glue: batch norms, activations, gated products, rotary embedding, movement of data, indices, triangles and statistics.
- held-out: layers of networks that no other group has, by which selection is judged.

Each implementation is tuned for `--trials` trials; what is selected and the best of each are then
timed in turns with PyTorch. Its module is traced and frozen, or what Inductor calls: oneDNN's product by a weight
that is packed beforehand; images are given plain, channels-last and as mkldnn tensors, products also with `out=`; the
fastest counts. PyTorch returns a new tensor, plevel writes where it is told to; what one call frees is there for the
next. Results are not compared here: a worker has checked what was tuned, and tests the fallbacks.

Prints medians, and the ratio of PyTorch's time to that of what plevel selects: above 1, plevel is
faster. `--json` writes the rows. Needs torch==2.13.0. A row takes seconds untuned, and one to three minutes where 64
trials of each implementation tune it.
"""
# Over 300 lines: one table of rows, and PyTorch's form of each.

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.race import Call, benchmark, plevel_calls

if TYPE_CHECKING:
    from strategy.workload import EpilogueStep, Workload

Shape = tuple[int, ...]


class Row(NamedTuple):
    """One workload as plain values: an operator, its inputs' shapes, attributes, and what follows it.

    `after` names steps of `relu`, `gelu`, and `bias`, `mask`, `residual`, which add a tensor. `dtype` is that of the
    inputs; int8 stands for uint8 data by int8 weights, whose sums are requantised to uint8.
    """

    name: str
    op: str
    inputs: dict[str, Shape]
    attrs: dict[str, Any] = {}  # noqa: RUF012  (a field of a tuple: nothing changes it)
    constants: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    added: dict[str, Shape] = {}  # noqa: RUF012
    dtype: str = "float32"

    def workload(self) -> Workload:
        from strategy.workload import EpilogueStep, Input, Workload

        if self.dtype == "int8":
            types = {n: _typed(s, "uint8" if n == "data" else "int8") for n, s in self.inputs.items()}
            known = {"scale": "float32[]", "zero": "int32[]", "out_scale": "float32[]", "out_zero": "int32[]"}
            given = [Input(name, text, constant=True) for name, text in known.items()]
            step = EpilogueStep("requantize", (None, *given), {"out_dtype": "uint8"})
            return Workload.make(f"q{self.op}", types, self.attrs, self.constants, [step])
        types = {n: _typed(s, _DTYPES.get(n, self.dtype)) for n, s in self.inputs.items()}
        return Workload.make(self.op, types, self.attrs, self.constants, [self._step(s) for s in self.after])

    def _step(self, what: str) -> EpilogueStep:
        from strategy.workload import EpilogueStep, Input

        if what not in self.added:
            return EpilogueStep(what, (None,))
        operand = Input(what, _typed(self.added[what]), constant=what == "bias")
        return EpilogueStep("add", (None, operand))


_DTYPES = {"ends": "int32", "indices": "int32", "condition": "bool"}  # of inputs that are of no other


def _typed(shape: Shape, dtype: str = "float32") -> str:
    return f"{dtype}[{','.join(map(str, shape))}]"


_LAST, _WEIGHT, _FIRST = (0, 2, 3, 1), (2, 3, 1, 0), (0, 3, 1, 2)  # orders of axes


def _conv2d(
    channels: int, size: int, out: int, window: int, stride: int = 1, groups: int = 1, after: tuple[str, ...] = (),
    *, dilation: int = 1, batch: int = 1, padding: int | None = None, last: bool = False, dtype: str = "",
) -> Row:
    """A convolution of a square image; its padding is that of a window centred on each pixel, if not given.

    Images are [n, h, w, c] and weights [h, w, c, o] where channels are `last`.
    """
    kind = "dw" if groups == channels else f"→{out}"
    step = f"/{stride}" if stride > 1 else ""
    parts: dict[str, int] = {"g": groups if kind != "dw" else 1, "d": dilation, "b": batch}
    more = "".join(f",{letter}{value}" for letter, value in parts.items() if value > 1)
    name = f"{channels}{kind}@{size},{window}×{window}{step}{more}" + "".join(f"+{s}" for s in after)
    shapes = {"data": (batch, channels, size, size), "weight": (out, channels // groups, window, window)}
    known = {"bias": (out, 1, 1), "residual": (batch, out, size // stride, size // stride)}
    sides = window // 2 * dilation if padding is None else padding
    attrs: dict[str, Any] = {"strides": stride, "padding": sides, "dilation": dilation, "groups": groups}
    if last:
        name += ",NHWC"
        shapes = {n: tuple(s[i] for i in order) for (n, s), order in zip(shapes.items(), (_LAST, _WEIGHT), strict=True)}
        attrs |= {"data_layout": "NHWC", "kernel_layout": "HWIO"}
    added = {s: known[s] for s in after if s in known}
    if dtype:
        name += f",{dtype}"
        attrs |= _points(dtype)
    return Row(name, "conv2d", shapes, attrs, ("weight",), after, added, dtype or "float32")


def _points(dtype: str) -> dict[str, int]:
    """The zero point of data of 8-bit integers."""
    return {"input_zero_point": 3} if dtype == "int8" else {}


def _dense(m: int, n: int, k: int, after: tuple[str, ...] = (), dtype: str = "float32") -> Row:
    name = f"{m}×{n}×{k}" + "".join(f"+{s}" for s in after) + ("" if after else f",{dtype}")
    known = {"bias": (n,), "residual": (m, n)}
    shapes = {"data": (m, k), "weight": (n, k)}
    added = {s: known[s] for s in after if s in known}
    return Row(name, "dense", shapes, _points(dtype), ("weight",), after, added, dtype)


def _grouped(m: int, n: int, k: int, groups: int, dtype: str = "float32") -> Row:
    """The product of rows with the weights of experts."""
    shapes = {"data": (m, k), "weight": (groups, n, k), "ends": (groups,)}
    return Row(f"grouped:{groups}×{m}×{n}×{k},{dtype}", "grouped_dense", shapes, {}, ("weight",), dtype=dtype)


def _scores(model: str, heads: int, m: int, n: int, k: int, after: tuple[str, ...] = ()) -> Row:
    """Queries · keysᵀ."""
    name = f"{model}:scores,{heads}×{m}×{n}×{k}" + "".join(f"+{s}" for s in after)
    shapes = {"x": (heads, m, k), "y": (heads, n, k)}
    return Row(name, "batch_matmul", shapes, {"transpose_b": True}, (), after, dict.fromkeys(after, (1, 1, n)))


def _values(model: str, heads: int, m: int, n: int, k: int) -> Row:
    """Weights · values."""
    shapes = {"x": (heads, m, k), "y": (heads, k, n)}
    return Row(f"{model}:values,{heads}×{m}×{n}×{k}", "batch_matmul", shapes, {"transpose_b": False})


def _attention(model: str, heads: int, width: int, queries: int, keys: int) -> list[Row]:
    return [_scores(model, heads, queries, keys, width), _values(model, heads, queries, width, keys)]


def _fused(model: str, heads: int, m: int, n: int, depth: int, groups: int | None = None, **attrs: Any) -> Row:
    """The whole of attention, with as many keys and values as there are groups."""
    shared = (1, groups or heads, n, depth)
    counts = str(heads) if groups is None else f"{heads}/{groups}"
    name = f"{model}:attention,{counts}×{m}×{n}×{depth}" + "".join(f"+{a}" for a in attrs)
    return Row(name, "attention", {"query": (1, heads, m, depth), "key": shared, "value": shared}, attrs)


def _transposed(channels: int, size: int, out: int, window: int, padding: int) -> Row:
    """A transposed convolution by two."""
    shapes = {"data": (1, channels, size, size), "weight": (channels, out, window, window)}
    name = f"conv2d_transpose:{channels}→{out}@{size},{window}×{window}/2"
    return Row(name, "conv2d_transpose", shapes, {"strides": 2, "padding": padding}, ("weight",))


def _resized(method: str, channels: int, size: int, to: int, **attrs: Any) -> Row:
    row = _plain("resize2d", (1, channels, size, size), size=to, method=method, **attrs)
    return row._replace(name=f"resize2d:{method},{channels}@{size}→{to}")


def _plain(op: str, *shapes: Shape, **attrs: Any) -> Row:
    along = attrs.get("axes", attrs.get("axis"))
    where = "" if along is None else f"@{along}".replace(" ", "")
    name = f"{op}:{'x'.join(map(str, shapes[0]))}{where}"
    names = {
        "layer_norm": ("data", "gamma", "beta"), "rms_norm": ("data", "gamma"), "softmax_bias": ("data", "bias"),
        "group_norm": ("data", "gamma", "beta"), "instance_norm": ("data", "gamma", "beta"),
        "batch_norm": ("data", "gamma", "beta", "moving_mean", "moving_var"),
        "rotary_embedding": ("data", "cos", "sin"), "stack": ("data.0", "data.1"), "take": ("data", "indices"),
        "gather": ("data", "indices"), "scatter_add": ("data", "indices", "updates"), "one_hot": ("indices",),
        "where": ("condition", "x", "y"),
        **dict.fromkeys(("add", "swiglu", "floor_mod"), ("lhs", "rhs")),
    }.get(op, ("data",))
    return Row(name, op, dict(zip(names, shapes, strict=True)), attrs)


GROUPS = {
    "resnet50": [
        _conv2d(*layer)
        for layer in (
            (3, 224, 64, 7, 2), (64, 56, 64, 1), (64, 56, 64, 3), (64, 56, 256, 1), (256, 56, 64, 1),
            (256, 56, 128, 1), (128, 56, 128, 3, 2), (256, 56, 512, 1, 2), (128, 28, 512, 1),
            (512, 28, 128, 1), (128, 28, 128, 3), (512, 28, 256, 1), (256, 28, 256, 3, 2),
            (512, 28, 1024, 1, 2), (256, 14, 1024, 1), (1024, 14, 256, 1), (256, 14, 256, 3),
            (1024, 14, 512, 1), (512, 14, 512, 3, 2), (1024, 14, 2048, 1, 2), (512, 7, 2048, 1),
            (2048, 7, 512, 1), (512, 7, 512, 3),
        )
    ],
    "depthwise": [
        _conv2d(c, size, c, 3, stride, c)
        for c, size, stride in (
            (32, 112, 1), (96, 112, 2), (144, 56, 1), (144, 56, 2), (192, 28, 1), (192, 28, 2),
            (384, 14, 1), (576, 14, 1), (576, 14, 2), (960, 7, 1),
        )
    ],
    "pointwise": [
        _conv2d(c, size, out, 1)
        for c, size, out in (
            (32, 112, 16), (16, 112, 96), (96, 56, 24), (24, 56, 144), (144, 56, 24), (144, 28, 32),
            (32, 28, 192), (192, 28, 32), (192, 14, 64), (64, 14, 384), (384, 14, 64), (384, 14, 96),
            (96, 14, 576), (576, 14, 96), (576, 7, 160), (160, 7, 960), (960, 7, 160), (960, 7, 320),
            (320, 7, 1280),
        )
    ],
    "windows": [
        *(_conv2d(c, size, c, 3, stride, 32) for c, size, stride in (
            (128, 56, 1), (256, 56, 2), (256, 28, 1), (512, 14, 1), (1024, 7, 1),
        )),
        _conv2d(240, 28, 240, 1, groups=3),
        _conv2d(256, 28, 256, 3, dilation=2), _conv2d(512, 28, 512, 3, dilation=4),
        _conv2d(64, 56, 64, 3, dilation=2), _conv2d(1024, 28, 256, 3, dilation=12),
        _conv2d(512, 28, 1024, 1, 2), _conv2d(64, 56, 128, 1, 2),
        _conv2d(64, 56, 64, 3, batch=8), _conv2d(512, 7, 512, 3, batch=8), _conv2d(512, 7, 2048, 1, batch=8),
    ],
    "first": [
        _conv2d(3, 640, 32, 6, 2, padding=2), _conv2d(3, 224, 64, 3), _conv2d(3, 224, 32, 3, 2),
        _conv2d(4, 64, 320, 3), _conv2d(3, 227, 96, 11, 4, padding=0), _conv2d(3, 224, 768, 16, 16, padding=0),
        _conv2d(3, 224, 64, 7, 2), _conv2d(3, 224, 64, 7, 2, batch=8),
    ],
    "layouts": [
        _conv2d(64, 56, 64, 3, last=True), _conv2d(256, 14, 1024, 1, last=True), _conv2d(256, 56, 512, 1, 2, last=True),
        _conv2d(3, 224, 64, 7, 2, last=True),
    ],
    "bert": [r for length in (128, 384, 512) for r in _attention("bert", 12, 64, length, length)],
    "llama": [
        row
        for queries, keys in ((128, 128), (512, 512), (1, 512), (1, 2048))
        for row in _attention("llama", 32, 128, queries, keys)
    ],
    "attention": [
        _fused("bert", 12, 128, 128, 64), _fused("vit", 12, 197, 197, 64),
        _fused("llama", 32, 128, 128, 128, is_causal=True), _fused("llama", 32, 2048, 2048, 128, is_causal=True),
        _fused("llama", 32, 1, 2048, 128),
        _fused("llama", 32, 1, 2048, 128, groups=8),
        _plain("rms_norm", (1, 4096), (4096,)), _plain("rms_norm", (128, 4096), (4096,)),
        _plain("silu", (128, 11008)),
    ],
    "epilogues": [
        _dense(128, 3072, 768, ("bias", "gelu")),
        _dense(128, 768, 3072, ("bias", "residual")),
        _conv2d(64, 56, 64, 3, after=("bias", "relu")),
        _conv2d(64, 56, 256, 1, after=("bias", "residual", "relu")),
        _conv2d(256, 14, 1024, 1, after=("bias", "residual", "relu")),
        _scores("bert", 12, 384, 384, 64, after=("mask",)),
    ],
    "narrow": [
        row(*extents, dtype=dtype)
        for row, *extents in (
            (_dense, 128, 3072, 768), (_dense, 16, 4096, 4096), (_dense, 1, 4096, 4096),
            (_conv2d, 64, 56, 64, 3), (_conv2d, 256, 14, 256, 3), (_conv2d, 1024, 14, 256, 1),
            (_conv2d, 512, 7, 512, 3), (_conv2d, 128, 56, 128, 3, 2), (_conv2d, 3, 224, 64, 7, 2),
        )
        for dtype in ("float32", "bfloat16", "int8")
    ] + [
        _conv2d(*extents, last=True, dtype=dtype)
        for extents in ((64, 56, 64, 3), (256, 14, 256, 3), (1024, 14, 256, 1), (3, 224, 64, 7, 2))
        for dtype in ("bfloat16", "int8")
    ] + [
        _conv2d(*extents, last=last, dtype=dtype)
        for extents in ((144, 56, 144, 3, 1, 144), (384, 14, 384, 3, 1, 384))
        for last in (False, True)
        for dtype in ("float32", "bfloat16", "int8")
    ],
    "experts": [
        _grouped(m, *extents, 8, dtype)
        for extents in ((1024, 1024), (4096, 1024))
        for m in (2, 256)
        for dtype in ("float32", "bfloat16")
    ],
    "memory": [
        *(_plain("softmax", shape) for shape in ((12, 128, 128), (12, 384, 384), (1, 1000), (64, 1000))),
        *(_plain("layer_norm", (rows, 768), (768,), (768,)) for rows in (16, 128, 384)),
        _plain("sum", (1, 2048, 7, 7), axis=(2, 3)), _plain("sum", (384, 768), axis=-1),
        _plain("sum", (384, 768), axis=0), _plain("sum", (1, 64, 112, 112), axis=(2, 3)),
        _plain("max_pool2d", (1, 64, 112, 112), pool_size=3, strides=2, padding=1),
        _plain("max_pool2d", (1, 256, 56, 56), pool_size=3, strides=2, padding=1),
        _plain("transpose", (1, 384, 12, 64), axes=(0, 2, 1, 3)),
        _plain("transpose", (1, 12, 384, 64), axes=(0, 1, 3, 2)),
        _plain("transpose", (1, 64, 56, 56), axes=(0, 2, 3, 1)), _plain("transpose", (768, 3072)),
        _plain("cumsum", (128, 1000), axis=-1), _plain("cumsum", (384, 768), axis=0),
        _plain("topk", (1, 1000), k=5, ret_type="values"), _plain("topk", (64, 1000), k=5, ret_type="values"),
        _plain("topk", (8, 30522), k=50, ret_type="values"),
        _plain("add", (384, 768), (768,)), _plain("add", (1, 64, 112, 112), (64, 1, 1)),
        _plain("add", (1, 256, 56, 56), (1, 256, 56, 56)),
    ],
    "chains": [
        _plain("relu", (1, 64, 112, 112)), _plain("gelu", (384, 3072)), _plain("silu", (128, 8192)),
        _plain("add", (1, 256, 56, 56), (1, 256, 56, 56))._replace(name="add 256×56×56+relu", after=("relu",)),
        _plain("add", (384, 3072), (3072,))._replace(name="add 384×3072+gelu", after=("gelu",)),
        _plain("add", (1, 64, 112, 112), (64, 1, 1))._replace(name="add 64×112×112+relu", after=("relu",)),
        _plain("softmax_bias", (12, 128, 128), (128,), scale=0.125),
        _plain("softmax_bias", (12, 384, 384), (384,), scale=0.125),
        _plain("max_pool2d", (1, 112, 112, 64), pool_size=3, strides=2, padding=1, layout="NHWC"),
        _plain("max_pool2d", (1, 56, 56, 256), pool_size=3, strides=2, padding=1, layout="NHWC"),
    ],
    "images": [
        _transposed(512, 16, 256, 2, 0), _transposed(128, 64, 64, 2, 0), _transposed(256, 16, 128, 4, 1),
        _resized("linear", 256, 32, 64), _resized("linear", 3, 480, 224), _resized("cubic", 3, 480, 224),
        _resized("nearest_neighbor", 256, 32, 64, coordinate_transformation_mode="asymmetric", rounding_method="floor"),
        _plain("adaptive_avg_pool2d", (1, 512, 14, 14), output_size=7),
        _plain("adaptive_avg_pool2d", (1, 256, 32, 32), output_size=6),
        _plain("adaptive_max_pool2d", (1, 256, 32, 32), output_size=6),
        _plain("depth_to_space", (1, 256, 64, 64), block_size=2, mode="CRD"),
    ],
    "axes": [
        _plain("softmax", (1, 21, 128, 128), axis=1), _plain("softmax", (512, 512), axis=0),
        _plain("log_softmax", (1, 21, 128, 128), axis=1), _plain("softmax", (8, 1024, 64), axis=1),
        _plain("cumsum", (1, 1_000_000), axis=-1), _plain("cumsum", (1, 65536), axis=-1),
        _plain("argsort", (64, 1000), axis=-1), _plain("argsort", (1, 100_000), axis=-1),
        _plain("topk", (1024, 256), k=8, ret_type="both"), _plain("topk", (1, 100_000), k=100, ret_type="both"),
        _plain("group_norm", (1, 320, 64, 64), (320,), (320,), num_groups=32),
        _plain("group_norm", (1, 512, 32, 32), (512,), (512,), num_groups=32),
        _plain("instance_norm", (1, 64, 128, 128), (64,), (64,)),
        _plain("instance_norm", (1, 256, 32, 32), (256,), (256,)),
    ],
    "glue": [
        _plain("batch_norm", (1, 64, 112, 112), *((64,),) * 4),
        *(_plain(op, (128, 8192)) for op in ("hardswish", "leaky_relu", "softplus", "mish", "sin")),
        _plain("swiglu", (128, 8192), (128, 8192)), _plain("floor_mod", (384, 768), (768,)),
        _plain("rotary_embedding", (1, 32, 128, 128), (128, 64), (128, 64)),
        _plain("pad", (1, 64, 56, 56), pad_width=((0, 0), (0, 0), (1, 1), (1, 1))),
        _plain("pad", (1, 64, 56, 56), pad_width=((0, 0), (0, 0), (3, 3), (3, 3)), pad_mode="reflect")._replace(
            name="pad:1x64x56x56,reflect"
        ),
        _plain("stack", (384, 768), (384, 768), axis=1), _plain("repeat", (1, 8, 512, 128), repeats=4, axis=1),
        _plain("tile", (1, 1, 512, 512), reps=(1, 12, 1, 1)), _plain("reverse", (384, 768), axis=1),
        _plain("take", (30522, 768), (128,), axis=0), _plain("gather", (512, 1024), (512, 1024), axis=1),
        _plain("scatter_add", (512, 1024), (512, 1024), (512, 1024), axis=1),
        _plain("scatter_add", (4096, 64), (16384, 64), (16384, 64), axis=0),
        _plain("one_hot", (128,), depth=30522, dtype="int64"), _plain("trilu", (12, 512, 512), k=1),
        _plain("where", (12, 384, 384), (12, 384, 384), (1,)),
        _plain("argmax", (64, 32000), axis=1), _plain("argmax", (1, 21, 128, 128), axis=1),
        _plain("logsumexp", (64, 32000), axis=1), _plain("logsumexp", (1, 21, 128, 128), axis=1),
        _plain("variance", (384, 768), axis=1), _plain("variance", (384, 768), axis=0),
        _plain("cummax", (128, 1000), axis=1), _plain("unique", (100_000,)),
    ],
    "held-out": [
        _conv2d(128, 56, 256, 3), _conv2d(512, 14, 512, 3), _conv2d(128, 28, 32, 3), _conv2d(64, 96, 64, 3),
        _conv2d(64, 55, 16, 1), _conv2d(40, 28, 240, 1), _conv2d(480, 14, 80, 1), _conv2d(116, 28, 116, 1),
        _conv2d(256, 20, 512, 3, 2), _conv2d(48, 80, 96, 3, 2), _conv2d(192, 28, 192, 3, groups=8),
        _conv2d(512, 19, 1024, 3, dilation=6), _conv2d(240, 28, 240, 5, 1, 240), _conv2d(96, 56, 96, 7, 1, 96),
        *(_dense(m, n, k) for m, n, k in (
            (7, 1000, 2048), (50, 512, 512), (77, 2048, 512), (197, 768, 3072), (333, 1024, 1024), (5, 4096, 4096),
            (64, 1000, 1280), (24, 640, 2560),
        )),
    ],
}


# Operators that PyTorch may run faster on images in channels-last.
_IMAGES = frozenset(
    "conv2d max_pool2d conv2d_transpose resize2d adaptive_avg_pool2d adaptive_max_pool2d group_norm".split()
)


def _own_calls(row: Row, threads: int, best: dict[str, Any]) -> dict[str, Call]:
    return plevel_calls(row.workload(), threads, best)


def _anchors(torch: Any) -> dict[str, Callable[..., Any]]:
    """PyTorch's function for each operator, of (attributes, first input, other inputs)."""
    functional = torch.nn.functional
    return {
        "conv2d": lambda a, x, w: functional.conv2d(
            x, w, None, a["strides"], a["padding"], a["dilation"], a["groups"]
        ) if "data_layout" not in a else functional.conv2d(
            x.permute(_FIRST), w.permute(3, 2, 0, 1), None, a["strides"], a["padding"], a["dilation"], a["groups"]
        ).permute(_LAST),
        "dense": lambda a, x, w: functional.linear(x, w),
        "grouped_dense": lambda a, x, w, ends: functional.grouped_mm(x, w.transpose(1, 2), offs=ends),
        "batch_matmul": lambda a, x, y: torch.bmm(x, y.transpose(1, 2) if a["transpose_b"] else y),
        "conv2d_transpose": lambda a, x, w: functional.conv_transpose2d(x, w, None, a["strides"], a["padding"]),
        "resize2d": lambda a, x: functional.interpolate(
            x, (a["size"],) * 2, mode={"linear": "bilinear", "cubic": "bicubic"}.get(a["method"], "nearest")
        ),
        "adaptive_avg_pool2d": lambda a, x: functional.adaptive_avg_pool2d(x, a["output_size"]),
        "adaptive_max_pool2d": lambda a, x: functional.adaptive_max_pool2d(x, a["output_size"]),
        "depth_to_space": lambda a, x: functional.pixel_shuffle(x, a["block_size"]),
        "argsort": lambda a, x: x.argsort(dim=a["axis"], stable=True),
        "log_softmax": lambda a, x: functional.log_softmax(x, a["axis"]),
        "group_norm": lambda a, x, *more: functional.group_norm(x, a["num_groups"], *more),
        "instance_norm": lambda a, x, weight, bias: functional.instance_norm(x, weight=weight, bias=bias),
        "softmax": lambda a, x: functional.softmax(x, a.get("axis", -1)),
        "attention": lambda a, q, k, v: functional.scaled_dot_product_attention(
            q, k, v, is_causal=a.get("is_causal", False), enable_gqa=q.shape[1] != k.shape[1]
        ),
        "rms_norm": lambda a, x, weight: functional.rms_norm(x, x.shape[-1:], weight, 1e-5),
        "silu": lambda a, x: functional.silu(x),
        "layer_norm": lambda a, x, *more: functional.layer_norm(x, x.shape[-1:], *more),
        "sum": lambda a, x: x.sum(a["axis"]),
        "softmax_bias": lambda a, x, bias: functional.softmax(torch.add(bias, x, alpha=a["scale"]), -1),
        "relu": lambda a, x: functional.relu(x),
        "gelu": lambda a, x: functional.gelu(x),
        "max_pool2d": lambda a, x: functional.max_pool2d(
            x.permute(_FIRST) if "layout" in a else x, a["pool_size"], a["strides"], a["padding"]
        ),
        "transpose": lambda a, x: x.permute(a.get("axes", (1, 0))).contiguous(),
        "cumsum": lambda a, x: x.cumsum(a["axis"]),
        "topk": lambda a, x: x.topk(a["k"]),
        "add": lambda a, x, y: x + y,
        **_glue(torch),
    }


def _glue(torch: Any) -> dict[str, Callable[..., Any]]:
    """`_anchors` of the group `glue`."""
    functional = torch.nn.functional
    modes = {"edge": "replicate"}

    def turned(a: Any, x: Any, cos: Any, sin: Any) -> Any:
        one, other = x.chunk(2, -1)
        return torch.cat((one * cos - other * sin, other * cos + one * sin), -1)

    def padded(a: Any, x: Any) -> Any:
        sides = [n for pair in reversed(a["pad_width"][2:]) for n in pair]
        mode = a.get("pad_mode", "constant")
        return functional.pad(x, sides, modes.get(mode, mode))

    return {
        "batch_norm": lambda a, x, weight, bias, mean, variance: functional.batch_norm(x, mean, variance, weight, bias),
        "hardswish": lambda a, x: functional.hardswish(x),
        "leaky_relu": lambda a, x: functional.leaky_relu(x),
        "softplus": lambda a, x: functional.softplus(x),
        "mish": lambda a, x: functional.mish(x),
        "sin": lambda a, x: x.sin(),
        "swiglu": lambda a, x, y: functional.silu(x) * y,
        "floor_mod": lambda a, x, y: x.remainder(y),
        "rotary_embedding": turned,
        "pad": padded,
        "stack": lambda a, x, y: torch.stack((x, y), a["axis"]),
        "repeat": lambda a, x: x.repeat_interleave(a["repeats"], a["axis"]),
        "tile": lambda a, x: x.tile(a["reps"]),
        "reverse": lambda a, x: x.flip(a["axis"]),
        "take": lambda a, x, indices: functional.embedding(indices, x),
        "gather": lambda a, x, indices: x.gather(a["axis"], indices),
        "scatter_add": lambda a, x, indices, updates: x.scatter_add(a["axis"], indices, updates),
        "one_hot": lambda a, indices: functional.one_hot(indices, a["depth"]),
        "trilu": lambda a, x: x.triu(a["k"]),
        "where": lambda a, condition, x, y: torch.where(condition, x, y),
        "argmax": lambda a, x: x.argmax(a["axis"]),
        "logsumexp": lambda a, x: x.logsumexp(a["axis"]),
        "variance": lambda a, x: x.var(a["axis"], correction=0),
        "cummax": lambda a, x: x.cummax(a["axis"]).values,
        "unique": lambda a, x: x.unique(return_inverse=True, return_counts=True),
    }


def _torch_calls(row: Row, threads: int, _best: dict[str, Any]) -> dict[str, Call]:
    import warnings

    import torch

    warnings.filterwarnings("ignore")
    torch.set_num_threads(threads)
    torch.inference_mode().__enter__()  # for as long as this process lives
    generator = torch.Generator().manual_seed(0)
    shapes = row.inputs | row.added
    tensors = {n: torch.rand(*s, generator=generator) * 2 - 1 for n, s in shapes.items()}
    if row.dtype == "int8":
        return _quantized_calls(torch, row, tensors["data"], tensors["weight"])
    tensors = {n: t.to(getattr(torch, row.dtype)) for n, t in tensors.items()}
    if own := _DTYPES.keys() & tensors.keys():
        from workers.reference import random_inputs

        given = random_inputs(row.workload(), 0)
        tensors |= {name: torch.from_numpy(given[name]) for name in own}
    if "indices" in tensors:  # PyTorch has none below 0
        tensors["indices"] = tensors["indices"].abs().long()
    attrs = {name: tuple(v) if isinstance(v, list) else v for name, v in row.attrs.items()}
    anchor = _anchors(torch)[row.op]
    constant = {*row.constants, *({"bias"} & row.added.keys())}

    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name in constant:
                self.register_buffer(name, tensors[name])

        def forward(self, *given: Any) -> Any:
            own = iter(given)
            values = {n: getattr(self, n) if n in constant else next(own) for n in shapes}
            y = anchor(attrs, *(values[n] for n in row.inputs))
            for what in row.after:
                y = y + values[what] if what in row.added else getattr(torch.nn.functional, what)(y)
            return y

    module = Module().eval()
    given = [t for n, t in tensors.items() if n not in constant]
    is_image = row.op in _IMAGES and not {"data_layout", "layout"} & row.attrs.keys()
    if not is_image and not row.constants and not row.after:
        return _eager_calls(torch, row, anchor, attrs, given)
    calls: dict[str, Call] = {}
    forms = {"plain": torch.contiguous_format} | ({"channels last": torch.channels_last} if is_image else {})
    for name, form in forms.items():
        inputs = [t.contiguous(memory_format=form) if t.dim() == 4 else t for t in given]
        frozen = torch.jit.freeze(torch.jit.trace(module.to(memory_format=form), tuple(inputs)))
        calls[name] = lambda frozen=frozen, inputs=inputs: frozen(*inputs)
    if row.op in ("conv2d", "max_pool2d") and is_image and not row.after and row.dtype == "float32":
        calls["mkldnn"] = _mkldnn_call(torch, row, attrs, tensors)
    if row.op in ("conv2d", "dense"):
        calls |= _packed_calls(torch, row, attrs, tensors)
    return calls


def _packed_calls(torch: Any, row: Row, attrs: dict[str, Any], tensors: dict[str, Any]) -> dict[str, Call]:
    """Inductor's own calls where it freezes: oneDNN's product by a packed weight, with what follows it."""
    x, weight = (tensors[n] for n in row.inputs)
    bias, follows = tensors.get("bias"), [s for s in row.after if s != "bias"]
    if any(s in row.added for s in follows) or len(follows) > 1 or (bias is not None and row.after[0] != "bias"):
        return {}
    post = (follows[0] if follows else "none", [], "none" if follows == ["gelu"] else "")
    ops = torch.ops.mkldnn
    if row.op == "dense":
        packed = ops._reorder_linear_weight(weight, x.shape[0])
        return {"packed": lambda: ops._linear_pointwise(x, packed, bias, *post)}
    bias = None if bias is None else bias.flatten()
    given = [[a] * 2 if isinstance(a := attrs[n], int) else list(a) for n in ("padding", "strides", "dilation")]
    given.append(attrs["groups"])
    forms = {"packed": torch.contiguous_format, "packed, channels last": torch.channels_last}
    if "data_layout" in row.attrs:
        x, weight = _plain_views(x, weight)
        del forms["packed"]
    packed = ops._reorder_convolution_weight(weight, *given, list(x.shape))
    images = {name: x.contiguous(memory_format=form) for name, form in forms.items()}
    return {
        name: lambda image=image: ops._convolution_pointwise(image, packed, bias, *given, *post)
        for name, image in images.items()
    }


def _plain_views(x: Any, weight: Any) -> tuple[Any, Any]:
    """An image of NHWC as a channels-last one of NCHW, and its weight of HWIO as OIHW."""
    return x.permute(_FIRST), weight.permute(3, 2, 0, 1).contiguous()


def _quantized_calls(torch: Any, row: Row, data: Any, weight: Any) -> dict[str, Call]:
    """PyTorch's quantised operator by each of its engines; images are channels-last, as these engines have them."""
    calls: dict[str, Call] = {}
    quantized = torch.ops.quantized
    given: list[Any] = []
    pack, operator = quantized.linear_prepack, quantized.linear
    if row.op == "conv2d":
        given = [*([row.attrs[name]] * 2 for name in ("strides", "padding", "dilation")), row.attrs["groups"]]
        pack, operator = quantized.conv2d_prepack, quantized.conv2d
        if "data_layout" in row.attrs:
            data, weight = _plain_views(data, weight)
        data = data.contiguous(memory_format=torch.channels_last)
    for engine in torch.backends.quantized.supported_engines:
        if engine not in ("none", "qnnpack"):
            torch.backends.quantized.engine = engine
            image = torch.quantize_per_tensor(data, 0.01, 3, torch.quint8)
            packed = pack(torch.quantize_per_tensor(weight, 0.01, 0, torch.qint8), None, *given)
            calls[engine] = lambda image=image, packed=packed: operator(image, packed, 0.1, 5)
    return calls


def _eager_calls(
    torch: Any, row: Row, anchor: Callable[..., Any], attrs: dict[str, Any], given: list[Any]
) -> dict[str, Call]:
    calls: dict[str, Call] = {"new": lambda: anchor(attrs, *given)}
    if row.op == "batch_matmul":
        x, y = given[0], given[1].transpose(1, 2) if attrs["transpose_b"] else given[1]
        out = torch.bmm(x, y)
        calls["out"] = lambda: torch.bmm(x, y, out=out)
    return calls


def _mkldnn_call(torch: Any, row: Row, attrs: dict[str, Any], tensors: dict[str, Any]) -> Call:
    """An image as an mkldnn tensor: a convolution's weights are packed before, and it converts its image."""
    image = tensors["data"]
    if row.op == "max_pool2d":
        packed = image.to_mkldnn()
        return lambda: _anchors(torch)["max_pool2d"](attrs, packed)
    from torch.utils import mkldnn

    out, per_group, window, _ = row.inputs["weight"]
    module = torch.nn.Conv2d(
        per_group * attrs["groups"], out, window, attrs["strides"], attrs["padding"], attrs["dilation"],
        groups=attrs["groups"], bias=False,
    ).eval()
    prepacked = mkldnn.to_mkldnn(module)
    return lambda: prepacked(image.to_mkldnn()).to_dense()


if __name__ == "__main__":
    sides = {"plevel": _own_calls, "torch": _torch_calls}
    sys.exit(benchmark(__file__, __doc__ or "", Row, GROUPS, sides))
