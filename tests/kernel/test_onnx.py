"""ONNX models: their workloads, their library beside ONNX's own reference, and files that are broken."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
onnx = pytest.importorskip("onnx", reason="the onnx extra is not installed")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from plevel.cli.main import main  # noqa: E402
from plevel.cli.model_file import read_model  # noqa: E402
from plevel.comparison import ComparisonError  # noqa: E402
from plevel.onnx.file import read_model as read_onnx  # noqa: E402
from plevel.onnx.network import _expanded as expanded  # noqa: E402
from plevel.onnx.network import import_model, import_symbolic  # noqa: E402
from strategy.expr import Constant  # noqa: E402
from strategy.network.graph import NetworkError  # noqa: E402
from strategy.network.probe import PROBES  # noqa: E402
from strategy.reference import evaluate  # noqa: E402

pytestmark = pytest.mark.usefixtures("builds")
SAMPLE = Path(__file__).parents[1] / "data" / "model.onnx"  # of make_onnx.py


def call(*arguments: object) -> int:
    with pytest.raises(SystemExit) as done:
        main([str(a) for a in arguments])
    return int(done.value.code or 0)


def test_workloads_are_named_as_those_of_a_pytorch_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "model.toml"
    assert call("extract", SAMPLE, "-o", out, "--dim", "batch=2", "--json") == 0
    assert json.loads(capsys.readouterr().out)["covered"] == 1
    product, bias = "dense(data=float32[32,32],weight=float32[32,32]:const)", "bias_add0.bias=float32[{}]:const)"
    workloads = read_model(out).workloads
    others = {"max_pool2d", "mean", "softmax", "transpose"}
    assert {w.workload.op for w in workloads[-6:]} == others
    assert {w.workload.key: w.weight for w in workloads if w.workload.op not in others} == {
        'conv2d(data=float32[2,3,16,16],weight=float32[32,3,3,3]:const){"padding":[1,1,1,1],"strides":[2,2]}'
        f"+bias_add(.,{bias.format(32)}+relu(.)": 1,
        f"{product}+bias_add(.,{bias.format(32)}": 3,
        f"{product}+bias_add(.,{bias.format(32)}+add(.,add1.rhs=float32[32,32])": 1,
        f"dense(data=float32[32,32],weight=float32[64,32]:const)+bias_add(.,{bias.format(64)}+gelu(.)": 1,
        f"dense(data=float32[32,64],weight=float32[32,64]:const)+bias_add(.,{bias.format(32)}"
        "+add(.,add1.rhs=float32[32,32])": 1,
        "batch_matmul(x=float32[4,16,16],y=float32[4,16,16])+multiply(.,multiply0.rhs=float32[]:const)": 1,
        'batch_matmul(x=float32[4,16,16],y=float32[4,16,16]){"transpose_b":false}': 1,
        f"dense(data=float32[2,32],weight=float32[5,32]:const)+bias_add(.,{bias.format(5)}": 1,
    }


def test_its_library_gives_the_values_of_onnx_runtime(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    monkeypatch.setattr("onnx.reference.ReferenceEvaluator", None)  # the other branch
    assert call("compile", SAMPLE, "-o", tmp_path / "model.so", "--dim", "batch=2", "--verify", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verified"]["error"] < 1e-5
    assert found["verified"]["values"] >= 15


@pytest.mark.sample(1)
@pytest.mark.parametrize("error", [ComparisonError("y differs"), KeyboardInterrupt()], ids=["other", "interrupted"])
def test_a_library_that_was_not_verified_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def end(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("plevel.cli.deploy._verify", end)
    assert call("compile", SAMPLE, "-o", tmp_path / "model.so", "--dim", "batch=2", "--verify") != 0
    assert not list(tmp_path.glob("model*"))


@pytest.mark.parametrize(
    ("fails", "said"),
    [(False, "an output differs by .* is kept; install onnxruntime"), (True, "its reference fails: .* is kept, not")],
    ids=["wrong", "fails"],
)
def test_a_reference_that_may_be_wrong_removes_no_library(
    fails: bool, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX's own reference sums the squares of LRN for the first channels only."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 2, 2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 2, 2])
    node = helper.make_node("LRN", ["x"], ["y"], size=3, alpha=9.0)
    graph = helper.make_graph([node], "norm", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, tmp_path / "norm.onnx")
    monkeypatch.setattr("importlib.util.find_spec", lambda name, find=importlib.util.find_spec: (
        None if name == "onnxruntime" else find(name)
    ))
    if fails:
        monkeypatch.setattr("onnx.reference.ReferenceEvaluator.run", None)
    assert call("compile", tmp_path / "norm.onnx", "-o", tmp_path / "norm.so", "--threads", "1", "--verify") == 1
    assert re.search(said, capsys.readouterr().err)
    assert (tmp_path / "norm.so").exists()
    assert (tmp_path / "norm.json").exists()


def test_its_library_gives_the_values_of_the_reference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "model.so"
    assert call("compile", SAMPLE, "-o", out, "--dim", "batch=2", "--threads", "2", "--verify", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verified"]["error"] < 1e-5
    assert found["verified"]["values"] >= 15
    manifest = json.loads(out.with_suffix(".json").read_text())
    assert manifest["inputs"] == [{"name": "picture", "dtype": "float32", "shape": [2, 3, 16, 16]}]


def test_a_library_takes_every_size_that_has_a_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows that are numbered, a mask that is filled, and scores of n by n."""
    nodes = [
        helper.make_node("Shape", ["x"], ["sizes"]), helper.make_node("Gather", ["sizes", "one"], ["rows"]),
        helper.make_node("Range", ["zero", "rows", "one"], ["places"]),
        helper.make_node("Cast", ["places"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["numbers", "ones"], ["column"]),
        helper.make_node("Add", ["x", "column"], ["numbered"]),
        helper.make_node("Transpose", ["x"], ["turned"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["numbered", "turned"], ["scores"]),
        helper.make_node("Shape", ["scores"], ["shape"]), helper.make_node("ConstantOfShape", ["shape"], ["zeros"]),
        helper.make_node("Sub", ["zeros", "scores"], ["less"]), helper.make_node("Softmax", ["less"], ["y"]),
    ]
    weights = [numpy_helper.from_array(np.array(v), n) for n, v in (("zero", 0), ("one", 1), ("ones", [1]))]
    graph = helper.make_graph(
        nodes, "scores", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "rows", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "rows", "rows"])], weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path, out = tmp_path / "scores.onnx", tmp_path / "scores.so"
    path.write_bytes(model.SerializeToString())
    assert call("compile", path, "-o", out, "--threads", "2", "--verify") == 0
    assert "agree at sizes 1×8, 3×64, 8×1, 64×3 within" in capsys.readouterr().out
    manifest = json.loads(out.with_suffix(".json").read_text())
    assert [o["shape"] for o in manifest["outputs"]] == [["n", "m", "m"]]


