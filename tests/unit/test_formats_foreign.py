"""Other tools' tuning results: what each file says, and that no file does harm."""

from __future__ import annotations

import io
import json
import math
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.formats import Format, Reason, Rejected, Source, detect, native, read
from service.formats.gpu import arch_of_model
from strategy.record import ErrorKind

DATA = Path(__file__).parents[1] / "data" / "foreign"
MOE = "E=128,N=384,device_name=NVIDIA_H20-3e.json"
HELION = next(DATA.glob("*.best_config")).name
FORMATS = {
    "add_one.autotune.json": Format.TRITON, MOE: Format.VLLM, HELION: Format.HELION,
    "tunableop_results0.csv": Format.TUNABLEOP, "a8w8_tuned_gemm.csv": Format.AITER,
    "flashinfer.json": Format.FLASHINFER, "foreign.ndjson": Format.FOREIGN,
}


def items(name: str, data: bytes | None = None, **options):
    data = (DATA / name).read_bytes() if data is None else data
    return list(read(Source(io.BytesIO(data), name), **options))


def test_every_sample_is_here_and_its_format_is_detected() -> None:
    assert {p.name for p in DATA.iterdir()} == {"README.md", *FORMATS}
    for name, form in FORMATS.items():
        assert detect((DATA / name).read_bytes(), name) == form
        if form is not Format.VLLM:  # whose width and device are in the name
            assert detect((DATA / name).read_bytes()) == form


def test_triton_has_times_and_failures_of_a_given_device() -> None:
    found = items("add_one.autotune.json", device_model="NVIDIA H100")
    assert [(r.samples_s, r.error) for r in found] == [
        ((0.0015,), None), ((0.00125,), None), ((), ErrorKind.COMPILE), ((0.00075,), None),
    ]
    last = found[-1]
    assert dict(last.config) == {"BLOCK": 128, "num_warps": 8, "num_ctas": 1, "num_stages": 3}
    assert last.task.implementation == "triton:add_one"
    assert last.task.workload.attrs == {"key": [4096, "torch.float32"]}
    assert (last.task.target.key, last.device_model) == ("cuda/sm_90", "NVIDIA H100")
    assert json.loads(last.extra) == {"quantiles_s": pytest.approx([0.00075, 0.00065, 0.00085])}


def test_triton_without_a_device_is_rejected_with_what_to_do() -> None:
    (found,) = items("add_one.autotune.json")
    assert found.reason is Reason.TARGET
    assert "--device-model" in found.detail


def test_vllm_is_advice_of_the_device_in_the_name() -> None:
    found = items(MOE)
    assert all(r.is_advice for r in found)
    assert [r.task.workload.attrs["M"] for r in found] == [1, 512, 4096]
    first = found[0]
    assert first.task.implementation == "vllm:fused_moe"
    assert first.task.workload.attrs == {"E": 128, "N": 384, "M": 1}
    assert (first.device_model, first.task.target.key) == ("NVIDIA H20-3e", "cuda/sm_90")
    assert first.config["BLOCK_SIZE_N"] == 32
    name = "E=8,N=64,device_name=AMD_Instinct_MI300X,dtype=fp8_w8a8,block_shape=[128,128].json"
    (row,) = items(name, b'{"triton_version": "3.6.0", "16": {"BLOCK_SIZE_M": 16}}')
    assert row.task.workload.attrs == {
        "E": 8, "N": 64, "M": 16, "dtype": "fp8_w8a8", "block_shape": "[128,128]",
    }
    assert row.environment == {"triton_version": "3.6.0"}
    assert row.task.target.key == "rocm/gfx942"


