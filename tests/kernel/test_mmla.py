"""Arm's matrix instructions: in the code where a target has them; here products by them compute what they would."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategy.compile.lower import lower
from strategy.cpu.dot import Dot
from strategy.op_strategy import candidates, evaluate
from strategy.target import Target
from strategy.workload import Workload
from tests.kernel.judge import judge

from .test_low_precision import (
    TARGET,
    check,
    convolution,
    laid_out_shapes,
    points,
    product,
    steps,
    whole_range,
)

NEOVERSE = Target.parse("llvm -mcpu=neoverse-v1 -mtriple=aarch64-linux-gnu -num-cores=2")
OPCODES = {
    ("bfloat16", "bfloat16"): "bfmmla", ("int8", "int8"): "smmla", ("uint8", "int8"): "usmmla",
    ("uint8", "uint8"): "ummla", ("int8", "uint8"): "smmla",
}


def computed(dot: Dot) -> Iterator[str]:
    """The definition of an instruction in LLVM code for any processor."""
    is_real, group = dot.sums == "float32", dot.group
    number, multiply, add, zero = ("float", "fmul", "fadd", "float 0.0, ") if is_real else ("i32", "mul", "add", "")
    row, sums, reduce = f"<{group} x {number}>", f"<4 x {number}>", f"@llvm.vector.reduce.{add}.v{group}"
    reduce += "f32" if is_real else "i32"
    yield f"declare {number} {reduce}({'float, ' if is_real else ''}{row})"
    yield f"define linkonce_odr hidden {sums} @{dot.symbol}({sums} %s0, <4 x i32> %a, <4 x i32> %b) {{"
    for name, dtype in (("a", dot.data), ("b", dot.weight)):
        narrow, widen = ("bfloat", "fpext") if is_real else ("i8", "zext" if dtype == "uint8" else "sext")
        yield f"%{name}n = bitcast <4 x i32> %{name} to <{2 * group} x {narrow}>"
        for half in range(2):
            places = ", ".join(f"i32 {half * group + i}" for i in range(group))
            vectors = f"<{2 * group} x {narrow}> %{name}n, <{2 * group} x {narrow}> poison"
            yield f"%{name}n{half} = shufflevector {vectors}, <{group} x i32> <{places}>"
            yield f"%{name}{half} = {widen} <{group} x {narrow}> %{name}n{half} to {row}"
    for place in range(4):
        yield f"%p{place} = {multiply} {row} %a{place // 2}, %b{place % 2}"
        yield f"%r{place} = call {number} {reduce}({zero}{row} %p{place})"
        yield f"%o{place} = extractelement {sums} %s0, i32 {place}"
        yield f"%n{place} = {add} {number} %o{place}, %r{place}"
        yield f"%s{place + 1} = insertelement {sums} %s{place}, {number} %n{place}, i32 {place}"
    yield f"ret {sums} %s4\n}}"


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Offer matrix instructions to any processor, and compute them."""
    is_of, source = Dot.is_of, Dot.source.fget
    assert source is not None
    monkeypatch.setattr(Dot, "is_of", lambda dot, target: dot.rows > 1 or is_of(dot, target))
    monkeypatch.setattr(
        Dot, "source", property(lambda dot: "\n".join(computed(dot)) if dot.rows > 1 else source(dot))
    )


def space(workload: Workload, target: Target = TARGET) -> tuple[str, Any]:
    """The name and the space of the implementation by a matrix instruction."""
    (found,) = (c for c in candidates(workload, target) if c.implementation.endswith("_mmla.cpu"))
    return found.implementation, found.space


ZEROS = st.sampled_from([(0, 0), (100, 0), (0, -5), (100, 120)])


