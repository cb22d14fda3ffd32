"""Elementwise and broadcast chains: any configuration of any shape, against NumPy."""

from __future__ import annotations

import random
import re
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategy.compile.lower import lower
from strategy.op_strategy import candidates
from strategy.space import ConfigSpace
from strategy.target import Target
from strategy.workload import EpilogueStep, Input, Workload
from workers.reference import compare, random_inputs, reference, tolerances

from .conftest import run
from .test_dense import extremes

NAME = "elementwise.cpu"
TARGET = Target.parse("cpu").with_threads(2)


def typed(shape: list[int], dtype: str = "float32") -> str:
    return f"{dtype}[{','.join(map(str, shape))}]"


def space_of(work: Workload, target: Target = TARGET) -> ConfigSpace:
    (space,) = [c.space for c in candidates(work, target) if c.implementation == NAME]
    assert space is not None
    return space


def check(work: Workload, config: Any, target: Target = TARGET) -> None:
    inputs = random_inputs(work, 7)
    expected = reference(work, inputs)
    found = run(lower(work, target, NAME, config).compile(checks=False), inputs, expected[0].shape)
    (tolerance,) = tolerances(work, inputs, expected)
    try:
        compare(np.asarray(found), np.asarray(expected[0]), tolerance)
    except Exception as error:
        raise AssertionError(f"{work} {config}: {error}") from error


@pytest.mark.parametrize("shape", [[3, 7, 9], [1, 300]])
def test_the_ends_of_every_knob(shape: list[int]) -> None:
    work = Workload.make("add", {"lhs": typed(shape), "rhs": typed(shape[-1:])})
    for config in extremes(space_of(work)):
        check(work, config)


