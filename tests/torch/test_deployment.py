"""Whole models as one library: from C, from ctypes and from tvm_ffi, beside PyTorch."""

from __future__ import annotations

import ctypes
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the torch extra is not installed")

from torch import nn

from plevel import comparison, deployment, faster, kernel_selection
from plevel.cli.main import main
from plevel.torch.exported import import_program, run_program
from plevel.torch.program import _define, load_program
from strategy.compile.c_text import c_names
from strategy.expr import Expr, call
from strategy.network import layer
from strategy.network.graph import NetworkError
from strategy.network.probe import PROBES
from strategy.record import Estimate, estimate
from tests.docs.page import ROOT, read_blocks
from tests.limit import HANG_S
from tests.torch import models

DIM = torch.export.Dim("n", max=64)
TARGET = ("--target", "cpu", "--threads", "2")


class Seeing(nn.Module):
    """A picture as tokens by a convolution with batch norm, then attention, then classes."""

    def __init__(self, width: int = 32, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.block, self.last = models.Block(width, 2 * width), nn.Linear(width, 5)

    def forward(self, picture, scale):
        x = self.stem(picture).flatten(2).transpose(1, 2)
        parts = self.qkv(self.norm(x)).chunk(3, -1)
        q, k, v = (p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in parts)
        x = x + nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = self.block(x) * scale
        return self.last(x.mean(1)), x.argmax(-1)


def seeing():
    torch.manual_seed(0)
    model = Seeing().eval()
    model.stem[1].running_mean.normal_()
    model.stem[1].running_var.uniform_(0.5, 2)
    return model, (torch.randn(2, 3, 16, 16), torch.tensor(0.5))


def save(path: Path, model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> Path:
    torch.export.save(torch.export.export(model, inputs), path)
    return path


def compile_model(*arguments: object) -> int:
    with pytest.raises(SystemExit) as done:
        main(["compile", *map(str, arguments), *TARGET])
    return int(done.value.code or 0)


PROGRAM = """
#include <stdio.h>
#include "seeing.h"
static float picture[2 * 3 * 16 * 16 + 1], scale, classes[10];
static int64_t largest[2 * 16];
int main(void) {
  FILE *file = fopen("inputs", "rb");
  /* A picture that is not aligned, and one that may be. */
  if (!file || fread(picture + 1, 4, 1536, file) != 1536 || fread(&scale, 4, 1, file) != 1) return 2;
  if (plevel_seeing(picture + 1, &scale, classes, largest)) return 1;
  for (int i = 0; i < 10; ++i) printf("%.9g\\n", classes[i]);
  for (int i = 0; i < 32; ++i) printf("%d\\n", (int)largest[i]);
  return 0;
}
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("seeing")
    model, inputs = seeing()
    path = save(folder / "model.pt2", model, inputs)
    assert compile_model(path, "-o", folder / "seeing.so", "--verify") == 0
    with torch.no_grad():
        expected = [o.numpy() for o in model(*inputs)]
    return folder, [i.numpy() for i in inputs], expected


def test_a_c_program_needs_the_library_and_its_header_only(built) -> None:
    folder, inputs, (classes, largest) = built
    (folder / "main.c").write_text(PROGRAM)
    elsewhere = folder / "elsewhere"  # as a service is started
    elsewhere.mkdir()
    (elsewhere / "inputs").write_bytes(b"".join(i.tobytes() for i in inputs))
    (documented,) = re.findall(r"^cc main.c .*", (ROOT / "docs" / "models.md").read_text(), re.MULTILINE)
    command = shlex.split(documented.replace("model.so", "seeing.so"))
    subprocess.run([*command, "-Wall", "-Werror", "-std=c99"], cwd=folder, check=True, timeout=HANG_S)
    done = subprocess.run(
        [folder / "main"], cwd=elsewhere, check=True, capture_output=True, text=True, timeout=HANG_S
    )
    found = [float(line) for line in done.stdout.split()]
    np.testing.assert_allclose(found[:10], classes.ravel(), rtol=1e-4, atol=1e-5)
    assert found[10:] == largest.ravel().tolist()
    needed = subprocess.run(["ldd", "seeing.so"], cwd=folder, check=True, capture_output=True, text=True)
    assert not any(word in needed.stdout for word in ("tvm", "torch", "python"))


def documented_loader(library: Path) -> str:
    """The lines of docs/models.md for a library, without the call at their end."""
    blocks = read_blocks((ROOT / "docs" / "models.md").read_text())
    (found,) = (b.body for b in blocks if b.language == "python" and "ctypes.CDLL" in b.body)
    lines, _, called = found.rstrip().rpartition("\n")
    assert called.startswith("(y,) = run(library, about, ")
    return lines.replace("./model.so", str(library)).replace("model.json", str(library.with_suffix(".json")))


def load(library: Path) -> Callable[..., list[Any]]:
    found: dict[str, Any] = {}
    exec(documented_loader(library), found)
    return partial(found["run"], found["library"], found["about"])


THREADS = """
import concurrent.futures, sys
folder = sys.argv[1]
inputs = [np.load(f"{folder}/in{i}.npy") for i in range(2)]
with concurrent.futures.ThreadPoolExecutor(4) as pool:
    for classes, largest in pool.map(lambda i: run(library, about, inputs[0] * (1 + i % 3), inputs[1]), range(24)):
        print(*classes.ravel())
assert "torch" not in sys.modules and "tvm" not in sys.modules
"""


def test_python_needs_ctypes_only_and_threads_have_buffers_of_their_own(built) -> None:
    folder, inputs, (classes, _) = built
    for i, array in enumerate(inputs):
        np.save(folder / f"in{i}.npy", array)
    program = [sys.executable, "-c", documented_loader(folder / "seeing.so") + THREADS, str(folder)]
    done = subprocess.run(program, check=True, capture_output=True, text=True, timeout=HANG_S)
    rows = [np.array(line.split(), float) for line in done.stdout.splitlines()]
    np.testing.assert_allclose(rows[0], classes.ravel(), rtol=1e-4, atol=1e-5)
    assert all((rows[i] == rows[i % 3]).all() for i in range(24))
    assert not np.allclose(rows[0], rows[1])


def test_python_takes_numbers_that_a_cast_to_the_dtype_keeps(built) -> None:
    folder, (picture, scale), (classes, _) = built
    library = load(folder / "seeing.so")
    for made in (library(picture.astype(">f8"), 0.5), library(np.asfortranarray(picture), scale)):
        np.testing.assert_allclose(made[0], classes, rtol=1e-4, atol=1e-5)
    library(picture, 1)
    with pytest.raises(TypeError, match="Cannot cast array data from dtype.'complex64'. to dtype.'float32'."):
        library(picture + 1j, scale)


def test_functions_of_shapes_refuse_null_and_other_shapes(built) -> None:
    folder, _, _ = built
    program = documented_loader(folder / "seeing.so") + """
shapes, extents, buffers = np.array([4, 2, 3, 16, 16, 0]), np.zeros((2, 16), "int64"), np.zeros(4, "int64")
measure, call = library.plevel_seeing_shapes, library.plevel_seeing_call
print(measure(shapes.ctypes, extents.ctypes), extents[:, :2].tolist())
print(measure(None, extents.ctypes), measure(shapes.ctypes, None))
print(call(None, buffers.ctypes), call(shapes.ctypes, None))
print(*(measure(np.array([4, n, 3, 16, 16, 0]).ctypes, extents.ctypes) for n in (-2, 2**62)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=HANG_S, check=True)
    assert done.stdout.splitlines() == ["0 [[2, 5], [2, 16]]", "-2 -2", "-2 -2", "-2 -2"]


_LOADED = "import ctypes; ctypes.CDLL(sys.argv[1] + '/seeing.so')"


@pytest.mark.parametrize("first", ["", _LOADED], ids=["alone", "after ctypes"])
def test_tvm_ffi_calls_the_function_main_and_a_wrong_tensor_is_an_error(built, first: str) -> None:
    folder, inputs, (classes, _) = built
    documented = re.search(r"`(tvm_ffi\.load_module\(.*?\))", (ROOT / "docs" / "models.md").read_text())
    assert documented
    program = f"""
import sys, numpy as np
{first}
sys.modules["torch"] = None  # which tvm_ffi loads where it can
import tvm_ffi
module = {documented[1].replace("model.so", "seeing.so")}
""" + """
folder = sys.argv[1]
tensors = [np.load(f"{folder}/in{i}.npy") for i in range(2)] + [np.empty((2, 5), "float32"), np.empty((2, 16), "int64")]
module["main"](*map(tvm_ffi.from_dlpack, tensors))
print(*tensors[2].ravel())
tensors[0] = tensors[0][:, :, ::2]
try:
    module["main"](*map(tvm_ffi.from_dlpack, tensors))
except Exception as error:
    print(type(error).__name__, error)
import ctypes
function = ctypes.CDLL(folder + "/seeing.so").plevel_seeing
pointers = [ctypes.c_void_p(array.ctypes.data) for array in tensors]
print(*(function(*pointers[:missing], None, *pointers[missing + 1:]) for missing in range(4)))
"""
    for i, array in enumerate(inputs):
        np.save(folder / f"in{i}.npy", array)
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder)], check=False, capture_output=True, text=True, timeout=HANG_S,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    first, second, *_, codes = done.stdout.splitlines()
    np.testing.assert_allclose(np.array(first.split(), float), classes.ravel(), rtol=1e-4, atol=1e-5)
    assert "ValueError" in second
    assert "shape" in second
    assert codes == "-2 -2 -2 -2", "a buffer that is NULL is refused"


def test_the_manifest_says_what_runs_and_why(built) -> None:
    folder, _, _ = built
    about = json.loads((folder / "seeing.json").read_text())
    assert about["function"] == "plevel_seeing"
    assert about["inputs"] == [
        {"name": "picture", "dtype": "float32", "shape": [2, 3, 16, 16]},
        {"name": "scale", "dtype": "float32", "shape": []},
    ]
    assert [o["dtype"] for o in about["outputs"]] == ["float32", "int64"]
    convolution = next(s for s in about["steps"] if s["workload"].startswith("conv2d"))
    assert convolution["workload"].endswith("+bias_add(.,bias_add0.bias=float32[32]:const)+relu(.)")
    assert convolution["implementation"].startswith("conv2d")
    assert "nothing is measured" in convolution["because"]
    sizes = [np.prod(s, dtype=int) * 4 for s in ((2, 32, 8, 8), (2, 32, 4, 4))]
    assert about["arena_bytes"] < 2 * sum(sizes) + 20 * 2 * 16 * 96 * 4, "buffers are reused"


def test_one_library_takes_every_batch_size_in_the_range_of_the_export(
    built, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, inputs = seeing()
    sizes = ({0: torch.export.Dim("batch", min=1, max=40)}, None)
    torch.export.save(torch.export.export(model, inputs, dynamic_shapes=sizes), tmp_path / "model.pt2")
    assert compile_model(tmp_path / "model.pt2", "-o", tmp_path / "seeing.so", "--verify") == 0
    assert "agree at sizes 1, 3, 8, 40 within" in capsys.readouterr().out
    header = (tmp_path / "seeing.h").read_text()
    assert "int plevel_seeing(int64_t n, const float *picture, const float *scale, float *output0" in header
    assert "n: a symbolic size, from 1 to 40" in header
    assert "picture: float32[n,3,16,16], input" in header
    about, fixed = (json.loads((f / "seeing.json").read_text()) for f in (tmp_path, built[0]))
    assert about["sizes"] == {"n": {"low": 1, "high": 40}}
    assert [o["shape"] for o in about["outputs"]] == [["n", 5], ["n", 16]]
    assert about["weight_bytes"] < 1.5 * fixed["weight_bytes"], "each weight is packed once"
    assert about["arena_bytes"] < fixed["arena_bytes"], "at the least size; the other one is of two"
    library = load(tmp_path / "seeing.so")
    pictures = [torch.randn(n, 3, 16, 16) for n in (1, 40, 2, 7, 13)]
    with ThreadPoolExecutor(3) as pool, torch.no_grad():
        for picture, made in zip(pictures, pool.map(lambda p: library(p.numpy(), 0.5), pictures), strict=True):
            for mine, theirs in zip(made, model(picture, torch.tensor(0.5)), strict=True):
                np.testing.assert_allclose(mine, theirs.numpy(), rtol=1e-4, atol=1e-5)
    for n in (0, 41):
        with pytest.raises(RuntimeError, match="the model failed"):
            library(np.zeros((n, 3, 16, 16)), 0.5)
    program = """
import sys, numpy as np
sys.modules["torch"] = None
import tvm_ffi
main = tvm_ffi.load_module(sys.argv[1])["main"]
def call(n, last):
    shapes = ((n, 3, 16, 16), "float32"), ((), "float32"), ((n, 5), "float32"), ((last, 16), "int64")
    tensors = [np.ones(*s) for s in shapes]
    main(*map(tvm_ffi.from_dlpack, tensors))
    return tensors[2]
assert np.allclose(call(3, 3), call(1, 1), rtol=1e-4, atol=1e-5)
for sizes in ((41, 41), (3, 2)):
    try:
        call(*sizes)
    except ValueError as error:
        print(error)
"""
    command = [sys.executable, "-c", program, str(tmp_path / "seeing.so")]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=HANG_S)
    out_of_range, other_shape = done.stdout.splitlines()
    assert "out of the range" in out_of_range
    assert "not of the shape" in other_shape


class Tokens(nn.Module):
    """Tokens with positions of a table, causal attention by a mask that is cut, and again with a first token added."""

    def __init__(self, width: int = 32, heads: int = 4, most: int = 64) -> None:
        super().__init__()
        self.heads, self.norm, self.qkv = heads, nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.positions, self.first = nn.Embedding(most, width), nn.Parameter(torch.randn(1, 1, width))
        self.register_buffer("ids", torch.arange(most)[None])
        self.register_buffer("seen", torch.ones(most, most, dtype=torch.bool).tril()[None, None])

    def forward(self, x):
        b, n, width = x.shape
        x = x + self.positions(self.ids[:, :n])
        q, k, v = self.qkv(self.norm(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-1, -2)).masked_fill(~self.seen[:, :, :n, :n], float("-inf"))
        x = x + (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, width)
        x = torch.cat([self.first.expand(b, -1, -1), x], 1)
        x = nn.functional.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], is_causal=True)[:, 0]
        return x[:, -1], x[:, 1:].mean(1), x * torch.arange(1, n + 2)[:, None]


