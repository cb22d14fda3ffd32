"""Workloads of every operator and dtype, and the child process that compiles, calls and judges them.

Loaded by the fork server of the tests: what TVM crashes on costs a child only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from strategy.cpu.passes import processor_pipeline
from strategy.extern import load_library
from strategy.lower import Lowered, Role, lower
from strategy.op import TypeRelationError, all_ops
from strategy.op_strategy import OpImplementation, evaluate
from strategy.target import Target
from strategy.types import DTYPES
from strategy.workload import Workload
from workers.reference import (
    Array,
    WrongAnswerError,
    compare,
    epsilon,
    numpy_dtype,
    poison,
    random_inputs,
    reference,
    tolerances,
)

TARGET = Target.parse("cpu").with_threads(2)
ODD = [np.nan, np.inf, -np.inf, -0.0, 0.0, 0.5, -0.5, 1.0]

# By operator: the types of its inputs, where T is any dtype, and its attributes. Extents are below and
# above a vector's width.
_UNARY = [({"data": "T[5,19]"}, {})]
_BINARY = [({"lhs": "T[5,19]", "rhs": "T[19]"}, {})]
_REDUCTION = [({"data": "T[3,5,19]"}, {"axis": [a]}) for a in (1, 2)]
_SORT = [({"data": "T[5,19]"}, {"is_ascend": a}) for a in (True, False)]
_ARG = [*_REDUCTION, ({"data": "T[3,5]"}, {"dtype": "int64"})]
_SCAN = [
    *(({"data": "T[5,19]"}, {"axis": a}) for a in (0, 1)),
    *(({"data": "T[5,19]"}, {"axis": 1, "dtype": d}) for d in ("int32", "float32")),
]
_SOFTMAX = [({"data": "T[5,19]"}, {"axis": a}) for a in (0, 1)]
_POOL = {"pool_size": [2, 3], "strides": [2, 1], "padding": [1, 1]}
EXAMPLES: dict[str, list[tuple[dict[str, str], dict[str, Any]]]] = {
    **dict.fromkeys(
        ("add", "divide", "equal", "greater", "greater_equal", "less", "less_equal", "maximum",
         "minimum", "multiply", "not_equal", "power", "subtract"), _BINARY),
    **dict.fromkeys(("max", "min", "mean", "prod", "sum"), _REDUCTION),
    **dict.fromkeys(("argmax", "argmin"), _ARG),
    "argsort": [*_SORT, ({"data": "T[5,7,3]"}, {"axis": 1, "dtype": "int64"})],
    "topk": [
        *(({"data": "T[5,190]"}, {"k": 7, "is_ascend": a}) for a in (True, False)),
        ({"data": "T[5,7,3]"}, {"k": 7, "axis": 1, "dtype": "int64", "ret_type": "values"}),
        ({"data": "T[5,19]"}, {"k": 3, "axis": 0, "ret_type": "indices"}),
    ],
    **dict.fromkeys(("cumsum", "cumprod"), _SCAN),
    "avg_pool2d": [({"data": "T[1,2,6,9]"}, _POOL)],
    "max_pool2d": [({"data": "T[1,2,6,9]"}, _POOL)],
    "max_pool2d_backward": [({"grad": "T[1,2,4,9]", "data": "T[1,2,6,9]"}, _POOL)],
    "global_avg_pool2d": [({"data": "T[1,2,6,9]"}, {})],
    "batch_matmul": [
        ({"x": "T[2,3,19]", "y": "T[2,5,19]"}, attrs) for attrs in ({}, {"out_dtype": "int32"})
    ],
    "dense": [({"data": f"T[{m},19]", "weight": "T[5,19]"}, {}) for m in (1, 3, 17)],
    "conv2d": [
        ({"data": "T[1,3,6,9]", "weight": "T[4,3,3,3]"}, {"padding": 1}),
        ({"data": "T[1,3,6,9]", "weight": "T[4,3,1,1]"}, {}),
        ({"data": "T[1,3,6,9]", "weight": "T[4,3,3,3]"}, {"out_dtype": "int32"}),
        ({"data": "T[1,4,6,9]", "weight": "T[4,1,3,3]"}, {"groups": 4}),
        ({"data": "T[1,4,6,9]", "weight": "T[4,1,3,3]"}, {"groups": 4, "out_dtype": "int64"}),
        ({"data": "T[1,4,6,9]", "weight": "T[6,2,3,3]"}, {"groups": 2, "strides": 2}),
    ],
    "conv2d_backward_data": [
        ({"grad": "T[1,4,4,7]", "weight": "T[4,3,3,3]", "data": "T[1,3,6,9]"}, {})
    ],
    "conv2d_backward_weight": [
        ({"grad": "T[1,4,4,7]", "data": "T[1,3,6,9]", "weight": "T[4,3,3,3]"}, {})
    ],
    "bias_add": [({"data": "T[2,5,19]", "bias": "T[5]"}, {})],
    "cast": [({"data": "T[5,19]"}, {"dtype": d}) for d in sorted(DTYPES)],
    "clip": [({"data": "T[5,19]"}, {"a_min": 1, "a_max": 3})],
    "collapse_sum_like": [({"data": "T[5,19]", "collapse_type": "T[19]"}, {})],
    "concatenate": [({"data.0": "T[5,19]", "data.1": "T[5,3]"}, {"axis": 1})],
    "expand_dims": [({"data": "T[5,19]"}, {"axis": [0, -1]})],
    "layer_norm": [
        ({"data": "T[5,19]", "gamma": "T[19]", "beta": "T[19]"}, {}),
        ({"data": "T[5,19]", "gamma": "T[5]", "beta": "T[5]"}, {"axis": 0}),
    ],
    **dict.fromkeys(("softmax", "log_softmax"), _SOFTMAX),
    "reshape": [({"data": "T[5,19]"}, {"newshape": [19, 5]})],
    "reshape_like": [({"data": "T[5,19]", "shape_like": "T[95]"}, {})],
    "split": [({"data": "T[5,19]"}, {"axis": 1, "indices": [7]})],
    "squeeze": [({"data": "T[1,19]"}, {})],
    "strided_slice": [({"data": "T[5,19]"}, {"begin": [0, 17], "end": [4, 2], "strides": [1, -3]})],
    "strided_slice_backward": [
        ({"grad": "T[4,5]", "data": "T[5,19]"}, {"begin": [0, 17], "end": [4, 2], "strides": [1, -3]})
    ],
    "take": [
        ({"data": "T[5,19]", "indices": "int32[4]"}, {"axis": 1}),
        ({"data": "float32[5,19]", "indices": "T[4]"}, {"axis": 0}),
        ({"data": "float32[5,19]", "indices": "T[4]"}, {"mode": "wrap"}),
    ],
    "take_backward": [
        ({"grad": "T[5,4]", "indices": "int32[4]", "data": "T[5,19]"}, {"axis": 1}),
        ({"grad": "float32[4]", "indices": "T[4]", "data": "float32[5,19]"}, {}),
    ],
    "transpose": [({"data": "T[5,3,19]"}, {"axes": [2, 0, 1]}), ({"data": "T[5,19]"}, {})],
    "where": [({"condition": "bool[5,19]", "x": "T[5,19]", "y": "T[19]"}, {}),
              ({"condition": "T[5,19]", "x": "float32[5,19]", "y": "float32[19]"}, {})],
}  # fmt: skip
# All others take one tensor.
for _name in all_ops():
    EXAMPLES.setdefault(_name, _UNARY)


def accepted(op: str) -> list[Workload]:
    """The examples of an operator in all dtypes that its type relation takes."""
    found: dict[str, Workload] = {}
    for inputs, attrs in EXAMPLES[op]:
        for dtype in sorted(DTYPES):
            typed = {name: text.replace("T", dtype) for name, text in inputs.items()}
            try:
                workload = Workload.make(op, typed, attrs)
            except TypeRelationError:
                continue
            found[workload.key] = workload
    return list(found.values())


def emptied(op: str) -> Iterator[tuple[dict[str, str], dict[str, Any]]]:
    """The first examples of an operator, in float32, with each of their extents in turn zero."""
    for inputs, attrs in EXAMPLES[op][:2]:
        typed = {name: text.replace("T", "float32") for name, text in inputs.items()}
        for extent in sorted({int(n) for t in typed.values() for n in re.findall(r"(?<=[\[,])\d+", t)}):
            yield {n: re.sub(rf"(?<=[\[,]){extent}(?=[,\]])", "0", t) for n, t in typed.items()}, attrs


def odd_inputs(workload: Workload, seed: int) -> dict[str, Array] | None:
    """Inputs with NaN, infinities and both zeros; None where the operator has no numbers for them."""
    rng = np.random.default_rng(seed)
    found = random_inputs(workload, seed)
    kinds = {i.name: i.tensor.dtype for i in workload.inputs}
    if workload.op == "cast" and not epsilon(workload.attrs["dtype"]):
        return None  # an integer has no NaN
    if workload.op == "conv2d":
        return None  # Winograd's transforms spread an infinity over a tile, as NaN
    for name, array in found.items():
        if epsilon(kinds[name]):
            odd = rng.random(array.shape) < (rng.random(array.shape[:1] + (1,) * (array.ndim - 1)) * 0.3)
            array[odd] = rng.choice(ODD, array.shape).astype(array.dtype)[odd]
    return found if any(map(epsilon, kinds.values())) else None


def implementations(workload: Workload) -> list[OpImplementation]:
    """All whose condition holds."""
    return [i for c, i in evaluate(workload, TARGET) if c is None or c.decide()]


def serve(channel: Any) -> None:
    """Judges the workloads that come; answers with what is wrong with them, a line each."""
    while True:
        workloads = [Workload.make(w["op"], w["inputs"], w["attrs"]) for w in channel.receive()]
        channel.send(list(_wrong(workloads, channel)))


def _wrong(workloads: list[Workload], channel: Any) -> Iterator[str]:
    import tvm

    lowered: list[tuple[Workload, str, Lowered]] = []
    functions: dict[str, Any] = {}
    for workload in workloads:
        for implementation in implementations(workload):
            label = f"{workload} by {implementation.name}"
            try:
                found = lower(workload, TARGET, implementation)
            except Exception as error:
                yield f"{label} is not lowered: {error}"
                continue
            if found.signature.library is not None:
                load_library(found.signature.library)
            for name, function in found.module.functions.items():
                symbol = f"f{len(lowered)}_{name.name_hint}"
                functions[symbol] = function.with_attr("global_symbol", symbol)
            lowered.append((workload, label, found))
    target = tvm.target.Target(TARGET.to_tvm())
    try:  # together, which is faster by half
        executable = tvm.compile(tvm.IRModule(functions), target=target, tir_pipeline=processor_pipeline())
    except Exception as error:
        yield f"not all compile: {str(error)[-200:]}"
        for _, label, found in lowered:
            try:
                found.compile()
            except Exception as error:
                yield f"{label} does not compile: {str(error)[-200:]}"
        return
    for number, (workload, label, found) in enumerate(lowered):
        channel.mark(number)
        for inputs in (random_inputs(workload, 7), odd_inputs(workload, 7), odd_inputs(workload, 8)):
            if inputs is None:
                continue
            with np.errstate(all="ignore"):
                try:
                    _judge(workload, found, executable[f"f{number}_main"], inputs)
                except Exception as error:
                    yield f"{label}: {error}"
                    break


def _judge(workload: Workload, found: Lowered, main: Any, inputs: Mapping[str, Array]) -> None:
    import tvm

    right = reference(workload, inputs)
    given = [tvm.runtime.tensor(inputs[a.name]) for a in found.arguments if a.role is not Role.OUTPUT]
    kinds = [a.tensor.dtype for a in found.arguments if a.role is Role.OUTPUT]
    outputs = [
        tvm.runtime.tensor(poison(np.asarray(r), d)) for r, d in zip(right, kinds, strict=True)
    ]
    main(*given, *outputs)
    for output, answer, tolerance, dtype in zip(
        outputs, right, tolerances(workload, inputs, right), kinds, strict=True
    ):
        value = output.numpy()
        if value.dtype != numpy_dtype(dtype):
            raise WrongAnswerError(f"the output is {value.dtype}, not {dtype}")
        compare(value, np.asarray(answer), tolerance)
