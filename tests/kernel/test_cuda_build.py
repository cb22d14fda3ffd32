"""From a scheduled function to a cubin: plans, limits, compilers, and what cubins say."""

from __future__ import annotations

import errno
import json
import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tvm")

from strategy.compile.cuda import compile_cuda, emit
from strategy.compile.lower import lower
from strategy.cuda.compiler import Compiled, Compiler, compile_cached, find_nvcc, find_nvrtc
from strategy.cuda.cubin import CubinError, read_usage
from strategy.cuda.limit import DeviceLimits, LimitError, limits_of, require_arch
from strategy.cuda.program import Launch, Pointer, Scalar, check_launch
from strategy.cuda.source import PlanError, emit_cuda
from strategy.fault import CompileError
from strategy.op_strategy import candidates
from strategy.record import ErrorKind, JobEntry
from strategy.space import Config
from strategy.target import Target, TargetError
from strategy.workload import Workload
from tests.command import run_command
from tests.kernel.test_cuda_ops import PLAIN, TUNABLE
from workers.builder import Build, build

SM_90 = Target.parse("cuda -arch=sm_90")
DENSE = Workload.make("dense", {"data": "float32[64,64]", "weight": "float32[64,64]"})
COMPILERS = [c for c in (find_nvcc(), find_nvrtc()) if c is not None]
compiled = pytest.mark.skipif(not COMPILERS, reason="no CUDA compiler on this host")


# Targets and limits


@pytest.mark.parametrize(
    ("spec", "shared", "dtypes"),
    [
        ("cuda -arch=sm_70", 98304, ("float16",)),
        ("cuda -arch=sm_80", 166912, ("float16", "bfloat16")),
        ("cuda -arch=sm_90a", 232448, ("float16", "bfloat16")),
        ("cuda -arch=sm_103", 232448, ("float16", "bfloat16")),  # the next older one of the table
        (
            {"kind": "cuda", "arch": "sm_80", "max_shared_memory_per_block": 1000},
            1000,
            ("float16", "bfloat16"),
        ),
        ("cuda", 49152, ()),
    ],
)
def test_limits_of_a_target(spec: Any, shared: int, dtypes: tuple[str, ...]) -> None:
    limits = limits_of(Target.parse(spec))
    assert limits.shared_bytes == shared
    assert limits.tensor_cores == dtypes


@pytest.mark.parametrize("arch", ["", "gfx90a", "sm_35", "sm_9", "90"])
def test_code_needs_an_architecture_that_is_known(arch: str) -> None:
    target = Target.parse({"kind": "cuda", "arch": arch})
    assert limits_of(target) == limits_of(Target.parse("cuda -arch=sm_60"))  # a strategy does not
    with pytest.raises(TargetError, match="write cuda -arch=sm_90"):
        require_arch(target)


@pytest.mark.parametrize(
    ("grid", "block", "static", "dynamic", "words"),
    [
        ((1, 1, 1), (1024, 2, 1), 0, 0, "2048 threads"),
        ((1, 1, 1), (1, 1, 128), 0, 0, "128 threads along z"),
        ((1, 65536, 1), (32, 1, 1), 0, 0, "65536 blocks along y"),
        ((0, 1, 1), (32, 1, 1), 0, 0, "0 blocks along x"),
        ((1, 1, 1), (32, 1, 1), 49153, 0, "static shared memory"),
        ((1, 1, 1), (32, 1, 1), 1000, 232000, "233000 bytes of shared memory"),
    ],
)
def test_a_launch_beyond_the_limits_is_refused(
    grid: Any, block: Any, static: int, dynamic: int, words: str
) -> None:
    limits = limits_of(SM_90)
    check_launch(Launch("k", (), ("m", 1, 1), (1024, 1, 1), 200_000), 0, limits)
    with pytest.raises(LimitError, match=words):
        check_launch(Launch("k", (), grid, block, dynamic), static, limits)


def test_a_symbolic_grid_is_checked_when_it_is_known() -> None:
    launch = Launch("k", (Scalar("int64", "m"),), (1, ["//", ["+", "m", 15], 16], 1), (32, 1, 1))
    assert launch.bind({"m": 33}) == Launch("k", (Scalar("int64", 33),), (1, 3, 1), (32, 1, 1))
    with pytest.raises(LimitError, match="blocks along y"):
        launch.bind({"m": 2_000_000})


