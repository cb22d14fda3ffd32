"""The shortest time that is believed: below every true time, above what broken clocks say."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from strategy.peak import CALL_S, least_seconds
from strategy.record import convert
from strategy.target import Target
from strategy.workload import Input, Workload

TWO = Target.parse("llvm -num-cores=2")
H200 = Target.parse("cuda -arch=sm_90")


def dense(m: int, n: int, k: int, dtype: str = "float32") -> Workload:
    return Workload.make("dense", {"data": f"{dtype}[{m},{k}]", "weight": f"{dtype}[{n},{k}]"})


def conv2d(data: str, weight: str, **attrs: Any) -> Workload:
    return Workload.make("conv2d", {"data": data, "weight": weight}, attrs)


def test_an_invented_time_is_below_the_bound() -> None:
    """4220 GFLOP/s were recorded on two cores."""
    assert least_seconds(dense(32, 128, 128), TWO) > 248e-9


@pytest.mark.parametrize(
    ("workload", "target", "measured_s"),
    [
        # Peaks of the fastest devices of their kind by their makers' word, in dense numbers.
        pytest.param(dense(4096, 4096, 4096), Target.parse("llvm -num-cores=192"), 2 * 4096**3 / 28e12,
                     id="two EPYC 9965, float32"),
        pytest.param(dense(4096, 4096, 4096, "bfloat16"), Target.parse("llvm -num-cores=60"),
                     2 * 4096**3 / 115e12, id="Xeon 8490H, AMX"),
        pytest.param(dense(8192, 8192, 8192, "float16"), H200, 2 * 8192**3 / 989e12, id="H200, float16"),
        pytest.param(dense(8192, 8192, 8192, "float16"), Target.parse("cuda -arch=sm_100"),
                     2 * 8192**3 / 2.25e15, id="B200, float16"),
        pytest.param(dense(8192, 8192, 8192), H200, 2 * 8192**3 / 495e12, id="H200, as TF32"),
    ],
)
def test_peaks_of_real_devices_are_believed(
    workload: Workload, target: Target, measured_s: float
) -> None:
    assert least_seconds(workload, target) < measured_s


def test_a_processor_has_a_peak_whatever_its_keys_are() -> None:
    board = Target.parse({"kind": "llvm", "keys": ["myboard"], "num-cores": 2})
    assert least_seconds(dense(512, 512, 512), board) == least_seconds(dense(512, 512, 512), TWO) > CALL_S


@pytest.mark.parametrize("tile", [2, 4, 6])
def test_winograd_is_believed_at_the_peak(tile: int) -> None:
    """F(m×m, 3×3) multiplies (m + 2)² where the window does 9 m²."""
    workload = conv2d("float32[1,64,56,56]", "float32[64,64,3,3]", padding=1)
    assert workload.flops is not None
    saved = (tile + 2) ** 2 / (9 * tile**2)
    peak = 2 * 2 * 2 * 16 * 6e9  # two cores, two units, 16 floats, at a clock that none has
    assert least_seconds(workload, TWO) < saved * workload.flops / peak


def test_places_outside_of_the_image_cost_nothing() -> None:
    wide = conv2d("float32[1,64,2,2]", "float32[64,64,1,1]", padding=64)
    assert wide.flops is not None
    plain = conv2d("float32[1,64,2,2]", "float32[64,64,1,1]")
    assert least_seconds(wide, TWO) < 0.01 * wide.flops / 3e11
    assert least_seconds(plain, TWO) <= least_seconds(wide, TWO)


def test_what_is_written_takes_its_time() -> None:
    shape = "float32[1024,1024]"
    relu = Workload.make("relu", {"data": shape})
    assert least_seconds(relu, TWO) > 4 * 1024**2 / 2 / 2e12  # 2 TB/s a core
    assert least_seconds(relu, TWO) < 4 * 1024**2 / 2 / 4e11


def test_of_what_is_not_known_a_call_takes_its_time() -> None:
    foreign = Workload("autotvm.conv2d_nchw", (Input("data", "float32[1,64,56,56]"),))
    assert least_seconds(foreign, TWO) == CALL_S
    assert least_seconds(dense(512, 512, 512), Target.parse("opencl")) == CALL_S


def test_all_that_was_measured_is_believed() -> None:
    """Searches that were recorded, on one core and two."""
    data = Path(__file__).parents[2] / "benchmarks" / "data"
    found = []
    for name in ("search_cpu", "predict_cpu", "search_cpu_threads"):
        tasks = json.loads(gzip.decompress((data / f"{name}.json.gz").read_bytes()))["tasks"]
        for task in tasks.values():
            workload, target = convert(task["workload"], Workload), Target.parse(task["target"])
            fastest_s = 1e-9 * min(ns for ns in task["ns"] if ns)
            found.append(fastest_s / least_seconds(workload, target))
    assert len(found) > 20
    assert min(found) > 1
    assert min(found) < 20  # a bound that nothing comes near holds nothing
