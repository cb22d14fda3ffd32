"""Every CUDA implementation over its space: the generated source, run on a processor, against NumPy."""

from __future__ import annotations

import contextlib
import itertools
import random
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")

from strategy.compile.cuda import emit
from strategy.compile.lower import Lowered, lower
from strategy.cuda.program import CudaArtefact, Launch, Program
from strategy.cuda.source import CudaSource
from strategy.installed import installed
from strategy.op import TOpPattern, all_ops
from strategy.op_strategy import Candidate, candidates, evaluate
from strategy.signature import Role
from strategy.space import Config
from strategy.target import Target
from strategy.workload import EpilogueStep, Input, Workload
from tests.kernel.emulation.device import Emulation, TrapError, aligned, compile_together
from tests.limit import HANG_S
from workers.reference import (
    compare,
    numpy_dtype,
    poison,
    random_inputs,
    reference,
    tolerances,
)

TARGET = Target.parse("cuda -arch=sm_90")
RELU = EpilogueStep("relu", (None,))
BIAS = EpilogueStep("add", (None, Input("bias", "float32[35]", constant=True)))

# Shapes that no tile divides, and for each what it must offer.
TUNABLE: list[tuple[Workload, set[str]]] = [
    (Workload.make("dense", {"data": "float32[50,37]", "weight": "float32[35,37]"}, {}, (), [BIAS, RELU]),
     {"dense_tiled.cuda"}),
    (Workload.make("dense", {"data": "float16[50,40]", "weight": "float16[40,40]"}),
     {"dense_tiled.cuda", "dense_tensor_core.cuda", "dense_mma.cuda", "dense_wgmma.cuda"}),
    (Workload.make("dense", {"data": "bfloat16[130,72]", "weight": "bfloat16[35,72]"}, {"out_dtype": "float32"},
                   (), [RELU]),
     {"dense_mma.cuda", "dense_wgmma.cuda"}),
    (Workload.make("dense", {"data": "bfloat16[3,70]", "weight": "bfloat16[35,70]"}),
     {"dense_tiled.cuda", "dense_tensor_core.cuda", "dense_gemv.cuda"}),
    (Workload.make("batch_matmul", {"x": "float16[3,20,17]", "y": "float16[1,20,30]"},
                   {"transpose_a": True, "transpose_b": False}),
     {"batch_matmul_tiled.cuda", "batch_matmul_tensor_core.cuda"}),
    (Workload.make("batch_matmul", {"x": "float16[3,20,24]", "y": "float16[3,30,24]"}, {}, (), [RELU]),
     {"batch_matmul_mma.cuda", "batch_matmul_wgmma.cuda"}),
    (Workload.make("batch_matmul", {"x": "bfloat16[1,20,24]", "y": "bfloat16[3,30,24]"}), {"batch_matmul_mma.cuda"}),
    (Workload.make("batch_matmul", {"x": "bfloat16[1,20,24]", "y": "bfloat16[3,30,24]"}, {"out_dtype": "float32"}),
     {"batch_matmul_tiled.cuda", "batch_matmul_tensor_core.cuda", "batch_matmul_mma.cuda", "batch_matmul_wgmma.cuda"}),
    (Workload.make("conv2d", {"data": "float16[1,16,9,10]", "weight": "float16[18,16,3,3]"}, {"out_dtype": "float32"}),
     {"conv2d_nchw.cuda", "conv2d_nchw_implicit_gemm.cuda", "conv2d_nchw_implicit_gemm_tensor.cuda",
      "conv2d_nchw_mma.cuda", "conv2d_nchw_wgmma.cuda"}),
    (Workload.make("conv2d", {"data": "float32[1,5,9,10]", "weight": "float32[18,5,3,3]"}, {"padding": [1, 0, 2, 1]},
                   ("weight",), [RELU]),
     {"conv2d_nchw.cuda", "conv2d_nchw_implicit_gemm.cuda", "conv2d_nchw_winograd.cuda"}),
    (Workload.make("conv2d", {"data": "float16[2,16,9,10]", "weight": "float16[18,16,3,2]"},
                   {"strides": [2, 1], "padding": 1, "dilation": [1, 2]}, (), [RELU]),
     {"conv2d_nchw.cuda", "conv2d_nchw_implicit_gemm.cuda", "conv2d_nchw_implicit_gemm_tensor.cuda",
      "conv2d_nchw_mma.cuda"}),
    (Workload.make("conv2d", {"data": "bfloat16[1,40,7,7]", "weight": "bfloat16[35,40,3,3]"},
                   {"padding": [1, 0, 1, 2]}, ("weight",)),
     {"conv2d_nchw_wgmma.cuda"}),
    (Workload.make("conv2d", {"data": "float32[2,6,9,10]", "weight": "float32[12,1,3,3]"}, {"groups": 6, "padding": 1},
                   (), [RELU]),
     {"depthwise_conv2d_nchw.cuda"}),
    (Workload.make("grouped_dense", {"data": "bfloat16[70,40]", "weight": "bfloat16[3,35,40]", "ends": "int32[3]"},
                   {}, (), [RELU]),
     {"grouped_dense_mma.cuda", "grouped_dense_wgmma.cuda"}),
    (Workload.make("attention", {"query": "float16[2,4,20,24]", "key": "float16[2,2,150,24]",
                                 "value": "float16[2,2,150,40]"}), {"attention_flash.cuda", "attention_wgmma.cuda"}),
    (Workload.make("attention", {"query": "bfloat16[1,6,21,80]", "key": "bfloat16[1,2,19,80]",
                                 "value": "bfloat16[1,2,19,64]"}, {"is_causal": True}, (), [RELU]),
     {"attention_flash.cuda", "attention_wgmma.cuda"}),
    (Workload.make("attention_bias", {"query": "float16[2,2,9,16]", "key": "float16[2,1,70,16]",
                                      "value": "float16[2,1,70,16]", "bias": "bool[2,1,1,70]"}),
     {"attention_flash.cuda"}),
    (Workload.make("attention_bias", {"query": "float16[1,2,40,64]", "key": "float16[1,2,70,64]",
                                      "value": "float16[1,2,70,64]", "bias": "float16[2,40,70]"},
                   {"scale": -0.5, "is_causal": True}), {"attention_flash.cuda", "attention_wgmma.cuda"}),
    (Workload.make("attention", {"query": "float16[2,20,4,24]", "key": "float16[2,150,2,24]",
                                 "value": "float16[2,150,2,40]"}, {"layout": "BSHD", "is_causal": True}),
     {"attention_flash.cuda", "attention_wgmma.cuda"}),
    (Workload.make("attention_bias", {"query": "float16[1,40,2,64]", "key": "float16[1,70,2,64]",
                                      "value": "float16[1,70,2,64]", "bias": "float16[2,40,70]"},
                   {"layout": "BSHD"}), {"attention_flash.cuda", "attention_wgmma.cuda"}),
    (Workload.make("attention", {"query": "bfloat16[1,2,150,128]", "key": "bfloat16[1,2,260,128]",
                                 "value": "bfloat16[1,2,260,128]"}, {"is_causal": True}),
     {"attention_flash.cuda", "attention_wgmma.cuda"}),
    (Workload.make("matmul_nbits", {"data": "float16[3,96]", "weight": "uint8[21,3,16]", "scales": "float16[21,3]"},
                   {"block_size": 32}, (), [RELU]),
     {"matmul_nbits_rows.cuda"}),
    (Workload.make("matmul_nbits", {"data": "float32[1,80]", "weight": "uint8[21,2,64]", "scales": "float32[21,2]"},
                   {"bits": 8, "block_size": 64}),
     {"matmul_nbits_rows.cuda"}),
    (Workload.make("softmax", {"data": "float32[7,301]"}), {"softmax_rows.cuda"}),
    (Workload.make("softmax", {"data": "float16[4,60,3]"}, {"axis": 1}), {"softmax_rows.cuda"}),
    (Workload.make("softmax", {"data": "float32[2,12000]"}), {"softmax_rows.cuda"}),  # too long to be kept
    (Workload.make("log_softmax", {"data": "float32[12,96]"}), {"log_softmax_rows.cuda"}),
    (Workload.make("layer_norm", {"data": "float16[6,256]", "gamma": "float16[256]", "beta": "float16[256]"}),
     {"layer_norm_rows.cuda"}),
    (Workload.make("transpose", {"data": "float32[3,20,33]"}, {"axes": [0, 2, 1]}, (), [RELU]),
     {"transpose_tiled.cuda"}),
    (Workload.make("cumsum", {"data": "float32[3,700]"}, {"axis": 1}), {"cumsum_parts.cuda"}),
    (Workload.make("cumsum", {"data": "int8[2,90,3]"}, {"axis": 1, "dtype": "int64", "exclusive": True}),
     {"cumsum_parts.cuda"}),
    (Workload.make("cumprod", {"data": "float16[500]"}), {"cumprod_parts.cuda"}),
    (Workload.make("cummax", {"data": "int8[3,700]"}, {"axis": 1}), {"cummax_parts.cuda"}),
    (Workload.make("topk", {"data": "float32[3,300]"}, {"k": 30}), {"topk_sort.cuda", "topk_select.cuda"}),
    (Workload.make("topk", {"data": "int8[2,1100,2]"}, {"k": 600, "axis": 1, "is_ascend": True, "ret_type": "indices"}),
     {"topk_sort.cuda", "topk_merge.cuda", "topk_radix.cuda"}),
    (Workload.make("argsort", {"data": "float32[2,2500]"}, {"is_ascend": False, "dtype": "int64"}),
     {"argsort_sort.cuda", "argsort_merge.cuda", "argsort_radix.cuda"}),
]
PLAIN: list[Workload] = [
    Workload.make("exp", {"data": "float32[33,7]"}),
    Workload.make("add", {"lhs": "float16[40,64]", "rhs": "float16[64]"}, epilogue=[RELU]),
    Workload.make("clip", {"data": "float16[64]"}, {"a_min": -0.5, "a_max": 0.5}),
    Workload.make("minimum", {"lhs": "float16[40,64]", "rhs": "float16[40,64]"}),
    Workload.make("multiply", {"lhs": "float16[8,30]", "rhs": "float16[30]"}),  # no vector of 8 fits a row
    Workload.make("greater", {"lhs": "float32[50,7]", "rhs": "float32[7]"}),
    Workload.make("sum", {"data": "float32[5,3,50]"}, {"axis": [1]}),
    Workload.make("sum", {"data": "float32[64,5]"}, {"axis": [0]}),  # whose one condition is of the elements
    Workload.make("sum", {"data": "bfloat16[5,300]"}, {"axis": [1]}),
    Workload.make("mean", {"data": "float32[33000]"}),  # long enough for two kernels
    Workload.make("sum", {"data": "float32[40001,2]"}, {"axis": [0]}),  # which no number of blocks divides
    Workload.make("sum", {"data": "int8[3,500]"}, {"axis": [1]}),  # by threads of one warp
    Workload.make("max", {"data": "int32[8,30,3]"}, {"axis": [0, 2]}),
    Workload.make("max", {"data": "float32[33000]"}),
    Workload.make("min", {"data": "float16[5,300]"}, {"axis": [1]}),
    Workload.make("max", {"data": "bfloat16[40,9,8]"}, {"axis": [0]}),
    Workload.make("min", {"data": "float64[6,5]"}),
    Workload.make("transpose", {"data": "int16[40,21]"}),
    Workload.make("argmax", {"data": "float32[8,30]"}, {"axis": [1]}),
    Workload.make("max_pool2d", {"data": "float32[1,3,9,11]"}, {"pool_size": 3, "strides": 2, "padding": 1}),
    # Kernels of TVM's own rules:
    Workload.make("dense", {"data": "float32[20,30]", "weight": "float32[10,30]"}),
    Workload.make("dense", {"data": "bfloat16[1,70]", "weight": "bfloat16[35,70]"}, epilogue=[RELU]),
    Workload.make("batch_matmul", {"x": "float32[3,20,17]", "y": "float32[1,20,30]"},
                  {"transpose_a": True, "transpose_b": False}, (), [RELU]),
    Workload.make("attention", {"query": "float32[2,4,5,6]", "key": "float32[2,2,19,6]", "value": "float32[2,2,19,8]"},
                  {"is_causal": True}),
    Workload.make("attention_bias", {"query": "float32[2,4,5,6]", "key": "float32[2,2,19,6]",
                                     "value": "float32[2,2,19,8]", "bias": "bool[19]"}),
    Workload.make("matmul_nbits", {"data": "float32[3,19]", "weight": "uint8[21,3,8]", "scales": "float32[21,3]"},
                  {"bits": 8, "block_size": 8}),
    Workload.make("grouped_dense", {"data": "float32[9,7]", "weight": "float32[2,5,7]", "ends": "int32[2]"}),
    Workload.make("softmax", {"data": "float16[4,60,3]"}, {"axis": 1}),
    Workload.make("log_softmax", {"data": "float32[12,96]"}),
    Workload.make("layer_norm", {"data": "float16[7,90]", "gamma": "float16[90]", "beta": "float16[90]"}),
]
# Operators that compare numbers; softmax and sums have NaN by arithmetic.
KEEP_NAN: list[Workload] = [
    Workload.make("relu", {"data": "float16[40,64]"}),
    Workload.make("clip", {"data": "float32[50,7]"}, {"a_min": -0.5, "a_max": 0.5}),
    Workload.make("maximum", {"lhs": "float16[50,7]", "rhs": "float16[50,1]"}),
    Workload.make("minimum", {"lhs": "float32[50,7]", "rhs": "float32[7]"}),
    Workload.make("maximum", {"lhs": "bfloat16[50,8]", "rhs": "bfloat16[8]"}),
    Workload.make("max", {"data": "float32[6,50]"}, {"axis": [1]}),
    Workload.make("min", {"data": "float16[50,6]"}, {"axis": [0]}),
    Workload.make("max", {"data": "float64[33000]"}),
    Workload.make("argmax", {"data": "float32[8,30]"}, {"axis": [1]}),
    Workload.make("argmin", {"data": "float16[8,5]"}, {"axis": [1]}),
    Workload.make("max_pool2d", {"data": "float32[1,3,9,11]"}, {"pool_size": 3, "strides": 2, "padding": 1}),
    Workload.make("max_pool2d", {"data": "bfloat16[1,3,9,11]"}, {"pool_size": 2}),
    Workload.make("softmax", {"data": "float32[14,30]"}),
    Workload.make("argsort", {"data": "float32[2,90]"}),
    Workload.make("cummax", {"data": "float16[2,90]"}, {"axis": 1}),
    Workload.make("topk", {"data": "float16[2,90]"}, {"k": 20}),
    Workload.make("topk", {"data": "float32[2,90]"}, {"k": 20, "is_ascend": True}),
]