def test_what_a_device_cannot_do_is_refused_before_anything_is_compiled() -> None:
    small = Target.parse({"kind": "cuda", "arch": "sm_90", "max_shared_memory_per_block": 4096})
    config = {
        "block_m": 128, "block_n": 128, "block_k": 32, "thread_m": 8, "thread_n": 8,
        "vector": 4, "stages": 2, "split_k": 1,
    }
    wide = Workload.make("dense", {"data": "float32[512,64]", "weight": "float32[512,64]"})
    space = next(c.space for c in candidates(wide, SM_90) if c.implementation == "dense_tiled.cuda")
    assert space is not None
    assert space.contains(config)
    found = next(c.space for c in candidates(wide, small) if c.implementation == "dense_tiled.cuda")
    assert found is not None
    assert not found.contains(config)
    lowered = lower(wide, SM_90, "dense_tiled.cuda", config)
    with pytest.raises(LimitError, match="bytes of shared memory"):
        emit_cuda(lowered.module, small, {"main": ("data", "weight", "output")})


# Plans


def _module(*, host: bool) -> Any:
    """A function of two stages whose first runs on the host, or that has nothing else."""
    import tvm
    from tvm import s_tir, te

    x = te.placeholder((64,), "float32", name="x")
    y = te.compute((64,), lambda i: x[i] + 1, name="y")
    z = te.compute((64,), lambda i: y[i] * 2, name="z")
    sch = s_tir.Schedule(te.create_prim_func([x, z]))
    for name in ("z",) if host else ():
        sch.bind(sch.get_loops(sch.get_sblock(name))[0], "threadIdx.x")
    return tvm.IRModule({"main": sch.mod["main"].with_attr("global_symbol", "main")})


@pytest.mark.parametrize("scope", ["global", "local"])
def test_threads_that_would_add_to_one_element_are_refused(scope: str) -> None:
    import tvm
    from tvm import s_tir, te

    x = te.placeholder((1000,), "float32", name="x")
    k = te.reduce_axis((0, 1000), name="k")
    sch = s_tir.Schedule(te.create_prim_func([x, te.compute((1,), lambda _: te.sum(x[k], axis=k), name="y")]))
    # 63 terms for each part, and fewer for the last: TVM keeps the sum of a part as it is.
    part, _ = sch.split(sch.get_loops(sch.get_sblock("y"))[-1], [16, None])
    parts = sch.rfactor(part, 0)
    sch.set_scope(parts, 0, scope)
    sch.bind(sch.get_loops(parts)[-1], "threadIdx.x")
    module = tvm.IRModule({"main": sch.mod["main"].with_attr("global_symbol", "main")})
    with pytest.raises(CompileError, match=r"threads would add to one element of y.*rf"):
        emit_cuda(module, Target.parse("cuda -arch=sm_90"), {"main": ("x", "y")})


@pytest.mark.parametrize("host", [True, False])
def test_a_function_that_computes_on_the_host_is_refused(host: bool) -> None:
    with pytest.raises(PlanError, match="not a launch|bind its loops|own memory"):
        emit_cuda(_module(host=host), SM_90, {"main": ("x", "z")})


def test_a_plan_says_what_the_source_does() -> None:
    source = emit(lower(DENSE, SM_90, "dense_gemv.cuda"))
    (launch,) = source.programs["main"].launches
    assert f"__launch_bounds__({launch.block[0] * launch.block[1]}) {launch.kernel}(" in source.code
    declared = source.code.split(f" {launch.kernel}(")[1].split(")")[0].split(",")
    named = [d.split()[-1].removesuffix("_ptr") for d in declared]
    given = [a.buffer for a in launch.arguments if isinstance(a, Pointer)]
    assert [n.replace("dense", "output") for n in named] == given


# Cubins