@pytest.mark.full
def test_one_library_takes_every_batch_and_every_number_of_tokens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    model = Tokens().eval()
    sizes = ({0: torch.export.Dim("batch", max=16), 1: torch.export.Dim("tokens", min=1, max=48)},)
    program = torch.export.export(model, (torch.randn(3, 10, 32),), dynamic_shapes=sizes)
    torch.export.save(program, tmp_path / "model.pt2")
    assert compile_model(tmp_path / "model.pt2", "-o", tmp_path / "tokens.so", "--verify") == 0
    assert "agree at sizes 1×8, 3×48, 8×1, 16×3 within" in capsys.readouterr().out
    about = json.loads((tmp_path / "tokens.json").read_text())
    assert about["sizes"] == {"n": {"low": 1, "high": 16}, "m": {"low": 1, "high": 48}}
    assert [o["shape"] for o in about["outputs"]] == [["n", 32], ["n", 32], ["n", "m + 1", 32]]
    library = load(tmp_path / "tokens.so")
    for batch, tokens in ((1, 2), (16, 48), (5, 17)):
        x = torch.randn(batch, tokens, 32)
        for mine, theirs in zip(library(x.numpy()), model(x), strict=True):
            np.testing.assert_allclose(mine, theirs.detach().numpy(), rtol=1e-4, atol=1e-4)
    with pytest.raises(RuntimeError, match="the model failed"):
        library(np.zeros((1, 49, 32)))


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("function", "inputs", "sizes"),
    [
        (lambda x: x @ x.T, 1, "4, 6, 8, 64"),
        (lambda x: (x[:-1] * 2, x[-2:], x[1:-1]), 1, "4, 6, 8, 64"),
        (lambda x, y: torch.cat([x, y]).softmax(0), 2, "4×8, 6×64, 8×4, 64×6"),
        (lambda x: torch.where(x > 0, x, float("nan")), 1, "4, 6, 8, 64"),
        (lambda x: (x[1:] - x[:-1]).relu()[torch.arange(x.shape[0] - 1) - 1], 1, "4, 6, 8, 64"),
        (lambda x: (x @ x.T).masked_fill(torch.ones(x.shape[0], x.shape[0]).triu(1).bool(), -9.0), 1, "4, 6, 8, 64"),
    ],
)
def test_extents_may_be_sums_and_products_of_sizes(
    function, inputs: int, sizes: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dims = tuple({0: torch.export.Dim(f"rows{i}", min=4)} for i in range(inputs))
    given = tuple(torch.randn(5 + i, 8) for i in range(inputs))
    torch.export.save(torch.export.export(Sized(function), given, dynamic_shapes=dims), tmp_path / "model.pt2")
    assert compile_model(tmp_path / "model.pt2", "-o", tmp_path / "model.so", "--verify") == 0
    assert f"agree at sizes {sizes} within" in capsys.readouterr().out


@pytest.mark.full
def test_a_library_takes_five_sizes_and_refuses_those_whose_product_no_memory_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def combined(x, y):
        return x.relu() * y, torch.cat([y, y]).softmax(0)

    dims = (dict(enumerate(torch.export.Dim(name) for name in "abcde")), {0: torch.export.Dim("e")})
    given = torch.randn(2, 3, 4, 5, 6), torch.randn(6)
    torch.export.save(torch.export.export(Sized(combined), given, dynamic_shapes=dims), tmp_path / "model.pt2")
    assert compile_model(tmp_path / "model.pt2", "-o", tmp_path / "model.so", "--verify") == 0
    assert "agree at sizes 1×8×1×8×1, 3×64×3×64×3, 8×1×8×1×8, 64×3×64×3×64 within" in capsys.readouterr().out
    assert "int64_t n, int64_t m, int64_t k, int64_t p, int64_t q, const float *" in (tmp_path / "model.h").read_text()
    about = json.loads((tmp_path / "model.json").read_text())
    assert [o["shape"] for o in about["outputs"]] == [["n", "m", "k", "p", "q"], ["2*q"]]
    code = f"""
import ctypes
library, buffer = ctypes.CDLL({str(tmp_path / "model.so")!r}), (ctypes.c_float * 64)()
print(library[{about["function"]!r}](*[ctypes.c_int64(2**26)] * 5, *[buffer] * 4))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert ran.stdout.strip() == "-1", "without memory"


def test_an_axis_that_int64_cannot_count_is_refused(tmp_path: Path) -> None:
    dims = (dict(enumerate(torch.export.Dim(name) for name in "abc")),)
    program = torch.export.export(
        Sized(lambda x: x.reshape(-1).relu()), (torch.randn(2, 3, 4),), dynamic_shapes=dims
    )
    torch.export.save(program, tmp_path / "model.pt2")
    assert compile_model(tmp_path / "model.pt2", "-o", tmp_path / "model.so", "--no-verify") == 0
    assert "n*m*k" in (tmp_path / "model.h").read_text()
    library = ctypes.CDLL(str(tmp_path / "model.so"))
    buffers, extents, found = np.zeros(2, "int64"), np.zeros((1, 16), "int64"), []
    for n in (1 << 20, (1 << 21) - 1, 1 << 21, (1 << 31) - 1):
        shapes = np.array([3, n, n, n])
        codes = library.plevel_model_shapes(shapes.ctypes, extents.ctypes), library.plevel_model_call(
            shapes.ctypes, buffers.ctypes
        ), library.plevel_model(*[ctypes.c_int64(n)] * 3, None, None)
        found.append((*codes, int(extents[0, 0]) == n**3))
    assert found == [(0, -2, -2, True)] * 2 + [(-2, -2, -2, False)] * 2


class Strided(nn.Module):
    """Strides over a picture, in convolutions with windows and without, and in pools, and a mean of what is left."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.same = nn.Conv2d(3, 16, 3, 2, 1), nn.Conv2d(16, 16, 3, 1, 1)
        self.down, self.short = nn.Conv2d(16, 32, 3, 2, 1, groups=2), nn.Conv2d(16, 32, 1, 2)
        self.largest, self.mean = nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(2)

    def forward(self, x):
        y = self.largest(self.stem(x).relu())
        y = y + self.same(y)
        y = self.mean((self.down(y) + self.short(y)).relu())
        return y, y.mean((2, 3))


@pytest.mark.full
def test_strides_divide_pictures_of_which_a_size_is_a_factor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    model, dim = Strided().eval(), torch.export.Dim
    sizes = ({2: 16 * dim("height", max=9), 3: 32 * dim("width", max=7)},)
    program = torch.export.export(model, (torch.randn(2, 3, 64, 96),), dynamic_shapes=sizes)
    torch.export.save(program, tmp_path / "model.pt2")
    assert compile_model(tmp_path / "model.pt2", "-o", tmp_path / "model.so", "--verify") == 0
    assert "agree at sizes 1×7, 3×1, 8×3, 9×7 within" in capsys.readouterr().out
    about = json.loads((tmp_path / "model.json").read_text())
    assert about["inputs"][0]["shape"] == [2, 3, "16*n", "32*m"]
    assert about["outputs"][0]["shape"] == [2, 32, "n", "2*m"]
    library = load(tmp_path / "model.so")
    for height, width in ((1, 1), (9, 7), (2, 5)):
        x = torch.randn(2, 3, 16 * height, 32 * width)
        for mine, theirs in zip(library(x.numpy()), model(x), strict=True):
            np.testing.assert_allclose(mine, theirs.detach().numpy(), rtol=1e-4, atol=1e-4)
    with pytest.raises(RuntimeError, match="the model failed"):
        library(np.zeros((2, 3, 16 * 10, 32)))
    for wrong in ((2, 3, 40, 32), (2, 4, 32, 32), (2, 3, 32), (2, 3, 32, 32, 1)):  # the first has no multiple
        with pytest.raises(RuntimeError, match="the model failed"):
            library(np.zeros(wrong))


@pytest.mark.full
def test_a_size_that_makes_an_empty_tensor_is_out_of_range(tmp_path: Path) -> None:
    """PyTorch's least size is 2, which it says where it means 1, too: at 1 an extent of n - 2 would be none."""
    program = torch.export.export(
        Sized(lambda x: x[2:] * 2), (torch.randn(5, 8),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)
    )
    torch.export.save(program, tmp_path / "model.pt2")
    assert compile_model(tmp_path / "model.pt2", "-o", tmp_path / "model.so", "--verify") == 0
    assert "n: a symbolic size, from 3 to " in (tmp_path / "model.h").read_text()
    library = load(tmp_path / "model.so")
    x = np.random.default_rng(0).random((3, 8), "float32")
    np.testing.assert_array_equal(np.asarray(library(x)).reshape(1, 8), x[2:] * 2)
    with pytest.raises(RuntimeError, match="the model failed"):
        library(x[:2])


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("function", "least"),
    [
        (lambda x: x[:2:2] * 2, 1),
        (lambda x: x[:2] * 2, 2),
        (lambda x: x[torch.tensor([0, 4])] * 2, 5),
        (lambda x: x[torch.tensor([0, 2]) + 2] * 2, 5),
        (lambda x: x[torch.tensor([0, -4])] * 2, 4),
        (lambda x: x[torch.tensor([0, 3]), torch.tensor([7, 1])] * 2, 4),
        (lambda x: x.index_select(0, torch.tensor([4, 1])) * 2, 5),
        (lambda x: x.gather(0, torch.tensor([[0, 5, 1, 0, 0, 2, 0, 0]])) * 2, 6),
        (lambda x: x[:, torch.tensor([0, 4])][0] * 2, 1),
        (lambda x: x[torch.arange(x.shape[0]) - 1] * 2, 1),
    ],
)
def test_a_size_at_which_an_element_that_is_read_is_none_is_out_of_range(function, least: int, tmp_path: Path) -> None:
    """A library clips where PyTorch does, and refuses a size where PyTorch refuses an index."""
    program = torch.export.export(
        Sized(function), (torch.randn(9, 8),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)
    )
    torch.export.save(program, tmp_path / "model.pt2")
    assert compile_model(tmp_path / "model.pt2", "-o", tmp_path / "model.so", "--verify") == 0
    assert f"n: a symbolic size, from {least} to " in (tmp_path / "model.h").read_text()
    library = load(tmp_path / "model.so")
    x = torch.randn(least, 8)
    np.testing.assert_array_equal(library(x.numpy())[0], function(x).numpy())
    if least > 1:
        with pytest.raises(RuntimeError, match="the model failed"):
            library(x[:-1].numpy())