@pytest.mark.sample(2)
@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize(("kind", "weight"), OPCODES)
@settings(max_examples=min(4, settings.default.max_examples // 6))
@given(
    m=st.sampled_from([1, 3, 16, 37]), n=st.sampled_from([1, 16, 50]), k=st.sampled_from([1, 8, 37, 128]),
    zeros=ZEROS, constant=st.booleans(), seed=st.integers(0, 2**32),
)
def test_any_configuration_of_any_product(m, n, k, kind, weight, zeros, constant, seed):
    workload = product(f"{kind}[{m},{k}]", f"{weight}[{n},{k}]", constant, **points(kind, zeros))
    name, found = space(workload)
    check(workload, name, found.sample(random.Random(seed), 1)[0])


@pytest.mark.sample(2)
@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(("kind", "weight"), OPCODES)
@settings(max_examples=min(4, settings.default.max_examples // 6))
@given(
    channels=st.sampled_from([3, 8, 9]), out=st.sampled_from([1, 17]), window=st.sampled_from([(1, 1), (3, 3), (2, 5)]),
    image=st.tuples(st.integers(5, 9), st.integers(6, 20)), batch=st.integers(1, 2), groups=st.integers(1, 2),
    attrs=st.fixed_dictionaries({
        "strides": st.sampled_from([1, 2]), "padding": st.sampled_from([0, [1, 0, 2, 1]]),
        "dilation": st.sampled_from([1, 1, [2, 1]]), "kernel_layout": st.sampled_from(["OIHW", "HWIO", "OHWI"]),
    }),
    zeros=ZEROS, constant=st.booleans(), seed=st.integers(0, 2**32),
)
def test_any_configuration_of_any_convolution(
    layout, kind, weight, channels, out, window, image, batch, groups, attrs, zeros, constant, seed
):
    few = channels == 3 and kind != "bfloat16"  # leave most of a word empty, but in a row of several pixels
    groups = 1 if few else groups
    attrs = {**attrs, "groups": groups, "data_layout": layout, **points(kind, zeros)}
    shapes = laid_out_shapes(attrs, (batch, channels * groups, *image), (out * groups, channels, *window))
    workload = convolution(f"{kind}[{shapes[0]}]", f"{weight}[{shapes[1]}]", constant, **attrs)
    if few and window == (1, 1):
        assert not any(i.name.endswith("_mmla.cpu") for _, i in evaluate(workload, TARGET))
        return
    name, found = space(workload)
    assert f"_{layout.lower()}_" in name
    check(workload, name, found.sample(random.Random(seed), 1)[0])


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_what_follows_is_part_of_the_product(layout):
    dense = product("uint8[19,37]", "int8[37,37]", epilogue=steps(37, "requantize"), input_zero_point=7)
    attrs = {"data_layout": layout, "kernel_layout": "OIHW", "padding": 1, "input_zero_point": 7}
    data, weight = laid_out_shapes(attrs, (1, 8, 7, 9), (37, 8, 3, 3))
    epilogue = steps(37, "requantize", axis=layout.index("C"))
    image = convolution(f"uint8[{data}]", f"int8[{weight}]", epilogue=epilogue, **attrs)
    for workload in (dense, image):
        check(workload, space(workload)[0])


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize(("kind", "weight"), [("uint8", "int8"), ("bfloat16", "bfloat16")])
def test_one_function_serves_any_number_of_rows(kind, weight):
    workload = product(f"{kind}[m,37]", f"{weight}[21,37]", **points(kind, (100, 120)))
    artefact = lower(workload, TARGET, space(workload)[0]).compile(checks=False)
    for m in (1, 7, 64):
        bound = workload.bind({"m": m})
        judge(artefact, bound, whole_range(bound, 5))


@pytest.mark.parametrize(("kind", "weight"), OPCODES)
def test_the_instruction_is_in_the_code(kind, weight, full):
    only = Target.parse("llvm -mtriple=aarch64-linux-gnu -mattr=+bf16,+i8mm -num-cores=2")
    image = convolution(f"{kind}[1,16,8,8]", f"{weight}[32,16,3,3]")
    last = convolution(f"{kind}[1,8,8,16]", f"{weight}[32,16,3,3]", data_layout="NHWC")
    dense = product(f"{kind}[8,64]", f"{weight}[32,64]")
    for workload in (dense, image, last) if full else (dense,):
        for target in (NEOVERSE, only):
            code = lower(workload, target, space(workload, target)[0]).compile(checks=False)
            assert f"\t{OPCODES[kind, weight]}\t" in code.executable.mod.inspect_source("s")


def test_it_is_chosen_untuned_for_more_than_one_row():
    def chosen(workload: Workload) -> str:
        found = candidates(workload, NEOVERSE)
        return max((c for c in found if c.condition is None or c.condition.decide()), key=lambda c: c.plevel)

    for m, form in ((1, "dot"), (2, "mmla"), (128, "mmla")):
        assert chosen(product(f"int8[{m},64]", "int8[32,64]")).implementation == f"qdense_{form}.cpu"
    image = convolution("uint8[1,16,8,8]", "int8[32,16,3,3]")
    assert chosen(image).implementation == "qconv2d_nchw_mmla.cpu"
    for layout, is_chosen in (("NCHW", False), ("NHWC", True)):  # whose channels lie together already
        attrs = {"data_layout": layout, "kernel_layout": "OIHW"}
        data, weight = laid_out_shapes(attrs, (1, 16, 8, 8), (32, 16, 1, 1))
        found = chosen(convolution(f"uint8[{data}]", f"int8[{weight}]", **attrs)).implementation
        assert found.endswith("_mmla.cpu") == is_chosen


@pytest.mark.parametrize("spec", [
    "llvm -mcpu=neoverse-v1 -mattr=-i8mm,-bf16 -mtriple=aarch64-linux-gnu", "llvm -mcpu=neoverse-n1",
    "llvm -mcpu=znver4 -mattr=+i8mm,+bf16",
])
def test_elsewhere_it_is_not_offered(spec):
    for kind, weight in OPCODES:
        for workload in (
            product(f"{kind}[8,64]", f"{weight}[32,64]"), convolution(f"{kind}[1,16,8,8]", f"{weight}[32,16,3,3]"),
        ):
            names = [i.name for _, i in evaluate(workload, Target.parse(spec))]
            assert not any(name.endswith("_mmla.cpu") for name in names)


@pytest.mark.parametrize("m", [1, 16, 128])
def test_a_tenth_of_the_space_is_valid(m):
    for kind, weight in (("bfloat16", "bfloat16"), ("uint8", "int8")):
        image = convolution(f"{kind}[1,64,{m},{m}]", f"{weight}[64,64,3,3]", padding=1)
        last = convolution(f"{kind}[1,{m},{m},64]", f"{weight}[64,64,3,3]", padding=1, data_layout="NHWC")
        for workload in (product(f"{kind}[{m},768]", f"{weight}[3072,768]"), image, last):
            _, found = space(workload, NEOVERSE)
            size = np.prod([len(k.values) for k in found.knobs])
            assert found.count(limit=100_000) >= 0.1 * size
