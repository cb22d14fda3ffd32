"""Generated code touches nothing outside of its buffers: every implementation, in guarded memory.

Each runs with its buffers ending at an inaccessible page, beginning at one, and once more compiled for
any alignment, so that their very last element is the last byte that may be touched. A sample is of the last two.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from strategy.cpu.streaming import can_stream
from strategy.op import TOpPattern, all_ops
from strategy.op_strategy import OpImplementation, candidates, evaluate, find_implementation
from strategy.space import Config
from strategy.target import Target
from strategy.workload import EpilogueStep, Input, Workload

from .guarded_run import Request
from .sweep import sampled
from .test_ops import CASES as OTHERS
from .test_symbolic import SAMPLED as SYMBOLIC
from .test_symbolic import sizes_of

TARGET = Target.parse("cpu").with_threads(2)
Check = Callable[..., list[str]]


def convolution(data: str, weight: str, constant: bool = False, **attrs: Any) -> Workload:
    inputs = {"data": f"float32[{data}]", "weight": f"float32[{weight}]"}
    return Workload.make("conv2d", inputs, attrs, ["weight"] if constant else [])


# Each with what its configuration has in place of the one used without tuning.
REGRESSIONS: list[tuple[Workload, str, dict[str, Any]]] = [
    (convolution("1,1,20,22", "5,1,1,1", strides=2, padding=1), "conv2d_nchw_im2col.cpu", {}),
    (convolution("2,3,9,22", "35,3,1,1", strides=[2, 3]), "conv2d_nchw_spatial_pack.cpu", {"picked": True}),
    (convolution("1,1,9,11", "6,1,1,1", padding=2), "conv2d_nchw_im2col.cpu", {}),
    (convolution("1,1,1,1", "2,1,1,1", padding=1), "conv2d_nchw_im2col.cpu", {}),
    (convolution("1,1,5,5", "1,1,1,1"), "conv2d_nchw_im2col.cpu", {"rows": 2, "width": 16}),
    (convolution("2,10,7,9", "70,5,1,1", groups=2), "conv2d_nchw_1x1.cpu", {"ahead": True, "copied": False}),
    (convolution("2,10,7,9", "70,5,1,1", groups=2), "conv2d_nchw_1x1.cpu", {"ahead": False, "copied": True}),
    (
        convolution("2,10,7,9", "70,5,1,1", groups=2),
        "conv2d_nchw_1x1.cpu",
        {"ahead": False, "copied": True, "width": 16, "p_block": 2, "inner": "pixels"},
    ),
    (convolution("2,16,11,13", "7,16,3,3", padding=1), "conv2d_nchw_spatial_pack.cpu", {}),
    (convolution("1,6,7,7", "70,6,3,3", True, padding=1), "conv2d_nchw_spatial_pack.cpu", {"ahead": True}),
    (
        convolution("1,2,7,7,16", "48,32,3,3", True, padding=1, data_layout="NCHW16c"),
        "conv2d_nchwc_spatial_pack.cpu",
        {"ahead": True},
    ),
    (convolution("2,24,9,14", "40,3,3,3", groups=8, padding=1), "conv2d_nchw_spatial_pack.cpu", {}),  # padded in tasks
    (
        convolution("1,67,63,71", "19,67,3,3", strides=2, padding=[1, 2, 1, 1]),
        "conv2d_nchw_spatial_pack.cpu",
        {"by_task": True, "rows": 12, "p_block": 6, "width": 16},
    ),
    (
        convolution("1,4,63,71,16", "48,64,3,3", True, strides=2, padding=[1, 2, 1, 1], data_layout="NCHW16c"),
        "conv2d_nchwc_spatial_pack.cpu",
        {"by_task": True, "rows": 12, "p_block": 6, "o_block": 1, "width": 16},
    ),
    (convolution("2,6,9,21", "10,3,3,3", groups=2, strides=[1, 2]), "conv2d_nchw_lines.cpu", {}),  # two vectors
    # Taps that see padding alone, as of all lines but the middle ones, read nothing before the image or behind it.
    (convolution("2,32,9,14", "20,16,3,3", True, groups=2, padding=8, dilation=8), "conv2d_nchw_taps.cpu", {}),
    (
        convolution("2,32,9,14", "20,16,3,3", True, groups=2, padding=7, dilation=7),
        "conv2d_nchw_taps.cpu",
        {"copied": False, "rows": 7},  # read in place: a tile sees of each tap the image or nothing of it
    ),
    (
        Workload.make("dense", {"data": "float32[21,523]", "weight": "float32[5,523]"}),
        "dense_large_m.cpu",
        {"depth": 176},  # three blocks of steps, the last of which ends with zeros
    ),
    (
        Workload.make("dense", {"data": "float32[21,523]", "weight": "float32[5,523]"}),
        "dense_large_m.cpu",
        {"depth": 176, "by": "place"},
    ),
    (convolution("1,4,17,19", "4,1,3,3", groups=4, padding=1), "depthwise_conv2d_nchw.cpu", {}),
    (
        Workload.make("conv2d_transpose", {"data": "float32[1,3,1,15]", "weight": "float32[3,4,2,2]"}, {"strides": 2}),
        "conv2d_transpose_blocks.cpu",
        {},
    ),
    (
        Workload.make(
            "qconv2d", {"data": "uint8[1,64,64,3]", "weight": "int8[17,1,1,3]"},
            {"data_layout": "NHWC", "kernel_layout": "OHWI"},
        ),
        "qconv2d_nhwc_dot.cpu",
        {},
    ),
    *(
        (
            Workload.make(
                "conv2d", {"data": f"bfloat16[{data}]", "weight": "bfloat16[18,10,3,3]"},
                {"groups": 2, "padding": 1, "strides": 2, "data_layout": layout, "kernel_layout": "OIHW"},
            ),
            name,
            {"by_task": True, "rows": 5, "p_block": 5},  # each of two tasks of an image copies a line that both read
        )
        for layout, data, name in (
            ("NCHW", "2,20,19,13", "conv2d_nchw_dot_direct.cpu"), ("NHWC", "2,19,13,20", "conv2d_nhwc_dot.cpu"),
        )
    ),
    (Workload.make("softmax", {"data": "float32[16,5]"}), "softmax_row.cpu", {}),
    (
        Workload.make("softmax_bias", {"data": "float32[13,182]", "bias": "float32[1,182]"}, {"axis": 0, "scale": 0.5}),
        "softmax_bias_column.cpu",
        {"vectors": 1},
    ),
    (Workload.make("transpose", {"data": "float32[16,5]"}), "transpose_tile.cpu", {}),
    (
        Workload.make("concatenate", {"data.0": "float32[4,6]", "data.1": "float32[4,5]"}, {"axis": 1}),
        "injective.cpu",
        {},
    ),
    (
        Workload.make(  # ends the process where the quotient is 0
            "floor_divide", {"lhs": "int32[4,50]", "rhs": "int32[4,50]"}, {}, (),
            [EpilogueStep("floor_divide", (Input("number", "int32[4,50]"), None))],
        ),
        "broadcast.cpu",
        {},
    ),
]


def relu_of_sum(shape: str) -> list[EpilogueStep]:
    operand = Input("bias", f"float32[{shape}]", constant=True)
    return [EpilogueStep("add", (None, operand)), EpilogueStep("relu", (None,))]


def cases() -> Iterator[Workload]:
    """Awkward shapes: 1, primes, one channel, one pixel, tails, strides, padding, dilation, epilogues."""
    yield from (work for work, *_ in REGRESSIONS)
    for constant in (False, True):
        yield convolution("1,3,7,13", "5,3,3,3", constant, padding=1)
        yield convolution("2,16,11,13", "7,16,3,3", constant, padding=1)
        yield convolution("1,17,8,9", "3,17,3,3", constant)
        yield convolution("1,5,9,17", "6,5,3,3", constant, strides=2, padding=1)
        yield convolution("1,7,1,1", "11,7,1,1", constant)
        yield convolution("1,3,23,29", "4,3,5,5", constant, dilation=2, padding=3, strides=[2, 1])
        yield convolution("1,3,1,37", "3,1,1,5", constant, groups=3, padding=[0, 2], strides=[1, 2])
        yield convolution("1,6,8,8", "10,3,3,3", constant, groups=2, padding=1)
        yield convolution("2,1,1,1,16", "24,16,1,1", constant, data_layout="NCHW16c", out_layout="NCHW8c")
        yield convolution("2,2,9,13,8", "24,16,3,3", constant, padding=[2, 0, 1, 1], data_layout="NCHW8c")
        yield convolution("1,3,7,13", "16,3,3,3", constant, strides=[3, 2], padding=[0, 1, 2, 0], out_layout="NCHW16c")
        yield convolution(
            "2,3,5,1,8", "24,1,3,3", constant, groups=24, strides=3, dilation=[1, 2], padding=[1, 2, 0, 3],
            data_layout="NCHW8c",
        )
        yield convolution("1,7,13,5", "3,3,1,5", constant, groups=5, data_layout="NHWC", kernel_layout="HWIO")
        for kind in ("bfloat16", "float16"):
            for data, weight, attrs in (
                ("2,16,11,13", "7,16,3,3", {"padding": 1}), ("2,5,7,9", "21,5,1,1", {}), ("1,3,7,13", "5,3,5,5", {}),
                ("1,6,5,17", "10,3,1,1", {"groups": 2, "strides": 2}),
            ):
                inputs = {"data": f"{kind}[{data}]", "weight": f"{kind}[{weight}]"}
                yield Workload.make("conv2d", inputs, attrs, ["weight"] if constant else [])
            for weight in ("3,5,2,2", "3,4,3,3"):
                inputs = {"data": f"{kind}[1,3,2,17]", "weight": f"{kind}[{weight}]"}
                yield Workload.make("conv2d_transpose", inputs, {"strides": 2}, ["weight"] if constant else [])
        for kind, narrow, product, convolved in (
            ("bfloat16", "bfloat16", "dense", "conv2d"), ("uint8", "int8", "qdense", "qconv2d"),
        ):
            constants = ["weight"] if constant else []
            for rows, depth in ((32, 128), (37, 76)):  # whole tiles, and parts of them
                inputs = {"data": f"{kind}[{rows},{depth}]", "weight": f"{narrow}[21,{depth}]"}
                yield Workload.make(product, inputs, {}, constants)
            inputs = {"data": f"{kind}[2,5,7,40]", "weight": f"{narrow}[21,3,3,40]"}
            layouts = {"data_layout": "NHWC", "kernel_layout": "OHWI"}
            yield Workload.make(convolved, inputs, {**layouts, "padding": 1}, constants)
        for image, size, out_channels, attrs in (
            ("1,1,1,1,16", "1,1", 16, {"out_layout": "NCHW16c"}),
            ("2,3,9,13,16", "3,3", 40, {"padding": 1, "activation": "relu6", "out_layout": "NCHW8c"}),
            ("1,2,8,17,16", "5,3", 16, {"padding": [2, 0, 1, 1], "strides": [2, 3], "out_layout": "NCHW16c"}),
        ):
            channels = 16 * int(image.split(",")[1])
            inputs = {
                "data": f"float32[{image}]", "depthwise_weight": f"float32[{channels},1,{size}]",
                "depthwise_bias": f"float32[{channels}]",
                "pointwise_weight": f"float32[{out_channels},{channels},1,1]",
            }
            constants = [n for n in inputs if n != "data"] if constant else []
            yield Workload.make("depthwise_separable_conv2d", inputs, {"data_layout": "NCHW16c", **attrs}, constants)
        for kind, of_weight, op in (("bfloat16", "bfloat16", "conv2d"), ("int8", "uint8", "qconv2d")):
            zeros = {"input_zero_point": 7, "kernel_zero_point": 3} if op == "qconv2d" else {}
            last = {"data_layout": "NHWC", "kernel_layout": "OHWI", **zeros}
            for data, weight, attrs in (
                ("1,7,13,3", "5,3,3,3", last), ("2,5,7,8", "17,1,1,8", last),
                ("1,9,8,12", "6,3,2,6", last | {"groups": 2}),
                ("1,11,5,6", "3,3,3,6", last | {"padding": [1, 0, 2, 1], "strides": 2}),
                ("1,7,13,21", "21,3,3,1", last | {"groups": 21, "padding": 1}),
                ("1,3,7,13", "5,3,3,3", zeros),
                ("1,5,7,13", "5,1,3,3", zeros | {"groups": 5, "padding": 1, "strides": 2}),
            ):
                inputs = {"data": f"{kind}[{data}]", "weight": f"{of_weight}[{weight}]"}
                yield Workload.make(op, inputs, attrs, ["weight"] if constant else [])
        for m, n, k in ((1, 1, 1), (1, 131, 67), (13, 37, 29), (37, 1, 5), (2, 16, 1)):
            inputs = {"data": f"float32[{m},{k}]", "weight": f"float32[{n},{k}]"}
            yield Workload.make("dense", inputs, {}, ["weight"] if constant else [])
    for batch, m, n, k in ((1, 1, 1, 1), (2, 3, 5, 7), (3, 17, 33, 13), (1, 37, 1, 53)):
        yield Workload.make("batch_matmul", {"x": f"float32[{batch},{m},{k}]", "y": f"float32[{batch},{n},{k}]"})
    for kind in ("bfloat16", "float16"):
        yield Workload.make("batch_matmul", {"x": f"{kind}[3,17,13]", "y": f"{kind}[3,33,13]"})
    for op in ("softmax", "log_softmax", "layer_norm", "sum", "max", "mean", "cumsum", "argmax"):
        for shape in ("1,1", "16,5", "7,131", "131,7"):
            columns = shape.partition(",")[2]
            more = dict.fromkeys(("gamma", "beta"), f"float32[{columns}]") if op == "layer_norm" else {}
            yield Workload.make(op, {"data": f"float32[{shape}]", **more}, {})
    for op in ("sum", "max", "mean", "cumsum"):
        yield Workload.make(op, {"data": "float32[41,5]"}, {"axis": [0] if op != "cumsum" else 0})
        yield Workload.make(op, {"data": "float64[5,37]"}, {"axis": [-1] if op != "cumsum" else -1})
    for shape in ("1,1", "37,23", "5,16", "1,67"):
        yield Workload.make("transpose", {"data": f"float32[{shape}]"})
    yield Workload.make("transpose", {"data": "float32[7,5,19]"}, {"axes": [1, 0, 2]})
    for op in ("topk", "argsort"):
        for shape in ("1,1", "5,37"):
            yield Workload.make(op, {"data": f"float32[{shape}]"}, {"k": 1} if op == "topk" else {})
    for op in ("max_pool2d", "avg_pool2d"):
        for image in ("1,1", "7,13", "15,37"):
            attrs = {"pool_size": 3, "strides": 2, "padding": 1}
            yield Workload.make(op, {"data": f"float32[1,3,{image}]"}, attrs)
    yield Workload.make(
        "dense", {"data": "float32[13,29]", "weight": "float32[37,29]"}, {}, epilogue=relu_of_sum("37")
    )
    yield Workload.make(
        "conv2d", {"data": "float32[1,3,7,13]", "weight": "float32[5,3,3,3]"}, {"padding": 1},
        epilogue=relu_of_sum("5,1,1"),
    )
    for op in ("log", "sqrt", "rsqrt"):
        yield Workload.make(op, {"data": "float32[13,9]"})
    yield Workload.make("power", {"lhs": "float32[13,9]", "rhs": "float32[9]"})
    for op, inputs, attrs in OTHERS:
        yield Workload.make(op, inputs, attrs)
    for name, found in all_ops().items():
        yield from (Workload.make(name, e.inputs, dict(e.attrs)) for e in found.examples)


@cache
def cases_by_op() -> dict[str, list[Workload]]:
    found: dict[str, list[Workload]] = {}
    for work in cases():
        found.setdefault(work.op, []).append(work)
    return found


def offered(work: Workload) -> list[OpImplementation]:
    """The implementations that are valid for a workload."""
    return [i for condition, i in evaluate(work, TARGET) if condition is None or condition.decide()]


def points(work: Workload, found: OpImplementation, generator: random.Random, count: int) -> Sequence[Config | None]:
    """The configuration used without tuning, and others."""
    if found.space is None:
        return [None]
    space = found.space(work.attr_node, work.input_types, work.out_type, TARGET)
    return [space.fallback, *space.sample(generator, count)]


@pytest.fixture(scope="module")
def check(full: bool) -> Iterator[Check]:
    """Run one implementation in guarded memory; return what went wrong."""
    command = [sys.executable, "-m", "tests.kernel.guarded_run"]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root) as child:

        def check(
            work: Workload, implementation: str, config: Config | None, sizes: Sequence[dict[str, int]] = ({},),
            capability: dict[str, int] | None = None, **given: list[int],
        ) -> list[str]:
            assert child.stdin
            assert child.stdout
            request = Request(
                work, implementation, config and dict(config), 2, full, tuple(sizes), given, capability or {}
            )
            child.stdin.write(msgspec.json.encode(request) + b"\n")
            child.stdin.flush()
            answer = child.stdout.readline()
            assert answer, f"compiling {implementation} of {work} with {config} ended the process"
            found: list[str] = msgspec.json.decode(answer, type=list[str])
            return [f"{work} {implementation} {config or ''}: {reason}" for reason in found]

        yield check
    assert child.returncode == 0


@pytest.mark.sample(3)
@pytest.mark.parametrize(("work", "implementation", "changes"), REGRESSIONS, ids=str)
def test_what_was_outside(
    check: Check, work: Workload, implementation: str, changes: dict[str, Any]
) -> None:
    there = {i.name: i for i in offered(work)}
    if "_dot" in implementation and implementation not in there:
        pytest.skip("this processor has no dot-product instructions")
    found = there[implementation]
    (config, *_) = points(work, found, random.Random(0), 0)
    assert not check(work, implementation, config if config is None else Config({**config, **changes}))


def one_behind() -> Iterator[Workload]:
    """Results narrower than what they are computed in, with one number behind the last whole vector."""
    for shape in ("17", "3,17"):
        for wide, narrow in (
            ("int32", "int8"), ("int32", "uint16"), ("int64", "int32"), ("float32", "bfloat16"), ("float32", "float16"),
        ):
            yield Workload.make("cast", {"data": f"{wide}[{shape}]"}, {"dtype": narrow})
        inputs = {"data": f"float32[{shape}]", "output_scale": "float32[]", "output_zero_point": "int32[]"}
        yield Workload.make("quantize", inputs, {"out_dtype": "uint8"})
    # LLVM makes vectors of a scalar loop over so few numbers, too.
    for wide in ("int32", "int64", "float64"):
        for size in (73, 93):
            yield Workload.make("cast", {"data": f"{wide}[{size}]"}, {"dtype": "bfloat16"})
    yield Workload.make("add", dict.fromkeys(("lhs", "rhs"), "bfloat16[49]"))
    yield Workload.make(
        "conv2d", {"data": "bfloat16[1,17,19,19]", "weight": "bfloat16[3,17,3,3]"}, {}, constants=["weight"]
    )
    yield Workload.make("qconv2d", {"data": "uint8[1,5,19,19]", "weight": "int8[5,1,3,3]"}, {"groups": 5})


@pytest.mark.sample(8)
@pytest.mark.parametrize("work", list(one_behind()), ids=str)
def test_the_one_number_behind_the_vectors_is_stored_alone(check: Check, work: Workload) -> None:
    wrong = []
    for found in offered(work):
        (config,) = points(work, found, random.Random(0), 0)
        wrong += check(work, found.name, config)
    assert not wrong, "\n".join(wrong)


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
def test_stores_past_the_caches(check: Check, dtype: str) -> None:
    """Beside a last-level cache of one byte all results are large."""
    capability = {"l3_bytes": 1}
    small = Target.parse({**TARGET.to_json(), **capability})
    if not can_stream(dtype, small):
        pytest.skip("this processor has no such stores")
    wrong: list[str] = []
    # All turns of a task's loop have a mask, or the last one alone; rows begin at whole vectors, 16 bytes or elsewhere.
    for shape in ("335", "5,67", "5,84"):
        work = Workload.make("add", {"lhs": f"{dtype}[{shape}]", "rhs": f"{dtype}[{shape.rpartition(',')[2]}]"})
        (space,) = (c.space for c in candidates(work, small) if c.implementation == "elementwise.cpu")
        assert space is not None
        for tasks in (1, 2, 8):
            config = space.check(Config({**space.fallback, "tasks": tasks}))
            assert config["stores"] == "streamed"
            wrong += check(work, "elementwise.cpu", config, capability=capability)
    assert not wrong, "\n".join(wrong)


@pytest.mark.sample(4)
@pytest.mark.parametrize(("op", "inputs", "attrs", "implementation"), SYMBOLIC)
def test_symbolic(
    check: Check, op: str, inputs: dict[str, str], attrs: dict[str, Any], implementation: str, full: bool
) -> None:
    work = Workload.make(op, inputs, attrs)
    found = find_implementation(work, TARGET, implementation)
    configs = points(work, found, random.Random(op), 8 if full else 1)
    wrong: list[str] = []
    for config in configs if full else [random.Random(str(inputs)).choice(configs)]:
        wrong += check(work, implementation, config, sizes_of(work)[:: 1 if full else 2])
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(("op", "data", "attrs"), [
    ("cumsum", "float16[3,m]", {"axis": 1, "exclusive": True}), ("cummax", "int8[m,5]", {}),
    ("argsort", "float32[2,m,3]", {"axis": 1}),
])
def test_rows_of_no_elements_at_run_time(check: Check, op: str, data: str, attrs: dict[str, Any]) -> None:
    implementation = "argsort_radix.cpu" if op == "argsort" else f"{op}.generic"
    assert not check(Workload.make(op, {"data": data}, attrs), implementation, None, [{"m": 0}, {"m": 5}])


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("ends", [[-5, 2**31 - 1, -(2**31), 3], [9, 3, 40, 12], [0, 0, 0, 0], [5, 5, 7, 13]])
def test_ends_of_groups_that_the_rows_do_not_have(check: Check, dtype: str, ends: list[int]) -> None:
    inputs = {"data": f"{dtype}[m,32]", "weight": f"{dtype}[4,37,32]", "ends": "int32[4]"}
    sizes = [{"m": 13}, {"m": 1}]
    wrong = []
    for work in (Workload.make("grouped_dense", inputs), Workload.make("grouped_dense", inputs).bind(sizes[0])):
        for found in offered(work):
            (config,) = points(work, found, random.Random(0), 0)
            wrong += check(work, found.name, config, sizes if work.symbols else [{}], ends=ends)
    assert not wrong, "\n".join(wrong)


def ops() -> Iterator[Any]:
    """All operators; a sample has those with implementations of their own, and those that `sweep` leaves out.

    Those of one element, or of two, have one loop, whatever it computes: the first is the sample.
    """
    met: set[TOpPattern] = set()
    swept = set(sampled())
    for name, op in sorted(all_ops().items()):
        pattern = op.get_attr("TOpPattern")
        alike = pattern in {TOpPattern.kElemWise, TOpPattern.kBroadcast}
        left_out = pattern in met if alike else name in swept and pattern != TOpPattern.kOutEWiseFusable
        yield pytest.param(name, marks=[pytest.mark.full] if left_out else [])
        met.add(pattern)


@pytest.mark.parametrize("op", list(ops()))
def test_every_implementation(check: Check, op: str, full: bool) -> None:
    generator = random.Random(op)
    by_name: dict[str, list[Workload]] = {}
    for work in cases_by_op()[op]:
        for found in offered(work):
            by_name.setdefault(found.name, []).append(work)
    assert by_name
    wrong = []
    for name, works in by_name.items():
        for work in works if full else [generator.choice(works)]:
            (found,) = (i for i in offered(work) if i.name == name)
            configs = points(work, found, generator, 8 if full else 1)
            for config in configs if full else [generator.choice(configs)]:
                wrong += check(work, name, config)
    assert not wrong, "\n".join(wrong)