def test_a_model_of_bfloat16_is_compiled_and_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4)).bfloat16().eval()
    path = save(tmp_path / "model.pt2", model, (torch.randn(3, 64).bfloat16(),))
    assert compile_model(path, "-o", tmp_path / "model.so", "--verify") == 0
    assert "agree" in capsys.readouterr().out
    about = json.loads((tmp_path / "model.json").read_text())
    assert about["steps"][0]["implementation"] != "dense_nopack.cpu", "weights are packed"


@pytest.mark.full
def test_a_fixed_extent_near_the_number_that_stands_for_a_symbolic_one_stays_fixed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    near = PROBES[0][0] - 2
    ids, sizes = torch.tensor([0, near - 1, 7, 150_000]), ({0: torch.export.Dim("n", max=64)},)
    program = torch.export.export(nn.Embedding(near, 1).eval(), (ids,), dynamic_shapes=sizes)
    torch.export.save(program, tmp_path / "model.pt2")
    assert compile_model(tmp_path / "model.pt2", "-o", tmp_path / "model.so", "--verify") == 0
    assert "agree at sizes 1, 3, 8, 64 within" in capsys.readouterr().out


@pytest.mark.sample(1)
@pytest.mark.parametrize("option", [["--verify"], []])
def test_a_wrong_value_is_found_and_named_and_the_library_removed(
    option: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4)).eval()
    path = save(tmp_path / "model.pt2", model, (torch.randn(3, 16),))
    monkeypatch.setattr(comparison, "error_of", lambda found, reference: 0.5 if found.shape[-1] == 8 else 0.25)
    assert compile_model(path, "-o", tmp_path / "model.so", *option) == 1
    said = capsys.readouterr().err
    assert "the worst value is relu (5.0e-01)" in said
    assert ("--no-verify" in said) == (not option)
    assert not list(tmp_path.glob("model.[shj]*"))


