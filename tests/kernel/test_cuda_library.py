"""cuBLAS and cuDNN as implementations, with a stand-in for the libraries that computes on host memory.

The stand-in has the symbols and signatures of the real ones, so that the order of arguments, enums,
leading dimensions and strides are held against NumPy; what only the real ones know is their speed, and
what they refuse beyond their documentation.
"""

from __future__ import annotations

import ctypes
import gc
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from numpy._core import _multiarray_umath

pytest.importorskip("tvm")

import strategy.extern
from strategy.compile.cuda import compile_cuda, emit
from strategy.compile.lower import lower
from strategy.cuda.library import row_major_gemm
from strategy.cuda.limit import LimitError
from strategy.cuda.program import Convolution, CudaArtefact, Gemm, Launch
from strategy.extern import ExternError, Library, find_library, open_library
from strategy.op_strategy import candidates
from strategy.record import Device, ErrorKind, JobEntry, Result
from strategy.space import Config
from strategy.target import Target
from strategy.workload import EpilogueStep, Input, Workload
from tests.command import run_command
from tests.kernel.emulation.device import EmulatedDriver, compile_vendor
from tests.kernel.test_cuda_runner import Channel, session_of
from workers.builder import Built
from workers.bundle import Bundle, Part, run_bundle, seal, unseal
from workers.cuda.library import CudaError, installed_libraries, prepare_call
from workers.cuda.runner import CudaRunner
from workers.runner import Session

TARGET = Target.parse("cuda -arch=sm_90 -libs=cublas,cudnn")
BIAS = EpilogueStep("add", (None, Input("bias", "float32[35]", constant=True)))
RELU = EpilogueStep("relu", (None,))


@pytest.fixture(scope="module")
def vendor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("vendor") / "libvendor.so"
    compile_vendor(library)
    return library