def test_tunableop_has_the_validators_as_environment_and_the_extents_of_blas() -> None:
    found = items("tunableop_results0.csv")
    assert [r.samples_s[0] for r in found] == pytest.approx([1.262e-3, 0.033e-3])
    assert found[0].task.implementation == "tunableop:GemmTunableOp_float_NT"
    assert found[0].task.workload.attrs == {"trans": "nt", "n": 25088, "m": 4096, "k": 64}
    assert found[0].environment["PT_VERSION"] == "2.2.0"
    assert found[0].task.target.kind == "rocm"
    head = b"Validator,GCN_ARCH_NAME,gfx90a:sramecc+:xnack-\n"
    (advice,) = items("x.csv", head + b"GemmTunableOp_float_NT,nt_8_8_8_ld_8_8_8,Default\n")
    assert advice.is_advice
    assert advice.task.target.key == "rocm/gfx90a"
    assert advice.task.workload.attrs["rest"] == "ld_8_8_8"
    (lost,) = items("x.csv", b"GemmTunableOp_float_NT,nt_8_8_8,Default,0.1\n")
    assert lost.reason is Reason.TARGET


def test_aiter_has_the_winner_apart_from_the_problem() -> None:
    found = items("a8w8_tuned_gemm.csv")
    first = found[0]
    assert first.task.implementation == "aiter:a8w8_gemm"
    assert first.task.workload.attrs == {
        "M": 1, "N": 1280, "K": 8192, "q_dtype_w": "torch.int8", "cu_num": 80,
    }
    assert first.config["kernelId"] == 34
    assert first.samples_s == pytest.approx((20.5611e-6,))
    assert [r.task.target.key for r in found] == ["rocm/gfx942", "rocm/gfx942", "rocm/gfx950"]


def test_flashinfer_and_helion_are_advice() -> None:
    first, second = items("flashinfer.json")
    assert first.is_advice
    assert first.task.implementation == "flashinfer:fp4_gemm"
    assert dict(second.config) == {"runner": "MoERunner", "tactic": (1, 14)}
    assert (first.device_model, first.task.target.key) == ("NVIDIA B200", "cuda/sm_100")
    (best,) = items(HELION)
    assert best.is_advice
    assert best.task.workload.attrs == {"cache_key": HELION.removesuffix(".best_config")}
    assert json.loads(best.extra) == json.loads((DATA / HELION).read_bytes())
    assert best.config["block_sizes"] == (64, 32, 16)
    assert best.config["loop_orders"] == "[[1,0]]"


def test_foreign_lines_have_times_failures_and_advice() -> None:
    timed, aten, failed = items("foreign.ndjson")
    assert (timed.source, timed.worker, timed.measured_at) == ("inductor", "host7", 1.76e9)
    assert aten.samples_s == (0.000011,)
    assert (failed.error, failed.message) == (ErrorKind.OOM, "out of shared memory")
    line = json.loads((DATA / "foreign.ndjson").read_bytes())
    line["candidates"] = [{"config": {}}, {"config": {"a": 1}}]
    empty, advice = items("x", json.dumps(line).encode())
    assert (empty.line, empty.reason) == (1, Reason.CONFIG)
    assert advice.is_advice


def foreign_line(*candidates: dict[str, Any], **more: Any) -> bytes:
    base = {"kind": "foreign", "tool": "triton", "kernel": "k", "device_model": "NVIDIA H100"}
    return json.dumps(base | {"candidates": list(candidates)} | more).encode()


def test_a_bad_candidate_is_rejected_alone() -> None:
    good = {"config": {"B": 1}, "samples_s": [1e-3]}
    bad = [
        {**good, "samples_s": [0.0]}, {**good, "other": 1}, {**good, "error": "oom"}, {"config": {"k" * 201: 1}},
        {"config": {f"k{i}": i for i in range(201)}}, {**good, "extra": [1]}, {**good, "extra": {"a": "x" * 70_000}},
    ]
    endless = {**good, "extra": {"a": "X"}}
    found = items("x", foreign_line(good, *bad, endless, {"config": {"B": 2}}).replace(b'"X"', b"1e400"))
    assert [getattr(i, "reason", None) for i in found] == [
        None, Reason.COST, Reason.FIELD, Reason.FIELD, Reason.CONFIG, Reason.CONFIG, Reason.FIELD, Reason.TOO_LONG,
        Reason.FIELD, None,
    ]
    assert b'"samples_s":[0.0]' in found[1].text.replace(b" ", b"")