class Rounded(nn.Module):
    def forward(self, x):
        return x.round().sum(-1)


class RoundedTwice(nn.Module):
    """Integers of halves, whatever the input is off by."""

    def forward(self, x):
        return ((2 * x).round() / 2).round().sum(-1)


@pytest.mark.parametrize(("model", "change", "code"), [
    (Rounded(), lambda reference: reference.moved(-1e-5), 0),
    (RoundedTwice(), lambda reference: [np.floor(reference.inputs[0] + 0.5).sum(-1)], 0),
    (RoundedTwice(), lambda reference: [1.05 * reference.outputs[0]], 1),
    (nn.Linear(4, 4), lambda reference: [1.005 * reference.outputs[0]], 1),
])
def test_outputs_may_differ_where_the_models_own_jump(
    model: nn.Module, change: Callable[[Any], Any], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    halves = torch.arange(64.0).view(16, 4) + 100.5
    path = save(tmp_path / "model.pt2", model.eval(), (halves,))

    def changed(*given: Any) -> Any:
        reference = run_program(*given)
        return replace(reference, outputs=change(reference))

    monkeypatch.setattr("plevel.torch.exported.run_program", changed)
    assert compile_model(path, "-o", tmp_path / "model.so") == code


@pytest.mark.full
def test_results_that_vary_are_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(tmp_path / "model.pt2", nn.Linear(16, 8).eval(), (torch.randn(3, 16),))
    errors = [0.25]
    monkeypatch.setattr(comparison, "error_of", lambda *_: errors.pop() if errors else 0.0)
    assert compile_model(path, "-o", tmp_path / "model.so") == 1
    assert "a second run agreed: its results vary" in capsys.readouterr().err
    assert not list(tmp_path.glob("model.[shj]*"))


@pytest.mark.full
def test_a_library_of_wrong_outputs_is_removed_though_its_values_cannot_be_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(tmp_path / "model.pt2", nn.Linear(16, 8).eval(), (torch.randn(3, 16),))

    def refuse(program: Any, plain: Any, wanted: Sequence[str], sizes: Sequence[int]) -> Any:
        if wanted:
            raise NetworkError("its reference fails")
        return run_program(program, plain, wanted, sizes)

    monkeypatch.setattr("plevel.torch.exported.run_program", refuse)
    monkeypatch.setattr(comparison, "error_of", lambda *_: 0.25)
    assert compile_model(path, "-o", tmp_path / "model.so") == 1
    assert "an output differs" in capsys.readouterr().err
    assert not list(tmp_path.glob("model.[shj]*"))


def test_a_library_is_run_unless_it_is_for_another_processor_or_that_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = save(tmp_path / "model.pt2", nn.ReLU(), (torch.randn(3, 16),))
    out = tmp_path / "model.so"
    assert compile_model(path, "-o", out, "--json") == 0
    assert json.loads(capsys.readouterr().out)["verified"]["values"] == 0
    assert compile_model(path, "-o", out, "--no-verify") == 0
    assert "agree" not in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["compile", str(path), "-o", str(out), "--target", "llvm -mcpu=haswell"])
    assert "not verified: it is for another processor" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["compile", str(path), "-o", str(out), "--target", "llvm -mcpu=haswell", "--verify"])
    assert "is another processor than this one" in capsys.readouterr().err and out.exists()