@settings(max_examples=min(12, settings.default.max_examples // 2))
@given(
    shape=st.lists(st.integers(1, 9), max_size=3), last=st.integers(1, 70), data=st.data(),
    dtype=st.sampled_from(["float32", "float64", "float16"]), seed=st.integers(0, 2**32),
)
def test_any_chain(shape, last, data, dtype, seed) -> None:
    whole = [*shape, last]
    other = [data.draw(st.sampled_from([1, n])) for n in whole][data.draw(st.integers(0, len(shape))) :]
    steps = [
        EpilogueStep("multiply", (Input("scale", typed(other, dtype)), None)),
        EpilogueStep("tanh", (None,)),
    ]
    work = Workload.make("relu", {"data": typed(whole, dtype)}, {}, (), steps)
    check(work, space_of(work).sample(random.Random(seed), 1)[0])


@settings(max_examples=6)
@given(shape=st.lists(st.integers(1, 9), min_size=1, max_size=3), last=st.integers(1, 70), seed=st.integers(0, 2**32))
def test_any_transpose_that_keeps_rows(shape, last, seed) -> None:
    rng = random.Random(seed)
    axes = [*rng.sample(range(len(shape)), len(shape)), len(shape)]
    work = Workload.make("transpose", {"data": typed([*shape, last])}, {"axes": axes})
    check(work, space_of(work).sample(rng, 1)[0])


@pytest.mark.parametrize("dtype", ["int8", "float16"])
def test_narrow_results(dtype: str) -> None:
    work = Workload.make("cast", {"data": "float32[5,131]"}, {"dtype": dtype})
    for config in space_of(work).sample(random.Random(0), 2):
        check(work, config)


@given(
    shape=st.lists(st.integers(1, 300), max_size=4), dtype=st.sampled_from(["float32", "int8", "bool"]),
    spec=st.sampled_from(["-mcpu=znver4", "-mcpu=haswell", "", "-mcpu=neoverse-n1"]), threads=st.integers(1, 256),
)
def test_the_fallback_is_of_its_space(shape, dtype, spec, threads) -> None:
    target = Target.parse(f"llvm {spec} -num-cores={threads}")
    space = space_of(Workload.make("cast", {"data": typed(shape)}, {"dtype": dtype}), target)
    assert space.contains(space.fallback)
    drawn = [space.config(i) for i in range(space.size)]
    assert sum(map(space.contains, drawn)) * 10 >= len(drawn)


@pytest.mark.parametrize("shape", [[0, 4], ["n", 4]])
def test_an_empty_or_symbolic_shape_has_the_plain_schedule_only(shape: list[Any]) -> None:
    found = candidates(Workload.make("relu", {"data": typed(shape)}), TARGET)
    assert [c.implementation for c in found] == ["broadcast.cpu"]




@pytest.mark.parametrize(("op", "step"), [
    ("add", EpilogueStep("cast", (None,), {"dtype": "int64"})), ("negative", EpilogueStep("relu", (None,))),
])
def test_what_follows_integers_that_wrap_around_sees_them_wrapped(op: str, step: EpilogueStep) -> None:
    names = ["data"] if op == "negative" else ["lhs", "rhs"]
    work = Workload.make(op, dict.fromkeys(names, "int32[40]"), {}, (), [step])
    inputs = dict.fromkeys(names, np.full(40, np.iinfo("int32").min, "int32"))
    found = run(lower(work, TARGET, "broadcast.cpu").compile(checks=False), inputs, (40,))
    assert not found.any()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("op", "inputs", "attrs"), [
    ("zeros_like", {"data": "[3,20]"}, {}),
    ("strided_slice_backward", {"grad": "[0,20]", "data": "[3,20]"}, {"begin": [3], "end": [3]}),
])
def test_a_number_is_divided_by_zeros_that_are_known(
    op: str, inputs: dict[str, str], attrs: dict[str, Any], dtype: str
) -> None:
    import tvm

    steps = [EpilogueStep("divide", (Input("number", f"{dtype}[20]"), None))]
    work = Workload.make(op, {name: dtype + shape for name, shape in inputs.items()}, attrs, (), steps)
    given = random_inputs(work, 7)
    found = tvm.runtime.empty((3, 20), dtype)
    lower(work, TARGET, "injective.cpu").compile(checks=False).main(*map(tvm.runtime.tensor, given.values()), found)
    compare(found.numpy(), np.asarray(reference(work, given)[0]), 0)


@pytest.mark.parametrize(("head", "chain"), [("atan", "floor_mod"), ("atan", "silu mish"), ("relu", "silu")])
def test_a_number_of_one_narrow_float_becomes_one_of_the_other(head: str, chain: str) -> None:
    operands: dict[str, tuple[Input | None, ...]] = {"floor_mod": (None, Input("rhs", "bfloat16[40]"))}
    steps = [EpilogueStep("cast", (None,), {"dtype": "bfloat16"})]
    steps += [EpilogueStep(op, operands.get(op, (None,))) for op in chain.split()]
    work = Workload.make(head, {"data": "float16[3,40]"}, {}, (), steps)
    lower(work, TARGET, NAME).compile(checks=False)


@pytest.mark.sample(1)
@pytest.mark.parametrize(("op", "attrs", "names"), [
    ("leaky_relu", {"alpha": 0.0}, ["broadcast.cpu"]), ("softmax", {"axis": 0, "scale": 0.0}, ["softmax_column.cpu"]),
    ("log_softmax", {"scale": 0.0}, ["softmax.cpu", "log_softmax_row.cpu"]),
])
def test_infinity_times_a_factor_of_0_is_nan(op: str, attrs: dict[str, Any], names: list[str]) -> None:
    import tvm

    work = Workload.make(op, {"data": "float32[3,20]"}, attrs)
    data = np.linspace(-1, 1, 60, dtype="float32").reshape(3, 20)
    data[1, 3] = -np.inf
    with np.errstate(all="ignore"):
        (right,) = reference(work, {"data": data})
    for name in names:
        found = tvm.runtime.empty(data.shape, "float32")
        lower(work, TARGET, name).compile(checks=False).main(tvm.runtime.tensor(data), found)
        np.testing.assert_allclose(found.numpy(), right, rtol=1e-6, err_msg=name)


CHAINS = [
    "tanh add silu", "tanh prelu silu", "tanh clip silu", "dense silu silu", "transpose silu gelu",
    "relu cast silu", "tanh silu clip silu", "floor_mod gelu tanh", "pad silu gelu", "concatenate silu gelu",
    "mish mish", "floor_divide softplus mish", "avg_pool2d silu gelu", "layout_transform silu gelu",
    "softmax silu gelu",
]


@pytest.mark.full
@pytest.mark.parametrize("chain", CHAINS)
def test_a_chain_of_bfloat16_is_written_once(chain: str) -> None:
    """Code that repeats each function for each use of its value takes a minute to compile."""
    import tvm

    dtype = "bfloat16"
    types = {shape: f"{dtype}[{shape}]" for shape in ("6,20", "20,6", "6,3", "20,3", "20")}
    heads = {
        "dense": {"data": types["6,3"], "weight": types["20,3"]}, "transpose": {"data": types["20,6"]},
        **{name: {"lhs": types["6,20"], "rhs": types["6,20"]} for name in ("floor_mod", "floor_divide")},
        "concatenate": {"data.0": types["6,20"], "data.1": types["6,3"]}, "avg_pool2d": {"data": f"{dtype}[1,2,6,9]"},
        "layout_transform": {"data": f"{dtype}[1,8,2,3]"},
    }
    operands = {"add": [Input("rhs", types["6,20"])], "prelu": [Input("alpha", types["20"])]}
    attrs: dict[str, Any] = {
        "prelu": {"axis": -1}, "clip": {"a_min": -1, "a_max": 0.3}, "cast": {"dtype": dtype},
        "avg_pool2d": {"pool_size": 3, "padding": 1}, "pad": {"pad_width": [[1, 1], [2, 1]]},
        "concatenate": {"axis": 1}, "layout_transform": {"src_layout": "NCHW", "dst_layout": "NHWC"},
    }
    head, *ops = chain.split()
    steps = [EpilogueStep(op, (None, *operands.get(op, [])), attrs.get(op, {})) for op in ops]
    work = Workload.make(head, heads.get(head, {"data": types["6,20"]}), attrs.get(head, {}), (), steps)
    name = [c.implementation for c in candidates(work, TARGET) if c.condition is None or c.condition.decide()][-1]
    lowered, inputs = lower(work, TARGET, name), random_inputs(work, 7)
    assert len(lowered.module.script()) < 80_000  # some write it twice, without and with bounds
    expected = reference(work, inputs)
    found = tvm.runtime.empty(expected[0].shape, dtype)
    began = time.process_time()
    artefact = lowered.compile(checks=False)
    assert time.process_time() - began < 6  # seconds; half of one, and with each function in the chain ten times more
    artefact.main(*map(tvm.runtime.tensor, inputs.values()), found)
    (tolerance,) = tolerances(work, inputs, expected)
    compare(found.numpy(), np.asarray(expected[0]), tolerance)


def test_mish_of_a_choice_repeats_no_choice() -> None:
    """TVM takes seconds to simplify choices within choices."""
    mish, attrs = EpilogueStep("mish", (None,)), {"a_min": -1, "a_max": 0.3}
    work = Workload.make("clip", {"data": "float32[6,20]"}, attrs, (), [mish])
    assert len(lower(work, TARGET, NAME).module.script()) < 30_000


def test_no_mean_of_lanes_beyond_the_windows_divides_by_0() -> None:
    work = Workload.make(
        "avg_pool2d", {"data": "bfloat16[1,2,6,9]"}, {"pool_size": 3, "padding": 1}, (), [EpilogueStep("tanh", (None,))]
    )
    config = {"down_unroll": 1, "lanes": 4, "tasks": 1, "unroll": 4}
    lower(work, TARGET, "pool2d_row.cpu", config).compile()


@pytest.mark.sample(1)
@pytest.mark.parametrize("shape", [[37, 1003], [300, 1024]])
def test_a_large_result_may_pass_the_caches(shape: list[int]) -> None:
    """Vectors that begin elsewhere than at a multiple of their size are stored as others."""
    small = Target.parse({**TARGET.to_json(), "l3_bytes": 1 << 18})
    inputs, relu = {"lhs": typed(shape), "rhs": typed(shape[-1:])}, EpilogueStep("relu", (None,))
    work = Workload.make("add", inputs, epilogue=[relu])
    space = space_of(work, small)
    assert ("stores" in space.fallback) == small.has("avx2")
    assert "stores" not in space_of(Workload.make("relu", {"data": typed([64])}), small).fallback
    for config in space.sample(random.Random(0), 3):
        check(work, config, small)
    code = lower(work, small, NAME, space.fallback).compile(checks=False).executable.mod.inspect_source("s")
    assert ("movntps" in code) == small.has("avx2")


@pytest.mark.parametrize("threads", [1, 2])
def test_a_large_result_of_one_loop_passes_the_caches(threads: int) -> None:
    """On one thread its last turn is a part of its own; on several, all turns have a mask."""
    small = Target.parse({**TARGET.to_json(), "l3_bytes": 1 << 18}).with_threads(threads)
    work = Workload.make("add", {"lhs": typed([100_003]), "rhs": typed([100_003])})
    config = space_of(work, small).fallback
    assert config["tasks"] == threads
    check(work, config, small)
    code = lower(work, small, NAME, config).compile(checks=False).executable.mod.inspect_source("s")
    assert ("movntps" in code) == small.has("avx2")


def test_rows_between_whole_vectors_pass_the_caches_in_parts() -> None:
    zen4 = Target.parse({"kind": "llvm", "mcpu": "znver4", "num-cores": 2, "l3_bytes": 1 << 18})
    small = Target.parse({**TARGET.to_json(), "l3_bytes": 1 << 18})
    work = Workload.make("one_hot", {"indices": "int32[37]"}, {"depth": 1002, "dtype": "int64"})
    check(work, space_of(work, small).fallback, small)
    config = space_of(work, zen4).fallback
    assert config["stores"] == "streamed"
    code = lower(work, zen4, NAME, config).compile(checks=False).executable.mod.inspect_source("s")
    for register in ("xmm", "zmm"):
        assert re.search(rf"vmovnt\w+\t%{register}", code)
