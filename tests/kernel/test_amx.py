"""Products by AMX: integers exactly, bfloat16 as float64 says; the request to Linux, and what follows a refusal."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategy.compile.entry import LibraryRow
from strategy.compile.export import export_library
from strategy.compile.lower import lower
from strategy.op_strategy import candidates, evaluate
from strategy.target import Target
from strategy.workload import EpilogueStep, Workload
from tests.limit import HANG_S
from workers.reference import compare, numpy_dtype, random_inputs, reference, tolerances

from .test_low_precision import (
    KINDS,
    TARGET,
    check,
    convolution,
    laid_out_shapes,
    points,
    product,
    steps,
)

RAPIDS = Target.parse("llvm -mcpu=sapphirerapids -num-cores=2")
WITHOUT = Target.parse("llvm -mcpu=sapphirerapids -mattr=-amx-tile -num-cores=2")
on_amx = pytest.mark.skipif(not TARGET.has("amx-int8"), reason="this host has no AMX")


def name_of(workload: Workload, kind: str = "amx") -> str:
    layout = str(workload.attrs.get("data_layout", "NCHW")).lower()
    return f"{workload.op}_{layout}_{kind}.cpu" if "conv2d" in workload.op else f"{workload.op}_{kind}.cpu"


def space_of(workload: Workload, kind: str = "amx") -> Any:
    return next(c.space for c in candidates(workload, TARGET) if c.implementation == name_of(workload, kind))


def batched(x: str, y: str, transpose_b: bool, kind: str, constant: bool = False) -> Workload:
    attrs = {"transpose_b": transpose_b} | ({} if kind == "bfloat16" else {"out_dtype": "int32"})
    return Workload.make("batch_matmul", {"x": f"{kind}[{x}]", "y": f"{kind}[{y}]"}, attrs, ["y"] if constant else [])


@on_amx
@pytest.mark.sample(1)
@pytest.mark.parametrize(("kind", "weight"), KINDS)
@settings(max_examples=min(6, settings.default.max_examples // 6))
@given(
    m=st.sampled_from([1, 3, 16, 37, 64]), n=st.sampled_from([1, 16, 50, 96]),
    k=st.sampled_from([1, 3, 30, 64, 76, 128, 152, 200]),
    zeros=st.sampled_from([(0, 0), (100, 0), (0, -5), (100, 120)]), constant=st.booleans(), seed=st.integers(0, 2**32),
)
def test_any_configuration_of_any_shape(m, n, k, kind, weight, zeros, constant, seed):
    workload = product(f"{kind}[{m},{k}]", f"{weight}[{n},{k}]", constant, **points(kind, zeros))
    space = space_of(workload)
    for config in (space.fallback, *space.sample(random.Random(seed), 1)):
        check(workload, name_of(workload), config)


@on_amx
@pytest.mark.sample(1)
@pytest.mark.parametrize(("kind", "weight"), KINDS)
@pytest.mark.parametrize("inner", ["rows", "panels"])
def test_a_large_product_is_added_up_part_by_part(kind, weight, inner):
    workload = product(f"{kind}[70,16500]", f"{weight}[50,16500]", **points(kind, (100, 3)))
    space = space_of(workload)
    blocks = {"rows": 24, "width": 32, "n_block": 2, "m_tasks": 1, "inner": inner}
    for parts in space["parts"].values[1:3]:
        for copied in (1, 2):
            check(workload, name_of(workload), {**space.fallback, **blocks, "parts": parts, "copied": copied})


@on_amx
@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["bfloat16", "int8", "uint8"])
@pytest.mark.parametrize("transpose_b", [False, True])
@settings(max_examples=2)
@given(
    x=st.sampled_from([1, 3]), y=st.sampled_from([1, 3]), m=st.sampled_from([1, 17, 64]), k=st.sampled_from([10, 64]),
    constant=st.booleans(), seed=st.integers(0, 2**32),
)
def test_any_configuration_of_a_batch(kind, transpose_b, x, y, m, k, constant, seed):
    workload = batched(f"{x},{m},{k}", f"{y},33,{k}" if transpose_b else f"{y},{k},33", transpose_b, kind, constant)
    (config,) = space_of(workload).sample(random.Random(seed), 1)
    check(workload, name_of(workload), config)


@on_amx
@pytest.mark.sample(2)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("form", ["amx", "amx_direct"])
@pytest.mark.parametrize(("kind", "weight"), KINDS)
@settings(max_examples=min(4, settings.default.max_examples // 6))
@given(
    channels=st.sampled_from([1, 3, 9, 40, 64]), out=st.sampled_from([1, 17, 64]),
    window=st.sampled_from([(1, 1), (3, 3), (2, 5), (7, 7)]), image=st.tuples(st.integers(8, 11), st.integers(12, 20)),
    batch=st.integers(1, 2), attrs=st.fixed_dictionaries({
        "strides": st.sampled_from([1, 2, [1, 3]]), "padding": st.sampled_from([0, [1, 0, 2, 1]]),
        "dilation": st.sampled_from([1, 1, [1, 2]]), "kernel_layout": st.sampled_from(["OIHW", "HWIO", "OHWI"]),
    }),
    zero=st.sampled_from([0, 100]), constant=st.booleans(), seed=st.integers(0, 2**32),
)
def test_any_configuration_of_any_convolution(
    layout, form, kind, weight, channels, out, window, image, batch, attrs, zero, constant, seed
):
    attrs = {**attrs, "dilation": 1 if window[1] == 7 else attrs["dilation"], "data_layout": layout}
    attrs |= points(kind, (zero, 0))
    shapes = laid_out_shapes(attrs, (batch, channels, *image), (out, channels, *window))
    workload = convolution(f"{kind}[{shapes[0]}]", f"{weight}[{shapes[1]}]", constant, **attrs)
    space = space_of(workload, form)
    for config in (space.fallback, *space.sample(random.Random(seed), 1)):
        check(workload, name_of(workload, form), config)


@on_amx
@pytest.mark.sample(1)
@pytest.mark.parametrize(("kind", "weight"), KINDS)
@pytest.mark.parametrize("image", [(7, 7), (9, 9), (3, 4)])
def test_short_lines_are_joined(kind, weight, image):
    """All lines of the first image and the last, and three of the other."""
    attrs = {"padding": 1, **points(kind, (100, 0))}
    workload = convolution(f"{kind}[2,40,{image[0]},{image[1]}]", f"{weight}[33,40,3,3]", **attrs)
    space = space_of(workload, "amx_direct")
    for joined in space["joined"].values[1:]:
        given = {**space.fallback, "rows": 16, "lines": 1, "width": 16, "o_block": 1, "h_tasks": 1, "joined": joined}
        for copied in (0, 1):
            check(workload, name_of(workload, "amx_direct"), space.check({**given, "copied": copied}))


@on_amx
@pytest.mark.sample(1)
@pytest.mark.parametrize(("kind", "weight"), KINDS)
@settings(max_examples=min(4, settings.default.max_examples // 6))
@given(
    channels=st.sampled_from([2, 9, 16]), out=st.sampled_from([8, 20]), window=st.sampled_from([1, 3]),
    image=st.tuples(st.integers(3, 9), st.integers(1, 20)), groups=st.integers(2, 3), strides=st.sampled_from([1, 2]),
    zero=st.sampled_from([0, 100]), seed=st.integers(0, 2**32),
)
def test_any_configuration_of_groups(kind, weight, channels, out, window, image, groups, strides, zero, seed):
    attrs = {"groups": groups, "strides": strides, "padding": window // 2, **points(kind, (zero, 0))}
    shape = f"{weight}[{out * groups},{channels},{window},{window}]"
    workload = convolution(f"{kind}[2,{channels * groups},{image[0]},{image[1]}]", shape, **attrs)
    space = space_of(workload)
    for config in (space.fallback, *space.sample(random.Random(seed), 1)):
        check(workload, name_of(workload), config)


@on_amx
@pytest.mark.parametrize("kind", ["bfloat16", "uint8"])
@pytest.mark.parametrize("inner", ["rows", "panels"])
def test_rows_that_are_counted_at_the_call(kind, inner):
    import tvm

    weight = "bfloat16" if kind == "bfloat16" else "int8"
    workload = product(f"{kind}[m,72]", f"{weight}[50,72]", **points(kind, (100, 3)))
    space = space_of(workload)
    assert not space.fallback["ahead"]  # how many blocks share what comes ahead is not known
    for copied in (1, 2):
        config = {**space.fallback, "rows": 20, "inner": inner, "copied": copied}
        artefact = lower(workload, TARGET, name_of(workload), config).compile(checks=False)
        for m in (1, 20, 37):
            at = workload.bind({"m": m})
            inputs = random_inputs(at, m)
            (right,) = reference(at, inputs)
            *read, out = artefact.arguments
            output = tvm.runtime.tensor(np.zeros(right.shape, numpy_dtype(out.tensor.dtype)))
            artefact.main(*(artefact.prepare(a, tvm.runtime.tensor(inputs[a.name])) for a in read), output)
            compare(output.numpy(), np.asarray(right), tolerances(at, inputs, [right])[0])


@on_amx
@pytest.mark.sample(1)
@pytest.mark.parametrize("ops", [("requantize",), ("dequantize", "relu")])
def test_an_epilogue_joins_the_product(ops):
    workload = product("int8[19,32]", "int8[37,32]", epilogue=steps(37, *ops), input_zero_point=-7)
    image = convolution(
        "int8[1,5,9,16]", "int8[7,3,3,16]", epilogue=steps(7, *ops), input_zero_point=-7, padding=1, data_layout="NHWC",
        kernel_layout="OHWI",
    )
    first = convolution(
        "int8[1,16,5,9]", "int8[7,16,3,3]", epilogue=steps(7, *ops, axis=1), input_zero_point=-7, padding=1
    )
    for found in (workload, image, first):
        check(found, name_of(found))
    for found in (image, first):
        check(found, name_of(found, "amx_direct"))


@on_amx
def test_sums_of_integers_may_become_bfloat16():
    cast = [EpilogueStep("cast", (None,), {"dtype": "bfloat16"})]
    workload = product("int8[19,32]", "int8[37,32]", epilogue=cast)
    image = convolution("int8[1,16,5,32]", "int8[7,16,3,3]", epilogue=cast)
    check(workload, name_of(workload))
    check(image, name_of(image, "amx_direct"))


def test_the_instruction_is_used_where_the_target_has_it():
    opcodes = dict(zip(KINDS, ("tdpbf16ps", "tdpbusd", "tdpbssd", "tdpbuud", "tdpbsud"), strict=True))
    for (kind, weight), opcode in opcodes.items():
        workload = product(f"{kind}[64,64]", f"{weight}[32,64]")
        code = lower(workload, RAPIDS, name_of(workload)).compile(checks=False).executable.mod.inspect_source("s")
        assert opcode in code
        for once in ("ldtilecfg", "tilerelease"):
            assert code.count(f"\t{once}") == 1


def test_elsewhere_it_is_not_offered():
    for spec in ("-mcpu=znver4", "-mcpu=icelake-server", "-mcpu=sapphirerapids -mattr=-amx-tile"):
        target = Target.parse(f"llvm {spec}")
        for kind, weight in KINDS:
            image = convolution(f"{kind}[1,8,8,64]", f"{weight}[32,64,3,3]", data_layout="NHWC")
            first = convolution(f"{kind}[1,64,8,8]", f"{weight}[32,64,3,3]")
            for workload in (product(f"{kind}[64,64]", f"{weight}[32,64]"), image, first):
                assert not any("amx" in i.name for _, i in evaluate(workload, target))
    refused = ({"out_layout": "NHWC"}, {"groups": 8}, {"kernel_zero_point": 1}, {"input_zero_point": 200})
    for attrs in (*refused, *({**attrs, "data_layout": "NHWC", "out_layout": "NHWC"} for attrs in refused[1:])):
        found = {"data_layout": "NCHW", "kernel_layout": "OIHW", **attrs}
        shapes = laid_out_shapes(found, (1, 64, 8, 8), (32, 64 // found.get("groups", 1), 3, 3))
        workload = convolution(f"int8[{shapes[0]}]", f"int8[{shapes[1]}]", **found)
        assert not any("amx" in i.name for _, i in evaluate(workload, RAPIDS))
    without = Target.parse("llvm -mcpu=sapphirerapids -mattr=-amx-int8")
    assert any("amx" in i.name for _, i in evaluate(product("bfloat16[8,64]", "bfloat16[8,64]"), without))
    assert not any("amx" in i.name for _, i in evaluate(product("int8[8,64]", "int8[8,64]"), without))


def test_it_is_chosen_untuned_but_for_one_row_of_integers():
    def chosen(workload: Workload, target: Target) -> str:
        valid = [c for c in candidates(workload, target) if c.condition is None or c.condition.decide()]
        return max(valid, key=lambda c: c.plevel).implementation

    for kind, weight in (("bfloat16", "bfloat16"), ("uint8", "int8")):
        image = convolution(f"{kind}[1,64,8,8]", f"{weight}[32,64,3,3]")
        assert "amx" in chosen(image, RAPIDS)
        assert "amx" not in chosen(image, WITHOUT)
        few = kind == "bfloat16"  # rows of windows of 8-bit integers are short there
        for side, channels, is_direct in ((14, 64, True), (7, 64, False), (14, 8, True), (14, 3, few), (7, 3, False)):
            data, filters = f"{kind}[1,{side},{side},{channels}]", f"{weight}[32,3,3,{channels}]"
            last = convolution(data, filters, data_layout="NHWC", kernel_layout="OHWI", padding=1)
            assert chosen(last, RAPIDS).endswith("amx_direct.cpu") == is_direct
    for m, kind, weight in ((128, "bfloat16", "bfloat16"), (1, "bfloat16", "bfloat16"), (128, "uint8", "int8")):
        workload = product(f"{kind}[{m},64]", f"{weight}[32,64]")
        assert "amx" in chosen(workload, RAPIDS)
        assert "amx" not in chosen(workload, WITHOUT)
    assert chosen(product("uint8[1,64]", "int8[32,64]"), RAPIDS) == "qdense_dot.cpu"


@pytest.mark.parametrize(
    ("kind", "channels", "out", "window", "is_direct"),
    [
        ("bfloat16", 128, 128, 3, True), ("bfloat16", 128, 256, 3, False), ("bfloat16", 128, 256, 5, True),
        ("uint8", 64, 64, 3, True), ("uint8", 128, 128, 3, False), ("uint8", 128, 128, 5, True),
    ],
)
def test_many_output_channels_share_unfolded_windows_with_a_stride(kind, channels, out, window, is_direct):
    weight = "bfloat16" if kind == "bfloat16" else "int8"
    shapes = f"{kind}[1,{channels},56,56]", f"{weight}[{out},{channels},{window},{window}]"
    workload = convolution(*shapes, strides=2, padding=window // 2)
    valid = [c for c in candidates(workload, RAPIDS) if c.condition is None or c.condition.decide()]
    chosen = max(valid, key=lambda c: c.plevel).implementation
    assert chosen == name_of(workload, "amx_direct" if is_direct else "amx")


@pytest.mark.parametrize(("m", "has_parts"), [(128, False), (512, True)])
def test_data_that_leave_the_second_level_are_multiplied_in_parts(m, has_parts):
    workload = product(f"bfloat16[{m},4096]", "bfloat16[1024,4096]")
    space = next(c.space for c in candidates(workload, RAPIDS) if c.implementation == name_of(workload))
    assert space is not None
    assert ("parts" in space.fallback) is has_parts
    assert not has_parts or space.fallback["parts"] > 1


@pytest.mark.parametrize("m", [1, 16, 128, 197])
def test_a_tenth_of_the_space_is_valid(m):
    for kind, weight in (("bfloat16", "bfloat16"), ("uint8", "int8")):
        workload = product(f"{kind}[{m},768]", f"{weight}[3072,768]")
        space = next(c.space for c in candidates(workload, RAPIDS) if c.implementation == name_of(workload))
        assert space is not None
        size = 1
        for knob in space.knobs:
            size *= len(knob.values)
        assert space.count(limit=size) >= 0.1 * size


# Processes that have not asked Linux for AMX, as no target of this host is read there; a filter may refuse it.
_LINUX = """
import ctypes, errno, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
if sys.argv[2] == "refused":
    refuse, allow = (6, 0, 0, 0x50000 | errno.EPERM), (6, 0, 0, 0x7FFF0000)
    steps = [(0x20, 0, 0, 0), (0x15, 0, 3, 158), (0x20, 0, 0, 16), (0x15, 0, 1, 0x1023), refuse, allow]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps), 8 * len(steps))
    class Program(ctypes.Structure):
        _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_void_p))
    libc.prctl(38, 1, 0, 0, 0)
    assert libc.prctl(22, 2, ctypes.byref(Program(len(steps), ctypes.addressof(code))), 0, 0) == 0