def test_strides_leave_quotients_of_the_sizes_of_a_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    random = np.random.default_rng(0)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], strides=[2, 2], pads=[1] * 4),
        helper.make_node("MaxPool", ["a"], ["y"], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4),
    ]
    weight = numpy_helper.from_array(random.standard_normal((8, 3, 3, 3)).astype("float32"), "w")
    picture = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, "height", "width"])
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 8, "down", "across"])
    graph = helper.make_graph(nodes, "strided", [picture], [made], [weight])
    path, out = tmp_path / "strided.onnx", tmp_path / "strided.so"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    compiled = ("compile", path, "-o", out, "--threads", "2", "--dim", "batch=1")
    assert call(*compiled, "--verify") == 0
    assert "agree at sizes 1×3, 2×8, 3×38, 8×64, 38×1, 64×2 within" in capsys.readouterr().out
    manifest = json.loads(out.with_suffix(".json").read_text())
    assert manifest["outputs"][0]["shape"] == [1, 8, "(n + 3)//4", "(m + 3)//4"]
    assert call(*compiled, "--dim", "height=4*side", "--dim", "width=8*side", "--verify") == 0
    assert "agree at sizes 1, 3, 8, 64 within" in capsys.readouterr().out
    manifest = json.loads(out.with_suffix(".json").read_text())
    assert manifest["inputs"][0]["shape"] == [1, 3, "4*n", "8*n"]
    assert manifest["outputs"][0]["shape"] == [1, 8, "n", "2*n"]
    for size in ("4*", "*side", "0*side", "-2*side", "4*1", "4*a*b", "a+", "1+2", "a-1", "a+0", "2**a", ""):
        assert call(*compiled, "--dim", f"height={size}") == 2
        assert "write it as batch=1, as height=32*h for any multiple of 32, or as all=past" in capsys.readouterr().err
    # Workloads are of fixed sizes.
    assert call("extract", path, "-o", tmp_path / "m.toml", "--dim", "height=4*side") == 2
    assert "an input has the symbolic size 'batch'" in capsys.readouterr().err


def test_workloads_are_of_a_multiple_whose_size_is_given_as_a_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weight = numpy_helper.from_array(np.ones((8, 3, 3, 3), "float32"), "w")
    picture = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, "height", "width"])
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 8, "down", "across"])
    node = helper.make_node("Conv", ["x", "w"], ["y"], strides=[2, 2], pads=[1] * 4)
    graph = helper.make_graph([node], "strided", [picture], [made], [weight])
    path = tmp_path / "strided.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    extracted = ("extract", path, "-o", tmp_path / "m.toml", "--dim", "batch=1", "--dim", "width=32")
    assert call(*extracted, "--dim", "height=4*side") == 2
    said = capsys.readouterr().err
    assert "an input's size 'height' is 4*side: give it a number, such as --dim height=28" in said
    assert call(*extracted, "--dim", "height=28") == 0
    of_number = (tmp_path / "m.toml").read_text()
    assert "float32[1,3,28,32]" in of_number
    assert call(*extracted, "--dim", "height=4*side", "--dim", "side=7") == 0
    assert (tmp_path / "m.toml").read_text() == of_number
    assert call(*extracted, "--dim", "height=2*side", "--dim", "side=2*part", "--dim", "part=7") == 0
    assert (tmp_path / "m.toml").read_text() == of_number
    assert call(*extracted, "--dim", "height=2*side", "--dim", "side=2*height") == 2
    assert "--dim height, side: given by each other" in capsys.readouterr().err
    assert call(*extracted, "--dim", "height=28", "--dim", "side=7") == 2
    assert "--dim side: no input has such a symbolic size" in capsys.readouterr().err


