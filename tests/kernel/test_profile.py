"""`plevel profile`: the times of the steps of a compiled model."""

from __future__ import annotations

import ctypes
import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
onnx = pytest.importorskip("onnx", reason="the onnx extra is not installed")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from tests.command import run_command  # noqa: E402

pytestmark = pytest.mark.usefixtures("builds")
SAMPLE = Path(__file__).parents[1] / "data" / "model.onnx"  # of make_onnx.py


@pytest.fixture
def sample(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    out = tmp_path / "model.so"
    assert run_command("compile", SAMPLE, "-o", out, "--dim", "batch=2", "--threads", "2", "--no-verify") == 0
    capsys.readouterr()
    return out


def test_each_step_has_its_time(sample: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("profile", sample, "--seconds", "0.1", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    manifest = json.loads(sample.with_suffix(".json").read_text())
    assert [s["workload"] for s in found["steps"]] == [s.get("workload") for s in manifest["steps"]]
    assert all(s["median_s"] > 0 for s in found["steps"])
    assert found["call"]["samples"] >= 7
    products = [s for s in found["steps"] if s["workload"].startswith("dense(data=float32[32,32],weight=float32[32,")]
    assert [s["flops"] > 2 * 32**3 - 1 for s in products] == [True] * 4


def test_steps_of_a_workload_are_together(sample: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = json.loads(sample.with_suffix(".json").read_text())
    assert run_command("profile", sample, "--seconds", "0.1") == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line for line in lines if "(data=" in line or "(x=" in line]
    counts = [int(line.split()[0]) for line in rows]
    assert sum(counts) == len(manifest["steps"])
    assert len(rows) == len({s["workload"] for s in manifest["steps"]})
    assert lines[-1] == (
        "100 % of the time is in kernels that no measurement chose: plevel extract the model, plevel tune -f its file, "
        "and compile again"
    )
    assert run_command("profile", sample, "--seconds", "0.1", "--steps") == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if "(data=" in line or "(x=" in line]
    assert len(rows) == len(manifest["steps"])


def test_the_time_is_in_the_step_that_takes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A large product after one of a hundredth of its operations."""
    shapes = {"a": (8, 512), "b": (512, 512)}
    weights = [numpy_helper.from_array(np.ones(shape, np.float32), name) for name, shape in shapes.items()]
    nodes = [helper.make_node("MatMul", ["x", "a"], ["y"]), helper.make_node("MatMul", ["y", "b"], ["z"])]
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [256, e]) for n, e in (("x", 8), ("z", 512))]
    graph = helper.make_graph(nodes, "two", ports[:1], ports[1:], weights)
    path, out = tmp_path / "two.onnx", tmp_path / "two.so"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    assert run_command("compile", path, "-o", out, "--threads", "1", "--no-verify") == 0
    capsys.readouterr()
    assert run_command("profile", out, "--seconds", "0.1", "--json") == 0
    small, large = json.loads(capsys.readouterr().out)["steps"]
    assert small["median_s"] < large["median_s"]


def test_symbolic_sizes_are_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["rows", e]) for n, e in (("x", 4), ("y", 8))]
    graph = helper.make_graph([helper.make_node("Concat", ["x", "x"], ["y"], axis=1)], "pair", ports[:1], ports[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "p.onnx")
    out = tmp_path / "p.so"
    assert run_command("compile", tmp_path / "p.onnx", "-o", out, "--threads", "1", "--no-verify") == 0
    assert run_command("profile", out, "--seconds", "0.1", "--dim", "n=3", "--json") == 0
    manifest = json.loads(out.with_suffix(".json").read_text())
    manifest["sizes"]["n"]["high"] = 8
    out.with_suffix(".json").write_text(json.dumps(manifest))
    refused = {
        (): "it takes symbolic sizes: give --dim n=… from 1 to 8",
        ("--dim", "n=0"): "--dim 'n=0': write it as batch=1",
        ("--dim", "n=9"): "--dim n=9: give a size from 1 to 8",
        ("--dim", "n=2", "--dim", "columns=2"): "--dim columns: its symbolic sizes are n",
        ("--dim", "n=2*m"): "--dim n: give a number, as in --dim n=8",
    }
    for options, said in refused.items():
        capsys.readouterr()
        assert run_command("profile", out, *options) == 2
        assert said in capsys.readouterr().err


def test_what_is_no_library_is_refused(tmp_path: Path, sample: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest, about = sample.with_suffix(".json"), json.loads(sample.with_suffix(".json").read_text())

    def refused(code: int, path: Path = sample, changed: Any = None) -> str:
        if changed is not None:
            manifest.write_text(changed)
        capsys.readouterr()
        assert run_command("profile", path, "--seconds", "0.1") == code
        return capsys.readouterr().err

    assert "there is no such file: name a library of plevel compile" in refused(2, tmp_path / "none.so")
    assert "it is not the library of model.json" in refused(1, changed=json.dumps(about | {"function": "f"}))
    assert "model.json beside it is no manifest of plevel compile" in refused(2, changed="{")
    manifest.unlink()
    assert "it has no manifest model.json beside it" in refused(2)


def test_a_library_that_fails_says_why(sample: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A library of the same function that answers as one for another processor does."""
    manifest = json.loads(sample.with_suffix(".json").read_text())
    source = sample.with_name("other.c")
    name = manifest["function"]
    source.write_text(f"int {name}(void) {{ return -3; }} void {name}_trace(void *f) {{ (void)f; }}")
    sample.unlink()
    subprocess.run(["cc", "-shared", "-fPIC", "-o", sample, source], check=True)
    assert ctypes.CDLL(str(sample))[name]() == -3
    assert run_command("profile", sample, "--seconds", "0.1") == 1
    assert "model.so: this processor lacks instructions that it was compiled for" in capsys.readouterr().err
