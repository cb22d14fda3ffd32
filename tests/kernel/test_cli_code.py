"""`plevel build`, `show` and `measure` as users meet them: real processes, real code."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from plevel.cli.processor import check_name
from strategy.compile.processor import misnamed_processor
from strategy.extern import find_library
from strategy.op_strategy import Candidate, candidates
from strategy.select.lock import Lock
from strategy.target import Target
from strategy.workload import Workload
from tests.command import run_command
from tests.limit import HANG_S
from workers.verification import VerificationError

pytest.importorskip("tvm")

Capture = pytest.CaptureFixture[str]
SMALL = ("dense", "-i", "data=float32[24,40]", "-i", "weight=float32[56,40]:const")
ANY_M = ("dense", "-i", "data=float32[m,40]", "-i", "weight=float32[56,40]:const")
SMALL_CACHE = "-l2_bytes=4096"  # of which a panel over all of k takes more than half
ANY_K = ("dense", "-i", "data=float32[24,k]", "-i", "weight=float32[56,k]:const")


def plevel(*arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PLEVEL_")}
    clean |= {"XDG_DATA_HOME": str(home / "data"), "XDG_STATE_HOME": str(home / "state")}
    return subprocess.run(
        [sys.executable, "-m", "plevel", *arguments],
        capture_output=True, text=True, check=False, timeout=HANG_S, env=clean,
    )


def test_llvm_knows_the_names_of_all_processors_that_are_told_apart() -> None:
    """`plevel compile` does not ask LLVM for the name of this host's own."""
    from tvm.target import codegen

    from strategy import host, processor

    of_x86 = {name for models in host._X86.values() for _, name in models}
    of_x86 |= {"skylake-avx512", "sapphirerapids", "x86-64", "x86-64-v3", "x86-64-v4"}
    assert [name for name in of_x86 if not codegen.llvm_is_valid_cpu(name, "x86_64-linux-gnu")] == []
    of_arm = {*host._ARM_PARTS.values(), "generic"}
    assert [name for name in of_arm if not codegen.llvm_is_valid_cpu(name, "aarch64-linux-gnu")] == []
    assert [name for name in processor.LISTED if misnamed_processor(Target.parse(f"llvm -mcpu={name}"))] == []


@pytest.mark.parametrize("command", ["select", "tune", "lock"])
@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("-mcpu=znvr5", "LLVM knows no -mcpu=znvr5"),
        ("-mcpu=znver5 -mtriple=x86-64-linux-gnu", "LLVM knows no -mtriple=x86-64-linux-gnu"),
        ("-mcpu=neoverse-n1 -mtriple=x86_64-linux-gnu", "LLVM knows no -mcpu=neoverse-n1 of x86_64"),
    ],
)
def test_a_mistyped_processor_is_refused_before_records_are_asked_for(
    command: str, spec: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    model = tmp_path / "model.toml"
    model.write_text('[[workloads]]\nworkload = "relu(data=float32[64])"\n')
    asked = (str(model), "-o", str(tmp_path / "x.lock")) if command == "lock" else SMALL
    assert run_command(command, *asked, "--target", f"llvm {spec}") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"plevel: --target: {said}")
    assert sorted(tmp_path.iterdir()) == [model]


def test_a_processor_that_another_host_or_service_may_have_is_not_refused(capsys: Capture) -> None:
    for arch in ("tremont", "cortex-a55", "apple-m1"):  # of x86-64 and of Arm, none in plevel's own tables
        check_name(Target.parse(f"llvm -mcpu={arch}"), far=False)
    assert capsys.readouterr().err == ""
    check_name(Target.parse("llvm -mcpu=znver99"), far=True)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("plevel: --target: LLVM knows no -mcpu=znver99") and "asked for all the same" in line