def test_names_of_sizes_may_be_sums(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As PyTorch and Optimum name the axes of caches, and pictures of multiples."""
    shapes = {"x": ["past_tokens + tokens", 4], "past": ["past_tokens", 4], "new": ["tokens", 4], "z": ["2*s0 + 1", 4]}
    graph = helper.make_graph(
        [
            helper.make_node("Concat", ["past", "new"], ["joined"], axis=0), helper.make_node(
                "Add", ["x", "joined"], ["y"]), helper.make_node("Neg", ["z"], ["v"]),
        ],
        "cache", [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, [f"of_{n}", 4]) for n in "yv"],
    )
    path, out = tmp_path / "cache.onnx", tmp_path / "cache.so"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    assert call("compile", path, "-o", out, "--threads", "1", "--verify") == 0, capsys.readouterr().err
    assert "agree at sizes" in capsys.readouterr().out
    inputs = json.loads(out.with_suffix(".json").read_text())["inputs"]
    assert [i["shape"][0] for i in inputs] == ["n + m", "n", "m", "2*k + 1"]
    assert call("extract", path, "-o", tmp_path / "m.toml", "--dim", "tokens=1", "--dim", "s0=4") == 2
    assert "an input's size 'past_tokens + tokens' is past_tokens+1: give it a number" in capsys.readouterr().err
    assert call("extract", path, "-o", tmp_path / "m.toml", "--dim", "tokens=1", "--dim", "past_tokens=3") == 2
    assert "an input has the symbolic size '2*s0 + 1': give it with --dim s0=1" in capsys.readouterr().err


def test_sizes_may_be_given_as_sums_of_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """PyTorch's exporter names each axis of a cache by itself, and attention does not say which are equal."""
    shapes = {"keys": ["s11", 4], "values": ["s71", 4], "new": ["s2", 4], "mask": ["s35", 1], "twice": ["s9", 4]}
    nodes = [
        helper.make_node("Concat", ["keys", "new"], ["k"], axis=0),
        helper.make_node("Concat", ["values", "new"], ["v"], axis=0), helper.make_node("Mul", ["v", "mask"], ["seen"]),
        helper.make_node("Add", ["k", "seen"], ["y"]), helper.make_node("Neg", ["twice"], ["z"]),
    ]
    inputs, outputs = (
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in named.items()]
        for named in (shapes, {"y": ["a", 4], "z": ["b", 4]})
    )
    path, out = tmp_path / "cache.onnx", tmp_path / "cache.so"
    graph = helper.make_graph(nodes, "cache", inputs, outputs)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    compiled = ("compile", path, "-o", out, "--threads", "1", "--verify")
    assert call(*compiled) == 2
    assert "give sizes with --dim, or say which are equal with --dim NAME=OTHER" in capsys.readouterr().err
    given = [f"--dim={text}" for text in ("s71=s11", "s35=s11+s2", "s9=3*s2+2*s11+1")]
    assert call(*compiled, *given) == 0, capsys.readouterr().err
    assert "agree at sizes" in capsys.readouterr().out
    found = json.loads(out.with_suffix(".json").read_text())["inputs"]
    assert [i["shape"][0] for i in found] == ["n", "n", "m", "n + m", "2*n + 3*m + 1"]
    assert call(*compiled, "--dim", "s71=s71+1") == 2
    assert "--dim s71: given by each other" in capsys.readouterr().err
    assert call(*compiled, "--dim", "s71=2147483647*rows", "--dim", "rows=2147483647*s11") == 2
    assert "--dim: s71 is 4611686014132420609*s11, and a number is at most 2147483647" in capsys.readouterr().err


@pytest.mark.full
def test_a_fixed_extent_near_the_number_that_stands_for_a_symbolic_one_stays_fixed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weight = numpy_helper.from_array(np.arange(300_000, dtype="float32"), "w")
    graph = helper.make_graph(
        [helper.make_node("Gather", [table, "i"], [f"of_{table}"]) for table in "wx"], "tables",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, ["n"]),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [311_000]),
        ],
        [helper.make_tensor_value_info(f"of_{table}", TensorProto.FLOAT, ["n"]) for table in "wx"], [weight],
    )
    path = tmp_path / "tables.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    assert call("compile", path, "-o", tmp_path / "tables.so", "--threads", "2", "--verify") == 0
    assert "agree at sizes 1, 3, 8, 64 within" in capsys.readouterr().out
    inputs = json.loads((tmp_path / "tables.json").read_text())["inputs"]
    assert [i["shape"] for i in inputs] == [["n"], [311_000]]


def of_sizes(tmp_path: Path, *nodes: Any, extents: tuple[Any, ...] = ("n", 4), **weights: Any) -> Path:
    """A model of x, and of integers and tables by their names."""
    graph = helper.make_graph(
        list(nodes), "sizes", [helper.make_tensor_value_info("x", TensorProto.FLOAT, extents)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["height", "width"])],
        [numpy_helper.from_array(np.asarray(w), name) for name, w in weights.items()],
    )
    path = tmp_path / "sizes.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


TABLE = np.arange(48, dtype="float32").reshape(12, 4)
EXTENT = [helper.make_node("Shape", ["x"], ["shape"], end=1)]
PARTS: dict[str, tuple[list[Any], dict[str, Any], list[int]]] = {
    "of a table": (
        [*EXTENT, helper.make_node("Slice", ["table", "zero", "shape"], ["rows"]),
         helper.make_node("Add", ["x", "rows"], ["y"])],
        {"table": TABLE}, [1, 12],
    ),
    "of a computed axis": (
        [*EXTENT, helper.make_node("MatMul", ["table", "square"], ["made"]),
         helper.make_node("Slice", ["made", "zero", "shape"], ["rows"]),
         helper.make_node("Add", ["x", "rows"], ["y"])],
        {"table": TABLE, "square": np.eye(4, dtype="float32")}, [1, 12],
    ),
    "up to a number": (
        [helper.make_node("Slice", ["x", "zero", "few"], ["y"])], {"few": np.array([3])}, [3, 2**31 - 1],
    ),
    "the element of a number": (
        [helper.make_node("Gather", ["x", "few"], ["y"])], {"few": np.array(3)}, [4, 2**31 - 1],
    ),
    "the elements of numbers": (
        [helper.make_node("Gather", ["x", "few"], ["y"])], {"few": np.array([1, 4, -2])}, [5, 2**31 - 1],
    ),
    "elements from the end": (
        [helper.make_node("Gather", ["x", "few"], ["y"])], {"few": np.array([0, -3])}, [3, 2**31 - 1],
    ),
    "from a number on": (
        [helper.make_node("Slice", ["x", "few", "open"], ["y"])],
        {"few": np.array([3]), "open": np.array([2**63 - 1])}, [4, 2**31 - 1],
    ),
    "up to a large number": (
        [helper.make_node("Slice", ["table", "zero", "far"], ["rows"]),
         helper.make_node("MatMul", ["x", "turned"], ["product"]),
         helper.make_node("Slice", ["product", "zero", "far", "one"], ["wide"]),
         helper.make_node("ReduceSum", ["rows"], ["sum"], keepdims=0),
         helper.make_node("Add", ["wide", "sum"], ["y"])],
        {"table": TABLE, "far": np.array([1_000_000]), "one": np.array([1]), "turned": TABLE.T}, [1, 2**31 - 1],
    ),
}


