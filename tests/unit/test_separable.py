"""Depthwise and pointwise convolutions of a network as one operator: the same values, where that is faster."""

from __future__ import annotations

import math

import numpy as np
import pytest

from plevel import deployment
from plevel.deployment import draft
from plevel.extraction import blocked_workloads
from plevel.kernel_selection import Chosen, make_chooser
from strategy.expr import Call, Expr, Var, call, post_order
from strategy.network.blocking import block, is_blocked
from strategy.network.graph import Network
from strategy.network.group import describe, groups
from strategy.network.normal import normalize
from strategy.network.separable import JOINED, choose_joined, join
from strategy.select import NO_RECORDS, select
from strategy.select.lock import Lock
from strategy.target import Target
from strategy.workload import Workload

from .test_blocking import classifier, convolution
from .test_network import Weights, evaluate, operators

WIDE = Target.parse("llvm -mcpu=znver4")


def pair(activation: str | None = "relu6", strides: int = 1, channels: int = 24, again: bool = False) -> Network:
    """A first layer, and a depthwise convolution before a pointwise one with a shortcut where that fits."""
    x, weights = Var("x", "float32[2,3,11,9]"), Weights()
    first = convolution(x, weights, 32, 3)
    inner = convolution(first, weights, 32, 3, 32, strides)
    if activation == "relu6":
        inner = call("clip", inner, a_min=0.0, a_max=6.0)
    elif activation is not None:
        inner = call(activation, inner)
    found: Expr = convolution(inner, weights, channels)
    if channels == 32 and strides == 1:
        found = call("add", found, first)
    outputs = {"y": call("global_avg_pool2d", found)}
    if again:
        outputs["z"] = call("global_avg_pool2d", inner)
    return block(normalize(Network((x,), outputs, {inner: "inner", found: "found"})), WIDE)


def evaluated(network: Network) -> list[np.ndarray]:
    data = {"x": np.random.default_rng(1).normal(size=(2, 3, 11, 9))}
    values: list[np.ndarray] = evaluate(network.root, data)
    return values


@pytest.mark.parametrize("activation", [None, "relu", "relu6", "hardswish"])
@pytest.mark.parametrize(("strides", "channels"), [(1, 32), (2, 24)])
def test_a_pair_becomes_one_operator(activation, strides, channels):
    network = pair(activation, strides, channels)
    found = join(network)
    assert operators(found).count("conv2d") == 1
    (made,) = [n for n in post_order(found.root) if isinstance(n, Call) and n.op.name == JOINED]
    assert made.attrs.to_json().get("activation", "none") == (activation or "none")
    for one, two in zip(evaluated(found), evaluated(network), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5)
    assert set(found.names.values()) <= {"found"}


def test_the_epilogue_of_the_pointwise_convolution_stays_its():
    (found,) = [g for g in groups(join(pair("relu", channels=32))) if g.anchor.op.name == JOINED]
    assert found.names == (JOINED, "add", "add")
    assert is_blocked(describe(found, None)[0])


@pytest.mark.parametrize("network", [
    pair("silu"), pair("relu6", again=True), normalize(Network((x := Var("x", "float32[1,32,9,9]"),), {
        "y": convolution(convolution(x, Weights(), 32, 3, 32), Weights(), 32)}, {})),
], ids=["another activation", "a second reader", "NCHW"])
def test_other_convolutions_stay_apart(network):
    assert JOINED not in operators(join(network))


def test_a_pair_that_is_padded_or_strided_behind_stays_apart():
    x, weights = Var("x", "float32[1,32,9,9]"), Weights()
    inner = convolution(x, weights, 32, 3, 32)
    for attrs in ({"strides": 2}, {"padding": 1}):
        behind = call("conv2d", inner, weights(32, 32, 1, 1), **attrs)
        network = block(normalize(Network((x,), {"y": call("global_avg_pool2d", behind)}, {})), WIDE)
        assert JOINED not in operators(join(network))


NAN, NONE = math.nan, math.inf


@pytest.mark.parametrize(("one", "each", "joined"), [
    (1.9, 1.0, True), (2.1, 1.0, False), (NAN, NAN, True), (NAN, 1.0, False), (1.0, NAN, True), (NONE, NAN, False),
    (NONE, 1.0, False), (1.0, NONE, True),
])
def test_measured_times_decide(one: float, each: float, joined: bool):
    def seconds(workload: Workload) -> float:
        return one if workload.op == JOINED else each

    assert (JOINED in operators(choose_joined(pair(), seconds))) == joined


def test_a_library_has_pairs_in_blocked_layouts_unless_they_are_not_wanted():
    choose = make_chooser(WIDE, NO_RECORDS)
    drafted = draft(classifier(), WIDE, choose)
    assert operators(drafted.network).count(JOINED) == 1
    assert not drafted.has_measured_pairs  # nothing is
    for without in ({"pairs": False}, {"blocks": False}):
        assert JOINED not in operators(draft(classifier(), WIDE, choose, **without).network)


def test_a_pair_that_records_chose_is_known_to_be(monkeypatch: pytest.MonkeyPatch):
    def seconds(chosen: Chosen) -> float:
        return 0.1 if is_blocked(chosen.workload) else 2.0

    monkeypatch.setattr(deployment, "measured_s", seconds)
    choose = make_chooser(WIDE, NO_RECORDS)
    assert draft(classifier(), WIDE, choose).has_measured_pairs
    apart = draft(classifier(), WIDE, choose, pairs=False)
    assert not apart.has_measured_pairs
    assert apart.has_measured_blocks


@pytest.mark.parametrize("forms", [{False}, {False, True}], ids=["apart", "both"])
def test_a_network_has_the_pairs_of_its_lock(forms):
    network, choose = classifier(), make_chooser(WIDE, NO_RECORDS)
    found = [w for pairs in forms for w in draft(network, WIDE, choose, pairs=pairs).selections]
    lock = Lock.make(select(w, WIDE, NO_RECORDS) for w in found)
    drafted = draft(network, WIDE, make_chooser(WIDE, NO_RECORDS, lock))
    assert (JOINED in operators(drafted.network)) == (True in forms)


def test_both_forms_of_a_pair_are_extracted():
    found = [w.op for w in blocked_workloads(classifier())]
    assert found.count(JOINED) == 1
    assert found.count("conv2d") == 4