# Of every other operator, its first example; those of one element by themselves are alike.
NAMED = {workload.op for workload in PLAIN} | {workload.op for workload, _ in TUNABLE}
ALIKE = (TOpPattern.kElemWise, TOpPattern.kInjective)
OTHERS = [
    pytest.param(
        Workload.make(name, op.examples[0].inputs, dict(op.examples[0].attrs)),
        marks=[pytest.mark.full] if op.get_attr("TOpPattern") in ALIKE else [],
    )
    for name, op in all_ops().items()
    if name not in NAMED and op.examples
]

_numbers = itertools.count()


@pytest.fixture(scope="module")
def scratch(request: pytest.FixtureRequest, full: bool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for libraries, with those of the tests that are to run here."""
    folder = tmp_path_factory.mktemp("emulation")
    sources: dict[str, dict[str, Program]] = {}
    for item in request.session.items:
        if isinstance(item, pytest.Function) and item.originalname in CHOICES and item.module is request.module:
            workload = item.callspec.params["workload"]
            for name, config in CHOICES[item.originalname](workload, full):
                with contextlib.suppress(Exception):  # its test fails of it
                    source = generate(workload, name, config)[1]
                    sources[source.code] = source.programs
    compile_together(sources, folder)
    return folder


@cache
def generate(workload: Workload, implementation: str, config: Config | None) -> tuple[Lowered, CudaSource]:
    lowered = lower(workload, TARGET, implementation, config)
    return lowered, emit(lowered)


def check(
    workload: Workload, implementation: str, config: Config | None, scratch: Path, *, nan: bool = False
) -> None:
    """Run one configuration on poisoned outputs, and judge it as a worker does.

    With `nan` every seventh element of the inputs is NaN.
    """
    lowered, source = generate(workload, implementation, config)
    emulation = Emulation(source.code, source.programs, scratch / str(next(_numbers)))
    inputs = random_inputs(workload, 7)
    for array in inputs.values() if nan else ():
        array.flat[::7] = np.nan
    expected = [np.asarray(r) for r in reference(workload, inputs)]
    arrays: dict[str, Any] = {}
    outputs = []
    for name, argument in zip(source.programs["main"].parameters, lowered.arguments, strict=True):
        memory = aligned(argument.tensor.concrete_shape, numpy_dtype(argument.tensor.dtype))
        if argument.role is Role.OUTPUT:
            memory[...] = poison(expected[len(outputs)], argument.tensor.dtype)
            outputs.append(memory)
        elif argument.preparation is not None:
            given = aligned(inputs[argument.name].shape, inputs[argument.name].dtype)
            given[...] = inputs[argument.name]
            emulation.run(argument.preparation, {"source": given, "packed": memory})
        else:
            memory[...] = inputs[argument.name]
        arrays[name] = memory
    emulation.run("main", arrays)
    for found, right, tolerance in zip(
        outputs, expected, tolerances(workload, inputs, expected), strict=True
    ):
        compare(found, right, tolerance)


def copied(array: Any) -> Any:
    """A copy where a driver would put it."""
    memory = aligned(array.shape, array.dtype)
    memory[...] = array
    return memory


def offered(workload: Workload) -> Iterator[Candidate]:
    for candidate in candidates(workload, TARGET):
        if candidate.condition is None or candidate.condition.decide():
            yield candidate


Choice = tuple[str, Config | None]
NAMES = dict(TUNABLE)


def sampled(workload: Workload, full: bool) -> Iterator[Choice]:
    """Of each of its implementations some configurations; a sample has one of each that no workload before it has."""
    found = {c.implementation: c for c in offered(workload) if c.space is not None}
    assert NAMES[workload] <= found.keys()
    rng = random.Random(3)
    before = itertools.takewhile(lambda w: w != workload, NAMES)
    met = set().union(*(NAMES[w] for w in before)) if not full else set()
    for name in sorted(NAMES[workload] - met):
        space = found[name].space
        assert space is not None
        configs = space.sample(rng, 12 if full else 1)
        yield from ((name, config) for config in ([space.fallback, *configs] if full else configs))


def untuned(workload: Workload, full: bool) -> Iterator[Choice]:
    yield from ((c.implementation, None) for c in offered(workload) if c.space is None)


def fallbacks(workload: Workload, full: bool) -> Iterator[Choice]:
    yield from ((c.implementation, c.space and c.space.fallback) for c in offered(workload))


def samples() -> Iterator[Any]:
    """The workloads that have an implementation which none before them has; the others are larger samples."""
    met: set[str] = set()
    for workload, names in TUNABLE:
        yield pytest.param(workload, marks=[pytest.mark.full] if names <= met else [])
        met |= names


@pytest.mark.parametrize("workload", list(samples()), ids=lambda w: w.op)
def test_sampled_configurations_are_right(workload: Workload, scratch: Path, full: bool) -> None:
    for name, config in sampled(workload, full):
        check(workload, name, config, scratch)


@pytest.mark.full
def test_runs_are_merged_and_equal_elements_stay_in_their_order(scratch: Path) -> None:
    config = Config({"threads": 64, "items": 2, "tile": 512})
    workload = Workload.make("topk", {"data": "int8[2,5000]"}, {"k": 700, "ret_type": "indices"})
    check(workload, "topk_merge.cuda", config, scratch)


PARTS = (1, 2)


def select_of(workload: Workload, parts: int, threads: int) -> CudaSource:
    config = Config({"threads": threads, "groups": 64, "rows": 1, "loads": 2, "parts": parts})
    return generate(workload, "topk_select.cuda", config)[1]


@pytest.mark.parametrize("parts", PARTS)
def test_few_are_selected_in_their_order_whatever_the_row(parts: int, scratch: Path) -> None:
    length, k, threads = 2603, 40, 128
    workload = Workload.make("topk", {"data": f"float32[2,{length}]"}, {"k": k})
    sources = {n: select_of(workload, n, threads) for n in PARTS}
    compile_together({source.code: source.programs for source in sources.values()}, scratch)
    emulation = Emulation(sources[parts].code, sources[parts].programs, scratch)
    rng, place = np.random.default_rng(0), np.arange(length)
    for row in (
        np.zeros(length), place, rng.choice([np.nan, 0.0, -0.0, np.inf, -np.inf], length), np.full(length, -np.inf),
        -(place // 4 % threads),  # the best are those of few threads, and more than there is room for
    ):
        data = aligned((2, length), "float32")
        data[...] = row
        values, positions = aligned((2, k), "float32"), aligned((2, k), "int32")
        emulation.run("main", {"data": data, "values": values, "positions": positions})
        _, order = reference(workload, {"data": data})
        np.testing.assert_array_equal(positions, order)
        taken = np.take_along_axis(data, order, 1)
        np.testing.assert_array_equal(values.view("int32"), taken.view("int32"))  # the sign of zeros, too


@pytest.mark.parametrize("shape", ["0,5000", "3,0"])
@pytest.mark.parametrize("op", ["cumsum", "cummax", "topk", "argsort"])
def test_rows_without_elements_are_offered_none(op: str, shape: str) -> None:
    if (op, shape) != ("topk", "3,0"):  # which has no first element
        assert not [*offered(Workload.make(op, {"data": f"float32[{shape}]"}, {"axis": 1}))]


@pytest.mark.parametrize(("op", "inputs", "attrs"), [
    ("softmax", {"data": "float32[0,5]"}, {}), ("log_softmax", {"data": "float32[3,0,5]"}, {}),
    ("layer_norm", {"data": "float32[0,5]", "gamma": "float32[5]", "beta": "float32[5]"}, {}),
    ("sum", {"data": "float32[3,0,5]"}, {"axis": [2]}), ("add", {"lhs": "float32[3,0,5]", "rhs": "float32[5]"}, {}),
    ("transpose", {"data": "float32[3,0,5]"}, {}), ("transpose", {"data": "float32[0,5]"}, {}),
])
def test_tensors_without_elements_are_compiled(op: str, inputs: dict[str, str], attrs: dict[str, Any]) -> None:
    workload, target = Workload.make(op, inputs, attrs), Target.parse("cuda -arch=sm_90")
    valid = [name for condition, name in evaluate(workload, target) if condition is None or condition.decide()]
    assert valid
    for implementation in valid:
        lower(workload, target, implementation).compile(checks=False)


def test_untuned_a_part_of_a_very_long_row_is_what_a_block_takes_at_once() -> None:
    for length, expected in ((16 << 20, (512, 2048)), (4 << 20, (256, 1024))):
        (scan,) = offered(Workload.make("cumsum", {"data": f"float32[{length}]"}))
        assert (scan.fallback["threads"], scan.fallback["parts"]) == expected
        assert scan.fallback["vectors"] == 4


@pytest.mark.full
def test_a_row_of_a_million_elements_is_sorted(scratch: Path) -> None:
    workload = Workload.make("argsort", {"data": "float16[1000003]"})  # of few values: many are equal
    for candidate in offered(workload):
        check(workload, candidate.implementation, None, scratch)
    workload = Workload.make("topk", {"data": "float32[1000003]"}, {"k": 50_000})
    check(workload, "topk_merge.cuda", None, scratch)


@pytest.mark.sample(8)
@pytest.mark.parametrize("workload", [*PLAIN, *OTHERS], ids=lambda w: w.op)
def test_what_is_not_tuned_is_right(workload: Workload, scratch: Path, full: bool) -> None:
    for name, config in untuned(workload, full):
        check(workload, name, config, scratch)


@pytest.mark.sample(4)
@pytest.mark.parametrize("workload", KEEP_NAN, ids=lambda w: w.op)
def test_nan_is_kept(workload: Workload, scratch: Path, full: bool) -> None:
    for name, config in fallbacks(workload, full):
        check(workload, name, config, scratch, nan=True)


CHOICES = {
    "test_sampled_configurations_are_right": sampled,
    "test_what_is_not_tuned_is_right": untuned,
    "test_nan_is_kept": fallbacks,
}


@pytest.mark.full
def test_a_process_that_joins_threads_by_our_reducers_ends_well() -> None:
    program = (
        "import sys\n"
        "sys.modules['torch'] = None\n"  # which TVM would load
        "from strategy.compile.lower import lower\n"
        "from strategy.target import Target\n"
        "from strategy.workload import Workload\n"
        "workload = Workload.make('max', {'data': 'float32[4,90]'}, {'axis': [1]})\n"
        "lower(workload, Target.parse('cuda -arch=sm_90'), 'reduce.cuda')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.full
def test_a_comparison_follows_whole_tiles_of_tensor_cores(scratch: Path) -> None:
    workload = Workload.make("dense", {"data": "float16[64,64]", "weight": "float16[64,64]"}, {}, (), [RELU])
    config = Config(
        {"block_m": 64, "block_n": 64, "block_k": 32, "warp_m": 32, "warp_n": 32, "vector": 8, "stages": 1}
    )
    check(workload, "dense_tensor_core.cuda", config, scratch)


@pytest.mark.parametrize(("workload", "names"), TUNABLE, ids=lambda v: getattr(v, "op", ""))
@pytest.mark.parametrize("arch", ["sm_70", "sm_90"])
def test_spaces_have_a_valid_fallback_and_choices(
    workload: Workload, names: set[str], arch: str
) -> None:
    for candidate in candidates(workload, Target.parse(f"cuda -arch={arch}")):
        if candidate.space is not None:
            assert candidate.space.contains(candidate.space.fallback)
            assert (candidate.space.count() or 10**6) >= 3, candidate.implementation


def test_long_heads_fit_little_shared_memory_untuned() -> None:
    head = "float16[1,8,512,256]"
    workload = Workload.make("attention", {"query": head, "key": head, "value": head})
    target = Target.parse("cuda -arch=sm_80 -max_shared_memory_per_block=49152")
    spaces = {c.implementation: c.space for c in candidates(workload, target)}
    space = spaces["attention_flash.cuda"]
    assert space is not None
    assert space.contains(space.fallback)


def test_workers_say_that_they_can_build_each() -> None:
    """No worker would take a job of an implementation that no example of its operator offers."""
    for workload, names in TUNABLE:
        assert names <= installed()[workload.op].keys()


@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (1, 4096, 4096), (16, 17, 3), (100, 20, 7), (4096, 4096, 4096)]
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_dense_has_a_fallback_for_all_extents(shape: tuple[int, int, int], dtype: str) -> None:
    m, n, k = shape
    inputs = {"data": f"{dtype}[{m},{k}]", "weight": f"{dtype}[{n},{k}]"}
    for arch in ("sm_60", "sm_75", "sm_80", "sm_120"):
        for candidate in candidates(
            Workload.make("dense", inputs), Target.parse(f"cuda -arch={arch}")
        ):
            assert candidate.space is None or candidate.space.contains(candidate.fallback)


@pytest.mark.parametrize("k", [1, 31, 300, 512])
@pytest.mark.parametrize("dtype", ["float16", "int64"])
def test_topk_has_a_fallback_for_all_extents(k: int, dtype: str) -> None:
    for shape, arch in itertools.product([(1, k), (70_000, k + 9), (1, 10**6), (130, 50_257)], ["sm_60", "sm_90"]):
        workload = Workload.make("topk", {"data": f"{dtype}[{shape[0]},{shape[1]}]"}, {"k": k})
        found = {c.implementation: c for c in candidates(workload, Target.parse(f"cuda -arch={arch}"))}
        select = found["topk_select.cuda"]
        assert select.space is not None
        assert select.space.contains(select.fallback)


@pytest.mark.full
@pytest.mark.parametrize(
    ("implementation", "dtype"),
    [
        ("dense_tiled.cuda", "float32"),
        pytest.param("dense_mma.cuda", "float16", marks=pytest.mark.full),
        ("dense_wgmma.cuda", "float16"),
    ],
)
def test_a_symbolic_dimension_is_bound_at_the_launch(
    implementation: str, dtype: str, scratch: Path
) -> None:
    workload = Workload.make("dense", {"data": f"{dtype}[m,24]", "weight": f"{dtype}[20,24]"})
    lowered = lower(workload, TARGET, implementation)
    source = emit(lowered)
    emulation = Emulation(source.code, source.programs, scratch / str(next(_numbers)))
    rng = np.random.default_rng(0)
    for m in (1, 5, 33):
        data, weight, output = (aligned(s, dtype) for s in ((m, 24), (20, 24), (m, 20)))
        data[...], weight[...], output[...] = rng.random((m, 24)), rng.random((20, 24)), np.nan
        emulation.run("main", {"data": data, "weight": weight, "output": output}, {"m": m})
        right = data.astype(np.float32) @ weight.astype(np.float32).T
        np.testing.assert_allclose(output, right, rtol=1e-5 if dtype == "float32" else 1e-3)


FLASH = {"warps": 2, "tiles": 1, "block_n": 16, "stages": 2, "keep": 1}


@pytest.mark.parametrize(
    ("implementation", "knobs"),
    [
        pytest.param("attention_flash.cuda", FLASH | {"parts": 1}, marks=pytest.mark.full),
        ("attention_flash.cuda", FLASH | {"parts": 4}),
        ("attention_wgmma.cuda", {"groups": 1, "block_n": 32, "stages": 3}),
        pytest.param("attention_wgmma.cuda", {"groups": 2, "block_n": 32, "stages": 2}, marks=pytest.mark.full),
    ],
)
def test_queries_that_see_few_keys(implementation: str, knobs: dict[str, int], scratch: Path) -> None:
    shapes = {
        "query": "float16[1,4,m,16]", "key": "float16[1,2,n,16]", "value": "float16[1,2,n,24]", "bias": "bool[m,n]",
    }
    workload = Workload.make("attention_bias", shapes, {"is_causal": True})
    source = emit(lower(workload, TARGET, implementation, Config(knobs)))
    emulation = Emulation(source.code, source.programs, scratch / str(next(_numbers)))
    rng = np.random.default_rng(0)
    for m, n in ((1, 1), (1, 90), (7, 33), (50, 20), (70, 100)):
        extents = {"m": m, "n": n}
        inputs = {
            name: aligned(tuple(extents.get(e, e) for e in (int(x) if x.isdigit() else x for x in shape)), dtype)
            for name, text in shapes.items()
            for dtype, shape in [(text.split("[")[0], text[:-1].split("[")[1].split(","))]
        }
        for array in inputs.values():
            array[...] = rng.random(array.shape) < 0.1 if array.dtype == bool else rng.standard_normal(array.shape)
        inputs["key"][0, 0, 0, 0] = np.nan
        output = aligned((1, 4, m, 24), "float16")
        output[...] = np.nan
        emulation.run("main", {**inputs, "output": output}, extents)
        (right,) = (np.asarray(r) for r in reference(workload, inputs))
        np.testing.assert_allclose(output.astype(np.float64), right, rtol=4e-3, atol=2e-3, err_msg=f"{m} {n}")


@pytest.mark.parametrize(
    ("implementation", "knobs"),
    [
        ("attention_flash.cuda", FLASH | {"parts": 1}),
        ("attention_wgmma.cuda", {"groups": 1, "block_n": 32, "stages": 2}),
    ],
)
def test_queries_without_keys_give_0(implementation: str, knobs: dict[str, int], scratch: Path) -> None:
    shapes = {"query": "float16[1,2,40,16]", "key": "float16[1,2,n,16]", "value": "float16[1,2,n,24]"}
    source = emit(lower(Workload.make("attention", shapes), TARGET, implementation, Config(knobs)))
    emulation = Emulation(source.code, source.programs, scratch / str(next(_numbers)))
    given = {"query": aligned((1, 2, 40, 16), "float16"), "key": aligned((1, 2, 0, 16), "float16")}
    output = aligned((1, 2, 40, 24), "float16")
    given["query"][...], output[...] = 1, np.nan
    emulation.run("main", {**given, "value": aligned((1, 2, 0, 24), "float16"), "output": output}, {"n": 0})
    assert (output == 0).all()


def test_a_scale_that_float32_takes_for_0_weighs_all_keys_alike(scratch: Path) -> None:
    head = "float16[1,1,20,16]"
    workload = Workload.make("attention", {"query": head, "key": head, "value": head}, {"scale": 1e-50})
    config = Config({"warps": 1, "tiles": 1, "block_n": 16, "stages": 2, "keep": 1, "parts": 1})
    check(workload, "attention_flash.cuda", config, scratch)


def test_attention_by_wgmma_is_for_many_rows_of_queries() -> None:
    def takes(heads: int, m: int | str) -> bool:
        shapes = {"query": f"float16[1,{heads},{m},64]"} | dict.fromkeys(("key", "value"), "float16[1,2,300,64]")
        found = {c.implementation: c for c in candidates(Workload.make("attention", shapes), TARGET)}
        condition = found["attention_wgmma.cuda"].condition
        assert condition is not None
        return condition.decide() is not False

    assert [takes(2, 32), takes(2, 33), takes(8, 8), takes(8, 9), takes(64, 1), takes(2, "m")] == [
        False, True, False, True, False, True,
    ]


FENCES = [
    f'asm volatile("{name}" ::: "memory");'
    for name in ("fence.proxy.async.shared::cta;", "wgmma.fence.sync.aligned;")
]
# A part of the kernel that is replaced: the order of copies, products and waits, then where operands lie.
LATE = [
    (FENCES[0], ""), (FENCES[1], ""), ("__syncthreads();", ""), ("(STAGES - 2) : ", "(STAGES - 1) : "),
    ("    settle_sums(sums);\n", ""), ("((chunk ^ row) & 7)", "(chunk & 7)"), ("PANEL / 16ull", "PANEL / 32ull"),
    ("right + k * (16 * 128 >> 4)", "right"), ("    settle_scores(scores);\n    raise(block);", "    raise(block);"),
]


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("m", "n", "first"), [(64, 131072, "attention_flash.cuda"), (2048, 2048, "attention_wgmma.cuda")]
)
def test_few_queries_of_many_keys_take_parts_of_the_keys_untuned(m: int, n: int, first: str) -> None:
    keys = f"float16[1,8,{n},64]"
    workload = Workload.make("attention", {"query": f"float16[1,8,{m},64]", "key": keys, "value": keys})
    found = candidates(workload, Target.parse("cuda -arch=sm_90"))
    assert max(found, key=lambda c: c.plevel).implementation == first


@pytest.mark.parametrize(("old", "new"), LATE)
def test_the_emulation_notices_what_is_wrong_with_attention(old: str, new: str, scratch: Path) -> None:
    head = "float16[1,1,70,72]"  # in two panels
    workload = Workload.make("attention", {"query": head, "key": "float16[1,1,150,72]", "value": "float16[1,1,150,72]"})
    config = Config({"groups": 2, "block_n": 32, "stages": 2})
    check(workload, "attention_wgmma.cuda", config, scratch)
    source = generate(workload, "attention_wgmma.cuda", config)[1]
    assert old in source.code
    emulation = Emulation(source.code.replace(old, new), source.programs, scratch / str(next(_numbers)))
    inputs = random_inputs(workload, 7)
    output = aligned((1, 1, 70, 72), "float16")
    output[...] = np.nan
    (right,) = reference(workload, inputs)
    try:
        emulation.run("main", {**{n: copied(a) for n, a in inputs.items()}, "output": output})
    except TrapError:
        return
    assert not np.allclose(output, right, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    "implementation", [pytest.param("grouped_dense_mma.cuda", marks=pytest.mark.full), "grouped_dense_wgmma.cuda"]
)
def test_groups_end_anywhere(implementation: str, scratch: Path) -> None:
    shapes = {"data": "float16[m,24]", "weight": "float16[4,40,24]", "ends": "int32[4]"}
    workload = Workload.make("grouped_dense", shapes)
    source = emit(lower(workload, TARGET, implementation))
    emulation = Emulation(source.code, source.programs, scratch / str(next(_numbers)))
    rng = np.random.default_rng(0)
    for m, ends in (
        (1, [0, 0, 1, 1]), (150, [3, 3, 140, 140]), (90, [0, 0, 0, 0]), (90, [50, 2, -1, 70]), (90, [70, 500, 2, 9]),
        (65, [64, 65, 65, 65]), (9, [-5, 2**31 - 1, -(2**31), 0]),
    ):
        inputs = {"data": aligned((m, 24), "float16"), "weight": aligned((4, 40, 24), "float16")}
        for array in inputs.values():
            array[...] = rng.random(array.shape)
        inputs["ends"], output = aligned((4,), "int32"), aligned((m, 40), "float16")
        inputs["ends"][...], output[...] = ends, np.nan
        emulation.run("main", {**inputs, "output": output}, {"m": m})
        (right,) = reference(workload, inputs)
        np.testing.assert_allclose(output, right, rtol=1e-3, err_msg=str(ends))


# A part of the code of a sum over rows, that which replaces it, and the trap that it meets.
RACES = [
    # Right where threads take turns, and where no other array follows.
    ("(((int)threadIdx.y) == 0)", "true", "two writes"),
    ("(((int)threadIdx.x) < 5)", "true", "outside of all arrays"),
    ("__syncthreads();", "", "read of what is written|write of what is read"),
]


@pytest.fixture(scope="module")
def racing(scratch: Path) -> dict[str, Emulation]:
    """The broken sums by what of them is replaced, compiled together."""
    _, source = generate(Workload.make("sum", {"data": "float32[64,5]"}, {"axis": [0]}), "reduce.cuda", None)
    before, last = source.code.rsplit("for (", 1)
    broken = {old: before + "for (" + last.replace(old, new) for old, new, _ in RACES}
    compile_together(dict.fromkeys(broken.values(), source.programs), scratch)
    return {old: Emulation(code, source.programs, scratch) for old, code in broken.items()}


@pytest.mark.parametrize(("old", "new", "words"), RACES)
def test_the_emulation_notices_threads_that_race_or_leave_their_arrays(
    old: str, new: str, words: str, racing: dict[str, Emulation]
) -> None:
    emulation = racing[old]
    output = aligned((64,), "float32")[:5]  # what is written behind it is this test's own memory
    with pytest.raises(TrapError, match=words):
        emulation.run("main", {"data": aligned((64, 5), "float32"), "output": output})


WAIT = 'asm volatile("cp.async.wait_group %0;" :: "n"(STAGES - 2) : "memory");'
# Replacements in the source of kernels. Those of wgmma: order, then another swizzle, turns of four rows,
# another distance of atoms, and half a step along k.
BROKEN: list[tuple[str, str, list[tuple[str, str]]]] = [
    ("dense_tiled.cuda", "float32", [("__syncthreads();", "")]),
    # Copied data has come only once it is waited for.
    ("dense_mma.cuda", "float16", [("__syncthreads();", ""), (WAIT, ""), ("(STAGES - 2)", "(STAGES - 1)")]),
    ("dense_wgmma.cuda", "float16",
     [(FENCES[0], ""), ("row & 7", "row & 3"), ('"n"(1)', '"n"(2)'), ("1ull << 62", "2ull << 62"),
      (FENCES[1], ""), ("__syncthreads();", ""), ("settle(sums[t]);", ""), ("(STAGES - 3)", "(STAGES - 2)"),
      ("(ATOM >> 4)", "(ATOM >> 5)"), ("k * 32", "k * 16")]),
]


@pytest.mark.sample(1)
@pytest.mark.parametrize(("implementation", "dtype", "changes"), BROKEN, ids=[b[0] for b in BROKEN])
def test_the_emulation_notices_what_is_wrong(
    implementation: str, dtype: str, changes: list[tuple[str, str]], scratch: Path, full: bool
) -> None:
    # So long that each stage of a pipeline is used again.
    m, n, k = (128, 64, 520) if "wgmma" in implementation else (64, 64, 96)
    config = {"block_m": 128, "block_n": 64, "groups": 2, "stages": 4, "group": 1}
    workload = Workload.make("dense", {"data": f"{dtype}[{m},{k}]", "weight": f"{dtype}[{n},{k}]"})
    given = Config(config) if "wgmma" in implementation else None
    source = emit(lower(workload, TARGET, implementation, given))
    rng = np.random.default_rng(0)
    arrays = {"data": aligned((m, k), dtype), "weight": aligned((n, k), dtype), "output": aligned((m, n), dtype)}
    arrays["data"][...], arrays["weight"][...] = rng.random((m, k)), rng.random((n, k))
    right = arrays["data"].astype(np.float32) @ arrays["weight"].astype(np.float32).T

    def is_right(code: str) -> bool:
        emulation = Emulation(code, source.programs, scratch / str(next(_numbers)))
        arrays["output"][...] = np.nan
        try:
            emulation.run("main", arrays)
        except TrapError:
            return False
        return np.allclose(arrays["output"], right, rtol=1e-3)

    broken = {old: source.code.replace(old, new) for old, new in (changes if full else changes[:2])}
    compile_together(dict.fromkeys((source.code, *broken.values()), source.programs), scratch)
    assert is_right(source.code)
    for old, code in broken.items():
        assert code != source.code
        assert not is_right(code), old


def test_assembly_that_the_emulation_does_not_know_is_refused(scratch: Path) -> None:
    code = 'extern "C" __global__ void f(int* x) { asm volatile("mov.u32 %0, %1;" : "=r"(*x) : "r"(1)); }'
    with pytest.raises(AssertionError, match="inline_assembly_is_not_emulated"):
        Emulation(code, {"main": Program((), (Launch("f", (), (1, 1, 1), (1, 1, 1)),))}, scratch / "f")


def test_an_artefact_is_read_as_it_was_written(tmp_path: Path) -> None:
    workload = Workload.make("topk", {"data": "float32[m,300]"}, {"k": 3})
    assert list(offered(workload)) == []  # written by hand for constant shapes
    workload = Workload.make("dense", {"data": "float32[m,24]", "weight": "float32[20,24]"})
    lowered = lower(workload, TARGET, "dense_tiled.cuda")
    source = emit(lowered)
    artefact = CudaArtefact(
        signature=lowered.signature, programs=source.programs, source=source.code, arch="sm_80",
        compiler="none", cubin=b"\0\1\2\xff", usage={},
    )
    artefact.save(tmp_path / "dense.json")
    assert CudaArtefact.load(tmp_path / "dense.json") == artefact