def test_build_writes_a_library_that_dispatches_on_its_shapes(tmp_path: Path) -> None:
    output = tmp_path / "libdense.so"
    # Without the library, whose plevel is the highest, as its row would be everywhere.
    target = ("-t", f"llvm -num-cores=2 {SMALL_CACHE}")
    done = plevel("build", *ANY_M, *target, "-o", str(output), "--name", "layer", home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "m > 16" in done.stdout
    assert "dense_large_m.cpu (plevel; no shape on record)" in done.stdout
    header = output.with_suffix(".h").read_text()
    declared = header.split("int layer(")[1].split(")")[0].split(", ")
    assert declared[0] == "int64_t m"
    library = ctypes.CDLL(str(output))
    rng = np.random.default_rng(3)
    weight = _aligned(rng.uniform(-1, 1, (56, 40)))
    buffers = {"weight": weight}
    for line in header.splitlines():
        if "prepared once from" in line:
            name, shape = line.split()[1].rstrip(":"), line.split("[")[1].split("]")[0]
            buffers[name] = _aligned(np.zeros([int(x) for x in shape.split(",")]))
            assert library[f"layer_prepare_{name}"](_pointer(weight), _pointer(buffers[name])) == 0
    for m in (1, 5, 17, 64):
        data, result = _aligned(rng.uniform(-1, 1, (m, 40))), _aligned(np.full((m, 56), np.nan))
        known = buffers | {"data": data, "output": result}
        pointers = [_pointer(known[d.split("*")[1]]) for d in declared[1:]]
        assert library.layer(ctypes.c_int64(m), *pointers) == 0
        np.testing.assert_allclose(result, data @ weight.T, rtol=1e-4, atol=1e-4)


def _aligned(values: np.ndarray) -> np.ndarray:
    raw = np.empty(values.size + 16, np.float32)
    start = (-raw.ctypes.data % 64) // 4
    array = raw[start : start + values.size].reshape(values.shape)
    array[:] = values
    return array


def _pointer(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


@pytest.fixture
def printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """`plevel …` in this process, over a database that is not there: exit code, stdout and stderr."""
    monkeypatch.delenv("PLEVEL_URL", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))

    def call(*arguments: str) -> tuple[int, str, str]:
        return run_command(*arguments), *capsys.readouterr()

    return call


@pytest.mark.parametrize(
    ("form", "words"), [("tir", "T.prim_func"), ("llvm", "define "), ("asm", ".text")]
)
def test_show_prints_the_code(
    form: str, words: str, printed: Callable[..., tuple[int, str, str]]
) -> None:
    code, out, err = printed("show", *SMALL, "-I", "dense_pack.cpu", "--as", form)
    assert code == 0, err
    assert words in out


def test_show_of_the_selected_one_says_why(printed: Callable[..., tuple[int, str, str]]) -> None:
    code, out, err = printed("show", *SMALL, "-t", f"llvm -num-cores=2 {SMALL_CACHE}")
    assert code == 0, err
    assert out.startswith("# dense_large_m.cpu: nothing is measured")


def test_measure_times_one_configuration(
    tmp_path: Path, printed: Callable[..., tuple[int, str, str]]
) -> None:
    arguments = ("measure", *SMALL, "-I", "dense_pack.cpu", "-c", "rows=2", "--threads", "1")
    done = plevel(*arguments, "--json", home=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["error"] is None
    assert result["samples_s"]
    assert result["prepare_s"] > 0
    _, out, _ = printed(*arguments)
    assert "rows=2" in out
    assert "GFLOP/s" in out
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(("show", *SMALL, "--as", "c"), "--as 'c'", id="form"),
        pytest.param(("show", *SMALL, "-I", "nobody"), "it has: dense_nopack.cpu", id="name"),
        pytest.param(("show", *SMALL, "-c", "rows=2"), "--implementation", id="config alone"),
        pytest.param(
            ("measure", *SMALL, "-I", "dense_pack.cpu", "-c", "rows=99"), "rows=99", id="value"
        ),
        pytest.param(
            ("measure", *SMALL, "-I", "dense_pack.cpu", "-c", "colour=1"), "colour", id="knob"
        ),
        pytest.param(
            ("measure", *SMALL, "-I", "dense_pack.cpu", "-c", "rows=null"), "None cannot be", id="no value"
        ),
        pytest.param(("measure", *ANY_M, "-I", "dense_pack.cpu"), "symbolic", id="symbolic"),
        pytest.param(("build", "-o", "x.so"), "--file", id="nothing to build"),
        pytest.param(("build", "dense", "-f", "m.toml", "-o", "x"), "several workloads: leave OP out", id="two"),
        pytest.param(
            ("build", "-f", "m.toml", "-o", "x", "--name", "f"), "leave --name out", id="name of several"
        ),
        pytest.param(("build", "-f", "m.toml", "-o", __file__), "is a file: name a folder", id="a file"),
        pytest.param(("build", "--lock", "none.lock", "-o", "x"), "none.lock cannot be read", id="no lock"),
        pytest.param(("build", *SMALL, "-o", "x.so", "--name", "a b"), "--name", id="C name"),
        pytest.param(("build", *SMALL, "-o", "x.so", "--name", "int"), "--name", id="C word"),
        pytest.param(
            ("show", *SMALL, "-t", "cuda -arch=sm_10", "--as", "cuda"), "sm_60", id="architecture"
        ),
        pytest.param(("show", *ANY_K, "-I", "dense_pack.cpu"), "numbers", id="declined"),
        pytest.param(("show", *SMALL, "-t", "llvm -mcpu=znvr4"), "did you mean znver4?", id="processor"),
        pytest.param(
            ("build", *SMALL, "-t", "llvm -mcpu=cortex-a76", "-o", "x.so"), "-mcpu=cortex-a76",
            id="processor of another kind",
        ),
    ],
)
def test_wrong_usage_is_one_line(
    arguments: tuple[str, ...], words: str, printed: Callable[..., tuple[int, str, str]]
) -> None:
    code, _, said = printed(*arguments)
    assert code == 2, said
    assert len(said.splitlines()) == 1
    assert words in said


