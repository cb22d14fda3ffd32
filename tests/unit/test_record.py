"""The wire types and their codec, and the estimate of a cost."""

from __future__ import annotations

import contextlib
import math
import random
import statistics
import time
import typing
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, get_args, get_origin

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategy import record
from strategy.condition import SpecializedCondition
from strategy.op_strategy import Candidate
from strategy.record import (
    AskedWorkload,
    Device,
    ErrorKind,
    Estimate,
    Job,
    Leases,
    Result,
    Results,
    RunRequest,
    RunStatus,
    RunWorkload,
    TimingPolicy,
    WireError,
    WorkerInfo,
    convert,
    decode,
    encode,
    estimate,
    json_schema,
    to_json,
)
from strategy.select import Rival, Selection
from strategy.space import Config, ConfigSpace, Knob, knob
from strategy.target import Target
from strategy.types import Dim
from strategy.workload import EpilogueStep, Input, Workload

WIRE_TYPES = sorted(
    {
        kind
        for kind in vars(record).values()
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind.__module__ == record.__name__
    }
    | {Candidate, Workload, EpilogueStep, Rival, Selection},
    key=lambda kind: kind.__name__,
)
LEAVES: dict[Any, st.SearchStrategy[Any]] = {
    AskedWorkload: st.sampled_from([
        Workload.make("softmax", {"data": "float32[m,8]"}),
        Workload("x", (), {"a": [1]}, (EpilogueStep("relu", (None,)),)),
    ]),
    Target: st.sampled_from([Target.parse("llvm -mcpu=znver4 -num-cores=2"), Target.parse("cuda -arch=sm_90")]),
    Config: st.builds(Config, st.dictionaries(st.text(max_size=5),
        st.integers(-9, 9) | st.text(max_size=5), max_size=3)),
    ConfigSpace: st.builds(
        lambda n: ConfigSpace([Knob("a", range(1, n)), Knob("b", [(1, n), (n, 1)])], [knob("a") * knob("b")[0] < 99]),
        st.integers(2, 9),
    ),
    SpecializedCondition: st.builds(
        lambda n: SpecializedCondition(Dim("m") > n, (Dim("n") == 1) | (Dim("m") < 9)), st.integers(0, 99)),
    Input: st.builds(  # those of one name have one type
        lambda named, constant: Input(*named, constant),
        st.sampled_from([("data", "float32[8,m]"), ("weight", "int8[]"), ("x.0", "float32[8,m]")]), st.booleans()),
    str: st.text(max_size=20),
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
    type(None): st.none(),
    Any: st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5) | st.lists(st.integers(0, 9), max_size=2),
}


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """All values that a field of this type may have, by what its annotation says."""
    if kind in LEAVES:
        return LEAVES[kind]
    origin, parameters = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return constrained(parameters[0], parameters[1])
    if origin is typing.Literal:
        return st.sampled_from(parameters)
    if origin is tuple:
        return st.lists(values_of(parameters[0]), max_size=2).map(tuple)
    if origin is dict:
        return st.dictionaries(values_of(parameters[0]), values_of(parameters[1]), max_size=2)
    if parameters:
        return st.one_of(*map(values_of, parameters))
    if issubclass(kind, str):  # an enumeration
        return st.sampled_from(list(kind))
    return structs(kind)


def constrained(kind: Any, meta: msgspec.Meta) -> st.SearchStrategy[Any]:
    if meta.pattern is not None:
        return st.sampled_from(["model", "random"])
    if kind is str:
        return st.text(min_size=meta.min_length or 0, max_size=min(meta.max_length or 20, 20))
    if kind is int:
        return st.integers(meta.ge, meta.le if meta.lt is None else meta.lt - 1)
    if kind is float:
        low = meta.ge if meta.ge is not None else meta.gt
        high = next((h for h in (meta.le, meta.lt) if h is not None), 1e6)
        return st.floats(
            low, high, exclude_min=meta.gt is not None, exclude_max=meta.lt is not None
        )
    return st.lists(values_of(get_args(kind)[0]), min_size=meta.min_length or 0, max_size=2).map(
        tuple
    )