@pytest.mark.parametrize("tool", ["plevel", "autotvm", "kernel_tuner", "metaschedule"])
def test_a_line_is_of_no_tool_whose_fields_plevel_reads_back(tool: str) -> None:
    (found,) = items("x", foreign_line({"config": {"B": 1}, "extra": {"a": 1}}, tool=tool))
    assert (found.reason, tool in found.detail) == (Reason.FIELD, True)


@pytest.mark.parametrize(
    ("source", "extra"),
    [
        ("plevel", b"[1]"), ("plevel", b'{"drift":"much"}'), ("triton", b"3"), ("metaschedule", b"{}"),
        ("autotvm", b'{"a":1}'), ("autotvm", b'{"target":"llvm","knobs":[["none","ot"]]}'),
        ("autotvm", b'{"target":"llvm","knobs":[],"version":0.1}'), ("kernel_tuner", b'{"metrics":[1]}'),
    ],
)
def test_fields_of_another_format_that_no_export_could_read_are_rejected(source: str, extra: bytes) -> None:
    """One such record would break every export, and the list of records, of everybody."""
    (item,) = items("x", foreign_line({"config": {"B": 1}, "samples_s": [1e-3]}))
    made = msgspec.structs.replace(item, source=source, extra=extra)
    (found,) = items("x", b"".join(native.write([made])))
    assert found.reason is Reason.FIELD
    assert "extra" in found.detail


def test_an_instant_that_no_calendar_has_is_rejected() -> None:
    (item,) = items("x", foreign_line({"config": {"B": 1}, "samples_s": [1e-3]}))
    for when in (1e12, -1.0):
        made = msgspec.structs.replace(item, measured_at=when)
        assert items("x", b"".join(native.write([made])))[0].reason is Reason.TIME


@pytest.mark.parametrize(
    ("rest", "attrs"),
    [
        (",dtype=fp8_w8a8,block_shape=[128, 128].json", {"dtype": "fp8_w8a8", "block_shape": "[128,128]"}),
        (",per_channel_quant=True_down.json", {"per_channel_quant": "True", "down": True}),
        (",block_shape=[128, 128]_down.json", {"block_shape": "[128,128]", "down": True}),
        ("_down.json.gz", {"down": True}),
    ],
)
def test_sglang_names_the_second_product_apart(rest: str, attrs: dict[str, Any]) -> None:
    name = f"E=8,N=64,device_name=NVIDIA_H100{rest}"
    (row,) = items(name, b'{"16": {"BLOCK_SIZE_M": 16}}')
    assert row.task.workload.attrs == {"E": 8, "N": 64, "M": 16, **attrs}
    assert row.device_model == "NVIDIA H100"


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("a.autotune.json", b'{"key": [1], "configs_timings": [[{"kwargs": {}}, [NaN]]]}', Reason.CONFIG),
        ("a.autotune.json", b'{"key": [1], "configs_timings": [[{"kwargs": {"B": 1}}, [NaN]]]}', Reason.COST),
        ("a.autotune.json", b'{"key": [1], "configs_timings": [[{"kwargs": {"B": 1}}, [-1]]]}', Reason.COST),
        ("a.autotune.json", b'{"key": [1], "configs_timings": [[{"kwargs": {"B": 1}}, []]]}', Reason.COST),
        ("a.autotune.json", b'{"key": [1], "configs_timings": [3]}', Reason.FIELD),
        ("a.autotune.json", b'{"key": [1], "configs_timings": [[{"kwar', Reason.TRUNCATED),
        (MOE, b'{"x": {"BLOCK_SIZE_M": 16}}', Reason.FIELD),
        (MOE, b'{"1": {}}', Reason.CONFIG),
        (MOE, b'{"1": {"BLOCK_SIZE_M": 16}', Reason.JSON),
        (MOE, b'{"1": {"a": 1}, "1": {"a": 2}}', Reason.DUPLICATE),
        ("moe.json", b'{"1": {"BLOCK_SIZE_M": 16}}', Reason.FIELD),
        ("x.csv", b"Validator,A\nFooTunableOp_float_NT,p,s,soon", Reason.FIELD),
        ("tuned.csv", b"gfx,cu_num,M,us,kernelId\ngfx942,80,1,nan,3", Reason.COST),
        ("tuned.csv", b"gfx,cu_num,M,us,kernelId\ngfx942,80,1", Reason.FIELD),
        ("f.json", b'{"_metadata": {"flashinfer_version": "1", "gpu": "NVIDIA B200"}, "k": ["r", 1]}', Reason.FIELD),
        ("x.best_config", (DATA / HELION).read_bytes(), Reason.FIELD),
    ],
)
def test_bad_entries_are_rejected_with_a_reason(name: str, data: bytes, reason: Reason) -> None:
    assert items(name, data, device_model="NVIDIA H100")[0].reason is reason