def test_a_missing_folder_is_named(
    tmp_path: Path, printed: Callable[..., tuple[int, str, str]]
) -> None:
    code, _, said = printed("build", *SMALL, "-o", str(tmp_path / "none" / "x.so"))
    assert code == 2
    assert "name a file in an existing folder" in said


def test_what_is_built_and_shown_is_told_as_json(
    tmp_path: Path, printed: Callable[..., tuple[int, str, str]]
) -> None:
    output = tmp_path / "libdense.so"
    target = ("-t", f"llvm -num-cores=1 {SMALL_CACHE}", "--json")

    def told(*arguments: str) -> dict[str, Any]:
        code, out, err = printed(*arguments)
        assert code == 0, err
        found: dict[str, Any] = json.loads(out)
        return found

    built = told("build", *SMALL, *target, "-o", str(output))
    assert built["files"] == [str(output), str(output.with_suffix(".h"))]
    assert built["implementation"] == "dense_large_m.cpu"
    assert built["because"].startswith("nothing is measured")
    shown = told("show", *SMALL, *target, "-I", "dense_pack.cpu", "-c", "rows=2")
    assert shown["config"]["rows"] == 2
    assert shown["because"] is None
    assert "T.prim_func" in shown["code"]


MODEL = """
[[workloads]]
op = "dense"
inputs = ["data=float32[24,40]", "weight=float32[56,40]:const"]

[[workloads]]
op = "dense"
inputs = ["data=float32[m,40]", "weight=float32[56,40]"]

[[workloads]]
op = "relu"
inputs = ["data=float32[3,5]"]
"""


def test_a_model_is_built_into_a_folder_with_a_manifest(
    tmp_path: Path, printed: Callable[..., tuple[int, str, str]]
) -> None:
    model, folder = tmp_path / "model.toml", tmp_path / "libs"
    model.write_text(MODEL)
    code, said, err = printed("build", "-f", str(model), "-t", "llvm -num-cores=1", "-o", str(folder))
    assert code == 0, err
    assert "manifest.json: files and functions of 3 workloads" in said
    libraries = json.loads((folder / "manifest.json").read_text())["libraries"]
    assert [one["workload"].partition("(")[0] for one in libraries] == ["dense", "dense", "relu"]
    assert {path.name for path in folder.iterdir()} == {
        "manifest.json", *(Path(path).name for one in libraries for path in one["files"])
    }
    for one in libraries:
        library, header = one["files"]
        assert f"int {one['function']}(" in Path(header).read_text()
        assert ctypes.CDLL(library)[one["function"]]
    relu = ctypes.CDLL(libraries[2]["files"][0])[libraries[2]["function"]]
    data, result = _aligned(np.linspace(-1, 1, 15).reshape(3, 5)), _aligned(np.full((3, 5), np.nan))
    assert relu(_pointer(data), _pointer(result)) == 0
    np.testing.assert_array_equal(result, np.maximum(data, 0))