@compiled
@pytest.mark.parametrize("compiler", COMPILERS, ids=lambda c: type(c).__name__)
def test_a_cubin_says_what_its_kernels_take(compiler: Compiler, tmp_path: Path) -> None:
    lowered = lower(DENSE, SM_90, "dense_tiled.cuda")
    artefact = compile_cuda(lowered, compiler, tmp_path)
    (launch,) = artefact.programs["main"].launches
    usage = artefact.usage[launch.kernel]
    assert 16 <= usage.registers <= 255
    assert usage.parameters == len(launch.arguments) == 3
    assert usage.stack_bytes == 0
    assert artefact.cubin.startswith(b"\x7fELF")
    assert artefact.compiler.split()[0] in ("nvcc", "nvrtc")
    # The second time it is read from the cache.
    again = compile_cached(artefact.source, artefact.arch, _Unavailable(compiler.identity), tmp_path)
    assert again.cubin == artefact.cubin


class _Unavailable(Compiler):
    def __init__(self, identity: str) -> None:
        self._identity = identity

    @property
    def identity(self) -> str:
        return self._identity

    def compile(self, code: str, arch: str) -> Any:
        raise CompileError("asked to compile what is in the cache")


@compiled
@pytest.mark.parametrize("compiler", COMPILERS, ids=lambda c: type(c).__name__)
def test_a_compiler_says_what_is_wrong(compiler: Compiler) -> None:
    with pytest.raises(CompileError, match="sm_80.*undefined"):
        compiler.compile('extern "C" __global__ void f() { missing(); }', "sm_80")


class Known(_Unavailable):
    """A compiler that does not need to be there."""

    def compile(self, code: str, arch: str) -> Compiled:
        return Compiled(code.encode(), {})


def test_a_cache_on_a_disk_that_is_read_only_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: Any, **options: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    for name in ("mkdir", "write_bytes", "unlink"):
        monkeypatch.setattr(Path, name, refuse)
    assert compile_cached("first", "sm_80", Known("one"), tmp_path).cubin == b"first"


def test_a_cache_of_rubbish_is_made_anew(tmp_path: Path) -> None:
    compile_cached("first", "sm_80", Known("one"), tmp_path)
    (kept,) = tmp_path.iterdir()
    kept.write_bytes(b"half")
    assert compile_cached("first", "sm_80", Known("one"), tmp_path) == Compiled(b"first", {})
    assert compile_cached("first", "sm_80", _Unavailable("one"), tmp_path).cubin == b"first"


@pytest.mark.parametrize("data", [b"", b"PTX", b"\x7fELF\x02", b"\x7fELF\x02" + bytes(200)])
def test_what_is_no_cubin_is_refused(data: bytes) -> None:
    with pytest.raises(CubinError, match="not a cubin"):
        read_usage(data)


@compiled
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize(("workload", "names"), TUNABLE, ids=lambda v: getattr(v, "op", ""))
@pytest.mark.full
def test_sampled_configurations_compile(
    workload: Workload, names: set[str], arch: str, tmp_path: Path
) -> None:
    target = Target.parse(f"cuda -arch={arch}")
    rng = random.Random(5)
    for candidate in candidates(workload, target):
        if candidate.implementation not in names or candidate.space is None:
            continue
        for config in candidate.space.sample(rng, 4):
            artefact = compile_cuda(
                lower(workload, target, candidate.implementation, config), folder=tmp_path
            )
            limits: DeviceLimits = limits_of(target)
            for launch in artefact.programs["main"].launches:
                x, y, z = launch.block
                assert artefact.usage[launch.kernel].registers * x * y * z <= limits.registers


@compiled
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("workload", PLAIN, ids=lambda w: w.op)
@pytest.mark.full
def test_what_is_not_tuned_compiles(workload: Workload, arch: str, tmp_path: Path) -> None:
    target = Target.parse(f"cuda -arch={arch}")
    for candidate in candidates(workload, target):
        offered = candidate.condition is None or candidate.condition.decide()
        if offered and candidate.space is None:
            artefact = compile_cuda(lower(workload, target, candidate.implementation), folder=tmp_path)
            assert {n.kernel for n in artefact.programs["main"].launches} <= artefact.usage.keys()