"""
_C = """
libc.aligned_alloc.restype = ctypes.c_void_p
def memory(size, byte):
    found = libc.aligned_alloc(64, size)
    ctypes.memset(found, byte, size)
    return found
data, weight, out = memory(64 * 64, 2), memory(32 * 64, 3), memory(64 * 32 * 4, 0)
packed = memory(1 << 16, 0)
library = ctypes.CDLL(sys.argv[1])
pointer = ctypes.c_void_p
assert library.plevel_qdense_prepare_weight_packed(pointer(weight), pointer(packed)) == 0
status = library.plevel_qdense(pointer(data), pointer(packed), pointer(out))
print(status, sorted(set((ctypes.c_int32 * (64 * 32)).from_address(out))))
"""


_PYTHON = """
import numpy as np, tvm
from strategy.compile.lower import lower
from strategy.target import Target
from strategy.workload import EpilogueStep, Workload
workload = Workload.make("qdense", {"data": "uint8[64,64]", "weight": "int8[32,64]"})
target = Target.parse("llvm -mcpu=sapphirerapids -num-cores=2")
artefact = lower(workload, target, "qdense_amx.cpu").compile(checks=False)
out = tvm.runtime.tensor(np.zeros((64, 32), "int32"))
arrays = np.full((64, 64), 2, "uint8"), np.full((32, 64), 3, "int8")
try:
    artefact.main(*map(tvm.runtime.tensor, arrays), out)
