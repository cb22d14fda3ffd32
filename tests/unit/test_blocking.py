"""Blocked layouts of networks: the same values, transforms at borders alone, and the least time."""

from __future__ import annotations

import math
import random
from itertools import chain, combinations

import numpy as np
import pytest

from plevel.deployment import draft
from plevel.kernel_selection import make_chooser
from strategy.expr import Call, Constant, Expr, Tuple, Var, call, post_order
from strategy.network.blocking import block, choose_blocks
from strategy.network.cut import cut
from strategy.network.graph import Network
from strategy.network.group import describe, groups
from strategy.network.normal import normalize
from strategy.network.region import Regions
from strategy.network.rewriter import extents
from strategy.select import NO_RECORDS, select
from strategy.select.lock import Lock
from strategy.target import Target
from strategy.workload import Workload

from .test_network import Weights, evaluate, operators

WIDE, NARROW = Target.parse("llvm -mcpu=znver4"), Target.parse("llvm -mcpu=haswell")


def convolution(x: Expr, weights: Weights, channels: int, size: int = 1, groups: int = 1, strides: int = 1) -> Expr:
    weight = weights(channels, extents(x)[1] // groups, size, size)
    found = call("conv2d", x, weight, padding=size // 2, groups=groups, strides=strides)
    return call("bias_add", found, weights(channels), axis=1)


def classifier(channels: int = 32) -> Network:
    """A first layer, a block with a depthwise convolution and a shortcut, a concatenation, and classes."""
    x, weights = Var("x", "float32[2,3,17,15]"), Weights()
    first = call("relu", convolution(x, weights, channels, 3, strides=2))
    pooled = call("max_pool2d", first, pool_size=3, strides=2, padding=1)
    inner = call("clip", convolution(pooled, weights, channels, 3, channels), a_min=0.0, a_max=6.0)
    added = call("add", convolution(inner, weights, channels), pooled)
    joined = call("concatenate", Tuple([added, pooled]), axis=1)
    mean = call("global_avg_pool2d", convolution(joined, weights, channels, 3))
    flat = call("reshape", mean, newshape=(2, channels))
    return normalize(Network((x,), {"y": call("dense", flat, weights(5, channels))}, {inner: "inner"}))


def layouts(network: Network) -> set[str]:
    given = [n.attrs.to_json() for n in post_order(network.root) if isinstance(n, Call) and n.op.name == "conv2d"]
    return {a.get("out_layout") or a.get("data_layout", "NCHW") for a in given}


@pytest.mark.parametrize(
    ("channels", "target", "layout"), [(32, WIDE, "NCHW16c"), (24, WIDE, "NCHW8c"), (32, NARROW, "NCHW8c")]
)
def test_blocks_are_kept_from_the_first_layer_to_the_last(channels, target, layout):
    network = classifier(channels)
    # 24 and 24 channels are 48, of larger blocks than theirs: they are joined in NCHW.
    found = block(network, target)
    transforms = operators(found).count("layout_transform")
    assert layouts(found) == {layout}
    assert transforms == (0 if (channels, target) != (24, WIDE) else 3)
    data = {"x": np.random.default_rng(1).normal(size=(2, 3, 17, 15))}
    np.testing.assert_allclose(evaluate(found.root, data), evaluate(network.root, data), rtol=1e-5)


def test_the_epilogues_of_convolutions_stay_theirs():
    names = [sorted(g.names) for g in groups(block(classifier(), WIDE)) if g.anchor.op.name == "conv2d"]
    assert names == [
        ["add", "conv2d", "relu"], ["add", "clip", "conv2d"], ["add", "add", "conv2d"], ["add", "conv2d"]
    ]


def test_what_other_operators_read_is_transformed_once():
    x, weights = Var("x", "float32[1,16,8,8]"), Weights()
    image = convolution(x, weights, 16)
    turned = call("transpose", image, axes=(0, 2, 3, 1))
    found = block(Network((x,), {"a": turned, "b": call("reverse", image, axis=3)}, {}), WIDE)
    assert operators(found).count("layout_transform") == 2  # of x, and of the image
    assert layouts(found) == {"NCHW16c"}


def test_a_gate_of_the_channels_is_no_border():
    x, weights = Var("x", "float32[2,3,9,9]"), Weights()
    image = call("silu", convolution(x, weights, 16, 3))
    squeezed = convolution(call("mean", image, axis=(-1, -2), keepdims=True), weights, 8)
    gated = call("multiply", call("sigmoid", convolution(squeezed, weights, 16)), image)
    mean = call("mean", convolution(gated, weights, 32), axis=(2, 3), keepdims=True)
    network = normalize(Network((x,), {"y": mean}, {}))
    found = block(network, WIDE)
    assert "layout_transform" not in operators(found)
    assert layouts(found) == {"NCHW16c", "NCHW8c"}
    data = {"x": np.random.default_rng(1).normal(size=(2, 3, 9, 9))}
    np.testing.assert_allclose(evaluate(found.root, data), evaluate(network.root, data), rtol=1e-5)


def test_images_are_joined_by_channels_however_the_axis_is_counted():
    x, weights = Var("x", "float32[2,16,5,5]"), Weights()
    joined = call("concatenate", Tuple([convolution(x, weights, 16), x]), axis=-3)
    network = Network((x,), {"y": convolution(joined, weights, 16)}, {})
    found = block(network, WIDE)
    assert operators(found).count("layout_transform") == 2  # of x, and of the output
    data = {"x": np.random.default_rng(1).normal(size=(2, 16, 5, 5))}
    np.testing.assert_allclose(evaluate(found.root, data), evaluate(network.root, data), rtol=1e-5)


def test_a_value_that_is_turned_keeps_its_name():
    x, weights = Var("x", "float32[1,3,5,5]"), Weights()
    image = call("relu", convolution(x, weights, 16))
    network = Network((x,), {"y": call("transpose", image, axes=(0, 2, 3, 1))}, {image: "image"})
    ((found, name),) = block(network, WIDE).names.items()
    assert name == "image"
    data = {"x": np.random.default_rng(1).normal(size=(1, 3, 5, 5))}
    np.testing.assert_allclose(evaluate(Tuple([found]), data), evaluate(Tuple([image]), data), rtol=1e-5)


@pytest.mark.parametrize("faster", [True, False])
def test_measured_times_decide(faster):
    network = classifier()

    def seconds(workload: Workload) -> float:
        return 1.0 if ("NCHW16c" in workload.key) == faster else 2.0

    found = choose_blocks(network, WIDE, seconds)
    assert layouts(found) == {"NCHW16c" if faster else "NCHW"}


def test_a_region_with_an_unmeasured_convolution_stays():
    network = classifier()
    def seconds(workload: Workload) -> float:
        if workload.op == "conv2d" and "[32,64,3,3]" in workload.key:
            return math.nan
        return 1.0 if "NCHW16c" in workload.key else 2.0

    assert layouts(choose_blocks(network, WIDE, seconds)) == {"NCHW16c", "NCHW"}


def test_without_times_those_that_are_to_be_expected_decide():
    x, weights = Var("x", "float32[1,16,32,32]"), Weights()
    pixels = call("transpose", convolution(x, weights, 16), axes=(0, 2, 3, 1))
    assert layouts(choose_blocks(classifier(), WIDE, lambda w: math.nan)) == {"NCHW16c"}
    assert layouts(choose_blocks(Network((x,), {"y": pixels}, {}), WIDE, lambda w: math.nan)) == {"NCHW"}


def test_a_convolution_by_winograd_alone_saves_less_than_its_transforms_take():
    x, weights = Var("x", "float32[1,64,28,28]"), Weights()
    alone = Network((x,), {"y": convolution(x, weights, 64, 3)}, {})
    assert layouts(choose_blocks(alone, WIDE, lambda w: math.nan)) == {"NCHW"}


def test_a_network_has_the_layouts_of_its_lock():
    network = classifier()
    blocked = [describe(g, None)[0] for g in groups(choose_blocks(network, WIDE, lambda w: math.nan))]
    whole = Lock.make(select(w, WIDE, NO_RECORDS) for w in blocked)
    for lock, layout in ((None, "NCHW16c"), (whole, "NCHW16c"), (Lock(selections=()), "NCHW")):
        drafted = draft(network, WIDE, make_chooser(WIDE, NO_RECORDS, lock))
        assert layouts(drafted.network) == {layout}


def test_a_lock_needs_only_the_convolutions_that_are_to_be_blocked():
    x, weights = Var("x", "float32[1,3,9,9]"), Weights()
    image = convolution(convolution(x, weights, 64, 3), weights, 64, 3)
    pooled = call("max_pool2d", image, pool_size=2, strides=2)
    network = normalize(Network((x,), {"y": convolution(pooled, weights, 32, 3)}, {}))
    blocked = [describe(g, None)[0] for g in groups(block(network, WIDE))]
    locked = [w for w in blocked if w.op == "conv2d" and "[32,64,3,3]" not in w.key]
    lock = Lock.make(select(w, WIDE, NO_RECORDS) for w in locked)
    drafted = draft(network, WIDE, make_chooser(WIDE, NO_RECORDS, lock))
    assert layouts(drafted.network) == {"NCHW16c", "NCHW"}
    assert operators(drafted.network).count("layout_transform") == 1


def test_a_transform_that_costs_more_than_it_saves_is_not_made():
    x, weights = Var("x", "float32[1,16,8,8]"), Weights()
    network = Network((x,), {"y": call("transpose", convolution(x, weights, 16), axes=(0, 2, 3, 1))}, {})

    def seconds(workload: Workload, moved: float) -> float:
        return moved if workload.op == "layout_transform" else 1.0 if "NCHW16c" in workload.key else 2.0

    assert layouts(choose_blocks(network, WIDE, lambda w: seconds(w, 0.4))) == {"NCHW16c"}
    assert layouts(choose_blocks(network, WIDE, lambda w: seconds(w, 0.6))) == {"NCHW"}


@pytest.mark.parametrize("moved", [0.9, 1.1])
def test_a_transform_out_of_a_region_takes_its_own_time(moved):
    x, weights = Var("x", "float32[1,3,8,8]"), Weights()
    network = Network((x,), {"y": call("transpose", convolution(x, weights, 16), axes=(0, 2, 3, 1))}, {})
    asked = set()

    def seconds(workload: Workload) -> float:
        asked.add(workload)
        if workload.op == "layout_transform":
            return moved if workload.attrs["src_layout"] == "NCHW16c" else 0.0
        return 1.0 if "NCHW16c" in workload.key else 2.0

    assert layouts(choose_blocks(network, WIDE, seconds)) == {"NCHW16c" if moved < 1 else "NCHW"}
    assert {describe(g, None)[0] for g in groups(block(network, WIDE)) if g.names == ("layout_transform",)} <= asked


def test_parts_of_a_concatenation_are_turned_only_from_outside_of_its_region():
    x, z, weights = Var("x", "float32[1,3,8,8]"), Var("z", "float32[1,16,8,8]"), Weights()
    joined = call("concatenate", Tuple([convolution(x, weights, 16, 3), z]), axis=1)
    for _ in range(2):
        joined = call("concatenate", Tuple([joined, convolution(joined, weights, 16, 3)]), axis=1)
    mean = call("global_avg_pool2d", joined)
    network = normalize(Network((x, z), {"y": mean}, {}))
    assert [read for read, _ in Regions(network, WIDE).borders()] == [z]

    def seconds(workload: Workload) -> float:
        if workload.op == "layout_transform":
            return 0.25
        return 1.0 - 0.1 * ("NCHW16c" in workload.key)

    assert layouts(choose_blocks(network, WIDE, seconds)) == {"NCHW16c"}


@pytest.mark.parametrize("faster", [True, False])
def test_a_pool_that_was_measured_in_one_layout_alone_says_nothing(faster):
    def seconds(workload: Workload) -> float:
        same = ("NCHW16c" in workload.key) == faster
        if workload.op == "max_pool2d":
            return 9.0 if same else math.nan
        return 1.0 if same else 2.0

    assert layouts(choose_blocks(classifier(), WIDE, seconds)) == {"NCHW16c" if faster else "NCHW"}


def test_the_cut_is_the_least_of_all():
    rng = random.Random(0)
    for count in range(1, 7):
        names = [Constant(np.zeros(i)) for i in range(count)]
        plain, blocked = ({n: rng.choice([0.0, rng.random(), 2.0]) for n in names} for _ in range(2))
        blocked[names[0]] = math.inf
        borders = {(a, b): rng.random() for a, b in combinations(names, 2) if rng.random() < 0.6}

        def total(chosen, plain=plain, blocked=blocked, borders=borders, names=names):
            own = sum(blocked[n] if n in chosen else plain[n] for n in names)
            return own + sum(s for (a, b), s in borders.items() if (a in chosen) != (b in chosen))

        every = chain.from_iterable(combinations(names, k) for k in range(count + 1))
        assert total(cut(plain, blocked, borders)) == pytest.approx(min(map(total, every)))