@pytest.mark.full
@compiled
@pytest.mark.parametrize(
    ("op", "implementation"),
    [
        ("dense", "dense_tensor_core.cuda"),
        pytest.param("dense", "dense_mma.cuda", marks=pytest.mark.full),
        ("dense", "dense_wgmma.cuda"),
        ("attention", "attention_wgmma.cuda"),
        pytest.param("cumsum", "cumsum_parts.cuda", marks=pytest.mark.full),
        pytest.param("topk", "topk_sort.cuda", marks=pytest.mark.full),
    ],
)
def test_tensor_cores_and_templates_compile(op: str, implementation: str, tmp_path: Path) -> None:
    workload = {
        "dense": Workload.make("dense", {"data": "bfloat16[64,64]", "weight": "bfloat16[64,64]"}),
        "attention": Workload.make(
            "attention", dict.fromkeys(("query", "key", "value"), "bfloat16[1,32,2048,128]"), {"is_causal": True}
        ),
        "cumsum": Workload.make("cumsum", {"data": "float16[4000]"}),
        "topk": Workload.make("topk", {"data": "float16[4,400]"}, {"k": 3}),
    }[op]
    artefact = compile_cuda(lower(workload, SM_90, implementation), folder=tmp_path)
    assert artefact.arch == "sm_90a"  # which runs wherever sm_90 does, and has all instructions
    assert {n.kernel for n in artefact.programs["main"].launches} <= artefact.usage.keys()
    # No array is in local memory, which takes the place of registers there.
    assert not any(usage.stack_bytes or usage.spill_bytes for usage in artefact.usage.values())


SOFTMAX = (
    "softmax",
    "-i",
    "data=float32[4,64]",
    "-I",
    "softmax_rows.cuda",
    "-t",
    "cuda -arch=sm_80",
)


@compiled
def test_build_writes_a_cubin_with_its_source_and_launches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    cubin = tmp_path / "softmax.cubin"
    chosen = ("-c", "threads=64", "-c", "vector=1", "-c", "rows=1")
    assert run_command("build", *SOFTMAX, *chosen, "-o", str(cubin)) == 0
    assert "main_kernel: " in capsys.readouterr().out
    assert "main_kernel" in read_usage(cubin.read_bytes())
    plan = json.loads(cubin.with_suffix(".json").read_text())
    assert plan["programs"]["main"]["steps"][0]["block"] == [64, 1, 1]
    assert plan["arch"] == "sm_80"
    assert "main_kernel(" in cubin.with_suffix(".cu").read_text()


def test_show_prints_cuda(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("show", *SOFTMAX, "--as", "cuda") == 0
    assert "__global__ void" in capsys.readouterr().out
    assert run_command("show", *SOFTMAX, "--as", "llvm") == 2
    assert "not available for" in capsys.readouterr().err


def test_build_for_cuda_says_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = ("-o", str(tmp_path / "x.cubin"))
    dense = (
        "dense",
        "-i",
        "data=float32[m,64]",
        "-i",
        "weight=float32[64,64]",
        "-t",
        "cuda -arch=sm_80",
    )
    assert run_command("build", *dense, *output) == 2
    assert "name one --implementation" in capsys.readouterr().err
    assert run_command("build", *SOFTMAX[:-1], "cuda", *output) == 2
    assert "write cuda -arch=sm_90" in capsys.readouterr().err


@compiled
def test_a_builder_builds_for_a_device_that_is_not_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    candidate = next(c for c in candidates(DENSE, SM_90) if c.implementation == "dense_tiled.cuda")
    assert candidate.space is not None
    configs = [candidate.fallback, Config({**candidate.fallback, "block_k": 7})]
    entries = tuple(
        JobEntry(
            index=i, task_id=0, implementation="dense_tiled.cuda", version=candidate.version,
            config=config,
        )
        for i, config in enumerate(configs)
    )
    good, bad = (
        build(Build(workload=DENSE, target=SM_90, entry=e, path=str(tmp_path / f"{e.index}.json")))
        for e in entries
    )
    assert (good.error, bad.error) == (None, ErrorKind.INVALID), good.message
    assert len(good.code_digest) == 64
    assert Path(good.path).exists()