except RuntimeError as error:
    print(error)
print(np.unique(out.numpy()))
"""


@on_amx
@pytest.mark.sample(1)
@pytest.mark.parametrize("kernel", ["refused", "granted"])
def test_code_without_checks_asks_linux_too(kernel: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LINUX + _PYTHON, "", kernel], capture_output=True, text=True, timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    if kernel == "granted":
        assert done.stdout.strip() == f"[{2 * 3 * 64}]"
    else:
        assert done.stdout.splitlines()[-1] == "[0]"
        assert "AMX: this processor lacks it" in done.stdout


@on_amx
@pytest.mark.parametrize("kernel", ["granted", "refused"])
def test_a_process_asks_linux_and_says_so_where_it_is_refused(kernel: str, tmp_path: Path) -> None:
    workload = product("uint8[64,64]", "int8[32,64]")
    path = tmp_path / "library.so"
    export_library(workload, [LibraryRow(lower(workload, TARGET, name_of(workload)))], path)
    done = subprocess.run(
        [sys.executable, "-c", _LINUX + _C, str(path), kernel], capture_output=True, text=True, timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    if kernel == "granted":
        assert done.stdout.strip() == f"0 [{2 * 3 * 64}]"
    else:
        assert done.stdout.strip() == "-1 [0]"
        assert "RuntimeError: AMX: this processor lacks it, or its kernel does not allow it" in done.stderr