@pytest.mark.full
def test_a_lock_is_built_as_it_was_written(
    tmp_path: Path, printed: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, lock, folder = tmp_path / "model.toml", tmp_path / "plevel.lock", tmp_path / "libs"
    model.write_text(MODEL.split("[[workloads]]")[1].join(("[[workloads]]", "")))
    target = ("-t", "llvm -num-cores=1")
    assert printed("lock", str(model), *target, "-o", str(lock))[0] == 0
    (entry,) = json.loads(lock.read_text())["selections"]
    # Another than would be selected now: that is what a lock is for.
    found = Lock.read(lock.read_bytes())
    other = _candidate("dense_nopack.cpu")
    named = msgspec.structs.replace(
        found.selections[0], implementation=other.implementation, version=other.version, config=other.fallback
    )
    assert entry["implementation"] != "dense_nopack.cpu"
    lock.write_text(Lock(selections=(named,)).write())
    output = tmp_path / "libdense.so"
    monkeypatch.setenv("PLEVEL_DATABASE", str(tmp_path / "none.db"))  # a lock needs none
    for arguments in (
        ("build", *SMALL, *target, "--lock", str(lock), "-o", str(output)),
        ("build", "--lock", str(lock), "-o", str(folder)),
        ("build", "-f", str(model), *target, "--lock", str(lock), "-o", str(folder)),
    ):
        code, out, err = printed(*arguments, "--json")
        assert code == 0, err
        told = json.loads(out)
        (built,) = told.get("libraries", [told])
        assert built["implementation"] == "dense_nopack.cpu"
        assert all(Path(path).exists() for path in built["files"])
    code, _, err = printed("build", *ANY_M, *target, "--lock", str(lock), "-o", str(output))
    assert (code, "is not in the lock" in err) == (1, True), err
    for flags in (target, ("--threads", "1"), ("--database", "a.db"), ("--url", "http://farm"), ("-c", "rows=2")):
        code, _, err = printed("build", "--lock", str(lock), *flags, "-o", str(folder))
        assert (code, "--lock names " in err, len(err.splitlines())) == (2, True, 1), err
    lock.write_text(Lock(selections=(msgspec.structs.replace(named, version="0.0"),)).write())
    code, _, err = printed("build", "--lock", str(lock), "-o", str(folder))
    assert (code, "the lock has 0.0" in err and "plevel lock" in err) == (1, True), err
    assert not (folder / "manifest.json").exists()


def test_a_locked_selection_of_open_sizes_is_built_as_it_was_written(
    tmp_path: Path, printed: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, lock, folder = tmp_path / "model.toml", tmp_path / "plevel.lock", tmp_path / "libs"
    model.write_text("[[workloads]]".join(("", MODEL.split("[[workloads]]")[2])))
    assert printed("lock", str(model), "-t", "llvm -num-cores=1", "-o", str(lock))[0] == 0
    monkeypatch.setenv("PLEVEL_DATABASE", str(tmp_path / "none.db"))
    code, _, err = printed("build", "--lock", str(lock), "-o", str(folder))
    assert code == 0, err
    (built,) = json.loads((folder / "manifest.json").read_text())["libraries"]
    (entry,) = json.loads(lock.read_text())["selections"]
    assert (built["implementation"], built["config"]) == (entry["implementation"], entry["config"])


def _candidate(name: str) -> Candidate:
    workload = Workload.make(
        "dense", {"data": "float32[24,40]", "weight": "float32[56,40]"}, constants=["weight"]
    )
    offered = candidates(workload, Target.parse("llvm -num-cores=1"))
    return next(c for c in offered if c.implementation == name)


@pytest.mark.full
@pytest.mark.parametrize("bundle", [True, False])
def test_build_says_what_to_ship(
    tmp_path: Path, bundle: bool, printed: Callable[..., tuple[int, str, str]]
) -> None:
    if find_library("cblas") is None:
        pytest.skip("no OpenBLAS on this host")
    output = tmp_path / "libdense.so"
    options = ["--bundle-libs"] if bundle else []
    named = ("-I", "dense_cblas.cpu", "-o", str(output), *options)
    done = plevel("build", *SMALL, *named, "--json", home=tmp_path)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    if bundle:
        assert answer["needs"] == []
        copy = Path(answer["files"][2])
        assert copy.parent == tmp_path and copy.exists()
    else:
        (needed,) = answer["needs"]
        assert Path(needed).exists() and len(answer["files"]) == 2
        _, said, _ = printed("build", *SMALL, *named)
        assert f"needs      {needed}" in said and "--bundle-libs" in said


@pytest.mark.full
def test_build_verifies_what_it_has_built(tmp_path: Path) -> None:
    output = ("-t", "llvm -num-cores=2", "-o", str(tmp_path / "libdense.so"), "--verify")
    done = plevel("build", *ANY_M, *output, home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "agrees with NumPy, within its buffers, at 10 sizes" in done.stdout


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (VerificationError("it writes outside of output"), 1, "--verify: it writes outside of output"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_build_keeps_no_library_that_must_not_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    error: BaseException, code: int, said: str,
) -> None:
    def refuse(*arguments: Any) -> int:
        raise error

    monkeypatch.setattr("workers.verification.verify", refuse)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    output = tmp_path / "libdense.so"
    named = ("-I", "dense_nopack.cpu", "-t", "llvm -num-cores=2", "-o", str(output), "--verify")
    assert run_command("build", *SMALL, *named) == code
    assert said in capsys.readouterr().err
    assert not output.exists() and not output.with_suffix(".h").exists()


@pytest.mark.full
def test_build_bundles_nothing_into_a_cubin(tmp_path: Path) -> None:
    target = ("-t", "cuda -arch=sm_90", "-o", str(tmp_path / "dense.cubin"), "--bundle-libs")
    done = plevel("build", *SMALL, *target, home=tmp_path)
    assert done.returncode == 2
    assert "--bundle-libs: a cubin calls no library" in done.stderr
