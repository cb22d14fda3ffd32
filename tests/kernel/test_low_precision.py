"""Products by dot-product instructions, and quantised operators: integers exactly, bfloat16 as float64 says."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategy.compile.lower import lower
from strategy.op_strategy import candidates, evaluate
from strategy.target import Target
from strategy.workload import EpilogueStep, Input, Workload
from tests.kernel.judge import judge
from workers.reference import random_inputs

TARGET = Target.parse("cpu").with_threads(2)
ZEN4, ZEN5 = (Target.parse(f"llvm -mcpu={arch} -num-cores=2") for arch in ("znver4", "znver5"))
NEOVERSE = Target.parse("llvm -mcpu=neoverse-v1 -mtriple=aarch64-linux-gnu -num-cores=2")


def product(data: str, weight: str, constant: bool = True, epilogue: Any = (), **attrs: Any) -> Workload:
    op = "dense" if data.startswith("bfloat16") else "qdense"
    constants = ["weight"] if constant else []
    return Workload.make(op, {"data": data, "weight": weight}, attrs, constants, epilogue)


def convolution(data: str, weight: str, constant: bool = True, epilogue: Any = (), **attrs: Any) -> Workload:
    op = "qconv2d" if weight.startswith(("int8", "uint8")) else "conv2d"
    constants = ["weight"] if constant else []
    return Workload.make(op, {"data": data, "weight": weight}, attrs, constants, epilogue)


def whole_range(workload: Workload, seed: int) -> dict[str, Any]:
    """Random inputs, with bytes of their whole range."""
    rng, found = np.random.default_rng(seed), random_inputs(workload, seed)
    for name, value in found.items():
        if value.dtype.itemsize == 1:
            info = np.iinfo(value.dtype)
            found[name] = rng.integers(info.min, info.max + 1, value.shape).astype(value.dtype)
    return found


def check(workload: Workload, name: str, config: Any = None) -> None:
    artefact = lower(workload, TARGET, name, config).compile(checks=False)
    judge(artefact, workload, whole_range(workload, 5))


def dot_space(workload: Workload, form: str = "dot") -> tuple[str, Any]:
    found = {c.implementation: c.space for c in candidates(workload, TARGET)}
    name = next((name for name in found if name.endswith(f"_{form}.cpu")), None)
    if name is None:
        pytest.skip("this processor has no dot-product instructions")
    return name, found[name]


KINDS = [
    ("bfloat16", "bfloat16"), ("uint8", "int8"), ("int8", "int8"), ("uint8", "uint8"), ("int8", "uint8"),
]


@pytest.mark.sample(1)
@pytest.mark.parametrize(("kind", "weight"), KINDS)
@settings(max_examples=min(4, settings.default.max_examples // 6))
@given(
    m=st.sampled_from([1, 3, 16, 37]), n=st.sampled_from([1, 16, 50]), groups=st.sampled_from([1, 2, 9, 32]),
    zeros=st.sampled_from([(0, 0), (100, 0), (0, -5), (100, 120)]), constant=st.booleans(), seed=st.integers(0, 2**32),
)
def test_any_configuration_of_any_shape(m, n, groups, kind, weight, zeros, constant, seed):
    workload = product(f"{kind}[{m},{groups * 4}]", f"{weight}[{n},{groups * 4}]", constant, **points(kind, zeros))
    name, space = dot_space(workload)
    check(workload, name, space.sample(random.Random(seed), 1)[0])


@pytest.mark.sample(3)
@pytest.mark.parametrize("inner", ["rows", "panels"])
@pytest.mark.parametrize(("m", "m_tasks"), [(8, 1), (45, 1), (45, 3)])
@pytest.mark.parametrize(("kind", "zero"), [("bfloat16", 0), ("uint8", 0), ("int8", 5)])
def test_panels_that_are_prefetched(kind, zero, m, m_tasks, inner):
    weight = "bfloat16" if kind == "bfloat16" else "int8"
    workload = product(f"{kind}[{m},120]", f"{weight}[131,120]", **points(kind, (zero, 0)))
    name, space = dot_space(workload)
    config = space.fallback.replace(
        rows=8, width=32, unroll=2, n_block=1, m_tasks=m_tasks, inner=inner, ahead=True
    )
    check(workload, name, config)


@pytest.mark.sample(2)
@pytest.mark.parametrize("target", [ZEN5, NEOVERSE])
@pytest.mark.parametrize("kind", ["bfloat16", "uint8", "int8"])
@pytest.mark.parametrize("form", ["dot", "nchw_dot_direct", "nhwc_dot"])
def test_a_prefetch_leaves_the_sums_in_registers(form, kind, target):
    weight = "bfloat16" if kind == "bfloat16" else "int8"
    if form == "dot":
        workload = product(f"{kind}[64,256]", f"{weight}[96,256]")
    else:
        attrs = {"padding": 1, "data_layout": form[:4].upper(), "kernel_layout": "OIHW"}
        data, packed = laid_out_shapes(attrs, (1, 64, 14, 14), (64, 64, 3, 3))
        workload = convolution(f"{kind}[{data}]", f"{weight}[{packed}]", **attrs)
    name = f"{workload.op}_{form}.cpu"
    (space,) = (c.space for c in candidates(workload, target) if c.implementation == name)
    texts = [
        lower(workload, target, name, space.fallback.replace(ahead=ahead))
        .compile(checks=False).executable.mod.inspect_source("s")
        for ahead in (False, True)
    ]
    pattern = r"\tprfm\tpldl2keep" if target is NEOVERSE else r"\tprefetcht1\t"
    assert not re.search(pattern, texts[0])
    found = re.search(pattern + r"(.*?)\n\t(?:j|b\.)\w+\t", texts[1], re.DOTALL)
    assert found, "no loop with a prefetch"
    assert re.search("vdpbf16ps|vpdpbusd|bfdot|sdot", found[1])
    assert not re.search(r"vmov\w+\t%zmm\d+, [^%]*\(|\tst[rp]\tq", found[1])


@pytest.mark.parametrize(
    ("m", "n", "k", "ahead"),
    [
        (128, 768, 1024, True), (128, 768, 4096, True),
        (1, 768, 1024, False), (8, 768, 1024, False),  # one tile reads each panel
        (128, 768, 16384, False),  # two panels leave no room in the second level
    ],
)
def test_untuned_panels_of_several_tiles_are_prefetched(m, n, k, ahead):
    target = Target.parse({"kind": "llvm", "mcpu": "znver5", "num-cores": 2, "l2_bytes": 1 << 20})
    for kind, weight in (("bfloat16", "bfloat16"), ("int8", "int8")):
        workload = product(f"{kind}[{m},{k}]", f"{weight}[{n},{k}]")
        (space,) = (c.space for c in candidates(workload, target) if c.implementation == f"{workload.op}_dot.cpu")
        assert space.fallback["ahead"] == ahead


def test_untuned_panels_of_a_batch_are_prefetched_where_they_leave_the_second_level():
    target = Target.parse({"kind": "llvm", "mcpu": "znver5", "num-cores": 2, "l2_bytes": 1 << 20})
    for entries, expected in ((2, False), (64, True)):
        inputs = {"x": f"bfloat16[{entries},128,64]", "y": f"bfloat16[{entries},128,64]"}
        batch = Workload.make("batch_matmul", inputs)
        (space,) = (c.space for c in candidates(batch, target) if c.implementation == "batch_matmul_dot.cpu")
        assert space.fallback["ahead"] == expected


def laid_out_shapes(attrs: dict[str, Any], data: Sequence[int], weight: Sequence[int]) -> list[str]:
    """The extents of data of NCHW and of a weight of OIHW in the layouts of attributes."""
    return [
        ",".join(str(extents[plain.index(axis)]) for axis in attrs[f"{name}_layout"])
        for name, plain, extents in (("data", "NCHW", data), ("kernel", "OIHW", weight))
    ]


def points(kind: str, zeros: tuple[int, int]) -> dict[str, int]:
    """The zero points of 8-bit integers."""
    return {} if kind == "bfloat16" else dict(zip(("input_zero_point", "kernel_zero_point"), zeros, strict=True))


@pytest.mark.sample(3)
@pytest.mark.parametrize(("layout", "form"), [("NCHW", "dot"), ("NCHW", "dot_direct"), ("NHWC", "dot")])
@pytest.mark.parametrize(("kind", "weight"), KINDS)
@settings(max_examples=min(4, settings.default.max_examples // 6))
@given(
    channels=st.sampled_from([3, 8, 9]), out=st.sampled_from([1, 17]), window=st.sampled_from([(1, 1), (3, 3), (2, 5)]),
    image=st.tuples(st.integers(4, 9), st.integers(6, 20)), batch=st.integers(1, 2), groups=st.integers(1, 2),
    attrs=st.fixed_dictionaries({
        "strides": st.sampled_from([1, 2]), "padding": st.sampled_from([0, [1, 0, 2, 1]]),
        "dilation": st.sampled_from([1, 1, [2, 1]]), "kernel_layout": st.sampled_from(["OIHW", "HWIO", "OHWI"]),
    }),
    zeros=st.sampled_from([(0, 0), (100, 0), (0, -5), (100, 120)]), constant=st.booleans(), seed=st.integers(0, 2**32),
)
def test_any_configuration_of_any_convolution(
    layout, form, kind, weight, channels, out, window, image, batch, groups, attrs, zeros, constant, seed
):
    attrs = {**attrs, "groups": groups, "data_layout": layout, **points(kind, zeros)}
    shapes = laid_out_shapes(attrs, (batch, channels * groups, *image), (out * groups, channels, *window))
    workload = convolution(f"{kind}[{shapes[0]}]", f"{weight}[{shapes[1]}]", constant, **attrs)
    name, space = dot_space(workload, form)
    assert layout.lower() in name
    check(workload, name, space.sample(random.Random(seed), 1)[0])


@pytest.mark.sample(2)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(("kind", "weight"), KINDS)
@settings(max_examples=min(4, settings.default.max_examples // 6))
@given(
    channels=st.sampled_from([2, 16, 37]), window=st.sampled_from([(3, 3), (2, 5)]),
    image=st.tuples(st.integers(4, 9), st.integers(6, 20)), batch=st.integers(1, 2),
    attrs=st.fixed_dictionaries({
        "strides": st.sampled_from([1, 2]), "padding": st.sampled_from([0, [1, 0, 2, 1]]),
        "dilation": st.sampled_from([1, 1, [2, 1]]), "kernel_layout": st.sampled_from(["OIHW", "HWIO", "OHWI"]),
    }),
    zeros=st.sampled_from([(0, 0), (100, 0), (0, -5), (100, 120)]), constant=st.booleans(), seed=st.integers(0, 2**32),
)
def test_any_configuration_of_any_depthwise_convolution(
    layout, kind, weight, channels, window, image, batch, attrs, zeros, constant, seed
):
    attrs = {**attrs, "groups": channels, "data_layout": layout, **points(kind, zeros)}
    shapes = laid_out_shapes(attrs, (batch, channels, *image), (channels, 1, *window))
    workload = convolution(f"{kind}[{shapes[0]}]", f"{weight}[{shapes[1]}]", constant, **attrs)
    name = f"depthwise_{workload.op}_{layout.lower()}.cpu"
    (space,) = (c.space for c in candidates(workload, TARGET) if c.implementation == name)
    check(workload, name, space.sample(random.Random(seed), 1)[0])


@pytest.mark.sample(2)
@pytest.mark.parametrize(("kind", "zero"), [("uint8", 255), ("uint8", 128), ("int8", -128), ("int8", -1)])
@pytest.mark.parametrize(("layout", "form"), [("NCHW", "dot"), ("NCHW", "dot_direct"), ("NHWC", "dot")])
@pytest.mark.parametrize("channels", [3, 7])
def test_zero_points_at_the_ends_fill_words(kind, zero, layout, form, channels):
    attrs = {"data_layout": layout, "kernel_layout": "OIHW", "padding": 1, "input_zero_point": zero}
    data, weight = laid_out_shapes(attrs, (1, channels, 7, 7), (8, channels, 3, 3))
    workload = convolution(f"{kind}[{data}]", f"int8[{weight}]", **attrs)
    name, _ = dot_space(workload, form)
    check(workload, name)


@pytest.mark.parametrize("window", ["3,3", "3,1"])  # rows of 9 numbers, and of 3
@pytest.mark.parametrize(("layout", "form"), [("NCHW", "dot"), ("NCHW", "dot_direct"), ("NHWC", "dot")])
def test_a_number_that_is_not_finite_counts_in_its_windows_alone(window, layout, form):
    import tvm

    attrs = {"data_layout": layout, "kernel_layout": "OIHW"}
    extents = [int(extent) for extent in window.split(",")]
    data, weight = laid_out_shapes(attrs, (1, 3, 9, 9), (17, 3, *extents))
    workload = convolution(f"bfloat16[{data}]", f"bfloat16[{weight}]", **attrs)
    name, _ = dot_space(workload, form)
    inputs = random_inputs(workload, 0)
    axes = tuple(layout.index(axis) for axis in "NCHW")
    inputs["data"].transpose(axes)[0, 0, 4, 4] = np.inf
    artefact = lower(workload, TARGET, name).compile(checks=False)
    *given, out = artefact.arguments
    output = tvm.runtime.empty(out.tensor.concrete_shape, out.tensor.dtype)
    artefact.main(*(artefact.prepare(a, tvm.runtime.tensor(inputs[a.name])) for a in given), output)
    found = output.numpy().astype(np.float32).transpose(axes)
    sees = np.zeros(found.shape[2:], bool)
    sees[4 - extents[0] + 1 : 5, 4 - extents[1] + 1 : 5] = True
    assert (np.isfinite(found) == ~sees).all()


@pytest.mark.parametrize(
    ("image", "weight", "form"),
    [
        ("64,56,56", "64,64,5,5", "dot_direct"), ("256,14,14", "64,256,1,1", "dot_direct"),
        ("64,56,56", "4,64,3,3", "dot"), ("64,56,56", "256,64,1,1", "dot"),  # idle lanes, short sums
    ],
)
def test_output_channels_are_in_the_lanes_where_that_pays(image, weight, form):
    for kind, narrow in (("bfloat16", "bfloat16"), ("uint8", "int8")):
        workload = convolution(f"{kind}[1,{image}]", f"{narrow}[{weight}]", padding=int(weight[-1]) // 2)
        found = [i for condition, i in evaluate(workload, ZEN5) if condition is None or condition.decide()]
        assert max(found, key=lambda i: i.plevel).name == f"{workload.op}_nchw_{form}.cpu"


@pytest.mark.parametrize(
    ("image", "weight", "ahead"),
    [
        ("512,7,7", "512,512,3,3", True), ("1024,14,14", "256,1024,1,1", True),
        ("64,56,56", "64,64,3,3", False),  # the weight stays in the second level
        ("2048,7,7", "512,2048,3,3", False),  # two panels leave no room there
    ],
)
def test_untuned_panels_of_a_large_weight_are_prefetched(image, weight, ahead):
    target = Target.parse({"kind": "llvm", "mcpu": "znver5", "num-cores": 2, "l2_bytes": 1 << 20})
    for layout, form in (("NCHW", "nchw_dot_direct"), ("NHWC", "nhwc_dot")):
        attrs = {"padding": int(weight[-1]) // 2, "data_layout": layout, "kernel_layout": "OIHW"}
        extents = [tuple(map(int, text.split(","))) for text in (f"1,{image}", weight)]
        data, packed = laid_out_shapes(attrs, *extents)
        workload = convolution(f"bfloat16[{data}]", f"bfloat16[{packed}]", **attrs)
        (space,) = (c.space for c in candidates(workload, target) if c.implementation == f"conv2d_{form}.cpu")
        assert space.fallback["ahead"] == ahead


def test_untuned_lines_that_share_no_panel_prefetch_none():
    target = Target.parse({"kind": "llvm", "mcpu": "znver5", "num-cores": 2, "l2_bytes": 1 << 20})
    for out, ahead in ((480, False), (512, True)):  # 480: tasks of a line have all panels
        attrs = {"padding": 1, "data_layout": "NHWC", "kernel_layout": "OIHW"}
        workload = convolution("uint8[1,7,7,512]", f"int8[{out},512,3,3]", **attrs)
        (space,) = (c.space for c in candidates(workload, target) if c.implementation == "qconv2d_nhwc_dot.cpu")
        assert space.fallback["ahead"] == ahead == (space.fallback["p_block"] > 1)


@pytest.mark.parametrize(
    ("image", "weight"),
    [("224,224,3", "64,3,7,7"), ("56,56,64", "64,64,3,3"), ("28,28,96", "96,96,3,3"), ("14,14,256", "1024,256,1,1")],
)
def test_untuned_no_line_of_the_cache_is_written_by_two_tasks(image, weight):
    """Such threads wait for each other, where images have their channels last and numbers of 8 bits."""
    out, _, high, _ = map(int, weight.split(","))
    for threads in (2, 16):
        for kind, narrow, size in (("uint8", "int8", 1), ("bfloat16", "bfloat16", 2)):
            attrs = {"padding": high // 2, "data_layout": "NHWC", "kernel_layout": "OIHW"}
            workload = convolution(f"{kind}[1,{image}]", f"{narrow}[{weight}]", **attrs)
            name, target = f"{workload.op}_nhwc_dot.cpu", ZEN5.with_threads(threads)
            (space,) = (c.space for c in candidates(workload, target) if c.implementation == name)
            found = space.fallback
            assert space.contains(found)
            written = found["o_block"] * found["width"]
            assert written * size % 64 == 0 or written >= out


@pytest.mark.parametrize("threads", [2, 64])
def test_untuned_tasks_keep_all_threads_at_work(threads):
    target = ZEN5.with_threads(threads)
    for image, weight in (("64,56,56", "64,64,3,3"), ("512,7,7", "512,512,3,3"), ("1024,14,14", "256,1024,1,1")):
        workload = convolution(f"bfloat16[1,{image}]", f"bfloat16[{weight}]", padding=int(weight[-1]) // 2)
        (space,) = (c.space for c in candidates(workload, target) if c.implementation == "conv2d_nchw_dot_direct.cpu")
        found = space.fallback
        panels, pixels = -(-int(weight.split(",")[0]) // found["width"]), int(image.split(",")[1])
        lines = -(-pixels * pixels // found["rows"]) if weight.endswith("1,1") else pixels
        tasks = panels // found["o_block"] * (lines // found["p_block"])
        assert tasks >= 0.8 * threads * -(-tasks // threads)


@pytest.mark.parametrize("threads", [1, 2, 8])
@pytest.mark.parametrize(
    ("image", "weight", "strides"),
    [
        ("512,7,7", "512,512,3,3", 1), ("256,14,14", "256,256,3,3", 1), ("256,28,28", "256,256,3,3", 2),
        ("192,17,17", "192,192,3,3", 1),
    ],
)
def test_untuned_a_thread_copies_what_it_reads_of_an_image(image, weight, strides, threads):
    """Waiting for other threads and reading from their caches took up to a third of the time."""
    for layout, form in (("NCHW", "nchw_dot_direct"), ("NHWC", "nhwc_dot")):
        attrs = {"data_layout": layout, "kernel_layout": "OIHW", "padding": 1, "strides": strides}
        data, packed = laid_out_shapes(attrs, (1, *map(int, image.split(","))), tuple(map(int, weight.split(","))))
        workload = convolution(f"bfloat16[{data}]", f"bfloat16[{packed}]", **attrs)
        spaces = {c.implementation: c.space for c in candidates(workload, ZEN5.with_threads(threads))}
        space = spaces[f"conv2d_{form}.cpu"]
        assert space.contains(space.fallback)
        assert space.fallback["by_task"]


@pytest.mark.parametrize(("rows", "k", "width"), [(128, 3072, 48), (128, 11008, 32), (8, 11008, 48), (128, 14336, 48)])
def test_untuned_tiles_share_a_panel_that_stays_in_the_second_level(rows, k, width):
    """Of 8 rows, one tile reads it; of 14336 steps, no panel of two vectors stays."""
    target = Target.parse({"kind": "llvm", "mcpu": "znver5", "num-cores": 2, "l2_bytes": 1 << 20})
    inputs = {"data": f"bfloat16[{rows},{k}]", "weight": f"bfloat16[4096,{k}]"}
    found = {c.implementation: c.space for c in candidates(Workload.make("dense", inputs, {}, ["weight"]), target)}
    space = found["dense_dot.cpu"]
    assert space.contains(space.fallback)
    assert space.fallback["width"] == width


def test_sums_of_int64_that_int32_does_not_hold_are_left_to_the_plain_loop():
    for channels, offered in ((3669, True), (3671, False)):
        inputs = {"data": f"uint8[1,{channels},3,3]", "weight": f"uint8[2,{channels},3,3]"}
        names = {i.name for _, i in evaluate(Workload.make("conv2d", inputs, {"out_dtype": "int64"}), ZEN4)}
        assert ("conv2d_nchw_dot.cpu" in names) == offered


def test_depthwise_sums_that_float32_does_not_hold_are_left_to_the_plain_loop():
    for zero, window, offered in ((0, 21, True), (0, 23, False), (-100, 19, True), (-100, 20, False)):
        for layout in ("NCHW", "NHWC"):
            attrs = {"data_layout": layout, "kernel_layout": "OIHW", "groups": 2, "input_zero_point": zero}
            data, weight = laid_out_shapes(attrs, (1, 2, 30, 30), (2, 1, window, window))
            workload = convolution(f"uint8[{data}]", f"int8[{weight}]", **attrs)
            names = {i.name for _, i in evaluate(workload, ZEN4)}
            assert (f"depthwise_qconv2d_{layout.lower()}.cpu" in names) == offered


def test_a_word_is_loaded_for_several_instructions_where_a_cycle_begins_two():
    image = convolution("uint8[1,1024,14,14]", "int8[256,1024,1,1]")
    widths = {}
    for arch in ("znver4", "znver5"):
        target = Target.parse(f"llvm -mcpu={arch} -num-cores=2")
        (space,) = (c.space for c in candidates(image, target) if c.implementation == "qconv2d_nchw_dot.cpu")
        assert space
        widths[arch] = space.fallback["width"]
    assert widths == {"znver4": 16, "znver5": 32}


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["bfloat16", "uint8"])
def test_words_of_few_channels_are_read_in_place(kind):
    weight = "bfloat16" if kind == "bfloat16" else "int8"
    workload = convolution(f"{kind}[1,4,7,64]", f"{weight}[5,4,6,6]", strides=2, padding=2)
    name, space = dot_space(workload)
    assert space.fallback["in_place"]
    assert "columns" not in lower(workload, ZEN4, name).module["main"].script()
    check(workload, name)


@pytest.mark.full
def test_a_convolution_of_signed_integers_and_one_of_an_unknown_batch():
    attrs = {"padding": 1, "out_dtype": "int32"}
    workload = Workload.make("conv2d", {"data": "int8[1,6,5,9]", "weight": "int8[5,6,3,3]"}, attrs)
    check(workload, dot_space(workload)[0])
    assert dot_space(convolution("bfloat16[n,6,5,9]", "bfloat16[5,6,3,3]"))[0] == "conv2d_nchw_dot.cpu"
    both_unsigned = Workload.make("conv2d", {"data": "uint8[1,6,5,9]", "weight": "uint8[5,6,3,3]"}, attrs)
    check(both_unsigned, dot_space(both_unsigned)[0])


@pytest.mark.sample(1)
@pytest.mark.parametrize("transpose_b", [False, True])
def test_a_batch_of_products(transpose_b):
    for x, y in ((3, 3), (1, 3), (3, 1)):
        inputs = {"x": f"bfloat16[{x},17,10]", "y": f"bfloat16[{y},{'33,10' if transpose_b else '10,33'}]"}
        workload = Workload.make("batch_matmul", inputs, {"transpose_b": transpose_b})
        check(workload, dot_space(workload)[0])


def steps(n: int, *ops: str, axis: int = -1) -> list[EpilogueStep]:
    """Steps with a scale for each entry of an axis, and one zero point."""
    scale, zero = Input("scale", f"float32[{n}]", constant=True), Input("zero", "int32[]", constant=True)
    to = Input("to", "float32[]", constant=True)
    given = {
        "requantize": ((None, scale, zero, to, zero), {"axis": axis}),
        "dequantize": ((None, scale, zero), {"axis": axis}),
        "bias_add": ((None, Input("bias", f"float32[{n}]", constant=True)), {"axis": axis}),
        "multiply": ((None, Input("factor", "float32[]", constant=True)), {}),
        "clip": ((None,), {"a_min": 0.0, "a_max": 255.0}),
        "cast": ((None,), {"dtype": "uint8"}),
    }
    return [EpilogueStep(op, *given.get(op, ((None,), {}))) for op in ops]


TO_BYTES = ("dequantize", "bias_add", "relu", "multiply", "round", "clip", "cast")


@pytest.mark.sample(1)
@pytest.mark.parametrize("ops", [("requantize",), ("dequantize", "relu"), TO_BYTES])
def test_an_epilogue_joins_the_integer_product(ops, full):
    workload = product("int8[19,32]", "int8[37,32]", epilogue=steps(37, *ops), input_zero_point=-7)
    names = [i.name for _, i in evaluate(workload, TARGET)]
    assert "reduce.cpu" in names
    for name in names:
        check(workload, name)
    attrs = {"input_zero_point": -7, "padding": 1}
    image = convolution("int8[1,6,5,9]", "int8[7,6,3,3]", epilogue=steps(7, *ops, axis=1), **attrs)
    last = convolution(
        "int8[1,5,9,6]", "int8[7,3,3,6]", epilogue=steps(7, *ops), data_layout="NHWC", kernel_layout="OHWI", **attrs
    )
    for found in (image, last) if full else (image,):
        for _, implementation in evaluate(found, TARGET):
            check(found, implementation.name)


@pytest.mark.parametrize("form", ["dot", "dot_direct"])
def test_edges_of_an_image_are_packed_and_requantised_by_vectors(form):
    # No vector divides its lines, nor a tile its pixels.
    image = convolution("uint8[1,16,14,14]", "int8[8,16,3,3]", epilogue=steps(8, "requantize", axis=1), padding=1)
    source = lower(image, ZEN4, f"qconv2d_nchw_{form}.cpu").compile(checks=False).executable.mod.inspect_source("s")
    code = source[source.index("\nmain_compute_:") : source.index("\nprepare_weight_compute_:")]
    assert "vrndscaleps" in code
    assert not any(scalar in code for scalar in ("vrndscaless", "vroundss", "movzbl"))


@pytest.mark.full
def test_the_instruction_is_used_where_the_target_has_it():
    for target, integer, real in ((ZEN4, "vpdpbusd", "vdpbf16ps"), (NEOVERSE, "sdot", "bfdot")):
        for kind, opcode in (("bfloat16", real), ("int8", integer), ("uint8", integer)):
            weight = "bfloat16" if kind == "bfloat16" else "int8"
            image = convolution(f"{kind}[1,16,8,8]", f"{weight}[32,16,3,3]")
            last = convolution(f"{kind}[1,8,8,16]", f"{weight}[32,16,3,3]", data_layout="NHWC")
            dense = product(f"{kind}[8,64]", f"{weight}[32,64]")
            for workload, name in ((dense, "dot"), (image, "nchw_dot"), (image, "nchw_dot_direct"), (last, "nhwc_dot")):
                code = lower(workload, target, f"{workload.op}_{name}.cpu").compile(checks=False)
                assert opcode in code.executable.mod.inspect_source("s")


@pytest.mark.parametrize("spec", [
    "-mcpu=x86-64-v4", "-mcpu=skylake-avx512", "-mcpu=znver4 -mattr=-avx512vnni", "-mcpu=znver4 -mattr=-avx512f",
    "-mcpu=znver4 -mattr=-avx512f,+avx512vnni", "-mcpu=znver5 -mattr=-avx2",
])
def test_elsewhere_it_is_not_offered(spec):
    for workload in (product("uint8[8,64]", "int8[32,64]"), convolution("uint8[1,3,8,8]", "int8[4,3,3,3]")):
        for target, offered in ((Target.parse(f"llvm {spec}"), False), (ZEN4, True)):
            assert any(i.name.endswith("_dot.cpu") for _, i in evaluate(workload, target)) == offered
    for workload in (
        product("int8[8,62]", "int8[32,62]"), convolution("int8[1,8,8,8]", "int8[8,1,3,3]", groups=8),
        convolution("int8[1,8,8,8]", "int8[8,8,3,3]", input_zero_point=200),
        convolution("uint8[1,8,8,8]", "int8[8,3,3,8]", input_zero_point=-1, data_layout="NHWC", kernel_layout="OHWI"),
    ):
        assert not any(i.name.endswith("_dot.cpu") for _, i in evaluate(workload, ZEN4))


@pytest.mark.parametrize("m", [1, 7, 14, 16, 128])
def test_a_tenth_of_the_space_is_valid(m):
    for kind, weight in (("bfloat16", "bfloat16"), ("uint8", "int8")):
        image = convolution(f"{kind}[1,64,{m},{m}]", f"{weight}[64,64,3,3]", padding=1)
        last = convolution(f"{kind}[1,{m},{m},64]", f"{weight}[64,64,3,3]", padding=1, data_layout="NHWC")
        pixels = convolution(f"{kind}[1,{m},{m},64]", f"{weight}[1024,64,1,1]", data_layout="NHWC")
        dense = product(f"{kind}[{m},768]", f"{weight}[3072,768]")
        for workload, name in (
            (dense, "dot"), (image, "nchw_dot"), (image, "nchw_dot_direct"), (last, "nhwc_dot"), (pixels, "nhwc_dot"),
        ):
            spaces = {c.implementation: c.space for c in candidates(workload, ZEN4)}
            space = spaces[f"{workload.op}_{name}.cpu"]
            size = np.prod([len(k.values) for k in space.knobs])
            assert space.count(limit=100_000) >= 0.1 * size


@pytest.mark.parametrize(("channels", "size", "out"), [(2048, 7, 512), (1024, 14, 256), (128, 28, 512), (96, 14, 576)])
def test_a_tenth_of_the_tiles_over_lines_is_valid(channels, size, out):
    for kind, weight in (("bfloat16", "bfloat16"), ("uint8", "int8")):
        workload = convolution(f"{kind}[1,{channels},{size},{size}]", f"{weight}[{out},{channels},1,1]")
        spaces = {c.implementation: c.space for c in candidates(workload, ZEN5)}
        space = spaces[f"{workload.op}_nchw_dot_direct.cpu"]
        assert space.count(limit=100_000) >= 0.1 * np.prod([len(k.values) for k in space.knobs])


@pytest.mark.sample(2)
@pytest.mark.parametrize(("bits", "level"), [(4, 0), (4, 4), (8, 0), (8, 4)])
@settings(max_examples=2)
@given(
    m=st.sampled_from([1, 6]), n=st.sampled_from([1, 50]), blocks=st.sampled_from([1, 3]), constant=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_weights_of_few_bits(m, n, blocks, bits, level, constant, seed):
    inputs = {
        "data": f"float32[{m},{blocks * 32}]", "weight": f"uint8[{n},{blocks},{4 * bits}]",
        "scales": f"float32[{n},{blocks}]",
    }
    attrs = {"bits": bits, "accuracy_level": level}
    constants = ["weight", "scales"] if constant else []
    workload = Workload.make("matmul_nbits", inputs, attrs, constants, [EpilogueStep("relu", (None,))])
    spaces = {c.implementation: c.space for c in candidates(workload, TARGET)}
    if level and "matmul_nbits_panel.cpu" not in spaces:
        pytest.skip("this processor has no dot-product instructions")
    (config,) = spaces["matmul_nbits_panel.cpu"].sample(random.Random(seed), 1)
    check(workload, "matmul_nbits_panel.cpu", config)


def test_data_of_8_bits_go_through_the_instruction():
    inputs = {"data": "float32[1,64]", "weight": "uint8[32,2,16]", "scales": "float32[32,2]"}
    for level in (0, 4):
        workload = Workload.make("matmul_nbits", inputs, {"accuracy_level": level}, ["weight", "scales"])
        code = lower(workload, ZEN4, "matmul_nbits_panel.cpu").compile(checks=False)
        assert ("vpdpbusd" in code.executable.mod.inspect_source("s")) == (level == 4)


@pytest.mark.parametrize(("rows", "loops"), [(1, 1), (512, 2)])
def test_data_of_few_rows_are_rounded_by_one_thread(rows, loops):
    inputs = {"data": f"float32[{rows},64]", "weight": "uint8[32,2,16]", "scales": "float32[32,2]"}
    workload = Workload.make("matmul_nbits", inputs, {"accuracy_level": 4}, ["weight", "scales"])
    lowered = lower(workload, ZEN4, "matmul_nbits_panel.cpu")
    assert str(lowered.module["main"]).count("T.parallel(") == loops


@pytest.mark.parametrize(("dtype", "lines"), [("float32", 2), ("float16", 1)])
def test_scales_of_a_later_block_are_prefetched_once_a_line(dtype, lines):
    inputs = {"data": f"{dtype}[1,64]", "weight": "uint8[32,2,16]", "scales": f"{dtype}[32,2]"}
    workload = Workload.make("matmul_nbits", inputs, {}, ["weight", "scales"])
    lowered = lower(workload, ZEN4, "matmul_nbits_panel.cpu")
    assert str(lowered.module["main"]).count("T.address_of(scales[") == lines


@pytest.mark.parametrize(("rows", "spec", "once"), [(1, "znver5", True), (4, "znver5", True), (8, "znver5", False),
                                                    ("m", "znver5", False), (1, "sapphirerapids", False)])
def test_weights_of_few_bits_that_are_read_once_pass_the_second_level(rows, spec, once):
    """Of 8 rows two tiles read each panel, the second from where the first left it."""
    inputs = {"data": f"float32[{rows},64]", "weight": "uint8[32,2,16]", "scales": "float32[32,2]"}
    workload = Workload.make("matmul_nbits", inputs, {}, ["weight", "scales"])
    lowered = lower(workload, Target.parse(f"llvm -mcpu={spec} -num-cores=2"), "matmul_nbits_panel.cpu")
    code = lowered.compile(checks=False).executable.mod.inspect_source("s")
    assert set(re.findall(r"prefetch\w+", code)) == {"prefetchnta" if once else "prefetcht1"}


@pytest.mark.parametrize(("bits", "spec"), [(4, "znver4"), (8, "znver4"), (4, "haswell")])
def test_numbers_of_4_bits_are_places_of_a_vector_of_512(bits, spec):
    inputs = {"data": "float32[1,64]", "weight": f"uint8[32,2,{4 * bits}]", "scales": "float32[32,2]"}
    workload = Workload.make("matmul_nbits", inputs, {"bits": bits}, ["weight", "scales"])
    lowered = lower(workload, Target.parse(f"llvm -mcpu={spec} -num-cores=2"), "matmul_nbits_panel.cpu")
    code = lowered.compile(checks=False).executable.mod.inspect_source("s")
    assert bool(re.search(r"vperm(ps|d)\t", code)) == (bits == 4 and spec == "znver4")
    assert "prefetch" in code


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@settings(max_examples=min(6, settings.default.max_examples // 12))
@given(
    shape=st.sampled_from(["1,17,19,19;21,17,3,3", "2,6,9,40;34,3,3,3", "1,20,7,9;37,20,1,1", "1,3,23,21;9,3,7,7"]),
    padding=st.integers(0, 2), stride=st.integers(1, 2), last=st.booleans(), seed=st.integers(0, 2**32),
)
def test_narrow_floats_by_the_implementations_of_float32(full, dtype, shape, padding, stride, last, seed):
    data, weight = (list(map(int, part.split(","))) for part in shape.split(";"))
    attrs = {"padding": padding, "strides": stride, "groups": data[1] // weight[1]}
    if last:
        data, weight = [data[i] for i in (0, 2, 3, 1)], [weight[i] for i in (2, 3, 1, 0)]
        attrs |= {"data_layout": "NHWC", "kernel_layout": "HWIO"}
    workload = convolution(f"{dtype}{data}".replace(" ", ""), f"{dtype}{weight}".replace(" ", ""), **attrs)
    found = [c for c in candidates(workload, TARGET) if c.condition is None or c.condition.decide()]
    tunable = [c for c in found if c.space is not None]
    assert any("spatial_pack" in c.implementation for c in tunable)
    generator = random.Random(seed)
    for candidate in tunable if full else generator.sample(tunable, min(3, len(tunable))):
        assert candidate.space is not None
        (config,) = candidate.space.sample(generator, 1)
        check(workload, candidate.implementation, config)


@pytest.mark.sample(2)
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_products_of_two_narrow_floats_by_the_implementation_of_float32(dtype, transpose):
    y = "3,37,50" if transpose else "3,50,37"
    shapes = {"x": f"{dtype}[3,13,50]", "y": f"{dtype}[{y}]"}
    workload = Workload.make("batch_matmul", shapes, {"transpose_b": transpose})
    check(workload, "batch_matmul_pack.cpu")


def test_slow_instructions_are_not_chosen_untuned():
    def chosen(workload: Workload, arch: str) -> str:
        found = candidates(workload, Target.parse(f"llvm -mcpu={arch} -num-cores=2"))
        valid = [c for c in found if c.condition is None or c.condition.decide()]
        return max(valid, key=lambda c: c.plevel).implementation

    dense = product("bfloat16[128,768]", "bfloat16[3072,768]")
    conv2d = convolution("bfloat16[1,64,56,56]", "bfloat16[64,64,3,3]", padding=1, strides=2)
    batch_matmul = Workload.make("batch_matmul", {"x": "bfloat16[3,64,64]", "y": "bfloat16[3,64,64]"})
    for workload in (dense, conv2d, batch_matmul):
        assert "dot" in chosen(workload, "znver4")
        assert "dot" not in chosen(workload, "emeraldrapids -mattr=-amx-tile")
    assert chosen(conv2d, "znver3") == "conv2d_nchw_spatial_pack.cpu"  # which has no instruction
    # A quarter of the multiplications in float32 takes less time than all by the instruction, but not than by AMX.
    square = convolution("bfloat16[1,64,56,56]", "bfloat16[64,64,3,3]", padding=1)
    assert chosen(square, "znver5") == "conv2d_nchw_winograd_lines_4x4.cpu"
    assert "amx" in chosen(square, "sapphirerapids")
