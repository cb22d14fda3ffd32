"""The description of this host, from the kernel's files."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from strategy import host
from strategy.host import cache_sizes, cpu_arch, cpu_features, cpu_info
from strategy.target import Target, cpu_target

AVX2 = "fpu sse4_2 avx2 fma bmi2"
AVX512 = f"{AVX2} avx512f avx512bw avx512vl avx512dq"
BYTES = f"{AVX512} avx512vbmi avx512ifma"
DOTS = f"{BYTES} avx512_vnni avx512_bf16"
AMX = f"{DOTS} avx512_fp16 amx_bf16 amx_int8 amx_tile"


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Stands for /proc/cpuinfo and the machine's name."""
    info: dict[str, str] = {}
    machine = {"name": "x86_64"}
    monkeypatch.setattr(host, "cpu_info", lambda: info)
    monkeypatch.setattr(host.platform, "machine", lambda: info.pop("machine", machine["name"]))
    return info


@pytest.mark.parametrize(
    ("vendor", "family", "model", "flags", "arch"),
    [
        ("AuthenticAMD", "23", "49", AVX2, "znver2"), ("AuthenticAMD", "23", "1", AVX2, "znver1"),
        ("AuthenticAMD", "25", "1", AVX2, "znver3"), ("AuthenticAMD", "25", "17", DOTS, "znver4"),
        ("AuthenticAMD", "26", "2", DOTS, "znver5"), ("GenuineIntel", "6", "63", AVX2, "haswell"),
        ("GenuineIntel", "6", "85", AVX512, "skylake-avx512"),
        ("GenuineIntel", "6", "85", AVX512 + " avx512_vnni", "cascadelake"),
        ("GenuineIntel", "6", "143", DOTS, "sapphirerapids"), ("GenuineIntel", "6", "151", AVX2, "alderlake"),
        # A processor that nobody has listed yet, and virtual machines that hide what it has.
        ("GenuineIntel", "6", "250", AVX512, "x86-64-v4"), ("GenuineIntel", "6", "250", AVX2, "x86-64-v3"),
        ("GenuineIntel", "6", "250", AMX, "x86-64-v4"),
        ("GenuineIntel", "6", "207", AMX, "emeraldrapids"),
        ("AuthenticAMD", "25", "17", AVX2, "x86-64-v3"), ("GenuineIntel", "6", "143", "sse2", "x86-64"),
        ("AuthenticAMD", "25", "17", BYTES + " avx512_vnni", "x86-64-v4"),
        ("AuthenticAMD", "26", "2", DOTS.replace("avx512vbmi", ""), "x86-64-v4"),
        ("GenuineIntel", "6", "106", AVX512 + " avx512_vnni", "x86-64-v4"),
        ("GenuineIntel", "6", "106", BYTES + " avx512_vnni", "icelake-server"),
        # One that reports an older model than its instructions are of.
        ("GenuineIntel", "6", "167", DOTS + " avx512_fp16", "sapphirerapids"),
        ("GenuineIntel", "6", "167", BYTES + " avx512_vnni", "rocketlake"),
        ("", "x", "y", "", "x86-64"),
    ],
)
def test_the_name_of_x86_processors(
    processor: dict[str, str], vendor: str, family: str, model: str, flags: str, arch: str
) -> None:
    processor.update({"vendor_id": vendor, "cpu family": family, "model": model, "flags": flags})
    assert cpu_arch() == arch


@pytest.mark.parametrize(
    ("part", "arch"),
    [("0xd0c", "neoverse-n1"), ("0xd4f", "neoverse-v2"), ("0xfff", "generic"), ("?", "generic")],
)
def test_the_name_of_arm_processors(processor: dict[str, str], part: str, arch: str) -> None:
    processor.update({"machine": "aarch64", "CPU part": part})
    assert cpu_arch() == arch


@pytest.mark.parametrize(
    ("model", "flags", "granted", "features"),
    [
        ("207", AMX, True, ()), ("207", AMX, False, ("-amx-tile",)),
        ("207", DOTS, True, ("-amx-tile", "-avx512fp16")),
        ("207", AMX.replace("avx512_fp16", ""), True, ("-avx512fp16",)), ("85", AVX512, True, ()),
    ],
)
def test_amx_and_float16_are_left_out_where_they_are_hidden_or_refused(
    processor: dict[str, str], monkeypatch: pytest.MonkeyPatch, model: str, flags: str, granted: bool,
    features: tuple[str, ...],
) -> None:
    processor.update({"vendor_id": "GenuineIntel", "cpu family": "6", "model": model, "flags": flags})
    monkeypatch.setattr(host, "_request_tiles", lambda: granted)
    assert cpu_features.__wrapped__() == features


def test_without_cpuinfo_the_baseline_is_named(processor: dict[str, str]) -> None:
    assert cpu_arch() == "x86-64"


def test_the_target_of_this_host() -> None:
    target = cpu_target()
    assert target.threads == len(os.sched_getaffinity(0))
    assert target.keys == ("cpu",)
    assert target.arch
    assert target.capability == cache_sizes()
    assert Target.parse(target.to_json()) == target
    # Vectors as wide as the processor has, no wider: code for wider ones would crash.
    flags = set(cpu_info().get("flags", "").split())
    if flags:
        widest = 64 if "avx512f" in flags else 32 if "avx2" in flags else 16
        assert target.vector_bytes <= widest


def test_cache_sizes_are_bytes_and_ordered() -> None:
    sizes = [cache_sizes()[k] for k in ("l1d_bytes", "l2_bytes", "l3_bytes") if k in cache_sizes()]
    assert sizes == sorted(sizes)
    assert all(size >= 4096 for size in sizes)