def test_a_document_too_large_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.formats.foreign.MAX_DOCUMENT", 1000)
    (found,) = items(MOE, b'{"1": {"BLOCK_SIZE_M": 16}, "2": {"x": "' + b"a" * 2000 + b'"}}')
    assert found.reason is Reason.TOO_LONG


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", FORMATS)
def test_hostile_files_yield_items_that_can_be_stored(name: str) -> None:
    """Mutated samples: each entry is a record that plevel's own format carries, or rejected."""
    whole = (DATA / name).read_bytes()

    @settings(deadline=None, max_examples=60, derandomize=True)
    @given(
        cuts=st.lists(
            st.tuples(
                st.integers(0, len(whole)), st.integers(0, 12),
                st.one_of(
                    st.binary(max_size=8),
                    st.sampled_from([
                        b"NaN", b"Infinity", b"1e999", b"-1", b"null", b"{}", b"[[[[", b'"\\ud800"',
                        b'"\\u0000"', b"9" * 30, b"\n", b",,,", b"\xff",
                    ]),
                ),
            ),
            max_size=4,
        )
    )
    def check(cuts: list[tuple[int, int, bytes]]) -> None:
        data = whole
        for at, length, new in cuts:
            data = data[:at] + new + data[at + length :]
        for item in items(name, data, form=FORMATS[name], device_model="NVIDIA H100"):
            if isinstance(item, Rejected):
                continue
            assert all(0 < s < math.inf for s in item.samples_s)
            again = list(native.read(Source(io.BytesIO(b"".join(native.write([item]))))))
            assert [r.identity for r in again] == [item.identity]

    check()


@pytest.mark.parametrize(
    ("model", "arch"),
    [
        ("NVIDIA H100 80GB HBM3", "sm_90"), ("NVIDIA H20-3e", "sm_90"), ("NVIDIA GH200 480GB", "sm_90"),
        ("NVIDIA A100-SXM4-80GB", "sm_80"), ("NVIDIA A10", "sm_86"), ("NVIDIA A10G", "sm_86"),
        ("NVIDIA L40S", "sm_89"), ("NVIDIA GeForce RTX 4090", "sm_89"), ("NVIDIA GB200", "sm_100"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "sm_120"), ("Tesla V100-SXM2-16GB", "sm_70"),
        ("NVIDIA RTX 6000 Ada Generation", "sm_89"), ("NVIDIA RTX 5000 Ada Generation", "sm_89"),
        ("Quadro RTX 5000", "sm_75"), ("Quadro RTX 4000 with Max-Q Design", "sm_75"), ("Quadro RTX 3000", "sm_75"),
        ("NVIDIA GeForce RTX 5090", "sm_120"), ("NVIDIA RTX 4000 SFF Ada Generation", "sm_89"),
        ("NVIDIA RTX A5000", "sm_86"), ("AMD Instinct MI308X", "gfx942"),
        ("AMD Instinct MI355X", "gfx950"), ("Intel(R) Arc(TM) Pro B60 Graphics", ""),
    ],
)
def test_architectures_of_device_models(model: str, arch: str) -> None:
    assert arch_of_model(model) == arch


def test_a_triton_cache_is_read_under_another_folder(tmp_path: Path) -> None:
    """The kernel is the file's own name, whatever the path before it."""
    copy = tmp_path / "add_one.autotune.json"
    shutil.copy(DATA / copy.name, copy)
    found = items(str(copy), copy.read_bytes(), device_model="NVIDIA H100")
    assert found[0].task.implementation == "triton:add_one"