class Named(nn.Module):
    def forward(self, output, given, int64_t, a_b_2):
        return output, given * int64_t + a_b_2


@pytest.mark.full
@pytest.mark.parametrize("ratio", [0.8, 1.2])
def test_blocked_layouts_stay_where_the_library_of_nchw_is_slower(
    ratio: float, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def seconds(chosen: kernel_selection.Chosen) -> float:
        return 0.1 if '_layout":"NCHW' in chosen.workload.key else 2.0  # transforms, too

    def estimated(samples: list[float]) -> Estimate:
        timed.extend(samples)
        return estimate([ratio] * 9)

    timed: list[float] = []
    monkeypatch.setattr(deployment, "measured_s", seconds)
    monkeypatch.setattr(faster, "estimate", estimated)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 1)).eval()
    path, out = save(tmp_path / "model.pt2", model, (torch.randn(1, 16, 9, 9),)), tmp_path / "model.so"
    assert compile_model(path, "-o", out) == 0
    said = capsys.readouterr().out
    blocked, stay = "images are in blocked layouts:", "images stay in NCHW: in blocked layouts"
    times = f"{ratio:.2f} ({ratio:.2f} to {ratio:.2f}) of the time of NCHW"
    assert f"{blocked if ratio < 1 else stay} a call takes {times}" in said
    assert "its outputs agree within" in said
    assert len(timed) >= 7 and min(timed) > 0
    assert {f.name for f in tmp_path.iterdir()} == {"model.pt2", "model.so", "model.h", "model.json"}

    def is_blocked() -> bool:
        about = json.loads((tmp_path / "model.json").read_text())
        return any('_layout":"NCHW' in step["workload"] for step in about["steps"])

    assert is_blocked() == (ratio < 1)
    timed.clear()
    assert compile_model(path, "-o", out, "--no-verify") == 0
    assert not timed and "of the time of NCHW" not in capsys.readouterr().out
    assert is_blocked()
    monkeypatch.setattr(faster, "TIME_TIMEOUT_S", 0.0)
    assert compile_model(path, "-o", out) == 0
    assert "images are in blocked layouts, which could not be compared with NCHW: " in capsys.readouterr().out
    assert compile_model(path, "-o", out, "--json") == 0
    layouts = json.loads(capsys.readouterr().out)["layouts"]
    assert layouts["kept"] == "blocked"
    assert layouts["failure"]