@pytest.mark.parametrize("name", PARTS)
def test_a_part_of_an_axis_bounds_the_sizes(name: str, tmp_path: Path) -> None:
    nodes, weights, bounds = PARTS[name]
    model, symbols = read_onnx(of_sizes(tmp_path, *nodes, zero=np.array([0]), **weights), {})
    network = import_symbolic(model, symbols)
    assert network.sizes is not None
    (size,) = network.sizes.within(v.tensor_type for v in network.outputs.values()).sizes
    assert [size.low, size.high] == bounds


MAX = 2**63 - 1
# The start, end and step of a part of an axis of n, or of 2*n; the extent of what is taken, and the least n.
STRIDED: dict[tuple[int, int, int, int], tuple[str, int]] = {
    (1, 0, 6, 2): ("3", 5), (1, 1, -1, 1): ("n - 2", 3), (1, 3, -2, 1): ("n - 5", 6), (1, MAX, -MAX, -1): ("n", 1),
    (1, -4, MAX, 2): ("2", 4), (1, -5, -1, 2): ("2", 5), (1, 5, -MAX, -2): ("3", 6), (1, 4, 1, -2): ("2", 5),
    (1, -1, -4, -1): ("3", 3), (1, -1, -4, -2): ("2", 3), (1, -MAX, 5, 1): ("5", 5), (1, -1, 3, -1): ("n - 4", 5),
    (2, 0, MAX, 2): ("n", 1), (2, -MAX, MAX, 2): ("n", 1), (2, MAX, -MAX, -2): ("n", 1), (2, -2, -MAX, -2): ("n", 1),
    (2, -3, -MAX, -2): ("n - 1", 2), (2, 3, -2, 2): ("n - 2", 3), (2, -4, MAX, 3): ("2", 2),
    (2, -1, 3, -2): ("n - 2", 3), (1, -4, 5, 1): ("0", 9), (1, 5, -4, -1): ("0", 9), (2, 5, -4, -1): ("0", 5),
    (1, 0, MAX, 2): ("(n + 1)//2", 1), (1, -1, -MAX, -2): ("(n + 1)//2", 1), (2, 0, MAX, 3): ("(2*n + 2)//3", 1),
    (1, -1, 3, -2): ("(n + 1)//2 - 2", 5), (2, -3, 2, -3): ("(2*n)//3 - 1", 3),
}


def strided(tmp_path: Path, *parts: tuple[int, int, int, int]) -> Path:
    """A model of parts of x, which is twice as long where they say so, behind each other."""
    nodes, weights = [helper.make_node("Concat", ["x", "x"], ["twice"], axis=0)], {}
    for i, (times, *bounds) in enumerate(parts):
        weights |= {f"{name}{i}": np.array([n]) for name, n in zip("bes", bounds, strict=True)}
        inputs = ["x" if times == 1 else "twice", f"b{i}", f"e{i}", "axes", f"s{i}"]
        nodes.append(helper.make_node("Slice", inputs, [f"part{i}"]))
    nodes.append(helper.make_node("Concat", [f"part{i}" for i in range(len(parts))], ["y"], axis=0))
    return of_sizes(tmp_path, *nodes, axes=np.array([0]), **weights)


@pytest.mark.parametrize("part", STRIDED)
def test_the_extent_of_a_strided_part_depends_on_the_size(
    part: tuple[int, int, int, int], tmp_path: Path
) -> None:
    model, symbols = read_onnx(strided(tmp_path, part), {})
    network = import_symbolic(model, symbols)
    (kind,) = (v.tensor_type for v in network.outputs.values())
    assert network.sizes is not None
    sizes = network.sizes.within([kind] if STRIDED[part][0] != "0" else [])
    assert (str(sizes.encode(kind.concrete_shape[0])), sizes.sizes[0].low) == STRIDED[part]
    times, start, end, step = part
    for n in range(sizes.sizes[0].low, 20):  # what NumPy takes is as many
        count = len(range(*slice(start, end, step).indices(times * n)))
        encoded = sizes.encode(kind.concrete_shape[0])
        assert count == (encoded if isinstance(encoded, int) else encoded.at((n,)))


@pytest.mark.full
def test_strided_parts_are_right_at_each_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = (1, -4, MAX, 2), (1, -1, -4, -2), (1, 5, -MAX, -2), (1, -MAX, 5, 1), (2, MAX, -MAX, -2), (2, 3, -2, 2)
    path, out = strided(tmp_path, *parts, (1, 0, MAX, 2), (2, -3, 2, -3)), tmp_path / "sizes.so"
    assert call("compile", path, "-o", out, "--threads", "1", "--verify") == 0, capsys.readouterr().err
    assert "agree at sizes 6, 7, 8, 43, 64 within" in capsys.readouterr().out


def test_numbers_made_of_sizes_are_computed_at_the_call(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A quotient, a root, the lesser of two sizes, a bound, and a range backwards from a size, each beside data."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]), helper.make_node("Gather", ["shape", "zero"], ["rows"]),
        helper.make_node("Div", ["shape", "three"], ["thirds"]), helper.make_node("Neg", ["thirds"], ["less"]),
        helper.make_node("Min", ["less", "few"], ["least"]), helper.make_node("Cast", ["rows"], ["real"], to=1),
        helper.make_node("Sqrt", ["real"], ["root"]), helper.make_node("Cast", ["least"], ["row"], to=1),
        helper.make_node("Range", ["rows", "zero", "minus"], ["places"]),
        helper.make_node("Cast", ["places"], ["numbers"], to=1),
        helper.make_node("Unsqueeze", ["numbers", "ones"], ["column"]),
        helper.make_node("ReduceSum", ["row"], ["sum"], keepdims=0),
        helper.make_node("Clip", ["x", "", "real"], ["cut"]), helper.make_node("Div", ["cut", "root"], ["a"]),
        helper.make_node("Add", ["a", "sum"], ["b"]), helper.make_node("Mul", ["b", "column"], ["c"]),
        helper.make_node("Tile", ["one", "shape"], ["tiled"]), helper.make_node("Div", ["c", "real"], ["d"]),
        helper.make_node("Add", ["d", "tiled"], ["y"]),
    ]
    path = of_sizes(
        tmp_path, *nodes, zero=np.array(0), ones=np.array([1]), three=np.array(3), few=np.array([-3]),
        minus=np.array(-1), one=np.float32([[1]]),
    )
    assert call("compile", path, "-o", tmp_path / "sizes.so", "--threads", "1", "--verify") == 0
    assert "agree at sizes 1, 2, 3, 8, 38, 64 within" in capsys.readouterr().out