def structs(kind: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(kind, include_extras=True)
    if kind is Result:  # either an error or samples
        fields = {n: values_of(h) for n, h in hints.items() if n not in {"error", "samples_s"}}
        times = st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=3).map(tuple)
        done = st.builds(kind, samples_s=times, **fields)
        return done | st.builds(kind, error=st.sampled_from(ErrorKind), **fields)
    names: dict[str, st.SearchStrategy[Any]] = {}
    if kind in {Workload, EpilogueStep}:
        names["op"] = st.sampled_from(["dense", "nn.conv2d"])
    if kind is Workload:
        names["inputs"] = st.lists(LEAVES[Input], max_size=2, unique_by=lambda i: i.name).map(tuple)
    if kind is EpilogueStep:
        names["operands"] = st.lists(st.none() | LEAVES[Input], min_size=1, max_size=2).map(tuple)
    return st.builds(kind, **{**{n: values_of(h) for n, h in hints.items()}, **names})


@pytest.mark.sample(10)
@pytest.mark.parametrize("kind", WIRE_TYPES, ids=lambda kind: kind.__name__)
def test_every_wire_type_survives_the_wire(kind: type[msgspec.Struct]) -> None:
    @given(structs(kind))
    def survives(value: msgspec.Struct) -> None:
        again = decode(encode(value), kind)
        assert again == value
        assert encode(again) == encode(value)
        assert convert(to_json(value), kind) == value

    survives()


@pytest.mark.parametrize("kind", WIRE_TYPES, ids=lambda kind: kind.__name__)
@given(data=st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
))
def test_anything_else_is_a_wire_error(kind: type[msgspec.Struct], data: Any) -> None:
    with contextlib.suppress(WireError):  # any other exception fails
        found = convert(data, kind)
        assert convert(to_json(found), kind) == found  # it happened to be one, all of it optional


def test_every_wire_type_is_frozen() -> None:
    assert len(WIRE_TYPES) > 20
    for kind in WIRE_TYPES:
        assert kind.__struct_config__.frozen, kind


NAMELESS = {"workload": {"op": "made_up", "inputs": []}}


def result(**change: Any) -> dict[str, Any]:
    return {"token": 1, "session": "s", "results": [{"entry": 0, "samples_s": [1.0], **change}]}


@pytest.mark.parametrize(
    ("data", "kind", "message"),
    [
        (result(samples_s=[]), Results, r"exactly one of them.*\$\.results\[0\]"),
        (result(error="crash"), Results, r"exactly one of them.*\$\.results\[0\]"),
        (result(samples_s=[0.0]), Results, r"> 0.0.*samples_s\[0\]"),
        (result(samples_s=["1"]), Results, r"samples_s\[0\]"),
        (result(samples_s=[1.0] * 10_001), Results, "length <= 10000.*samples_s"),
        (result(samples_s=[], error="tired"), Results, r"'tired'.*\$\.results\[0\]\.error"),
        (result(message="x" * 20_001), Results, "length <= 20000.*message"),
        (result(build_s=-1), Results, ">= 0.0.*build_s"),
        (result(entry=-1), Results, ">= 0.*entry"),
        (result(entry=2**60), Results, "<= .*entry"),
        ({"token": 1, "session": "", "results": []}, Results, "length >= 1.*session"),
        ({"workloads": [], "target": "llvm"}, RunRequest, "length >= 1.*workloads"),
        ({"workloads": [5], "target": "llvm"}, RunRequest, r"workloads\[0\]"),
        ({"workloads": [], "target": "fpga"}, RunRequest, "workloads|unknown target 'fpga'"),
        ({"workloads": [NAMELESS], "target": "llvm", "seed": -1}, RunRequest, ">= 0.*seed"),
        ({"min_repeats": 0}, TimingPolicy, "min_repeats"),
        ({"give_up_ratio": 0.5}, TimingPolicy, "give_up_ratio"),
        ({"name": "w", "host": "h", "pid": 1, "devices": []}, WorkerInfo, "devices"),
    ],
)
def test_a_wire_error_names_the_field(data: Any, kind: type[Any], message: str) -> None:
    for read in (lambda: convert(data, kind), lambda: decode(msgspec.json.encode(data), kind)):
        with pytest.raises(WireError, match=message) as caught:
            read()
        assert len(str(caught.value)) < 500