@pytest.fixture(autouse=True)
def installed(vendor: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This host has both libraries, and no other test finds them open."""
    import workers.cuda.library as calls

    monkeypatch.setattr("workers.runner.pin_threads", lambda cores, known: None)
    for module in (strategy.extern, calls):
        monkeypatch.setattr(module, "find_library", lambda role: Library(role, str(vendor)))
    caches = (open_library, calls._open_cublas, calls._open_cudnn)
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()


def run(
    workload: Workload, implementation: str, folder: Path, config: dict[str, str] | None = None
) -> Result:
    """One configuration, built without a compiler where there is nothing to compile, checked and timed."""
    lowered = lower(workload, TARGET, implementation, config)
    source = emit(lowered)
    artefact = CudaArtefact(
        signature=lowered.signature, programs=source.programs, source=source.code, arch="sm_90",
        compiler="none", cubin=b"", usage={},
    )
    folder.mkdir(exist_ok=True)
    channel, driver = Channel(), EmulatedDriver(folder / "emulation", l2_bytes=20_000)
    CudaRunner(channel, driver).run(session_of(workload, [artefact], folder))
    return channel.results[0]


@pytest.mark.sample(8)
@pytest.mark.parametrize(
    "workload",
    [
        Workload.make("dense", {"data": "float32[5,7]", "weight": "float32[3,7]"}),
        Workload.make("dense", {"data": "float64[1,7]", "weight": "float64[3,7]"}),
        Workload.make("dense", {"data": "float16[50,40]", "weight": "float16[35,40]"}),
        Workload.make(
            "dense", {"data": "bfloat16[9,70]", "weight": "bfloat16[5,70]"}, {"out_dtype": "float32"}
        ),
        Workload.make("dense", {"data": "float32[50,37]", "weight": "float32[35,37]"}, {}, (), [BIAS, RELU]),
        *(
            Workload.make(
                "batch_matmul",
                {
                    "x": f"float32[{left},{'4,5' if a else '5,4'}]",
                    "y": f"float32[{right},{'7,4' if b else '4,7'}]",
                },
                {"transpose_a": a, "transpose_b": b},
            )
            for a in (False, True)
            for b in (False, True)
            for left, right in ((3, 3), (3, 1), (1, 3), (1, 1))
        ),
        Workload.make(
            "batch_matmul", {"x": "float16[2,5,8]", "y": "float16[2,3,8]"}, {}, (), [RELU]
        ),
    ],
    ids=str,
)
def test_products_are_right(workload: Workload, tmp_path: Path) -> None:
    result = run(workload, f"{workload.op}_cublas.cuda", tmp_path)
    assert result.error is None, result.message
    assert result.samples_s


@pytest.mark.parametrize(
    ("shapes", "attrs"),
    [
        (("float32[2,4,9,10]", "float32[6,4,3,3]"), {"padding": 1}),
        (("float32[1,6,9,7]", "float32[4,3,3,2]"), {"strides": [2, 1], "dilation": [1, 2], "groups": 2,
                                                     "padding": [2, 1]}),
        (("float16[1,4,6,6]", "float16[4,1,3,3]"), {"groups": 4}),
        (("bfloat16[1,4,6,6]", "bfloat16[4,4,5,5]"), {"padding": 2}),
        (("float64[1,2,6,5]", "float64[3,2,1,1]"), {}),
    ],
)
def test_convolutions_are_right_by_every_algorithm(
    shapes: tuple[str, str], attrs: dict[str, object], tmp_path: Path
) -> None:
    workload = Workload.make("conv2d", {"data": shapes[0], "weight": shapes[1]}, attrs)
    candidate = next(c for c in candidates(workload, TARGET) if c.library == "cudnn")
    assert candidate.space is not None
    for number, config in enumerate(candidate.space):
        result = run(workload, "conv2d_cudnn.cuda", tmp_path / str(number), dict(config))
        assert result.error is None, f"{config}: {result.message}"


def test_an_epilogue_follows_a_convolution_in_a_kernel_of_its_own(tmp_path: Path) -> None:
    workload = Workload.make(
        "conv2d", {"data": "float32[1,4,9,10]", "weight": "float32[6,4,3,3]"}, {}, (), [RELU]
    )
    program = emit(lower(workload, TARGET, "conv2d_cudnn.cuda")).programs["main"]
    first, second = program.steps
    assert isinstance(first, Convolution)
    assert isinstance(second, Launch)
    assert first.output == program.workspaces[0].name
    result = run(workload, "conv2d_cudnn.cuda", tmp_path)
    assert result.error is None, result.message


def test_what_a_library_refuses_is_that_configurations_failure(tmp_path: Path) -> None:
    workload = Workload.make("conv2d", {"data": "float32[1,4,12,12]", "weight": "float32[6,4,3,3]"})
    result = run(workload, "conv2d_cudnn.cuda", tmp_path, {"algorithm": "fft"})
    assert result.error is ErrorKind.RUNTIME
    assert "cudnnGetConvolutionForwardWorkspaceSize failed: CUDNN_STATUS_NOT_SUPPORTED" in result.message


def test_descriptors_go_with_what_uses_them(tmp_path: Path, vendor: Path) -> None:
    workload = Workload.make("conv2d", {"data": "float32[1,4,9,9]", "weight": "float32[6,4,3,3]"})
    assert run(workload, "conv2d_cudnn.cuda", tmp_path).error is None
    gc.collect()
    assert ctypes.c_int.in_dll(ctypes.CDLL(str(vendor)), "descriptors").value == 0


def test_the_environment_names_the_libraries_that_were_called(tmp_path: Path, vendor: Path) -> None:
    workload = Workload.make("dense", {"data": "float32[5,7]", "weight": "float32[3,7]"})
    artefact = compile_cuda(lower(workload, TARGET, "dense_cublas.cuda"))
    runner = CudaRunner(Channel(), EmulatedDriver(tmp_path / "emulation"))
    runner.run(session_of(workload, [artefact], tmp_path))
    assert runner.toolchain() == {
        "cuda": {"driver": "emulation"}, "cublas": {"version": "13.12.11", "path": str(vendor)}
    }
    assert installed_libraries() == ["cublas", "cudnn"]


def test_a_product_alone_needs_no_compiler(tmp_path: Path) -> None:
    workload = Workload.make("dense", {"data": "float32[m,7]", "weight": "float32[3,7]"})
    artefact = compile_cuda(lower(workload, TARGET, "dense_cublas.cuda"))
    assert (artefact.cubin, artefact.source, artefact.compiler) == (b"", "", "")
    (step,) = artefact.programs["main"].steps
    assert isinstance(step, Gemm)
    assert (step.m, step.n, step.k) == (3, "m", 7)
    assert step.bind({"m": 5}).n == 5
    with pytest.raises(LimitError, match="n = 2147483648"):
        step.bind({"m": 2**31})
    artefact.save(tmp_path / "dense.json")
    assert CudaArtefact.load(tmp_path / "dense.json") == artefact
    assert artefact.export(tmp_path / "dense.cubin") == (tmp_path / "dense.json",)
    other = lower(workload, TARGET, "dense_tiled.cuda")
    assert emit(other).programs["main"].steps != artefact.programs["main"].steps


@pytest.mark.parametrize(
    ("op", "inputs", "attrs", "libs", "names"),
    [
        ("dense", ("float32[8,8]", "float32[8,8]"), {}, "cublas", {"dense_cublas.cuda"}),
        ("dense", ("float32[8,8]", "float32[8,8]"), {}, "cudnn", set()),
        ("dense", ("float32[8,8]", "float32[8,8]"), {"out_dtype": "float16"}, "cublas", set()),
        ("batch_matmul", ("int8[2,8,8]", "int8[2,8,8]"), {"out_dtype": "int32"}, "cublas", set()),
        ("conv2d", ("float32[1,4,8,8]", "float32[4,4,3,3]"), {}, "cudnn", {"conv2d_cudnn.cuda"}),
        # cuDNN pads opposite sides alike.
        ("conv2d", ("float32[1,4,8,8]", "float32[4,4,3,3]"), {"padding": [0, 0, 1, 1]}, "cudnn", set()),
        ("conv2d", ("float16[1,4,8,8]", "float16[4,4,3,3]"), {"out_dtype": "float32"}, "cudnn", set()),
        ("conv2d", ("float32[b,4,8,8]", "float32[4,4,3,3]"), {}, "cudnn", set()),
    ],
)
def test_libraries_are_offered_where_they_are_and_take_the_types(
    op: str, inputs: tuple[str, str], attrs: dict[str, object], libs: str, names: set[str]
) -> None:
    arguments = ("x", "y") if op == "batch_matmul" else ("data", "weight")
    workload = Workload.make(op, dict(zip(arguments, inputs, strict=True)), attrs)
    target = Target.parse(f"cuda -arch=sm_90 -libs={libs}")
    found = {c.implementation for c in candidates(workload, target) if c.library is not None}
    assert found == names


def test_a_window_decides_which_algorithms_there_are() -> None:
    def algorithms(weight: str, **attrs: object) -> set[str]:
        workload = Workload.make("conv2d", {"data": "float32[1,4,8,8]", "weight": weight}, attrs)
        candidate = next(c for c in candidates(workload, TARGET) if c.library == "cudnn")
        assert candidate.space is not None
        assert candidate.fallback == Config({"algorithm": "implicit_precomp_gemm"})
        return {str(c["algorithm"]) for c in candidate.space}

    every = {"implicit_gemm", "implicit_precomp_gemm", "gemm"}
    assert algorithms("float32[4,4,3,3]", strides=2) == every
    assert algorithms("float32[4,4,1,1]") == every | {"fft", "fft_tiling"}
    assert algorithms("float32[4,4,5,5]") == every | {"fft", "fft_tiling", "winograd_nonfused"}
    assert "winograd" in algorithms("float32[4,4,3,3]")


def test_a_library_that_is_missing_or_strange_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gemm = row_major_gemm(2, 2, 2, "float32", "float32", transpose_left=False, transpose_right=True)
    monkeypatch.setattr(strategy.extern, "find_library", lambda role: None)
    with pytest.raises(CudaError, match=r"this host has no library for 'cublas': .*nvidia-cublas-cu12"):
        prepare_call(gemm, 1, {}, lambda size: 0)
    strange = Library("cublas", _multiarray_umath.__file__)  # a shared library like any other
    monkeypatch.setattr(strategy.extern, "find_library", lambda role: strange)
    open_library.cache_clear()
    with pytest.raises(CudaError, match="has no routine cublasCreate_v2: install the CUDA toolkit"):
        prepare_call(gemm, 1, {}, lambda size: 0)
    text = tmp_path / "libcublas.so"
    text.write_text("no library")
    open_library.cache_clear()
    monkeypatch.setattr(strategy.extern, "find_library", lambda role: Library(role, str(text)))
    with pytest.raises(ExternError, match="cannot be loaded"):
        open_library("cublas")


def test_the_newest_of_nvidias_wheels_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("cublas/lib/libcublas.so.12", "cublas/lib/libcublasLt.so.12", "cu13/lib/libcublas.so.13"):
        path = tmp_path / "nvidia" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    monkeypatch.syspath_prepend(tmp_path)
    find_library.cache_clear()
    try:
        found = find_library("cublas")
        assert found is not None
        assert found.path == str(tmp_path / "nvidia/cu13/lib/libcublas.so.13")
    finally:
        find_library.cache_clear()


DENSE = ("dense", "-i", "data=float32[5,7]", "-i", "weight=float32[3,7]", "-I", "dense_cublas.cuda")


def test_build_and_show_say_what_is_called(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = ("-t", "cuda -arch=sm_90 -libs=cublas")
    assert run_command("build", *DENSE, *target, "-o", str(tmp_path / "dense.cubin")) == 0
    said = capsys.readouterr().out
    assert said.endswith("dense.json: the library to call, and its arguments\n")
    assert [p.name for p in tmp_path.iterdir()] == ["dense.json"]
    written = json.loads((tmp_path / "dense.json").read_text())["programs"]
    assert written["main"]["steps"][0]["type"] == "gemm"
    assert run_command("show", *DENSE, *target, "--as", "cuda") == 0
    assert json.loads(capsys.readouterr().out) == written


def test_a_bundle_carries_calls_of_libraries(tmp_path: Path) -> None:
    workload = Workload.make("dense", {"data": "float32[5,7]", "weight": "float32[3,7]"})
    candidate = next(c for c in candidates(workload, TARGET) if c.library == "cublas")
    artefact = compile_cuda(lower(workload, TARGET, "dense_cublas.cuda"))
    session = session_of(workload, [artefact], tmp_path)
    entry = JobEntry(
        index=0, task_id=0, implementation="dense_cublas.cuda", version=candidate.version,
        config=Config(),
    )
    job = msgspec.structs.replace(session.job, target=TARGET, entries=(entry,))
    part = Part(
        job=job, candidates=(candidate,), built=(Built(entry=0, code_digest=artefact.digest),),
        artefacts={"0": artefact},
    )
    bundle = unseal(seal(Bundle(parts=(part,), made_at=1.0), b"k" * 32), b"k" * 32)
    channel = Channel()
    runner = CudaRunner(channel, EmulatedDriver(tmp_path / "emulation"))

    def time_job(job: Any, built: Any, report: Any) -> dict[str, Any]:
        runner.run(Session(job=job, built=tuple(built), cores=(0,)))
        report(channel.results[0])
        return runner.toolchain()

    device = Device(identity="m/cuda:0", slot="cuda:0", model="Emulation", target=TARGET)
    (_, line) = run_bundle(bundle, time_job, device, "s", "host")
    record = json.loads(line)
    assert record.get("error") is None
    assert record["task"]["library"] == "cublas"
    assert record["environment"]["cublas"]["version"] == "13.12.11"
