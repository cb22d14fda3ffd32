"""Every implementation of `dense`, compiled and compared with NumPy."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategy.compile.artefact import Artefact, load
from strategy.compile.lower import Lowered, lower
from strategy.cpu.ahead import places_ahead
from strategy.fault import InstantiationError
from strategy.op_strategy import candidates, find_implementation
from strategy.signature import Role
from strategy.space import Config, ConfigSpace
from strategy.target import Target
from strategy.workload import Input, Workload
from workers import builder

from .conftest import random_inputs, run

TUNABLE = ["dense_nopack.cpu", "dense_pack.cpu", "dense_large_m.cpu", "dense_gemv.cpu"]
ALL = [*TUNABLE, "dense_cblas.cpu"]
# One, primes, whole tiles, and one more or less than a tile.
SHAPES = [
    (1, 1, 1), (1, 7, 3), (1, 64, 64), (1, 1003, 531), (2, 3, 5), (5, 17, 16), (8, 48, 32),
    (16, 15, 129), (17, 16, 1), (31, 33, 47), (37, 103, 53), (64, 128, 96), (65, 129, 127),
    (97, 11, 256),
]


def workload(m: int | str, n: int, k: int, constant: bool = True, dtype: str = "float32") -> Workload:
    types = {"data": f"{dtype}[{m},{k}]", "weight": f"{dtype}[{n},{k}]"}
    return Workload.make("dense", types, constants=["weight"] if constant else [])


def valid(name: str, m: int) -> bool:
    return {"dense_large_m.cpu": m > 16, "dense_gemv.cpu": m == 1}.get(name, True)


def space_of(work: Workload, target: Target, name: str) -> ConfigSpace:
    implementation = find_implementation(work, target, name)
    assert implementation.space is not None
    return implementation.space(work.attr_node, work.input_types, work.out_type, target)


@pytest.mark.sample(4)
@pytest.mark.parametrize("constant", [True, False], ids=["constant", "variable"])
@pytest.mark.parametrize("name", ALL)
def test_the_fallback_is_right_at_every_shape(
    check: Callable[..., None], name: str, constant: bool, full: bool
) -> None:
    # By default at each with a constant weight or a variable one, of one implementation or the next.
    for m, n, k in SHAPES if full else SHAPES[2 * (ALL.index(name) % 2) + constant :: 4]:
        if valid(name, m):
            check(workload(m, n, k, constant), name)


def extremes(space: ConfigSpace) -> Iterator[Config]:
    """For each end of each knob, a valid configuration that has it, if there is one."""
    seeded = random.Random(0)
    for knob in space.knobs:
        for end in {knob.values[0], knob.values[-1]}:
            held = ConfigSpace(
                [type(k)(k.name, [end], k.kind) if k.name == knob.name else k for k in space.knobs],
                space.constraints,
            )
            yield from held.sample(seeded, 1)


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", TUNABLE)
def test_the_ends_of_every_knob(check: Callable[..., None], target: Target, name: str, full: bool) -> None:
    m = 1 if name == "dense_gemv.cpu" else 45
    work = workload(m, 131, 120)
    for config in list(extremes(space_of(work, target, name)))[:: 1 if full else 4]:
        check(work, name, config)


@settings(max_examples=settings.default.max_examples // 2)
@given(
    m=st.integers(1, 80),
    n=st.integers(1, 150),
    k=st.integers(1, 150),
    constant=st.booleans(),
    name=st.sampled_from(TUNABLE),
    seed=st.integers(0, 2**32),
)
def test_any_configuration_of_any_shape(
    m: int, n: int, k: int, constant: bool, name: str, seed: int, check: Callable[..., None]
) -> None:
    if name == "dense_gemv.cpu":
        m = 1
    elif name == "dense_large_m.cpu":
        m += 16
    work = workload(m, n, k, constant)
    for config in space_of(work, Target.parse("cpu"), name).sample(random.Random(seed), 1):
        check(work, name, config)


@pytest.mark.sample(3)
@pytest.mark.parametrize("dtype", ["float64", "float16"])
@pytest.mark.parametrize("name", TUNABLE)
def test_other_dtypes(check: Callable[..., None], name: str, dtype: str) -> None:
    m = 1 if name == "dense_gemv.cpu" else 21
    check(workload(m, 37, 53, dtype=dtype), name)


def test_the_library_is_no_candidate_for_other_dtypes(target: Target) -> None:
    names = [c.implementation for c in candidates(workload(4, 4, 4, dtype="float64"), target)]
    assert names == TUNABLE


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["dense_nopack.cpu", "dense_pack.cpu", "dense_large_m.cpu", "dense_cblas.cpu"])
def test_symbolic_rows_are_right_for_every_size(target: Target, name: str) -> None:
    artefact = lower(workload("m", 131, 60), target, name).compile(checks=False)
    _, weight = random_inputs(workload(1, 131, 60))
    for m in (1, 2, 7, 8, 9, 16, 17, 40, 63, 129):
        data, _ = random_inputs(workload(m, 131, 60), seed=m)
        got = run(artefact, {"data": data, "weight": weight}, (m, 131))
        assert np.allclose(got, data @ weight.T, atol=1e-4), f"m = {m}"


@pytest.mark.parametrize("by", ["rows", "steps", "place"])
@pytest.mark.parametrize("constant", [True, False])
def test_the_last_block_of_steps_ends_with_zeros(
    check: Callable[..., None], target: Target, constant: bool, by: str
) -> None:
    """A prime number of steps."""
    work = workload(21, 37, 659, constant)
    fallback = space_of(work, target, "dense_large_m.cpu").fallback
    assert 659 % int(fallback["depth"])
    check(work, "dense_large_m.cpu", fallback.replace(by=by))


@pytest.mark.sample(3)
@pytest.mark.parametrize("inner", ["rows", "panels"])
@pytest.mark.parametrize(("m", "m_tasks"), [(8, 1), (45, 1), (45, 3)])
@pytest.mark.parametrize("constant", [True, False])
def test_panels_that_are_prefetched(
    check: Callable[..., None], constant: bool, m: int, m_tasks: int, inner: str
) -> None:
    work = workload(m, 131, 120, constant)
    config = {
        "rows": 8, "width": 32, "unroll": 2, "n_block": 1, "m_tasks": m_tasks, "inner": inner, "ahead": True,
    }
    check(work, "dense_pack.cpu", Config(config))


@pytest.mark.sample(3)
@pytest.mark.parametrize("inner", ["rows", "panels"])
@pytest.mark.parametrize(("depth", "m_block"), [(120, 1), (40, 2), (24, 6)])
@pytest.mark.parametrize("constant", [True, False])
def test_blocked_panels_that_are_prefetched(
    check: Callable[..., None], target: Target, constant: bool, depth: int, m_block: int, inner: str
) -> None:
    work = workload(45, 131, 120, constant)
    fallback = space_of(work, target, "dense_large_m.cpu").fallback
    config = fallback.replace(
        rows=8, width=32, unroll=2, depth=depth, m_block=m_block, n_block=5, inner=inner, ahead=True
    )
    check(work, "dense_large_m.cpu", config)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("spec", "pattern"),
    [
        ("llvm -mcpu=znver5", r"\tprefetcht1\t"),
        ("llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1", r"\tprfm\tpldl2keep"),
    ],
)
def test_a_prefetch_leaves_the_sums_in_registers(spec: str, pattern: str) -> None:
    target, work = Target.parse(spec), workload(64, 96, 256)
    for name in ("dense_pack.cpu", "dense_large_m.cpu"):
        fallback = space_of(work, target, name).fallback
        lowered = [lower(work, target, name, fallback.replace(ahead=ahead)) for ahead in (False, True)]
        without, text = (made.compile().executable.mod.inspect_source("s") for made in lowered)
        assert not re.search(pattern, without)
        found = re.search(pattern + r"(.*?)\n\t(?:j|b\.)\w+\t", text, re.DOTALL)
        assert found, "no loop with a prefetch"
        assert re.search("vfmadd|fmla", found[1])
        assert not re.search(r"vmov[ua]ps\t%zmm\d+, [^%]*\(|\tst[rp]\tq", found[1])


@pytest.mark.parametrize("tiles", [1, 2, 5, 8])
@pytest.mark.parametrize(("steps", "step"), [(64, 16), (60, 96), (7, 48)])
def test_tiles_prefetch_the_whole_next_panel(steps: int, step: int, tiles: int) -> None:
    panel, line = steps * step, 16
    turns = [(turn, tile) for tile in range(tiles) for turn in range(steps)]
    places = [p for turn, tile in turns for p in places_ahead(turn, tile, panel, step, tiles, line)]
    assert {p // line for p in places} >= set(range(panel // line, 2 * panel // line))


def test_gemv_declines_symbolic_rows(target: Target) -> None:
    with pytest.raises(InstantiationError, match="needs one row, but m is m"):
        lower(workload("m", 8, 8), target, "dense_gemv.cpu")


@pytest.mark.parametrize("name", ALL)
def test_a_prepared_weight_is_an_argument_of_its_own(target: Target, name: str) -> None:
    m = 1 if name == "dense_gemv.cpu" else 32
    lowered = lower(workload(m, 50, 20), target, name)
    roles = [a.role for a in lowered.arguments]
    packs = name in ("dense_pack.cpu", "dense_large_m.cpu", "dense_gemv.cpu")
    assert roles == [Role.INPUT, Role.PREPARED if packs else Role.CONSTANT, Role.OUTPUT]
    assert ("prepare_weight" in {v.name_hint for v in lowered.module.functions}) == packs
    variable = lower(workload(m, 50, 20, constant=False), target, name)
    assert [a.role for a in variable.arguments] == [Role.INPUT, Role.INPUT, Role.OUTPUT]


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ALL)
def test_a_linked_library_computes_the_same(target: Target, name: str, tmp_path: Path) -> None:
    m = 1 if name == "dense_gemv.cpu" else 20
    work = workload(m, 40, 24)
    lowered = lower(work, target, name)
    artefact = lowered.compile(checks=False)
    builder.link(lowered, tmp_path / "dense.so")
    loaded = load(tmp_path / "dense.so")
    assert loaded.signature == artefact.signature
    data, weight = random_inputs(work)
    inputs = {"data": data, "weight": weight}
    assert (run(loaded, inputs, (m, 40)) == run(artefact, inputs, (m, 40))).all()


def test_equal_code_has_equal_digests(target: Target) -> None:
    work = workload(32, 64, 64)
    space = space_of(work, target, "dense_pack.cpu")
    one, same = (lower(work, target, "dense_pack.cpu", space.fallback).digest for _ in range(2))
    other = lower(work, target, "dense_pack.cpu", space.fallback.replace(unroll=2)).digest
    assert one == same != other


def test_what_packs_alike_is_compiled_once(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = workload(32, 64, 64)
    fallback = space_of(work, target, "dense_pack.cpu").fallback
    compiled: list[list[str]] = []
    compile_ = Lowered.compile

    def count(lowered: Lowered, *, checks: bool = True) -> Artefact:
        compiled.append([v.name_hint for v in lowered.module.functions])
        return compile_(lowered, checks=checks)

    monkeypatch.setattr(Lowered, "compile", count)
    monkeypatch.setattr(builder, "_objects", {})
    digests = [
        builder.link(lower(work, target, "dense_pack.cpu", config), tmp_path / f"{number}.so")
        for number, config in enumerate([fallback, fallback.replace(unroll=2), fallback])
    ]
    assert compiled == [["main"], ["prepare_weight"], ["main"]]
    assert digests[0] == digests[2] != digests[1]
    assert {path.suffix for path in tmp_path.iterdir()} == {".so", ".json"}
    inputs = dict(zip(("data", "weight"), random_inputs(work), strict=True))
    expected = inputs["data"] @ inputs["weight"].T
    for number in range(3):
        found = run(load(tmp_path / f"{number}.so"), inputs, (32, 64))
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(128, 3072, 768), (512, 512, 512), (37, 1003, 531), (16, 1024, 4096)])
def test_spaces_are_worth_searching(target: Target, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    for name in TUNABLE:
        rows = 1 if name == "dense_gemv.cpu" else max(m, 17) if name == "dense_large_m.cpu" else m
        space = space_of(workload(rows, n, k), target, name)
        count = space.count(limit=1000)
        assert count is None or count >= 200, f"{name} has {count} configurations"
        assert space.contains(space.fallback)
        assert ConfigSpace.from_json(space.to_json()) == space


@pytest.mark.parametrize("spec", ["llvm -mcpu=haswell", "llvm -mcpu=znver5", "llvm -mcpu=neoverse-n1"])
def test_the_vector_width_is_the_targets(spec: str) -> None:
    target = Target.parse(spec)
    lanes = {"haswell": 8, "znver5": 16, "neoverse-n1": 4}[target.arch]
    work = workload(64, 256, 128)
    space = space_of(work, target, "dense_pack.cpu")
    assert space["width"].values[0] == lanes
    assert all(c["rows"] * (c["width"] // lanes) < target.vector_registers for c in space)


def test_an_epilogue_joins_the_tile(target: Target, bias_relu: str) -> None:
    from strategy.workload import EpilogueStep

    step = EpilogueStep(bias_relu, (None, Input("bias", "float32[103]")))
    data, weight = random_inputs(workload(37, 103, 53))
    bias = np.random.default_rng(1).uniform(-1, 1, 103).astype("float32")
    expected = np.maximum(data @ weight.T + bias, 0)
    for name in ALL:
        rows = 1 if name == "dense_gemv.cpu" else 37
        types = {"data": f"float32[{rows},53]", "weight": "float32[103,53]"}
        work = Workload.make("dense", types, constants=["weight"], epilogue=[step])
        lowered = lower(work, target, name)
        assert [a.name for a in lowered.arguments] == ["data", "weight", "bias", "output"]
        inputs = {"data": data[:rows].copy(), "weight": weight, "bias": bias}
        got = run(lowered.compile(checks=False), inputs, (rows, 103))
        assert np.allclose(got, expected[:rows], atol=1e-4), name


@pytest.fixture
def bias_relu() -> Iterator[str]:
    """An operator max(x + bias, 0), for as long as a test runs."""
    from strategy import op as registry
    from strategy.op import register_op

    def compute(attrs: Any, inputs: Any, out_type: Any) -> Any:
        from tvm import te, tirx

        x, bias = inputs
        total = te.compute(x.shape, lambda i, j: x[i, j] + bias[j], name="add")
        return [te.compute(x.shape, lambda i, j: tirx.max(total[i, j], tirx.const(0, "float32")))]

    def relation(types: Any, attrs: Any, reporter: Any) -> bool:
        reporter.assign(2, types[0])
        return True

    name = "test_bias_relu"
    register_op(name).set_num_inputs(2).add_argument("data", "Tensor", "").add_argument(
        "bias", "Tensor", ""
    ).add_type_rel("BiasRelu", relation).set_attr("FTVMCompute", compute)
    yield name
    del registry._ops[name]


def test_a_schedule_that_gives_none_is_named():
    small, target = workload(4, 4, 8), Target.parse("cpu")
    forgetful = replace(find_implementation(small, target, "dense_nopack.cpu"), schedule=lambda *_: None)
    with pytest.raises(InstantiationError, match="its schedule gives NoneType: return a tvm.s_tir.Schedule"):
        lower(small, target, forgetful)
