"""Operators over rows: any configuration of any shape, and the ends of every knob, against NumPy."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from strategy.op import TypeRelationError
from strategy.op_strategy import candidates
from strategy.space import ConfigSpace
from strategy.target import Target
from strategy.workload import Workload

from .test_dense import extremes

ROW_OPS = ["softmax", "log_softmax", "layer_norm", "sum", "mean", "max", "min", "prod"]


def workload(op: str, shape: list[int], dtype: str = "float32", attrs: dict[str, Any] | None = None) -> Workload:
    text = f"{dtype}[{','.join(map(str, shape))}]"
    inputs = {"data": text}
    if op == "layer_norm":
        inputs |= dict.fromkeys(("gamma", "beta"), f"{dtype}[{shape[-1]}]")
    usual = {} if op in ("softmax", "log_softmax", "layer_norm") else {"axis": [-1]}
    return Workload.make(op, inputs, {**usual, **(attrs or {})})


def space_of(work: Workload, threads: int = 2) -> tuple[str, ConfigSpace]:
    found = candidates(work, Target.parse("cpu").with_threads(threads))
    ((name, space),) = [(c.implementation, c.space) for c in found if c.space is not None]
    return name, space


@pytest.mark.sample(1)
@pytest.mark.parametrize("op", [pytest.param("softmax", marks=pytest.mark.full), "layer_norm", "sum"])
def test_the_ends_of_every_knob(check: Callable[..., None], op: str) -> None:
    work = workload(op, [12, 104])
    name, space = space_of(work)
    for config in extremes(space):
        check(work, name, config)


@pytest.mark.parametrize(("channels", "groups"), [(34, 2), (66, 2), (33, 1)])
def test_a_group_of_channels_alone_may_leave_one_behind_its_vectors(
    check: Callable[..., None], channels: int, groups: int
) -> None:
    inputs = {"data": f"float32[3,{channels}]", **dict.fromkeys(("gamma", "beta"), f"float32[{channels}]")}
    check(Workload.make("group_norm", inputs, {"num_groups": groups}), "group_norm_row.cpu", None)


@pytest.mark.parametrize("name", ["rms_norm_row.cpu", "rms_norm.cpu", "layer_norm_row.cpu", "layer_norm.cpu"])
def test_a_norm_of_16_bits_may_have_vectors_of_float32(check: Callable[..., None], name: str) -> None:
    op = name.removesuffix(".cpu").removesuffix("_row")
    vectors = ("gamma", "beta") if op == "layer_norm" else ("gamma",)
    check(Workload.make(op, {"data": "float16[3,70]", **dict.fromkeys(vectors, "float32[70]")}), name, None)
    with pytest.raises(TypeRelationError, match="expected the dtype of data"):
        Workload.make(op, {"data": "float32[3,70]", **dict.fromkeys(vectors, "float16[70]")})


@pytest.mark.full
@settings(max_examples=min(16, settings.default.max_examples // 2))
@given(
    op=st.sampled_from(ROW_OPS), rows=st.lists(st.integers(1, 6), min_size=1, max_size=2),
    row=st.integers(1, 140), dtype=st.sampled_from(["float32", "float64", "float16"]),
    seed=st.integers(0, 2**32),
)
# A row shorter than a vector, and one that is a page.
@example(op="softmax", rows=[3], row=1, dtype="float32", seed=0)
@example(op="log_softmax", rows=[2, 3], row=4099, dtype="float32", seed=1)
def test_any_configuration_of_any_shape(
    op: str, rows: list[int], row: int, dtype: str, seed: int, check: Callable[..., None]
) -> None:
    work = workload(op, [*rows, row], dtype)
    name, space = space_of(work)
    for config in space.sample(random.Random(seed), 1):
        check(work, name, config)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("shape", "dtype", "attrs"),
    [
        ([3, 40, 7, 5], "float32", {"axis": [2, 3]}),
        ([3, 40, 7, 5], "float64", {"axis": [1, 2, 3], "keepdims": True}),
        ([4096], "float32", {"axis": None}),
        ([5, 1001], "int32", {"axis": [1]}),
        ([5, 64], "int64", {"axis": None, "keepdims": True}),
    ],
)
def test_reductions_over_several_axes_in_parts(
    check: Callable[..., None], shape: list[int], dtype: str, attrs: dict[str, Any]
) -> None:
    from workers.reference import random_inputs

    work = workload("sum", shape, dtype, attrs)
    name, space = space_of(work)
    whole = [c for c in space.sample(random.Random(0), 40) if c["parts"] == max(space["parts"].values)]
    for config in whole[:2]:
        if dtype.startswith("int"):
            import tvm

            from strategy.compile.lower import lower

            artefact = lower(work, Target.parse("cpu").with_threads(2), name, config).compile(checks=False)
            (data,) = random_inputs(work, 0).values()
            axis = attrs["axis"] and tuple(attrs["axis"])
            right = data.sum(axis=axis, keepdims=attrs.get("keepdims", False), dtype=dtype)
            out = tvm.runtime.empty(right.shape, dtype)
            artefact.main(tvm.runtime.tensor(data), out)
            assert (out.numpy() == right).all()
        else:
            check(work, name, config)


@given(
    op=st.sampled_from(ROW_OPS), rows=st.integers(1, 5000), row=st.integers(1, 5000),
    dtype=st.sampled_from(["float32", "float64", "bfloat16"]), threads=st.integers(1, 64),
)
def test_the_fallback_is_of_its_space(op: str, rows: int, row: int, dtype: str, threads: int) -> None:
    _, space = space_of(workload(op, [rows, row], dtype), threads)
    assert space.contains(space.fallback)


@pytest.mark.parametrize("op", ROW_OPS)
def test_a_space_has_a_choice(op: str) -> None:
    _, space = space_of(workload(op, [384, 768]))
    assert (space.count() or 0) >= 200


@pytest.mark.parametrize(
    ("op", "shape", "attrs"),
    [("layer_norm", [5, 5], {"axis": 0}), ("softmax", [5], {}), ("layer_norm", [4], {})],
)
def test_other_axes_are_left_to_the_plain_schedule(op: str, shape: list[int], attrs: dict[str, Any]) -> None:
    found = candidates(workload(op, shape, attrs=attrs), Target.parse("cpu"))
    assert [c.tunable for c in found] == [False]


@pytest.mark.parametrize("op", ROW_OPS)
def test_rows_of_symbolic_length_are_left_to_the_plain_schedule(op: str) -> None:
    inputs = {"data": "float32[8,m]"}
    if op == "layer_norm":
        inputs |= {"gamma": "float32[m]", "beta": "float32[m]"}
    attrs = {} if op in ("softmax", "log_softmax", "layer_norm") else {"axis": [1]}
    found = candidates(Workload.make(op, inputs, attrs), Target.parse("cpu"))
    assert [c.tunable for c in found] == [False]


@pytest.mark.sample(1)
@pytest.mark.parametrize("op", ["softmax", "log_softmax", "layer_norm"])
def test_only_the_end_of_a_row_is_read_under_a_mask(op: str) -> None:
    """A row that no step divides: its whole steps are a loop of their own."""
    from strategy.compile.lower import lower

    work = workload(op, [4, 1003])
    name, _ = space_of(work)
    artefact = lower(work, Target.parse("cpu").with_threads(1), name).compile(checks=False)
    code = artefact.executable.mod.inspect_source("ll")
    masked = [line for line in code.splitlines() if "call" in line and "llvm.masked.load" in line]
    assert len(masked) <= len(work.inputs)