def test_a_large_number_is_not_taken_for_a_size(tmp_path: Path) -> None:
    """It is 2048 times the second size less 9, by the probes that are usual."""
    far = np.float32((9 - PROBES[0][1]) * 2048)
    path = of_sizes(tmp_path, helper.make_node("Mul", ["x", "far"], ["y"]), extents=("n", "m"), far=far)
    (product,) = import_symbolic(*read_onnx(path, {})).outputs.values()
    assert product.op.name == "multiply"
    assert [v.value for v in product.args if isinstance(v, Constant)] == [far]


@pytest.mark.full
def test_a_part_of_a_table_is_right_within_the_bounds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes, weights, _ = PARTS["of a table"]
    path, out = of_sizes(tmp_path, *nodes, zero=np.array([0]), **weights), tmp_path / "sizes.so"
    assert call("compile", path, "-o", out, "--threads", "1", "--verify") == 0, capsys.readouterr().err
    assert "agree at sizes 1, 3, 8, 12 within" in capsys.readouterr().out
    assert json.loads(out.with_suffix(".json").read_text())["sizes"] == {"n": {"low": 1, "high": 12}}


def test_other_axes_than_a_symbolic_one_are_resized_by_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = of_sizes(
        tmp_path, helper.make_node("Resize", ["x", "", "s"], ["a"], mode="linear"),
        helper.make_node("Resize", ["a", "", "s"], ["y"]), s=np.array([1, 1.5], "float32"),
    )
    out = tmp_path / "sizes.so"
    assert call("compile", path, "-o", out, "--threads", "1", "--verify") == 0, capsys.readouterr().err


def test_a_symbolic_axis_is_sorted_and_padded_to_a_fixed_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = of_sizes(
        tmp_path, *EXTENT, helper.make_node("Sub", ["most", "shape"], ["left"]),
        helper.make_node("Concat", ["zeros", "left", "zero"], ["behind"], axis=0),
        helper.make_node("Concat", ["zero", "shape", "zero", "left"], ["around"], axis=0),
        helper.make_node("Pad", ["x", "behind"], ["a"]),
        helper.make_node("Transpose", ["x"], ["turned"], perm=[1, 0]),
        helper.make_node("Pad", ["turned", "around", "one"], ["wide"]), helper.make_node("ReduceSum", ["wide"], ["s"]),
        helper.make_node("TopK", ["x", "three"], ["b", "i"], axis=0), helper.make_node("Cast", ["i"], ["c"], to=1),
        helper.make_node("Concat", ["a", "b", "c"], ["d"], axis=0), helper.make_node("Add", ["d", "s"], ["y"]),
        most=np.array([70]), zeros=np.array([0, 0]), zero=np.array([0]), three=np.array([3]), one=np.float32(1),
    )
    assert call("compile", path, "-o", tmp_path / "sizes.so", "--threads", "1", "--verify") == 0, capsys.readouterr()
    assert "agree at sizes 3, 5, 8, 64 within" in capsys.readouterr().out


def test_a_symbolic_width_of_an_edge_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = of_sizes(
        tmp_path, *EXTENT, helper.make_node("Concat", ["zeros", "zeros", "shape", "zeros"], ["p"], axis=0),
        helper.make_node("Pad", ["x", "p"], ["y"], mode="edge"), zeros=np.array([0]),
    )
    assert call("compile", path, "-o", tmp_path / "sizes.so") == 2
    assert "mode 'edge' by a symbolic width" in capsys.readouterr().err