@pytest.mark.full
def test_inputs_and_the_library_may_have_any_name(tmp_path: Path) -> None:
    path = save(tmp_path / "model.pt2", Named().eval(), tuple(torch.randn(4, 8) for _ in range(4)))
    assert compile_model(path, "-o", tmp_path / "run.so", "--verify") == 0
    assert "const float *given, const float *x_int64_t, const float *a_b_2, float" in (tmp_path / "run.h").read_text()
    assert c_names(["a.b", "a_b", "a_b_2", "a_b"], ["a"]) == ["a_b", "a_b_2", "a_b_2_2", "a_b_3"]


class Unknown(nn.Module):
    def forward(self, x):
        return torch.special.i1(torch.special.erfcx(x)) + torch.special.erfcx(x.cos())


class Sized(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.forward = function


ANY_ROWS = {"dynamic_shapes": ({0: torch.export.Dim("m")},)}
FEW_ROWS = {"dynamic_shapes": ({0: torch.export.Dim.DYNAMIC(min=3, max=40)},)}


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return x * self.calls


def exported(model: nn.Module, **dynamic: object):
    return torch.export.export(model.eval(), (torch.randn(4, 8),), **dynamic)


@pytest.mark.parametrize(
    "model, dynamic, message",
    [
        (Unknown(), {}, "aten.special_erfcx.default (2), aten.special_i1.default (1): write the model without them"),
        (Counting(), {}, "changes calls"),
        (Sized(lambda x: x.new_ones(64 // x.shape[0])), FEW_ROWS, "products of sizes and of their quotients by"),
        (Sized(lambda x: x.new_ones(x.shape[0] % 3 + 2)), FEW_ROWS, "n - 3*(n//3) + 2, which is small at all sizes"),
        (
            Sized(lambda x: nn.functional.leaky_relu(x, 1 / x.shape[0])), ANY_ROWS,
            "a constant of leaky_relu depends on a symbolic size",
        ),
    ],
)
def test_what_cannot_be_compiled_is_named_in_one_line(
    model: nn.Module, dynamic: dict[str, object], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.export.save(exported(model, **dynamic), tmp_path / "model.pt2")
    assert compile_model(tmp_path / "model.pt2", "-o", tmp_path / "model.so") == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not (tmp_path / "model.so").exists()


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:`isinstance.treespec:FutureWarning")  # PyTorch's, of itself
def test_a_program_that_gives_a_type_of_a_package_that_is_not_imported_is_read(tmp_path: Path) -> None:
    """As transformers' models do."""
    code = f"""
import dataclasses, torch
from torch import nn

@dataclasses.dataclass
class Given:
    state: torch.Tensor
    size: torch.Tensor

class Model(nn.Module):
    def forward(self, x, given=None):
        return Given(x * 2, x.sum() if given is None else given.state)

torch.export.register_dataclass(Given, serialized_type_name="far.away.Given")
torch.export.save(torch.export.export(Model(), (torch.ones(3),)), {str(tmp_path / "model.pt2")!r})
given = Given(torch.ones(3), torch.ones(3))
torch.export.save(torch.export.export(Model(), (torch.ones(3), given)), {str(tmp_path / "given.pt2")!r})
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=HANG_S)
    program = load_program(tmp_path / "model.pt2")
    network, plain = import_program(program)
    assert list(network.outputs) == ["output0", "output1"]
    assert [float(o.sum()) for o in run_program(program, plain, ()).outputs] == [6.0, 3.0]
    own = torch.utils._pytree  # as if the package were imported later
    spec = own.treespec_dumps(own.tree_structure(program.module()(torch.ones(3))))
    with pytest.raises(NotImplementedError, match="far.away.Given in pytree is not registered"):
        own.treespec_loads(spec)
    network, _ = import_program(load_program(tmp_path / "given.pt2"))
    assert [i.name for i in network.inputs] == ["x", "given_0", "given_1"]


@pytest.mark.full
def test_sizes_that_the_example_does_not_fit_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its indices lie beyond the axis at the least size."""
    x, index = torch.randn(6, 4), torch.tensor([5, 0])
    program = torch.export.export(Sized(lambda x, i: x[i] * 2), (x, index), dynamic_shapes=({0: DIM}, None))
    torch.export.save(program, tmp_path / "model.pt2")
    assert compile_model(tmp_path / "model.pt2", "-o", tmp_path / "model.so", "--verify") == 0
    assert "agree at sizes 8, 64 within" in capsys.readouterr().out


def test_the_sizes_of_the_example_are_tried(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Here no others fit it: there is no mask for all rows."""
    model = Sized(lambda x, y, mask: torch.cat([x, y]) * mask[torch.arange(x.shape[0] + y.shape[0])])
    given = torch.randn(3, 4), torch.randn(2, 4), torch.randn(7, 1)
    sizes = ({0: torch.export.Dim.DYNAMIC},) * 3
    torch.export.save(torch.export.export(model, given, dynamic_shapes=sizes), tmp_path / "model.pt2")
    for option in (["--verify"], []):
        assert compile_model(tmp_path / "model.pt2", "-o", tmp_path / "model.so", *option) == 0
        assert "agree at sizes 3×2×7 within" in capsys.readouterr().out


@pytest.mark.full
def test_instances_of_a_symbolic_batch_are_normed(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4, affine=True), nn.ReLU()).eval()
    program = torch.export.export(model, (torch.randn(3, 3, 6, 6),), dynamic_shapes=({0: DIM},))
    torch.export.save(program, tmp_path / "model.pt2")
    assert compile_model(tmp_path / "model.pt2", "-o", tmp_path / "model.so", "--verify") == 0


def computed(x):
    """Numbers of which `n`, the extent of axis 1, is a part."""
    n, pad, turned = x.shape[1], nn.functional.pad, x.transpose(1, 2)
    found = x.clone()
    found[:, -1] = n
    return (
        x / n, x.argmax(1) + n, (x * n**-0.5).half() * n, x.roll((1, -2), (1, 0)), x.sum() / x.numel(),
        torch.arange(n - 1, -1, -1), torch.full((2,), n // 2 * 3 % 5), torch.where(x > 0, n / 2, x), found,
        *(pad(turned, (1, 2), mode=mode) for mode in ("reflect", "replicate", "circular")),
        nn.functional.interpolate(turned, scale_factor=2, mode="linear"), nn.functional.instance_norm(turned),
        x.index_put((torch.arange(n) % 2, torch.arange(n)), torch.tensor(2.0)),
    )


@pytest.mark.filterwarnings("ignore:`isinstance.treespec:FutureWarning")  # PyTorch's, of itself
def test_numbers_that_depend_on_sizes_are_computed_at_the_call(tmp_path: Path) -> None:
    sizes = {0: torch.export.Dim("b", min=2, max=9), 1: torch.export.Dim("t", min=4, max=40)}
    program = torch.export.export(Sized(computed), (torch.randn(2, 7, 4),), dynamic_shapes=(sizes,))
    torch.export.save(program, tmp_path / "model.pt2")
    _, plain = import_program(load_program(tmp_path / "model.pt2"))
    assert not any("empty" in str(node.target) for node in plain.graph.nodes)  # no chance values to compare with
    assert compile_model(tmp_path / "model.pt2", "-o", tmp_path / "model.so", "--verify") == 0


def test_any_number_of_rows_is_sorted(tmp_path: Path) -> None:
    model = Sized(lambda x: (*x.topk(2), *x.sort(1, descending=True)))
    path = tmp_path / "m.pt2"
    torch.export.save(torch.export.export(model, (torch.randn(5, 8, 3),), dynamic_shapes=({0: DIM},)), path)
    assert compile_model(path, "-o", tmp_path / "m.so", "--verify") == 0


def test_a_kernel_that_calls_tvms_runtime_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def of_bytes(x: Expr, k: int, axis: int, *, ascending: bool) -> Expr:
        """The operator on integers of 8 bits, which only its implementation by TVM's runtime takes."""
        return call("topk", x, k=k, axis=axis, ret_type="indices", is_ascend=ascending, dtype="int64")

    monkeypatch.setattr(layer, "largest", of_bytes)
    model = Sized(lambda x: tuple(x.byte().topk(2, 0)))
    torch.export.save(torch.export.export(model, (torch.randn(5, 8),), dynamic_shapes=({1: DIM},)), tmp_path / "m.pt2")
    assert compile_model(tmp_path / "m.pt2", "-o", tmp_path / "m.so") == 2
    said = capsys.readouterr().err
    assert "it calls tvm.contrib.sort.topk of TVM's runtime, which a library is without: export the model with" in said


_EXPERTS = """
import sys, torch

@torch.library.custom_op("transformers::grouped_mm_fallback", mutates_args=())
def grouped(input: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    ends = offs.tolist()
    return torch.cat([input[a:b] @ w for a, b, w in zip([0, *ends], ends, weight)])

@grouped.register_fake
def _(input, weight, offs):
    return input.new_empty(input.shape[0], weight.shape[2])

class Experts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(3, 8, 16))

    def forward(self, x, offs):
        return torch.ops.transformers.grouped_mm_fallback(x, self.weight.transpose(1, 2), offs)

inputs = torch.randn(9, 16), torch.tensor([2, 2, 9], dtype=torch.int32)
torch.export.save(torch.export.export(Experts().eval(), inputs), sys.argv[1])
"""


def test_a_file_of_experts_is_read_without_transformers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "experts.pt2"
    subprocess.run([sys.executable, "-c", _EXPERTS, str(path)], check=True, timeout=HANG_S)
    assert compile_model(path, "-o", tmp_path / "experts.so") == 0
    assert "agree" in capsys.readouterr().out


_PACKAGE = """
import torch

given = "Tensor x, Tensor boxes, float scale, int rows, int columns, int n, bool aligned"
torch.library.define("NAME::roi_align", f"({given}) -> Tensor")
torch.library.register_fake("NAME::roi_align")(lambda x, boxes, scale, *size: x.new_empty(len(boxes), 1, *size[:2]))
"""
_REGIONS = """
import sys
sys.path.insert(0, sys.argv[1])
import torch, NAME

class Regions(torch.nn.Module):
    def forward(self, x, boxes):
        return torch.ops.NAME.roi_align(x, boxes, 1.0, 3, 3, 2, True)

program = torch.export.export(Regions(), (torch.randn(1, 1, 8, 8), torch.rand(2, 5)))
torch.export.save(program, sys.argv[2])
"""
_READ = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from plevel.torch.program import load_program
from strategy.network.graph import NetworkError
try:
    print([str(n.target) for n in load_program(Path(sys.argv[2])).graph.nodes if n.op == "call_function"])
except NetworkError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("torchvision", "['torchvision.roi_align.default']"),
        ("regions", "it calls 'regions.roi_align.default', an operator of a package other than PyTorch, torchvision"),
    ],
)
def test_operators_of_other_packages_are_refused_by_name_and_torchvisions_read(
    name: str, said: str, tmp_path: Path
) -> None:
    """A process that reads a file has not imported what its model was made with."""
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text(_PACKAGE.replace("NAME", name))
    for code in (_REGIONS, _READ):
        command = [sys.executable, "-c", code.replace("NAME", name), str(tmp_path), str(tmp_path / "model.pt2")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
        assert done.returncode == 0, done.stderr
    assert said in done.stdout


def test_a_package_that_cannot_be_imported_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao", None)
    monkeypatch.delitem(sys.modules, "torchao")
    monkeypatch.setattr("plevel.torch.program.import_module", _missing)
    with pytest.raises(NetworkError, match="an operator of torchao, which cannot be imported here: install"):
        _define("torchao.dequantize_affine.default")


def _missing(name: str) -> None:
    raise ModuleNotFoundError(f"No module named {name!r}")


def test_a_torchvision_for_another_pytorch_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torchvision.py").write_text("raise AttributeError('torch.library has no register_fake')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    said = r"install the one for this PyTorch \(AttributeError: torch.library has no register_fake\)"
    with pytest.raises(NetworkError, match=said):
        _define("torchvision.nms.default")