def test_a_target_in_a_request_is_named() -> None:
    workload = {"workload": {"op": "dense", "inputs": [{"name": "data", "type": "float32[1]"}]}}
    with pytest.raises(WireError, match=r"unknown target 'fpga'.*\$\.target"):
        convert({"workloads": [workload], "target": "fpga"}, RunRequest)
    assert convert({"workloads": [workload], "target": "llvm"}, RunRequest).target.kind == "llvm"


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"nul", b"[" * 100_000, b'{"a":' * 100_000])
def test_bytes_that_are_no_json(data: bytes) -> None:
    for kind in (Job, Leases, RunStatus, Device):
        with pytest.raises(WireError):
            decode(data, kind)


def test_what_has_no_json_form_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="object has no JSON form"):
        encode(object())


def test_json_schemas_are_complete() -> None:
    schemas, components = json_schema(WIRE_TYPES)
    assert len(schemas) == len(WIRE_TYPES)
    assert {"Job", "Workload", "Candidate", "Results"} <= components.keys()
    assert "ConfigSpace" not in components  # given in place, with a description
    text = msgspec.json.encode([schemas, components]).decode()
    named = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert named <= components.keys()


def covers(rank: int, n: int) -> float:
    """The probability that the rank-th lowest and highest of n samples enclose the median."""
    return 1 - 2 * sum(math.comb(n, i) for i in range(rank + 1)) / 2**n


@pytest.mark.parametrize("n", [*range(6, 40), 60, 100, 200, 500, 2000, 2001, 3000])
def test_the_interval_covers_95_percent_and_little_more(n: int) -> None:
    found = estimate(range(1, n + 1))
    rank = int(found.low_s) - 1
    assert found.high_s == n - rank
    assert covers(rank, n) >= 0.95
    assert covers(rank + (1 if n <= 2000 else 3), n) < 0.95


@pytest.mark.parametrize("n", [6, 9, 20, 51, 200])
def test_the_interval_covers_the_median_of_skewed_times(n: int) -> None:
    # Times of kernels: a floor, and a tail of disturbances.
    rng = random.Random(n)
    median = 1 + 0.1 * math.log(2)
    hits = 0
    for _ in range(2000):
        found = estimate([1 + 0.1 * rng.expovariate(1) for _ in range(n)])
        hits += found.low_s <= median <= found.high_s
    # 95 % of 2000 less four standard deviations of a count.
    assert hits >= 1900 - 4 * math.sqrt(2000 * 0.95 * 0.05)


@given(st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=80), st.randoms(use_true_random=False))
def test_an_estimate_is_of_the_samples_whatever_their_order(
    samples: list[float], rng: random.Random
) -> None:
    found = estimate(samples)
    shuffled = list(samples)
    rng.shuffle(shuffled)
    assert estimate(shuffled) == found
    assert found.samples == len(samples)
    assert found.median_s == statistics.median(samples)
    assert min(samples) <= found.low_s <= found.median_s <= found.high_s <= max(samples)
    if len(samples) < 6:
        assert (found.low_s, found.high_s) == (min(samples), max(samples))
    slower = estimate([2 * s for s in samples])
    assert (slower.median_s, slower.low_s) == (2 * found.median_s, 2 * found.low_s)


def test_an_estimate_needs_samples() -> None:
    with pytest.raises(ValueError, match="at least one sample"):
        estimate([])
    assert estimate([2.5]) == Estimate(2.5, 2.5, 2.5, 1)


def test_a_run_may_carry_its_candidates() -> None:
    space = ConfigSpace([Knob("tile", [1, 2])])
    candidate = Candidate(
        "mine.cpu", f"1.{space.digest}", 10, SpecializedCondition(Dim("m") > 16), space
    )
    workload = Workload("unheard_of", (Input("data", "float32[m,8]"),))
    request = RunRequest(
        workloads=(RunWorkload(workload=workload, candidates=(candidate,)),),
        target=Target.parse("llvm"),
    )
    again = decode(encode(request), RunRequest)
    assert again == request
    assert again.workloads[0].candidates == (candidate,)


def test_a_type_is_analysed_by_one_thread_at_its_first_use(monkeypatch: pytest.MonkeyPatch):
    inside, most = 0, 0

    def analysis(kind, **_):
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        time.sleep(0.01)
        inside -= 1

    class Fresh(msgspec.Struct):
        x: int

    monkeypatch.setattr(record.msgspec.json, "Decoder", analysis)
    kinds = [Fresh, list[Fresh], dict[str, Fresh], tuple[Fresh, ...]]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(record.analyse, kinds * 2))
    assert most == 1