@pytest.mark.parametrize("mode", ["linear", "cubic", "nearest"])
def test_an_image_of_a_symbolic_size_is_resized(mode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = of_sizes(
        tmp_path, helper.make_node("Resize", ["x", "", "s"], ["a"], mode=mode),
        helper.make_node("Resize", ["a", "", "", "z"], ["b"], mode="linear"),
        helper.make_node("Flatten", ["a"], ["c"], axis=3), helper.make_node("Flatten", ["b"], ["d"], axis=3),
        helper.make_node("Concat", ["c", "d"], ["y"], axis=0),
        s=np.float32([1, 1, 2, 3]), z=np.array([1, 2, 5, 12]), extents=(1, 2, "n", 4),
    )
    assert call("compile", path, "-o", tmp_path / "sizes.so", "--threads", "1", "--verify") == 0, capsys.readouterr()
    assert "agree at sizes 1, 3, 8, 64 within" in capsys.readouterr().out


# Roundings of half of a size, and the rows that they leave of n.
HALVED: dict[str, tuple[list[str], str]] = {
    "cut off": (["Mul"], "n//2"), "down": (["Div", "Floor"], "n//2"), "up": (["Mul", "Ceil"], "(n + 1)//2"),
    "down, and again": (["Mul", "Floor", "Div", "Floor"], "n//4"), "a third": (["Third", "Ceil"], "(n + 2)//3"),
    "half up": (["Mul", "More", "Floor"], "(n + 1)//2"), "twice": (["Mul", "Mul", "Neg", "Neg", "Ceil"], "(n + 3)//4"),
    "to the even one": (["Mul", "Round"], "(n + 1)//2 + (n + 2)//4 - 1*((n + 3)//4)"),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", HALVED)
def test_an_image_is_resized_to_half_of_a_symbolic_size(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As exporters write the sizes of pyramids, which they compute in floats."""
    operands = {"Mul": ("Mul", "half"), "Div": ("Div", "two"), "Third": ("Div", "three"), "More": ("Add", "half")}
    rounding, rows = HALVED[name]
    nodes = [
        helper.make_node("Shape", ["x"], ["v"], start=2, end=3), helper.make_node("Cast", ["v"], ["v0"], to=1)
    ]
    for i, word in enumerate(rounding):
        kind, *more = operands.get(word, (word,))
        nodes.append(helper.make_node(kind, [f"v{i}", *more], [f"v{i + 1}"]))
    path = of_sizes(
        tmp_path, *nodes, helper.make_node("Cast", [f"v{len(rounding)}"], ["rows"], to=TensorProto.INT64),
        helper.make_node("Concat", ["one", "rows", "four"], ["size"], axis=0),
        helper.make_node("Resize", ["x", "", "", "size"], ["a"], mode="linear"),
        helper.make_node("Reshape", ["a", "last"], ["y"]),
        half=np.float32(0.5), two=np.float32([2]), three=np.float32(3), one=np.array([1, 1]), four=np.array([4]),
        last=np.array([-1, 4]), extents=(1, 1, "n", 4),
    )
    assert call("compile", path, "-o", tmp_path / "sizes.so", "--threads", "1", "--verify") == 0, capsys.readouterr()
    assert "agree at sizes" in capsys.readouterr().out
    assert json.loads((tmp_path / "sizes.json").read_text())["outputs"][0]["shape"] == [rows, 4]


def test_the_last_of_many_sizes_has_parts(tmp_path: Path) -> None:
    path = of_sizes(
        tmp_path, helper.make_node("Shape", ["x"], ["v"], start=3, end=4), helper.make_node("Cast", ["v"], ["f"], to=1),
        helper.make_node("Mul", ["f", "half"], ["h"]), helper.make_node("Floor", ["h"], ["g"]),
        helper.make_node("Cast", ["g"], ["rows"], to=TensorProto.INT64),
        helper.make_node("Slice", ["x", "zero", "rows", "last"], ["a"]),
        helper.make_node("ReduceSum", ["a", "outer"], ["y"], keepdims=0),
        half=np.float32(0.5), zero=np.array([0]), last=np.array([3]), outer=np.array([0, 1]),
        extents=("batch", "channels", "height", "width"),
    )
    network = import_symbolic(*read_onnx(path, {}))
    assert network.sizes is not None
    (kind,) = (v.tensor_type for v in network.outputs.values())
    assert [str(network.sizes.encode(n)) for n in kind.concrete_shape] == ["k", "p//2"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("before", [False, True])
def test_an_axis_is_padded_to_a_multiple(
    before: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As exporters write windows of pictures: the width is a rest, and no extent."""
    pads = ["rest", "zero", "zero", "zero"] if before else ["zero", "zero", "rest", "zero"]
    path = of_sizes(
        tmp_path, *EXTENT, helper.make_node("Mod", ["shape", "four"], ["over"]),
        helper.make_node("Sub", ["four", "over"], ["short"]), helper.make_node("Mod", ["short", "four"], ["rest"]),
        helper.make_node("Concat", pads, ["pads"], axis=0), helper.make_node("Pad", ["x", "pads"], ["a"]),
        helper.make_node("Reshape", ["a", "windows"], ["b"]), helper.make_node("ReduceMax", ["b"], ["y"], keepdims=0),
        four=np.array([4]), zero=np.array([0]), windows=np.array([-1, 4, 4]),
    )
    nodes = onnx.load(path)
    nodes.graph.node[-1].attribute.append(helper.make_attribute("axes", [1]))
    onnx.save(nodes, path)
    assert call("compile", path, "-o", tmp_path / "sizes.so", "--threads", "1", "--verify") == 0, capsys.readouterr()
    assert "agree at sizes" in capsys.readouterr().out
    rows, _ = json.loads((tmp_path / "sizes.json").read_text())["outputs"][0]["shape"]
    assert [eval(rows, {}, {"n": n}) for n in range(1, 10)] == [-(-n // 4) for n in range(1, 10)]


@pytest.mark.sample(1)
@pytest.mark.parametrize("mode", ["linear", "cubic", "nearest"])
def test_an_image_is_resized_by_a_part_of_a_symbolic_size(
    mode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = of_sizes(
        tmp_path, helper.make_node("Resize", ["x", "", "s"], ["a"], mode=mode),
        helper.make_node("Reshape", ["a", "last"], ["y"]),
        s=np.float32([1, 1, 0.5, 2]), last=np.array([-1, 8]), extents=(1, 1, "n", 4),
    )
    assert call("compile", path, "-o", tmp_path / "sizes.so", "--threads", "1", "--verify") == 0, capsys.readouterr()
    assert "agree at sizes 2, 3, 4, 8, 39, 64 within" in capsys.readouterr().out


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "nodes",
    [
        [helper.make_node("DFT", ["x"], ["a"], onesided=1), helper.make_node("Flatten", ["a"], ["y"], axis=2)],
        [
            helper.make_node("DFT", ["x"], ["a"]), helper.make_node("DFT", ["a"], ["b"], inverse=1),
            helper.make_node("Flatten", ["b"], ["y"], axis=2),
        ],
        [
            helper.make_node("DFT", ["x"], ["a"], onesided=1), helper.make_node("Size", ["x"], ["n"]),
            helper.make_node("DFT", ["a", "n"], ["b"], inverse=1, onesided=1),
            helper.make_node("Flatten", ["b"], ["y"], axis=2),
        ],
        [
            helper.make_node("STFT", ["x", "step", "window"], ["a"]), helper.make_node("Flatten", ["a"], ["y"], axis=2)
        ],
    ],
    ids=["one side", "there and back", "one side and back", "frames"],
)
def test_a_symbolic_axis_is_transformed(nodes: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = {"step": np.array(3), "window": np.hanning(8).astype("float32")} if nodes[0].op_type == "STFT" else {}
    path = of_sizes(tmp_path, *nodes, extents=(1, "n", 1), **given)
    assert call("compile", path, "-o", tmp_path / "sizes.so", "--threads", "1", "--verify") == 0, capsys.readouterr()
    assert "agree at sizes" in capsys.readouterr().out


def test_a_loop_of_a_symbolic_number_of_steps_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A loop of -n steps is refused, too: it is not one of none."""
    kinds = [helper.make_tensor_value_info(n, k, s) for n, k, s in (
        ("i", TensorProto.INT64, []), ("c", TensorProto.BOOL, []), ("h", TensorProto.FLOAT, None),
    )]
    body = helper.make_graph([helper.make_node("Neg", ["h"], ["v"])], "body", kinds, [
        kinds[1], helper.make_tensor_value_info("v", TensorProto.FLOAT, None)
    ])
    for name in ("rows", "less"):
        path = of_sizes(
            tmp_path, *EXTENT, helper.make_node("Squeeze", ["shape"], ["rows"]),
            helper.make_node("Neg", ["rows"], ["less"]), helper.make_node("Loop", [name, "", "x"], ["y"], body=body),
        )
        assert call("compile", path, "-o", tmp_path / "sizes.so") == 2
        assert "the number of its steps is symbolic: give sizes with --dim" in capsys.readouterr().err


LOST: dict[str, list[Any]] = {
    "lesser": [helper.make_node("Min", ["shape", "few"], ["end"])],
    "greater": [helper.make_node("Max", ["shape", "few"], ["end"])],
    "compared": [
        helper.make_node("Less", ["shape", "few"], ["less"]),
        helper.make_node("Where", ["less", "shape", "few"], ["end"]),
    ],
    "quotient": [
        helper.make_node("Div", ["few", "shape"], ["none"]), helper.make_node("Add", ["none", "few"], ["end"]),
    ],
    "half precision": [
        helper.make_node("Cast", ["shape"], ["half"], to=TensorProto.FLOAT16),
        helper.make_node("IsInf", ["half"], ["infinite"]),
        helper.make_node("Where", ["infinite", "few", "shape"], ["end"]),
    ],
}


@pytest.mark.parametrize("name", LOST)
def test_what_a_number_makes_of_a_symbolic_size_is_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = of_sizes(
        tmp_path, *EXTENT, *LOST[name], helper.make_node("Slice", ["table", "zero", "end"], ["rows"]),
        helper.make_node("ReduceSum", ["rows"], ["sum"], keepdims=0), helper.make_node("Add", ["x", "sum"], ["y"]),
        zero=np.array([0]), few=np.array([6]), table=TABLE,
    )
    assert call("compile", path, "-o", tmp_path / "sizes.so") == 2
    said = capsys.readouterr().err
    assert "depends on a symbolic size and is no sum of products of sizes" in said
    assert "n is n: give sizes with --dim" in said
    import_model(read_onnx(path, {"n": 3})[0])


def test_a_part_that_compares_two_sizes_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = helper.make_node("Shape", ["x"], ["other"], start=1)
    part = helper.make_node("Slice", ["x", "zero", "other"], ["y"])
    path = of_sizes(tmp_path, other, part, extents=("rows", "columns"), zero=np.array([0]))
    assert call("compile", path, "-o", tmp_path / "sizes.so") == 2
    assert "which is greater depends on the call" in capsys.readouterr().err


def small(*nodes: Any, weight: Any = None, size: Any = 4) -> Any:
    weights = [numpy_helper.from_array(np.ones((4, 4), "float32"), "w")] if weight is None else weight
    graph = helper.make_graph(
        list(nodes), "small", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["m", "n"])], weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


PRODUCT = helper.make_node("MatMul", ["x", "w"], ["y"], name="product")


def outside(location: str) -> Any:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4, 4], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("length", "64")):
        tensor.external_data.add(key=key, value=value)
    return small(PRODUCT, weight=[tensor])


def outside_in_a_function(location: str) -> Any:
    model = small(helper.make_node("f", ["x"], ["y"], domain="own"))
    model.opset_import.append(helper.make_opsetid("own", 1))
    weight = helper.make_node("Constant", [], ["w"], value=outside(location).graph.initializer[0])
    model.functions.append(helper.make_function("own", "f", ["x"], ["y"], [weight, PRODUCT], model.opset_import))
    return model


def growing() -> Any:
    shape = numpy_helper.from_array(np.full(4, 1 << 20), "s")
    return small(helper.make_node("ConstantOfShape", ["s"], ["y"]), weight=[shape])


def calling() -> Any:
    """Functions that call the next one twice each."""
    model = small(helper.make_node("f0", ["x"], ["y"], domain="own"))
    model.opset_import.append(helper.make_opsetid("own", 1))
    for i in range(24):
        nodes = [helper.make_node(f"f{i + 1}", [a], [b], domain="own") for a, b in ("xt", "ty")]
        nodes = nodes if i < 23 else [helper.make_node("Neg", ["x"], ["y"])]
        model.functions.append(helper.make_function("own", f"f{i}", ["x"], ["y"], nodes, model.opset_import))
    return model


def with_output_twice() -> Any:
    model = small(PRODUCT)
    model.graph.output.append(model.graph.output[0])
    return model


def without_outputs() -> Any:
    model = small(PRODUCT)
    model.graph.ClearField("output")
    return model


def with_sparse_weight() -> Any:
    model = small(PRODUCT, weight=[])
    given = numpy_helper.from_array(np.ones(1, "float32"), "w"), numpy_helper.from_array(np.zeros(1, "int64"), "i")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(*given, [4, 4]))
    return model


BROKEN: dict[str, tuple[Callable[[], Any], str]] = {
    "cut short": (lambda: SAMPLE.read_bytes()[:-700], "cut short|no valid ONNX model"),
    "text": (lambda: b"Once upon a time", "not an ONNX model|no valid ONNX model"),
    "empty": (lambda: b"", "no valid ONNX model"),
    "missing initializer": (lambda: small(PRODUCT, weight=[]), "'w'"),
    "sparse initializer": (with_sparse_weight, "initializer 'w' is sparse, and plevel reads dense ones"),
    "data elsewhere": (lambda: outside("../../etc/passwd"), "outside of the model's folder"),
    "absolute data": (lambda: outside("/etc/passwd"), "outside of the model's folder"),
    "data of a function elsewhere": (lambda: outside_in_a_function("../w"), "outside of the model's folder"),
    "no data": (lambda: outside("weights.bin"), "there is no such file"),
    "symbolic": (lambda: small(PRODUCT, size="n"), "give it with --dim n=1|that of the data, n; n is n: give"),
    "bomb": (growing, "a constant of more than"),
    "functions of functions": (calling, "its functions have more than"),
    "no outputs": (without_outputs, "it has no outputs"),
    "an output twice": (with_output_twice, "it lists an output twice"),
    "a huge extent": (lambda: small(PRODUCT, size=2**62), "input 'x': dimension 4611686018427387904 is out|disagree"),
    "no dtype": (
        lambda: small(PRODUCT, weight=[TensorProto(name="w", data_type=99, dims=[4, 4], raw_data=bytes(64))]),
        "initializer 'w': ONNX has no dtype 99|disagree",
    ),
    "a cast to no dtype": (
        lambda: small(helper.make_node("Cast", ["x"], ["y"], to=99)), "node 'y' .Cast.: 99|whose size is not known"
    ),
    "a cycle": (
        lambda: small(helper.make_node("MatMul", ["y", "w"], ["a"]), helper.make_node("Neg", ["a"], ["y"])),
        "topologically sorted",
    ),
}


@pytest.mark.parametrize("command", [("extract", "-o", "x.toml"), ("compile", "-o", "x.so")])
@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_file_is_one_line(
    how: str,
    command: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    make, message = BROKEN[how]
    made = make()
    path = tmp_path / "broken.onnx"
    path.write_bytes(made if isinstance(made, bytes) else made.SerializeToString())
    assert call(command[0], path, *command[1:]) in (1, 2)
    said = capsys.readouterr()
    (line,) = said.err.splitlines()
    if not (how == "bomb" and command[0] == "extract"):  # left out, and nothing else is there
        assert re.search(message, line), line
    assert "broken.onnx" in line
    assert "a defect of plevel" not in line
    assert [p.name for p in tmp_path.iterdir()] == ["broken.onnx"]


def test_types_are_inferred_without_large_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX infers them from a message, which has at most 2 GiB."""
    infer, sizes = onnx.shape_inference.infer_shapes, []

    def measured(model: Any, **options: Any) -> Any:
        sizes.append(model.ByteSize())
        return infer(model, **options)

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", measured)
    weight, x = np.ones((4, 4096), "float32"), -np.ones((2, 4), "float32")
    nodes = helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Celu", ["a"], ["y"])
    onnx.save(small(*nodes, weight=[numpy_helper.from_array(weight, "w")]), tmp_path / "model.onnx")
    assert call("extract", tmp_path / "model.onnx", "-o", tmp_path / "model.toml") == 0
    model = read_onnx(tmp_path / "model.onnx", {})[0]
    assert expanded(model).ByteSize() < weight.nbytes  # Protobuf cannot copy one of 2 GiB
    network, _ = import_model(model)
    np.testing.assert_allclose(evaluate(network.root, {"x": x})[0], np.expm1(x @ weight), rtol=1e-5)
    assert 0 < max(sizes) < weight.nbytes


def test_a_weight_that_is_turned_is_a_constant_however_large_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plevel.onnx.constant.FOLDED", 8)
    network, _ = import_model(small(helper.make_node("Transpose", ["w"], ["y"])))
    assert isinstance(network.outputs["y"], Constant)


def test_data_of_a_function_are_in_the_folder_of_the_model(tmp_path: Path) -> None:
    weight, x = (np.arange(n * 4, dtype="float32").reshape(n, 4) for n in (4, 2))
    (tmp_path / "weights.bin").write_bytes(weight.tobytes())
    (tmp_path / "model.onnx").write_bytes(outside_in_a_function("weights.bin").SerializeToString())
    network, _ = import_model(read_onnx(tmp_path / "model.onnx", {})[0])
    np.testing.assert_array_equal(evaluate(network.root, {"x": x})[0], x @ weight)


def test_unknown_operators_are_all_named_and_extraction_leaves_them_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.onnx"
    nodes = [
        helper.make_node("RandomNormalLike", ["x"], ["a"]), helper.make_node("MatMul", ["a", "w"], ["b"]),
        helper.make_node("RandomNormalLike", ["b"], ["c"]), helper.make_node("Bernoulli", ["c"], ["y"]),
    ]
    onnx.save(small(*nodes), path)
    assert call("compile", path, "-o", tmp_path / "model.so") == 2
    assert "2 operators that plevel has no kernel for: RandomNormalLike (2), Bernoulli (1)" in capsys.readouterr().err
    onnx.save(small(helper.make_node("Bernoulli", ["x"], ["y"])), tmp_path / "one.onnx")
    assert call("compile", tmp_path / "one.onnx", "-o", tmp_path / "model.so") == 2
    assert "1 operator that plevel has no kernel for: Bernoulli (1)" in capsys.readouterr().err
    assert call("extract", path, "-o", tmp_path / "model.toml") == 0
    assert "not covered: RandomNormalLike (0.0 %), Bernoulli (0.0 %)" in capsys.readouterr().out
    (found,) = read_model(tmp_path / "model.toml").workloads
    assert found.workload.key == "dense(data=float32[2,4],weight=float32[4,4]:const)"


def test_a_device_without_an_end_is_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plevel.onnx.file._MOST_PIPED", 1 << 20)
    with pytest.raises(NetworkError, match="cannot be read: larger than 1 MiB: write a file "):
        read_onnx(Path("/dev/zero"), {})
