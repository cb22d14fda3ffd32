"""The examples of every operator in every dtype, and the child process that compiles, calls and judges them.

Loaded by the fork server of the tests: what TVM crashes on costs a child only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

import numpy as np

from strategy.compile.lower import Lowered, Role, lower
from strategy.cpu.passes import processor_pipeline
from strategy.extern import load_library
from strategy.op import TOpPattern, TypeRelationError, all_ops, get_op
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

T = TypeVar("T")
TARGET = Target.parse("cpu").with_threads(2)
ODD = [np.nan, np.inf, -np.inf, -0.0, 0.0, 0.5, -0.5, 1.0]


def sampled() -> list[str]:
    """One in three operators of each kind, which together have every dtype.

    `test_memory.py` has the others, but for those of one element, or of two: their loops are alike.
    """
    found: dict[TOpPattern, list[str]] = {}
    for name, op in all_ops().items():
        found.setdefault(op.get_attr("TOpPattern"), []).append(name)
    return [name for names in found.values() for name in names[1::3]]


@cache
def accepted(op: str, *, full: bool = True) -> tuple[Workload, ...]:
    """The examples of an operator, with each of their dtypes in all that its type relation takes.

    A sample (not `full`) has for each of the inputs that share a dtype one of its kinds, another for another operator,
    and each implementation.
    """
    groups: dict[tuple[str, ...], list[Workload]] = {}
    for example in get_op(op).examples:
        for own in sorted({text.partition("[")[0] for text in example.inputs.values()}):
            places = [name for name, text in example.inputs.items() if text.partition("[")[0] == own]
            for dtype in sorted(DTYPES):
                typed = {name: re.sub(rf"^{own}\b", dtype, text) for name, text in example.inputs.items()}
                try:
                    workload = Workload.make(op, typed, dict(example.attrs))
                except TypeRelationError:
                    continue
                groups.setdefault((dtype, *places), []).append(workload)
    everything = list({w.key: w for group in groups.values() for w in group}.values())
    if full:
        return tuple(everything)
    kinds: dict[tuple[str, ...], dict[str, list[list[Workload]]]] = {}
    for (dtype, *places), group in groups.items():
        kinds.setdefault(tuple(places), {}).setdefault(kind_of(dtype), []).append(group)
    turn = list(all_ops()).index(op)
    chosen = (in_turn(in_turn([*some.values()], turn), turn // len(some)) for some in kinds.values())
    found = {w.key: w for w in (in_turn(group, i) for i, group in enumerate(chosen))}
    met = {i.name for w in found.values() for i in implementations(w)}
    for workload in everything:
        names = {i.name for i in implementations(workload)}
        if names - met:
            found[workload.key] = workload
            met |= names
    return tuple(found.values())


def kind_of(dtype: str) -> str:
    """The dtypes that are compiled alike but for their width; those of 16 bits are each of their own."""
    return dtype if dtype.endswith("float16") else dtype.rstrip("0123456789")


def in_turn(values: Sequence[T], turn: int) -> T:
    return values[turn % len(values)]


def emptied(op: str, *, full: bool = True) -> Iterator[tuple[dict[str, str], dict[str, Any]]]:
    """The first examples of an operator with each of their extents in turn zero, or the first with one of them."""
    turn = list(all_ops()).index(op)
    for example in get_op(op).examples[: 2 if full else 1]:
        types = example.inputs
        extents = sorted({int(n) for t in types.values() for n in re.findall(r"(?<=[\[,])\d+", t)})
        for extent in extents if full or not extents else [in_turn(extents, turn)]:
            found = {n: re.sub(rf"(?<=[\[,]){extent}(?=[,\]])", "0", t) for n, t in types.items()}
            yield found, dict(example.attrs)


def odd_inputs(workload: Workload, seed: int) -> dict[str, Array] | None:
    """Inputs with NaN, infinities and both zeros; None where the operator has no numbers for them."""
    rng = np.random.default_rng(seed)
    found = random_inputs(workload, seed)
    kinds = {i.name: i.tensor.dtype for i in workload.inputs}
    if workload.op == "cast" and not epsilon(workload.attrs["dtype"]):
        return None  # an integer has no NaN
    if workload.attrs.get("is_causal"):
        return None  # a hidden key may be read, or not
    weighted = workload.op == "resize2d" and workload.attr_node.method != "nearest_neighbor"
    if weighted or workload.op in ("conv2d", "conv2d_transpose"):
        return None  # an infinity meets zeros that other algorithms leave out, such as those of Winograd's transforms
    for name, array in found.items():
        if epsilon(kinds[name]) and array.ndim and name != "scales":  # of a block; a number alone stays, too
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
        with tvm.transform.PassContext(opt_level=3, config={"tirx.disable_assert": True}):  # as a builder does
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
