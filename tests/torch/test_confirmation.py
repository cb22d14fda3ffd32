"""Confirmation in the whole graph: only what wins stays, and the verdict is kept."""

from __future__ import annotations

import ctypes
import errno
import gc
import json
import math
import os
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from dataclasses import replace
from io import FileIO
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

torch = pytest.importorskip("torch", reason="the torch extra is not installed")

from torch._inductor.exc import InductorError
from torch.testing._internal.two_tensor import TwoTensor

from plevel import deployment, kernel_selection
from plevel.direct import connect
from plevel.kernel_selection import make_chooser
from plevel.torch import (
    agreement,
    backend,
    compilation,
    confirmation,
    explain,
    exported,
    form,
    kernel,
    operation,
    reporting,
)
from plevel.torch.agreement import agree, differences
from plevel.torch.backend import plevel
from plevel.torch.compilation import Compilation
from plevel.torch.explanation import make_report
from plevel.torch.extraction import Extraction, extract
from plevel.torch.form import make_rounded
from plevel.torch.frozen import compile_frozen, copy_strided
from plevel.torch.plan import graph_digest, model_target
from plevel.torch.progress import Progress, Series
from plevel.torch.quantization import define_quantized
from plevel.torch.store import code_of, folder
from plevel.torch.verdict import Verdict, read_verdict, write_verdict
from plevel.torch.whole import StaleError, _prefix, draft_whole
from service.store import migration
from strategy.confirmation import Confirmation
from strategy.cpu.dot import find_dot
from strategy.network.graph import NetworkError
from strategy.record import convert, estimate
from strategy.select import NO_RECORDS
from strategy.space import Config
from strategy.target import cpu_target
from strategy.workload import Workload
from tests.limit import HANG_S
from tests.torch import models
from workers import pool
from workers.pool import Over, Pool, ask_all

pytestmark = pytest.mark.usefixtures("fresh")


def refuse_below(kept: Path):
    make = os.mkdir

    def refuse(path, *mode, **options):
        if Path(path).is_relative_to(kept):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        make(path, *mode, **options)

    return refuse


def run(model, inputs, dynamic=None):
    torch._dynamo.reset()
    with torch.inference_mode():
        found = torch.compile(model, backend=plevel, dynamic=dynamic)(*inputs)
        torch.testing.assert_close(found, model(*inputs), atol=2e-5, rtol=2e-5)
    return explain(model)[-1]


@pytest.fixture
def ratios(monkeypatch: pytest.MonkeyPatch):
    """The ratio that each comparison finds, in turn: no test depends on times."""
    left: list[list[float]] = []
    def compare(old, new, inputs, written):
        ratio = estimate(left.pop(0))
        return confirmation.Timed(ratio, 0.5, 0.5 * ratio.median_s)

    monkeypatch.setattr(confirmation, "compare", compare)
    monkeypatch.setattr(compilation, "draft_whole", _refuse)
    return left


def _refuse(*_: object):
    raise NetworkError("none in this test")


@pytest.fixture
def whole(ratios, monkeypatch: pytest.MonkeyPatch):
    """As `ratios`, with libraries of whole graphs."""
    monkeypatch.setattr(compilation, "draft_whole", draft_whole)
    monkeypatch.setattr(confirmation, "REST", 1.0)
    return ratios


@pytest.mark.parametrize("kind", [pytest.param("float64", marks=pytest.mark.full), "autocast"])
def test_a_library_has_products_of_other_dtypes_and_those_of_autocast(whole, kind, monkeypatch: pytest.MonkeyPatch):
    torch.manual_seed(0)
    model, x = torch.nn.Linear(32, 48).eval(), torch.randn(24, 32)
    if kind == "float64":
        model, x = model.double(), x.double()
        monkeypatch.setattr(confirmation, "REST", 0.0)  # it is not compared with Inductor's form again
    whole += [[0.6] * 9]
    torch._dynamo.reset()
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, kind == "autocast"):
        found, expected = torch.compile(model, backend=plevel)(x), model(x)
        torch.testing.assert_close(found, expected, atol=0.02, rtol=0.02)
    report = explain(model)[-1]
    assert report.verdict.whole, str(report)
    (product,) = (row.workload for row in report.rows if row.workload.op == "dense")
    assert product.inputs[0].type == f"{'float64' if kind == 'float64' else 'bfloat16'}[24,32]"
    whole += [[1.1] * 9]
    if kind == "float64":
        torch._dynamo.reset()
        with torch.inference_mode():
            torch.compile(model, backend=plevel, options={"again": True})(x)
        assert "100.0 %  aten.addmm.default of float64: not covered" in str(explain(model)[-1])


def test_a_graph_that_is_faster_as_one_library_runs_as_one(whole):
    torch.manual_seed(0)
    model = torch.nn.Sequential(models.Block(48, 96), models.Attention(), models.Block(48, 96)).eval()
    inputs = (torch.randn(2, 24, 48),)
    whole += [[0.6] * 9]  # no form is compiled once it wins
    before = set(folder().glob("graph-*.so"))
    report = run(model, inputs)
    assert whole == []
    assert report.verdict.whole
    assert {row.workload.op for row in report.rows} == {"dense", "batch_matmul", "softmax", "add"}
    assert all(row.implementation and row.reason for row in report.rows)
    assert sum(row.share for row in report.rows) == pytest.approx(1)
    assert "0.600 of the time before (0.600 to 0.600), kept: as one library of add(" in str(report)
    (made,) = set(folder().glob("graph-*.so")) - before
    kept, other = made.read_bytes(), made.with_suffix(".other")
    load, loaded = ctypes.CDLL, []

    def replaced(name, *given):
        found = load(name, *given)
        if name.endswith(made.name):
            loaded.append(name)
            other.write_bytes(kept[:-4096] + bytes(4088) + kept[-8:])  # of another process, with other weights
            other.replace(made)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compilation, "compile_frozen", None)  # Inductor is not asked
        patch.setattr(os, "mkdir", refuse_below(folder()))  # as of a read-only folder
        patch.setattr(ctypes, "CDLL", replaced)
        again = run(model, inputs)
    assert loaded
    other.write_bytes(kept)
    other.replace(made)
    assert (again.rows, again.verdict) == (report.rows, report.verdict)
    with torch.no_grad():  # the same graph with other weights is another library
        for parameter in model.parameters():
            parameter.mul_(1.5)
    run(model, inputs)
    assert len(set(folder().glob("graph-*.so")) - before) == 2


def test_an_update_of_plevel_times_a_graph_again_and_makes_its_library_anew(whole, monkeypatch: pytest.MonkeyPatch):
    torch.manual_seed(0)
    model, inputs = torch.nn.Sequential(models.Block(48, 96)).eval(), (torch.randn(2, 24, 48),)
    before = set(folder().glob("*"))
    whole += [[0.6] * 9]
    run(model, inputs)
    for module in ("plan", "whole"):
        monkeypatch.setattr(f"plevel.torch.{module}.compiler_code", lambda: "of an update")
    whole += [[0.6] * 9]
    run(model, inputs)
    assert whole == []
    for kind in ("graph-*.so", "verdict-*"):
        assert len(set(folder().glob(kind)) - before) == 2


def test_the_code_that_compiles_graphs_is_told_from_that_of_another_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    package = tmp_path / "made_compiler"
    (package / "__pycache__").mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    first = code_of("made_compiler")
    (package / "__pycache__" / "plan.pyc").write_bytes(b"\xff")
    assert code_of("made_compiler") == first
    (package / "library.c").write_text("int x;")
    assert code_of("made_compiler") != first


@pytest.mark.filterwarnings("ignore:To copy construct from a tensor:UserWarning")  # Inductor's, of itself
@pytest.mark.parametrize("kind", ["linear", "convolution"])
def test_a_graph_that_pytorch_has_quantised_is_one_library(whole, kind, monkeypatch: pytest.MonkeyPatch):
    torch.manual_seed(0)
    model, product = {
        "linear": (models.Quantised(torch.nn.Linear(64, 48), torch.nn.Linear(48, 24)), "dense"),
        "convolution": (models.Quantised(*(torch.nn.Conv2d(n, 16, 3, padding=1) for n in (8, 16))), "conv2d"),
    }[kind]
    inputs = (torch.rand(4, 64) if kind == "linear" else torch.rand(1, 8, 9, 9),)
    whole += [[0.6] * 9]
    report = run(model.eval(), inputs)
    assert report.verdict.whole, str(report)
    fast = find_dot(cpu_target(), "int8") is not None
    products = [row for row in report.rows if row.workload.op in (product, f"q{product}")]
    assert [row.workload.op for row in products] == [f"q{product}" if fast else product] * 2
    assert whole == []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compilation, "compile_frozen", None)  # Inductor is not asked
        again = run(model, inputs)
    assert again.rows == report.rows
    monkeypatch.setattr(compilation, "draft_whole", _refuse)
    torch._dynamo.reset()
    with torch.inference_mode():
        found = torch.compile(model, backend=plevel, options={"again": True})(*inputs)
    torch.testing.assert_close(found, model(*inputs), atol=2e-5, rtol=2e-5)
    left = explain(model)[-1]
    assert left.replaced == 0
    assert any(name.endswith(" of dequantised integers") for name in left.missed), str(left)


def test_bytes_count_as_the_numbers_that_a_library_makes_of_them(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(exported, "MOST_BYTES", 8_000)
    tracer = torch.fx.Tracer()
    tracer.proxy_buffer_attributes = True
    for kind, few in (("static", find_dot(cpu_target(), "int8") is not None), ("weight", False)):
        model = models.Quantised(torch.nn.Linear(64, 48), kind=kind).eval()
        graph = torch.fx.GraphModule(model, tracer.trace(model))
        with nullcontext() if few else pytest.raises(NetworkError, match="its weights have"):
            draft_whole(graph, [torch.rand(16, 64)], cpu_target(), make_chooser(cpu_target(), NO_RECORDS), ask_all)


def test_a_library_is_made_anew_for_other_weights_and_threads(whole):
    def step():
        model(x).sum().backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()

    torch.manual_seed(0)
    model, x = models.Block(56, 40).eval(), torch.randn(24, 56)
    fast, threads = torch.compile(model, backend=plevel), torch.get_num_threads()
    changes = (
        lambda: None, step, lambda: torch.set_num_threads(2 if threads == 1 else 1),
        lambda: torch.set_num_threads(threads),
    )
    try:
        for change in changes:
            change()
            whole[:] = [[0.6] * 9]
            with torch.inference_mode():
                torch.testing.assert_close(fast(x), model(x), atol=2e-5, rtol=2e-5)
    finally:
        torch.set_num_threads(threads)
    assert [report.verdict.whole for report in explain(model)] == [True] * 3  # the last call was of the second


@pytest.mark.full
def test_a_library_of_slow_steps_that_inductor_could_run_is_compared_with_the_form_of_all_products(
    whole, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(confirmation, "REST", 0.0)
    model, inputs = torch.nn.Sequential(models.Block(40, 56), models.Attention()).eval(), (torch.randn(2, 24, 40),)
    whole += [[0.8] * 9, [0.9] * 9, [0.7] * 9]  # the last one is of both, beside Inductor alone
    before = set(folder().glob("graph-*"))
    report = run(model, inputs)
    assert whole == []
    assert "all products replaced is faster" in report.verdict.apart
    assert {row.workload.op for row in report.rows if row.implementation} == {"dense", "batch_matmul"}
    assert set(folder().glob("graph-*")) == before


@pytest.mark.full
@pytest.mark.parametrize("faster", [True, False])
def test_convolutions_stay_joined_where_the_library_without_is_slower(whole, faster, monkeypatch: pytest.MonkeyPatch):
    def seconds(chosen: kernel_selection.Chosen) -> float:
        return 0.1 if '_layout":"NCHW' in chosen.workload.key else 2.0

    monkeypatch.setattr(deployment, "measured_s", seconds)
    torch.manual_seed(0)
    layers = torch.nn.Conv2d(16, 16, 3, padding=1, groups=16), torch.nn.ReLU6(), torch.nn.Conv2d(16, 24, 1)
    inputs = (torch.randn(1, 16, 9, 9 + faster),)  # a graph of its own, as verdicts are kept
    whole += [[0.8 if faster else 1.2] * 9, [0.8] * 9, [0.6] * 9]  # beside both apart, NCHW, then Inductor
    report = run(torch.nn.Sequential(*layers).eval(), inputs)
    assert whole == []
    assert report.verdict.whole
    joined = [row.workload.op == "depthwise_separable_conv2d" for row in report.rows]
    assert any(joined) == faster
    assert any('_layout":"NCHW' in row.workload.key for row in report.rows)


@pytest.mark.full
@pytest.mark.parametrize("faster", [True, False])
def test_blocked_layouts_stay_where_the_library_of_nchw_is_slower(whole, faster, monkeypatch: pytest.MonkeyPatch):
    blocked = True

    def seconds(chosen: kernel_selection.Chosen) -> float:
        return 0.1 if ('_layout":"NCHW' in chosen.workload.key) == blocked else 2.0  # transforms, too

    def ask(pool, requests, *given):
        asked.extend(request.workload for _, request in requests)
        return ask_children(pool, requests, *given)

    asked: list[Workload] = []
    ask_children = Pool.ask_all
    monkeypatch.setattr(Pool, "ask_all", ask)
    monkeypatch.setattr(deployment, "measured_s", seconds)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(16, 16, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(16, 16, 1))
    inputs = (torch.randn(1, 16, 9, 9 + faster),)  # a graph of its own, as verdicts are kept
    before = set(folder().glob("graph-*"))
    whole += [[0.8 if faster else 1.2] * 9, [0.6] * 9]  # beside NCHW, then beside Inductor
    report = run(model.eval(), inputs)
    assert whole == []
    assert report.verdict.whole
    assert any('_layout":"NCHW' in row.workload.key for row in report.rows) == faster
    assert len(asked) == len(set(asked)) > 2  # both libraries share kernels
    made = set(folder().glob("graph-*")) - before
    assert len(made) == 2  # the library that stays, and its description
    again = run(model, inputs)  # a comparison would fail
    assert again.rows == report.rows
    # A verdict is void once its library is gone and the layouts are others.
    for path in made:
        path.unlink()
    blocked = False
    whole += [[0.7] * 9] * faster
    anew = run(model, inputs)
    assert whole == []
    assert anew.verdict.whole
    assert anew.verdict.steps[0].ratio.median_s == (0.7 if faster else 0.6)
    assert not any('_layout":"NCHW' in row.workload.key for row in anew.rows)


@pytest.mark.full
def test_graphs_that_differ_in_dtypes_or_in_places_of_weights_have_libraries_of_their_own(whole):
    class First(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.rows = torch.nn.Embedding(50, 32)
            self.a, self.b = torch.nn.Linear(32, 32), torch.nn.Linear(32, 32)

        def forward(self, x):
            return self.b(self.a(self.rows(x)).relu())

    class Second(First):
        def forward(self, x):
            return self.a(self.b(self.rows(x)).relu())

    ids = torch.randint(0, 50, (16,))
    for model, given in ((First(), ids), (First(), ids.int()), (Second(), ids)):
        whole[:] = [[0.8] * 9]
        assert run(model.eval(), (given,)).verdict.whole


@pytest.mark.full
@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda y: y[:, 1:], "an output is a part of a tensor"),
        (torch.special.i0, "aten.i0"),
        (lambda y: (y[:12], y[12:]), "shares memory"),
        (lambda y: y, "at most 0"),
        (torch.relu, "not faster"),
    ],
)
def test_what_no_library_can_do_stays_apart_and_says_why(whole, function, why, monkeypatch: pytest.MonkeyPatch):
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(96, 56)

        def forward(self, x):
            return function(self.linear(x))

    if "most" in why:
        monkeypatch.setattr("plevel.torch.exported.MOST_BYTES", 1000)
    torch.manual_seed(0)
    whole += [*[[1.1] * 9] * ("faster" in why), [0.8] * 9]
    before = set(folder().glob("graph-*"))
    report = run(Model().eval(), (torch.randn(24, 96),))
    assert whole == []
    assert not report.verdict.whole
    assert report.replaced == 1
    assert set(folder().glob("graph-*")) == before
    assert why in report.verdict.apart
    assert "no library of its own: " in str(report)


def test_a_library_gives_outputs_and_takes_inputs_of_any_order_of_axes(whole):
    class Heads(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.key = torch.nn.Conv2d(4, 8, 3), torch.nn.Linear(8, 24)

        def forward(self, x):
            y = self.conv(x)
            return y, self.key(y.flatten(2).transpose(1, 2)).unflatten(2, (2, 12)).transpose(1, 2)

    torch.manual_seed(0)
    model = Heads().eval().to(memory_format=torch.channels_last)
    x = torch.randn(2, 4, 6, 7).to(memory_format=torch.channels_last)
    whole += [[0.6] * 9]
    for _ in range(2):  # the second time it is loaded
        torch._dynamo.reset()
        with torch.inference_mode():
            found, expected = torch.compile(model, backend=plevel)(x), model(x)
        assert explain(model)[-1].verdict.whole, str(explain(model)[-1])
        for one, right in zip(found, expected, strict=True):
            torch.testing.assert_close(one, right, atol=2e-5, rtol=2e-5)
            assert one.stride() == right.stride() != torch.empty(one.shape).stride()


def test_a_library_has_the_strides_of_pytorch_where_inductor_has_others(whole):
    """As of the first keys and values of transformers' caches."""

    class Cached(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.key = torch.nn.Linear(8, 40)

        def forward(self, x):
            keys = self.key(x).unflatten(2, (4, 10)).transpose(1, 2)
            return torch.cat([torch.tensor([]), keys], dim=-2), keys.sum(-1)

    torch.manual_seed(0)
    model, x = Cached().eval(), torch.randn(2, 5, 8)
    whole += [[0.6] * 9]
    with torch.inference_mode():
        found, expected = torch.compile(model, backend=plevel)(x), model(x)
    assert explain(model)[-1].verdict.whole, str(explain(model)[-1])
    for one, right in zip(found, expected, strict=True):
        torch.testing.assert_close(one, right, atol=2e-5, rtol=2e-5)
        assert one.stride() == right.stride()


def test_a_library_is_not_kept_whose_weights_change_while_it_is_made(whole, monkeypatch: pytest.MonkeyPatch):
    """It may have the new ones, and is found by the old."""
    def confirm_and_change(*given):
        found = confirmation.confirm(*given)
        model.weight.mul_(2)
        return found

    monkeypatch.setattr(compilation, "confirm", confirm_and_change)
    torch.manual_seed(0)
    model, x = torch.nn.Linear(32, 56).eval(), torch.randn(24, 32)
    whole += [[0.6] * 9]
    before = set(folder().glob("graph-*.so"))
    with torch.no_grad(), pytest.warns(UserWarning, match="another thread changed its parameters"):
        torch.testing.assert_close(torch.compile(model, backend=plevel)(x), model(x), atol=2e-5, rtol=2e-5)
    assert not whole and set(folder().glob("graph-*.so")) == before


@pytest.mark.full
def test_a_library_is_timed_anew_once_another_kernel_of_it_is_selected(whole, monkeypatch: pytest.MonkeyPatch):
    class Pooled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.Conv2d(3, 16, 3)

        def forward(self, x):
            return torch.nn.functional.avg_pool2d(self.conv(x), 2)

    torch.manual_seed(0)
    model, inputs = Pooled().eval(), (torch.randn(1, 3, 18, 18),)
    whole += [[1.1] * 9, [1.2] * 9]
    assert "not faster as one library" in run(model, inputs).verdict.apart

    chosen: Counter[str] = Counter()

    def choose(workload, *given):
        chosen[workload.key] += 1
        found = select(workload, *given)
        if workload.op != "avg_pool2d":
            return found
        return msgspec.structs.replace(found, config=Config({**found.config, "tasks": 2}))

    select = kernel_selection.choose_kernel
    monkeypatch.setattr(kernel_selection, "choose_kernel", choose)
    whole += [[0.6] * 9]
    report = run(model, inputs)
    assert whole == []
    (row,) = [row for row in report.rows if row.workload.op == "avg_pool2d"]
    assert row.config["tasks"] == 2
    chosen.clear()
    assert run(model, inputs).rows == report.rows
    assert len(chosen) == 2  # the convolution's and the pooling's
    assert set(chosen.values()) == {1}


@pytest.mark.full
def test_a_family_that_wins_stays_and_the_verdict_is_not_asked_for_again(ratios, monkeypatch: pytest.MonkeyPatch):
    model, inputs = models.transformer()
    ratios += [[0.8] * 9, [1.2] * 9, *[[1.1] * 9] * 5]
    report = run(model, inputs)
    assert {row.workload.op for row in report.rows if row.implementation} == {"dense"}
    assert report.replaced == 4
    dense, matmul, *singles = report.verdict.steps
    assert (dense.added, dense.kept, len(dense.workloads)) == (True, True, 2)
    assert (matmul.added, matmul.kept) == (True, False)
    assert [s.added for s in singles if "dense" in s.workloads[0]] == [False, False]
    ratios.clear()
    again = run(model, inputs)  # a comparison would fail
    assert again.replaced == 4
    assert again.verdict == report.verdict
    assert f"timed on openmp, {torch.get_num_threads()} thread" in str(again)
    assert "0.800 of the time before" in str(again)
    monkeypatch.setattr("plevel.torch.plan.version", lambda package: "99")
    ratios += [[1.1] * 9] * 6
    assert run(model, inputs).replaced == 0  # another plevel asks anew


@pytest.mark.full
@pytest.mark.parametrize("alike", [True, False])
def test_forms_are_of_the_frozen_graph_unless_that_becomes_another(ratios, alike, monkeypatch: pytest.MonkeyPatch):
    compiled = []

    def spy(module, *given):
        compiled.append(module)
        return compile_frozen(module, *given)

    def normalized(module):
        return any("batch_norm" in str(node.target) for node in module.graph.nodes)

    monkeypatch.setattr(form, "compile_frozen", spy)
    monkeypatch.setattr(confirmation, "SINGLES_S", 600.0)  # whatever the machine does beside
    if not alike:
        monkeypatch.setattr(form, "graph_digest", lambda module: "another")
    torch.manual_seed(0)
    width = 16 if alike else 24  # a verdict of its own
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, width, 3, bias=False), torch.nn.BatchNorm2d(width), torch.nn.ReLU(),
        torch.nn.Conv2d(width, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.GELU(), torch.nn.Flatten(),
        torch.nn.Linear(128, 8),
    ).eval()
    ratios += [[0.8] * 9, *[[1.1] * 9] * 2]  # the small product goes with the convolutions
    assert run(model, (torch.randn(2, 3, 8, 8),)).replaced == 3
    assert ratios == []
    assert list(map(normalized, compiled)) == ([False] * 3 if alike else [False, True] * 3)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "share", [lambda x: x[:96].expand(24, 96), lambda x: x.unfold(0, 96, 1)], ids=["expanded", "windows"]
)
def test_an_input_whose_elements_share_memory_is_timed_with_its_strides(ratios, share):
    torch.manual_seed(0)
    ratios += [[0.8] * 9]
    assert run(torch.nn.Linear(96, 80).eval(), (share(torch.randn(119)),)).replaced == 1


def test_a_copy_has_the_strides_of_the_original():
    x = torch.arange(400.0).reshape(4, 100)
    for one in (x.t(), x[:, 3:5], x[:1].expand(7, 100), x.unfold(1, 10, 3), x[:0, :3]):
        made = copy_strided(one)
        assert made.stride() == one.stride() and torch.equal(made, one)


def test_a_graph_that_draws_random_numbers_is_timed(ratios):
    torch.manual_seed(0)
    model, x = torch.nn.Sequential(torch.nn.Linear(96, 104), torch.nn.Dropout()), torch.randn(24, 96)
    ratios += [[0.8] * 9]
    with torch.inference_mode():
        torch.compile(model, backend=plevel)(x)
    (report,) = explain(model)
    assert report.replaced == 1, str(report)


def test_a_graph_that_writes_a_cache_keeps_its_kernels_and_each_call_starts_from_the_same(
    ratios, monkeypatch: pytest.MonkeyPatch
):
    class Step(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.key, self.out = torch.nn.Linear(96, 88), torch.nn.Linear(88, 96)

        def forward(self, x, cache, place):
            cache.index_copy_(0, place, self.key(x))  # fails beyond the cache
            place.add_(1)
            return self.out(cache.sum(0, keepdim=True))

    def compare(old, new, inputs, written):
        timed = ratios.pop(0)
        for function in (old, new):
            confirmation._burst(function, inputs, 9, written)
        return confirmation.Timed(estimate(timed), 0.5, 0.4)

    drafted = []
    monkeypatch.setattr(confirmation, "compare", compare)
    monkeypatch.setattr(compilation, "draft_whole", lambda *given: drafted.append(given))
    ratios += [[0.8] * 9, *[[1.1] * 9] * 2]
    torch.manual_seed(0)
    model = Step().eval()
    fast = torch.compile(model, backend=plevel)
    caches = torch.zeros(2, 8, 88)
    places = torch.zeros(2, 1, dtype=torch.int64)
    with torch.no_grad():
        for x in torch.randn(3, 1, 96):
            found, expected = fast(x, caches[0], places[0]), model(x, caches[1], places[1])
            torch.testing.assert_close(found, expected, atol=2e-5, rtol=2e-5)
    torch.testing.assert_close(caches[0], caches[1], atol=2e-5, rtol=2e-5)
    assert places.tolist() == [[3], [3]]
    report = explain(model)[-1]
    assert report.replaced == 2
    assert "it changes its inputs or the model's buffers" in str(report)
    assert not drafted


@pytest.mark.full
def test_norms_and_softmax_are_one_family_that_replaces_only_where_it_is_timed(ratios):
    model, inputs = models.rowwise()
    ratios += [[1.1] * 9, [0.8] * 9]
    report = run(model, inputs)
    data = "data=float32[2,12,32],gamma=float32[32]:const"
    assert {row.workload.key for row in report.rows if row.implementation} == {
        f'rms_norm({data}){{"epsilon":1.1920928955078125e-07}}',
        f"layer_norm({data},beta=float32[32]:const)",
        "softmax(data=float32[2,12,48])",
    }
    assert [len(s.workloads) for s in report.verdict.steps] == [1, 3]


def test_a_measured_reduction_is_timed_with_norms_and_goes_where_the_graph_is_not_faster(
    ratios, monkeypatch: pytest.MonkeyPatch
):
    class Pooled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.norm = torch.nn.Linear(32, 40), torch.nn.LayerNorm(40)

        def forward(self, x):
            return self.norm(self.linear(x)).mean(0)

    torch.manual_seed(0)
    model, x = Pooled().eval(), torch.randn(24, 32)
    for measured, kept in ((False, True), (True, False), (True, True)):
        if measured:
            monkeypatch.setattr("plevel.torch.plan.measured_s", lambda chosen: 1e-6)
        ratios += [[1.1] * 9, [0.8 if kept else 1.1] * 9]
        torch._dynamo.reset()
        with torch.inference_mode():
            found = torch.compile(model, backend=plevel, options={"again": True})(x)
            torch.testing.assert_close(found, model(x), atol=2e-5, rtol=2e-5)
        report = explain(model)[-1]
        tried = {key.partition("(")[0] for key in report.verdict.steps[1].workloads}
        assert tried == {"layer_norm", "mean"} if measured else {"layer_norm"}
        assert {row.workload.op for row in report.rows if row.implementation} == (tried if kept else set())


def test_a_norm_of_16_bits_that_a_model_computes_in_float32_is_one_operator(ratios):
    """As LLaMA's."""

    class Norm(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(33, 33, bias=False)
            self.gamma = torch.nn.Parameter(torch.rand(33))

        def forward(self, x):
            wide = self.linear(x).float()
            return self.gamma * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)

    torch.manual_seed(0)
    model, x = Norm().to(torch.bfloat16).eval(), torch.randn(5, 33, dtype=torch.bfloat16)
    ratios += [[1.1] * 9, [0.8] * 9]
    with torch.inference_mode():
        torch.testing.assert_close(torch.compile(model, backend=plevel)(x), model(x), atol=0.02, rtol=0.02)
    (report,) = explain(model)
    (norm,) = (row.workload.key for row in report.rows if row.implementation)
    assert norm == 'rms_norm(data=bfloat16[5,33],gamma=bfloat16[33]:const){"epsilon":1e-06}'


@pytest.mark.full
@pytest.mark.parametrize("over", ["alpha", "a constant", "all"])
def test_what_is_nearly_a_norm_is_none(ratios, over: str) -> None:
    class Norm(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(33, 33)
            self.gamma = torch.nn.Parameter(torch.ones(33))

        def forward(self, x):
            x = self.linear(x)
            squares = x.pow(2).mean(None if over == "all" else -1, keepdim=True)
            return x * torch.rsqrt(torch.add(squares, 0.5, alpha=2 if over == "alpha" else 1)) * self.gamma

    torch.manual_seed(0)
    model, x = Norm().eval(), torch.randn(5, 33)
    ratios += [[0.9] * 9] * 3
    with torch.inference_mode():
        found = torch.compile(model, backend=plevel)(x)
        torch.testing.assert_close(found, model(x), atol=1e-5, rtol=1e-5)
    keys = [row.workload.key for report in explain(model) for row in report.rows]
    assert any(k.startswith("rms_norm") for k in keys) == (over == "a constant")


def test_a_users_own_operator_may_change_behind_its_name() -> None:
    with torch.library._scoped_library("plevel_test", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeImplicitAutograd")

        def twice(x: torch.Tensor) -> torch.Tensor:
            return torch.ops.plevel_test.twice(x)

        graph = torch.fx.symbolic_trace(twice)
        with pytest.raises(NetworkError, match="twice, which is not PyTorch's own"):
            _prefix(graph, (torch.ones(3),), model_target())


def test_an_input_whose_memory_has_the_opposite_sign_is_not_a_librarys() -> None:
    with pytest.raises(NetworkError, match="dense tensors"):
        _prefix(torch.fx.symbolic_trace(torch.nn.ReLU()), (torch._neg_view(torch.ones(3)),), model_target())


def test_an_input_that_wraps_tensors_is_not_a_librarys() -> None:
    wrapper = TwoTensor(torch.ones(3), torch.ones(3))
    with pytest.raises(NetworkError, match="dense tensors"):
        _prefix(torch.fx.symbolic_trace(torch.nn.ReLU()), (wrapper,), model_target())


@pytest.mark.full
def test_products_of_one_operand_are_merged_where_that_wins(ratios):
    model, inputs = models.decoder()
    ratios += [[0.8] * 9, [1.1] * 9, [0.9] * 9, *[[1.1] * 9] * 4, [0.7] * 9]
    report = run(model, inputs)
    assert (report.verdict.before_s, report.verdict.after_s) == (0.5, 0.35)  # of both, beside Inductor alone
    assert ratios == []
    assert report.replaced == 3
    shown = {(row.workload.inputs[1].tensor.concrete_shape[0], row.reason) for row in report.rows}
    merged = "each is merged with others of the same operand"
    assert {(16, merged), (48, merged)} <= shown
    assert [len(s.workloads) for s in report.verdict.steps[:3]] == [5, 1, 2]


def test_a_graph_that_no_time_is_left_for_stays_inductors_and_a_later_process_times_it(
    ratios, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    torch.manual_seed(0)
    model, x = models.Block(40, 104).eval(), torch.randn(24, 40)
    with monkeypatch.context() as patch:
        patch.setattr(backend._budget, "base_s", -math.inf)
        report = run(model, (x,))
    assert report.replaced == 0
    assert "left to Inductor in this process: the time for confirmation was over" in caplog.text
    assert {row.reason for row in report.rows} == {"it was not timed: the time for confirmation was over"}
    ratios += [[0.8] * 9, *[[1.1] * 9] * 2]
    assert run(model, (x,)).replaced == 2  # no verdict was kept


def test_a_library_is_built_while_inductor_compiles_whatever_time_was_left_before(
    whole, monkeypatch: pytest.MonkeyPatch
):
    begun: list[Future] = []
    begin_library = Compilation._begin_library

    def begin(self, plan, **given):
        begin_library(self, plan, **given)
        begun.append(self._library)

    def compile_long(*given):
        found = compile_frozen(*given)
        wait(begun, HANG_S)
        monkeypatch.setattr(backend._budget, "base_s", math.inf)  # as Inductor's own time gives more
        return found

    monkeypatch.setattr(Compilation, "_begin_library", begin)
    monkeypatch.setattr(compilation, "compile_frozen", compile_long)
    monkeypatch.setattr(backend._budget, "base_s", -math.inf)  # as after earlier graphs
    torch.manual_seed(0)
    model, x = models.Block(40, 88).eval(), torch.randn(24, 40)
    whole += [[0.6] * 9]
    report = run(model, (x,))
    assert report.verdict.whole, str(report)


def test_an_interrupt_does_not_wait_for_what_is_built_ahead(whole, monkeypatch: pytest.MonkeyPatch):
    asked, ended = threading.Event(), []

    def ask_long(child, request, timeout_s, deadline):
        asked.set()
        give_up = time.monotonic() + HANG_S
        while not deadline.is_set() and time.monotonic() < give_up:
            time.sleep(0.01)
        ended.append(deadline.is_set())
        return Over()

    def interrupt(*given):
        compile_frozen(*given)
        assert asked.wait(HANG_S)
        raise KeyboardInterrupt

    monkeypatch.setattr(pool, "_ask", ask_long)
    monkeypatch.setattr(compilation, "compile_frozen", interrupt)
    torch.manual_seed(0)
    model, x = models.Block(40, 72).eval(), torch.randn(24, 40)
    with torch.inference_mode(), pytest.raises(KeyboardInterrupt):
        torch.compile(model, backend=plevel)(x)
    assert ended
    assert all(ended)


def test_forms_that_no_time_is_left_for_are_not_tried_and_the_verdict_is_kept(ratios, monkeypatch: pytest.MonkeyPatch):
    torch.manual_seed(0)
    model, x = models.Block(40, 112).eval(), torch.randn(24, 40)
    ratios += [[1.1] * 9]
    compare = confirmation.compare

    def compare_long(*given):
        monkeypatch.setattr(backend._budget, "base_s", -math.inf)
        return compare(*given)

    monkeypatch.setattr(confirmation, "compare", compare_long)
    report = run(model, (x,))
    assert ratios == []
    assert report.verdict.ended
    assert run(model, (x,)).verdict == report.verdict


def test_a_later_process_knows_why_a_kernel_could_not_be_built(ratios, monkeypatch: pytest.MonkeyPatch):
    def build_short(missing, ask):
        found = {k.selection.workload.inputs[0].tensor.concrete_shape[-1]: k for k in missing}
        return [(found.pop(120), "LLVM ERROR: no such register"), *build_all(list(found.values()), ask)]

    build_all = kernel._build_all
    monkeypatch.setattr(kernel, "_build_all", build_short)
    torch.manual_seed(0)
    model, x = models.Block(40, 120).eval(), torch.randn(24, 40)
    ratios += [[0.8] * 9]
    with pytest.warns(UserWarning, match="left to Inductor: LLVM ERROR: no such register"):
        rows = run(model, (x,)).rows
    assert [row.reason for row in rows if not row.implementation] == ["LLVM ERROR: no such register"]
    assert run(model, (x,)).rows == rows


def test_what_does_not_win_beyond_its_interval_goes(ratios):
    torch.manual_seed(3)
    model, x = models.Block(40, 72).eval(), torch.randn(24, 40)
    uncertain = [0.7, 0.7, 0.7, 0.7, 0.7, 1.1, 1.1, 1.1, 1.1]
    ratios += [uncertain, [1.0] * 9, [0.9] * 9]
    report = run(model, (x,))
    assert [s.kept for s in report.verdict.steps] == [False, False, True]
    assert report.replaced == 1
    assert "the whole graph is not faster with it" in str(report)


def test_a_graph_of_symbolic_sizes_is_timed_at_those_of_its_first_call(ratios):
    torch.manual_seed(9)
    model, x = models.Block(32, 80).eval(), torch.randn(6, 32)
    ratios += [[0.8] * 9, [1.1] * 9, [1.1] * 9]
    report = run(model, (x,), dynamic=True)
    assert report.replaced == 2
    assert all("data=float32[m," in row.workload.key for row in report.rows)


@pytest.mark.sample(1)
@pytest.mark.parametrize(("wrong", "right"), [("dense", "conv2d"), ("conv2d", "dense")])
def test_kernels_with_wrong_numbers_are_left_out_and_others_stay(
    ratios, wrong: str, right: str, monkeypatch: pytest.MonkeyPatch
):
    def pack_wrong(built, *given):
        return pack(built, *given) * (1.01 if built.selection.workload.op == wrong else 1)

    pack = operation.pack
    monkeypatch.setattr(operation, "pack", pack_wrong)
    torch.manual_seed(4)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.Linear(288, 104)).eval()
    x = torch.randn(2, 3, 8, 8)
    ratios += [[0.8] * 9]
    with torch.inference_mode():
        found = torch.compile(model, backend=plevel, options={"again": True})(x)
        torch.testing.assert_close(found, model(x), atol=2e-5, rtol=2e-5)
    report = explain(model)[-1]
    assert ratios == []
    assert [row.workload.op for row in report.rows if row.implementation] == [right]
    assert str(report).count("the graph's outputs differ from Inductor's with it") == 1


def test_terms_that_cancel_need_not_leave_the_same_rounding(ratios, monkeypatch: pytest.MonkeyPatch):
    class Centred(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(96, 200)

        def forward(self, x):
            y = self.linear(x)
            return y, (y - y.mean(1, keepdim=True)).sum(1)

    pack = operation.pack
    monkeypatch.setattr(operation, "pack", lambda *given: pack(*given) * 1.000001)  # as another order of summation
    torch.manual_seed(0)
    model, x = Centred().eval(), torch.randn(24, 96)
    ratios += [[0.8] * 9]
    report = run(model, (x,))
    assert report.replaced == 1, str(report)


def test_a_jump_of_some_numbers_lets_no_wrong_form_pass():
    # A few of these numbers are so near to their middle that inputs that are moved by little turn them.
    weight = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    x = torch.randn(4096, 64, generator=torch.Generator().manual_seed(1))

    def make(scale):
        return lambda x: [torch.round(torch.tanh(x @ weight) * scale * 8)]

    search = object.__new__(confirmation._Search)
    search.alone, search.inputs, search.given, search.written = make(1), [x], [x.clone()], []
    search.tolerance, search.epsilon, search.make_rounded = agreement.TOLERANCE, 0.0, None
    search.expected = search._outputs(search.alone)
    assert search._agrees(make(1))
    assert not search._agrees(make(1.03))
    assert torch.equal(search.given[0], x)


def test_numbers_on_a_half_may_be_rounded_either_way_and_no_wrong_form_passes():
    of = define_quantized() and torch.ops.quantized_decomposed
    own = 0.1, 0, 0, 255, torch.uint8

    def make(factor):
        def forward(x):
            x = of.dequantize_per_tensor.default(of.quantize_per_tensor.default(x, *own), *own)
            return [of.quantize_per_tensor.default(x.mean(1) * factor, *own).float()]

        return torch.fx.symbolic_trace(forward)

    x = 0.1 * torch.randint(250, (4096, 8), generator=torch.Generator().manual_seed(0))
    search = object.__new__(confirmation._Search)
    search.alone, search.inputs, search.given, search.written = make(1), [x], [x.clone()], []
    search.tolerance, search.epsilon, search.make_rounded = agreement.TOLERANCE, 0.0, None
    search.expected = search._outputs(search.alone)
    assert not search._agrees(make(1 - 1e-6))
    search.make_rounded = make_rounded(search.alone)
    assert all(search._agrees(make(factor)) for factor in (1 - 1e-6, 1 + 1e-6))
    assert not search._agrees(make(1.03))
    assert make_rounded(torch.fx.symbolic_trace(lambda x: [x + 1])) is None


def test_inputs_that_pytorch_cannot_multiply_are_not_moved():
    x = torch.ones(8).to(torch.float8_e4m3fn)
    search = object.__new__(confirmation._Search)
    search.alone, search.inputs, search.given, search.written = lambda x: [x.float()], [x], [x.clone()], []
    search.tolerance, search.epsilon, search.make_rounded = agreement.TOLERANCE, 0.0, None
    search.make_moved = lambda part: search.alone
    search.expected = search._outputs(search.alone)
    assert not search._agrees(lambda x: [x.float() * 1.01])


@pytest.mark.parametrize("hidden", [-1e4, torch.finfo(torch.float32).min])
def test_a_mask_among_the_inputs_lets_no_wrong_form_pass(hidden):
    weight = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    x, mask = torch.randn(24, 64, generator=torch.Generator().manual_seed(1)), (torch.arange(24) < 18).float()

    def make(scale):
        return lambda x, mask: [(x @ x.T + (1 - mask) * hidden).softmax(-1) @ x @ weight * scale]

    search = object.__new__(confirmation._Search)
    search.alone, search.inputs, search.written = make(1), [x, mask], []
    search.given = [x.clone(), mask.clone()]
    search.tolerance, search.epsilon, search.make_rounded = agreement.TOLERANCE, 0.0, None
    search.expected = search._outputs(search.alone)
    assert search._agrees(make(1))
    assert not search._agrees(make(1.03))


class Tokens(torch.nn.Module):
    """A model of integers alone, with an output whose terms cancel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.rows, self.linear = torch.nn.Embedding(50, 96), torch.nn.Linear(96, width)

    def forward(self, ids, mask):
        y = self.linear(self.rows(ids)) + (1 - mask[:, None]) * torch.finfo(torch.float32).min
        y = y.softmax(0)
        return y, (y - y.mean(1, keepdim=True)).sum(1)


@pytest.mark.sample(1)
@pytest.mark.parametrize(("factor", "replaced"), [(1.000001, 1), (1.01, 0)])
def test_terms_that_cancel_are_allowed_for_where_inputs_are_integers(
    ratios, factor: float, replaced: int, monkeypatch: pytest.MonkeyPatch
):
    pack = operation.pack
    monkeypatch.setattr(operation, "pack", lambda *given: pack(*given) * factor)
    torch.manual_seed(0)
    model, ids = Tokens(200 + 8 * replaced).eval(), torch.arange(24)
    ratios += [[0.8] * 9] * replaced
    torch._dynamo.reset()
    with torch.inference_mode():
        torch.compile(model, backend=plevel)(ids, (ids < 18).long())
    report = explain(model)[-1]
    assert report.replaced == replaced, str(report)


def test_a_form_that_inductor_cannot_compile_is_left_out_and_others_stay(
    ratios, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def compile_some(plan, wanted, *given):
        if any(w.op == "conv2d" for w in wanted):
            raise InductorError(KeyError("buf7"), None)
        return compile_form(plan, wanted, *given)

    compile_form = compilation.make_form
    monkeypatch.setattr(compilation, "make_form", compile_some)
    torch.manual_seed(4)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.Linear(288, 112)).eval()
    x = torch.randn(2, 3, 8, 8)
    ratios += [[0.8] * 9]
    report = run(model, (x,))
    assert ratios == []
    assert [row.workload.op for row in report.rows if row.implementation] == ["dense"]
    assert str(report).count("the graph fails with it: InductorError: KeyError: 'buf7'") == 1
    assert caplog.text.count("a form of a graph is left out, with other kernels of conv2d") == 1
    assert run(model, (x,)).rows == report.rows  # by the verdict on disk


def test_a_form_that_memory_was_short_for_is_timed_by_the_next_process(
    ratios, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    lack = "[enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to"
    compile_form = compilation.make_form

    def compile_some(plan, wanted, *given):
        if any(w.op == "conv2d" for w in wanted):
            raise InductorError(RuntimeError(lack), None)
        return compile_form(plan, wanted, *given)

    torch.manual_seed(4)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.Linear(288, 136)).eval()
    x = torch.randn(2, 3, 8, 8)
    ratios += [[0.8] * 9]
    with monkeypatch.context() as patch:
        patch.setattr(compilation, "make_form", compile_some)
        report = run(model, (x,))
    assert [row.workload.op for row in report.rows if row.implementation] == ["dense"], "what was won stays here"
    assert "the next process takes them again, as memory ran out: the graph fails with it: InductorError" in caplog.text
    ratios += [[0.8] * 9] * 3
    assert run(model, (x,)).replaced == 2
    assert ratios == []


def test_a_library_that_memory_was_short_for_is_tried_by_the_next_process(whole, monkeypatch: pytest.MonkeyPatch):
    def fail(*given):
        def build():
            raise MemoryError

        return build

    torch.manual_seed(0)
    model, x = torch.nn.Linear(40, 56).eval(), torch.randn(24, 40)
    whole += [[0.8] * 9]
    with monkeypatch.context() as patch:
        patch.setattr(compilation, "draft_whole", fail)
        assert not run(model, (x,)).verdict.whole
    whole += [[0.6] * 9]
    assert run(model, (x,)).verdict.whole


class Stateful(torch.nn.Module):
    """A step that writes a cache, a position and a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.out = torch.nn.Linear(96, 72), torch.nn.Linear(72, 96)
        self.scale = torch.nn.Parameter(torch.ones(1))
        self.register_buffer("cache", -torch.zeros(8, 72))
        self.register_buffer("place", torch.zeros(1, dtype=torch.int64))

    def forward(self, x):
        self.cache.index_copy_(0, self.place, self.key(x))  # fails beyond the cache
        self.place.add_(1)
        self.scale.mul_(0.5)
        return self.out(self.cache.sum(0, keepdim=True)) * self.scale


def bits(model):
    return {name: tensor.numpy().tobytes() for name, tensor in model.state_dict().items()}


@pytest.mark.sample(2)
@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("ratio", [0.8, 1.1])
def test_a_graph_that_writes_buffers_is_timed_and_they_stay_as_they_were(
    ratios, ratio, inference, monkeypatch: pytest.MonkeyPatch
):
    seen, compiled = [], []

    def compare(old, new, inputs, written):
        for function in (old, new):
            confirmation._burst(function, inputs, 9, written)
        seen.append(bits(model))
        return confirmation.Timed(estimate(ratios.pop(0)), 0.5, 0.4)

    def spy(module, *given):
        compiled.append(module)
        return compile_frozen(module, *given)

    monkeypatch.setattr(confirmation, "compare", compare)
    monkeypatch.setattr(form, "compile_frozen", spy)
    ratios += [[ratio] * 9, *[[1.1] * 9] * 2]
    with torch.inference_mode(inference):  # a model that is made in it has tensors that change in it alone
        torch.manual_seed(0)
        model, right = Stateful(), Stateful()
        right.load_state_dict(model.state_dict())
    model.eval(), right.eval()
    before = bits(model)
    fast = torch.compile(model, backend=plevel, options={"again": True})
    with torch.inference_mode(inference), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        for x in torch.randn(4, 1, 96):
            torch.testing.assert_close(fast(x), right(x), atol=2e-5, rtol=2e-5)
            for found, expected in zip(model.state_dict().values(), right.state_dict().values(), strict=True):
                torch.testing.assert_close(found, expected, atol=2e-5, rtol=2e-5)
    assert seen == [before] * len(seen)
    assert len(compiled) == len(seen)  # of the frozen graph, whose inputs include the state
    (report,) = explain(model)
    assert report.replaced == (2 if ratio < 1 else 0)
    assert "it changes its inputs or the model's buffers" in str(report)


def test_a_call_that_fails_while_a_graph_is_timed_leaves_its_buffers_as_they_were(
    ratios, monkeypatch: pytest.MonkeyPatch
):
    def compare(old, new, inputs, written):
        def fail(*given):
            new(*given)
            raise RuntimeError("it broke")

        confirmation._burst(fail, inputs, 1, written)

    monkeypatch.setattr(confirmation, "compare", compare)
    torch.manual_seed(0)
    model, right = Stateful().eval(), Stateful().eval()
    right.load_state_dict(model.state_dict())
    x, fast = torch.randn(1, 96), torch.compile(model, backend=plevel, options={"again": True})
    with torch.no_grad():
        with pytest.warns(UserWarning, match="left to Inductor: RuntimeError: it broke"):
            found = fast(x)
        torch.testing.assert_close(found, right(x), atol=2e-5, rtol=2e-5)
    torch.testing.assert_close(model.cache, right.cache, atol=2e-5, rtol=2e-5)
    assert (model.place.item(), model.scale.item()) == (1, 0.5)


def test_comparisons_alternate_and_give_the_ratio():
    calls = []

    def old():
        calls.append("old")

    def new():
        calls.append("new")

    found = confirmation.compare(old, new, ())
    assert found.ratio.samples >= confirmation.LEAST_ROUNDS
    assert min(found.old_s, found.new_s) > 0
    assert abs(calls.count("old") - calls.count("new")) < 10


def test_a_comparison_ends_though_it_takes_long_to_put_back_what_a_step_writes(monkeypatch: pytest.MonkeyPatch):
    now_s = 0.0

    def last(seconds):
        nonlocal now_s
        now_s += seconds

    monkeypatch.setattr(confirmation, "time", SimpleNamespace(perf_counter=lambda: now_s))
    monkeypatch.setattr(confirmation, "put_back", lambda written: last(0.1))  # as of a cache of some 100 MB
    timed = confirmation.compare(lambda: last(2e-5), lambda: last(1.9e-5), ())
    assert timed.ratio.median_s == pytest.approx(0.95)
    assert now_s < 2 * confirmation.LIMIT_S


@pytest.mark.parametrize(("new_s", "sure"), [(2.0, True), (0.95, False), (0.5, True)])
def test_a_sure_loss_ends_a_comparison_and_a_win_only_if_it_is_far(new_s, sure, monkeypatch: pytest.MonkeyPatch):
    rounds = confirmation.LEAST_ROUNDS if sure else confirmation.ROUNDS
    monkeypatch.setattr(confirmation, "_burst", lambda function, *_: {"old": 1.0, "new": new_s}[function])
    monkeypatch.setattr(confirmation, "LIMIT_S", HANG_S)
    assert confirmation.compare("old", "new", ()).ratio.samples == rounds


def test_a_verdict_is_recorded_where_selections_are_from(ratios, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """In a database, once however often the graph is compiled, and without anything of the model."""
    place = f"sqlite:///{tmp_path / 'plevel.db'}"
    migration.upgrade(place)
    torch.manual_seed(5)
    model, x = models.Block(48, 88).eval(), torch.randn(24, 48)
    ratios += [[0.8] * 9, [1.1] * 9, [1.1] * 9]
    for _ in range(2):
        torch._dynamo.reset()
        with torch.inference_mode():
            torch.compile(model, backend=plevel, options={"database": str(tmp_path / "plevel.db")})(x)
    report = explain(model)[-1]
    assert ratios == []
    with connect(None, place) as records:
        (found,) = records.networks()
    told = convert(found["confirmation"], Confirmation)
    assert (told.before_s, told.after_s) == (0.5, 0.4)
    assert told.framework == f"torch {torch.__version__}"
    assert (told.target.pool, told.target.threads) == ("openmp", torch.get_num_threads())
    assert [(p.workload, p.occurrences, p.implementation) for p in told.parts] == [
        (row.workload, row.occurrences, row.implementation) for row in report.rows
    ]
    assert told.steps == report.verdict.steps
    chosen = next(p for p in told.parts if p.implementation)
    assert chosen.config
    assert "highest plevel" in chosen.reason
    # Another machine of this kind, whose disk has nothing of it, does not time it: a comparison would fail.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))
    torch._dynamo.reset()
    with torch.inference_mode():
        fast = torch.compile(model, backend=plevel, options={"database": str(tmp_path / "plevel.db")})
        torch.testing.assert_close(fast(x), model(x), atol=2e-5, rtol=2e-5)
    other = explain(model)[-1]
    assert (other.rows, other.verdict.steps) == (report.rows, report.verdict.steps)
    sent = json.dumps(found)
    assert not {str(Path.home()), str(tmp_path), socket.gethostname()} & set(sent.split('"'))
    assert len(sent) < 20_000  # no weights


def test_another_machine_says_why_a_kernel_was_left_out(ratios, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def pack_wrong(built, *given):
        return pack(built, *given) * (1.01 if built.selection.workload.op == "conv2d" else 1)

    pack = operation.pack
    monkeypatch.setattr(operation, "pack", pack_wrong)
    place = f"sqlite:///{tmp_path / 'plevel.db'}"
    migration.upgrade(place)
    torch.manual_seed(4)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.Linear(288, 120)).eval()
    x = torch.randn(2, 3, 8, 8)
    ratios += [[0.8] * 9]
    for machine in ("one", "another"):  # which times nothing
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / machine))
        torch._dynamo.reset()
        with torch.inference_mode():
            torch.compile(model, backend=plevel, options={"database": str(tmp_path / "plevel.db")})(x)
        assert "the graph's outputs differ from Inductor's with it" in str(explain(model)[-1])
        with connect(None, place) as records:
            told = convert(records.networks()[0]["confirmation"], Confirmation)
        assert [p.reason for p in told.parts if p.workload.op == "conv2d"] == [
            "the graph's outputs differ from Inductor's with it"
        ]


@pytest.mark.full
def test_kernels_that_a_verdict_leaves_out_are_not_built_again(ratios, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Those of a machine that takes another's verdict, or whose folder of kernels was cleared."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model, x = models.Block(40, 56).eval(), torch.randn(24, 40)
    ratios += [[1.1] * 9] * 3
    rows = run(model, (x,)).rows
    kernels = list(folder().glob("*.so"))
    assert kernels
    for path in kernels:
        path.unlink()
    assert run(model, (x,)).rows == rows
    assert not any(path.exists() for path in kernels)


def test_a_verdict_that_cannot_be_read_is_none(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reporting, "_ask", lambda *asked: [{"confirmation": {"key": 1}}])
    plan = SimpleNamespace(graph="graph", key="key", target=model_target())
    assert reporting.recorded(plan, choose=None, database=None) is None


@pytest.mark.full
def test_another_machine_runs_a_graph_as_one_library_too(whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    migration.upgrade(f"sqlite:///{tmp_path / 'plevel.db'}")
    torch.manual_seed(5)
    model, x = models.Block(24, 56).eval(), torch.randn(24, 24)
    whole += [[0.6] * 9]
    for machine in ("one", "another"):  # which times nothing
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / machine))
        torch._dynamo.reset()
        with torch.inference_mode():
            fast = torch.compile(model, backend=plevel, options={"database": str(tmp_path / "plevel.db")})
            torch.testing.assert_close(fast(x), model(x), atol=2e-5, rtol=2e-5)
        assert explain(model)[-1].verdict.whole
        assert len(list(folder().glob("graph-*.so"))) == 1


@pytest.mark.full
def test_a_graph_keeps_its_kernels_where_its_verdict_cannot_be_recorded(
    ratios, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A database that was removed meanwhile: one warning, and no other within the time of rest."""
    path = tmp_path / "plevel.db"
    migration.upgrade(f"sqlite:///{path}")
    torch.manual_seed(5)
    model, x = models.Block(40, 80).eval(), torch.randn(24, 40)
    ratios += [[0.8] * 9, [1.1] * 9, [1.1] * 9]
    compare = confirmation.compare

    def remove_and_compare(*given):
        path.unlink(missing_ok=True)
        return compare(*given)

    monkeypatch.setattr(confirmation, "compare", remove_and_compare)
    fast = torch.compile(model, backend=plevel, options={"database": str(path)})
    with torch.inference_mode(), pytest.warns(UserWarning, match="not recorded, .* does not exist yet"):
        fast(x)
    report = explain(model)[-1]
    assert report.replaced == 2
    reporting.report(report, report.verdict, model_target(), str(path))  # a second warning would be an error


@pytest.mark.full
def test_a_verdict_on_contiguous_inputs_is_neither_taken_for_transposed_ones_nor_recorded_over(whole):
    torch.manual_seed(0)
    model, x = torch.nn.Linear(104, 48).eval(), torch.randn(24, 104)
    whole += [[0.6] * 9, [0.8] * 9]
    contiguous, transposed = run(model, (x,)).verdict, run(model, (x.t().contiguous().t(),))
    assert whole == []
    assert (contiguous.whole, transposed.verdict.whole, transposed.replaced) == (True, True, 1)
    assert contiguous.graph != transposed.verdict.graph
    assert contiguous.key != transposed.verdict.key  # of a record, too


@pytest.mark.full
def test_a_library_copies_inputs_that_are_not_contiguous(whole):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()).eval()
    x = torch.randn(2, 3, 9, 7).contiguous(memory_format=torch.channels_last)
    whole += [[0.6] * 9]
    fast = torch.compile(model, backend=plevel)
    with torch.inference_mode():
        fast(torch.zeros_like(x))
        torch.testing.assert_close(fast(x), model(x), atol=2e-5, rtol=2e-5)
    assert explain(model)[-1].verdict.whole


class Branching(torch.nn.Module):
    def __init__(self, branch) -> None:
        super().__init__()
        self.linear, self.branch = torch.nn.Linear(104, 40), branch

    def forward(self, x):
        y = self.linear(x)
        return torch.cond(y.sum() > 0, self.branch, torch.cos, (y,))


@pytest.mark.full
def test_a_graph_with_branches_keeps_the_kernels_of_its_products_and_is_extracted(whole):
    torch.manual_seed(0)
    model, inputs = Branching(torch.special.bessel_j0).eval(), (torch.randn(24, 104),)
    (found,) = (w.workload for w in extract(model, inputs).workloads if w.workload.op == "dense")
    whole += [[0.8] * 9]
    report = run(model, inputs)
    assert whole == []
    assert [row.workload for row in report.rows if row.implementation] == [found]
    assert "bessel_j0" in report.verdict.apart


@pytest.mark.full
def test_a_graph_whose_branches_plevel_has_runs_as_one_library(whole):
    torch.manual_seed(0)
    model, inputs = Branching(torch.sin).eval(), (torch.randn(24, 104),)
    whole += [[0.5] * 9]
    assert run(model, inputs).verdict.whole
    assert whole == []


def test_graphs_that_differ_in_a_branch_have_digests_of_their_own():
    def digest(branch):
        graph = torch.fx.Graph()
        x = graph.placeholder("x")
        graph.output(graph.call_function(torch.cond, (x, graph.get_attr("branch"), (x,))))
        return graph_digest(torch.fx.GraphModule({"branch": torch.fx.symbolic_trace(branch)}, graph))

    assert digest(lambda x: -torch.sin(x)) == digest(lambda y: -torch.sin(y)) != digest(lambda x: -torch.cos(x))


def test_a_graph_of_masked_scores_is_confirmed_though_an_input_has_nan(ratios):
    def masked(x):
        return [x.masked_fill(x > 0, -torch.inf)]

    def apart():
        raise NetworkError("none in this test")

    plan = SimpleNamespace(
        key="key", graph="graph", extraction=Extraction((), ()), selections={}, errors={},
        families=lambda: [frozenset()], singles=lambda families: [],
    )
    ratios += [[0.8] * 9]
    x = torch.tensor([-1.0, 1.0, torch.nan])
    with Progress(lambda: math.inf, Series()) as progress:
        make_moved = lambda part: masked
        _, _, verdict = confirmation.confirm(plan, lambda kept: masked, apart, [x], [], progress, 0.0, make_moved, None)
    assert verdict.refused == ""
    assert ratios == []


def test_infinities_and_nan_agree_with_themselves_alone():
    inf, nan = torch.inf, torch.nan

    def agrees(*values: float) -> bool:
        return agree([torch.tensor(values)], [torch.tensor([1.0, -inf, inf, nan])])

    assert agrees(1.0001, -inf, inf, nan)
    wrong = ((1.1, -inf, inf, nan), (1, inf, inf, nan), (1, -5, inf, nan), (1, -inf, inf, 2), (nan, -inf, inf, nan))
    assert not any(agrees(*values) for values in wrong)


def test_complex_outputs_are_compared():
    expected = torch.fft.fft(torch.arange(8.0))
    assert agree([expected * 1.00001], [expected])
    assert not agree([expected.conj()], [expected])


def test_large_outputs_are_compared_in_pieces(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(agreement, "_PIECE", 3)
    expected = torch.arange(1.0, 9.0).view(2, 4)
    wrong = expected.clone()
    wrong[1, 3] = 8.1  # 1.2 % of the last piece, 0.7 % of all
    assert agree([wrong.T], [expected.T], 8e-3)
    assert not agree([wrong], [expected], 6e-3)
    assert agree([torch.empty(0)], [torch.empty(0)])


def test_differences_that_are_allowed_agree_if_they_are_finite():
    expected, found = [torch.zeros(2), None, torch.tensor([3])], [torch.tensor([0.3, 0.4]), None, torch.tensor([4])]
    assert differences(found, expected) == pytest.approx([0.5, 1.0])
    assert agree(found, expected, allowed=[0.6, 1.0])
    assert not agree(found, expected, allowed=[0.4, 1.0])
    assert not agree(found, expected)
    assert differences([torch.tensor([torch.inf]), torch.tensor([torch.nan])], [torch.zeros(1)] * 2) == [0, 0]
    assert differences([torch.ones(3)], [torch.ones(2)]) == [0]  # of a shape that depends on numbers


@pytest.mark.full
def test_a_graph_is_timed_anew_where_that_is_asked_for_and_what_was_kept_of_it_goes(
    whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = tmp_path / "plevel.db"
    migration.upgrade(f"sqlite:///{path}")
    torch.manual_seed(5)
    model, x = torch.nn.Linear(40, 56).eval(), torch.randn(24, 40)

    def confirmed(**options):
        torch._dynamo.reset()
        with torch.inference_mode():
            fast = torch.compile(model, backend=plevel, options={"database": str(path), **options})
            torch.testing.assert_close(fast(x), model(x), atol=2e-5, rtol=2e-5)
        assert whole == []
        return explain(model)[-1].verdict

    for again in ({}, {"again": True}):
        whole += [[0.6] * 9]
        assert confirmed(**again).whole
    whole += [[1.2] * 9, [0.8] * 9]
    found = confirmed(again=True)
    assert [s.kept for s in found.steps] == [False, True]
    assert confirmed() == found
    with connect(None, f"sqlite:///{path}") as records:
        (told,) = records.networks()
    assert convert(told["confirmation"], Confirmation).steps == found.steps


@pytest.mark.full
def test_a_library_that_is_built_after_its_graph_was_timed_is_swept(whole, monkeypatch: pytest.MonkeyPatch):
    class Twice(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(104, 64)

        def forward(self, x):
            found = self.linear(x)
            return found, found.view(-1)  # of the same memory, which no library has

    timed, built = threading.Event(), []

    def draft_late(*given):
        build = draft_whole(*given)

        def build_late():
            assert timed.wait(HANG_S)
            built.append(build())
            return built[-1]

        return build_late

    def report_timed(*given):
        timed.set()
        return make_report(*given)

    monkeypatch.setattr(compilation, "draft_whole", draft_late)
    monkeypatch.setattr(compilation, "make_report", report_timed)
    torch.manual_seed(0)
    whole += [[1.1] * 9]
    run(Twice().eval(), (torch.randn(24, 104),))
    (late,) = built
    assert not late.made.exists()


def test_a_library_is_unloaded_with_its_last_reference():
    torch.manual_seed(0)
    target, x, layer = model_target(), torch.randn(3, 16), torch.nn.Linear(16, 48)
    choose = make_chooser(target, NO_RECORDS)
    given = torch.fx.symbolic_trace(layer)
    before = Path("/proc/self/maps").read_text().count("graph-")
    made = draft_whole(given, (x,), target, choose, ask_all)()
    call = made.call
    made.sweep()
    del made
    torch.testing.assert_close(call(x)[0], layer(x), atol=2e-5, rtol=2e-5)
    assert Path("/proc/self/maps").read_text().count("graph-") > before
    del call
    gc.collect()
    assert Path("/proc/self/maps").read_text().count("graph-") == before


def test_a_library_that_was_loaded_twice_is_called_after_the_first_is_gone():
    """As by a model of the same weights, which finds the kept file: `dlopen` gives both the same library."""
    code = """
import gc
import torch
from plevel.kernel_selection import make_chooser
from plevel.torch.plan import model_target
from plevel.torch.whole import _load, draft_whole
from strategy.select import NO_RECORDS
from workers.pool import ask_all
if __name__ == "__main__":
    torch.manual_seed(0)
    target, x, layer = model_target(), torch.randn(3, 16), torch.nn.Linear(16, 48)
    given, choose = torch.fx.symbolic_trace(layer), make_chooser(target, NO_RECORDS)
    made = draft_whole(given, (x,), target, choose, ask_all)()
    file = made.made / made.path.name
    again = _load(file, made.manifest, made.orders, made.path, (x,))
    made.sweep()
    del made
    gc.collect()
    torch.testing.assert_close(again.call(x)[0], layer(x), atol=2e-5, rtol=2e-5)
    del again
    gc.collect()
    assert "graph-" not in open("/proc/self/maps").read()
    print("called")
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG_S, check=False)
    assert ran.stdout == "called\n", ran.stderr[-2000:]


@pytest.fixture(scope="module")
def library():
    """A graph's library that is not kept, and an input."""
    target, x = model_target(), torch.linspace(-1, 1, 48).view(3, 16)
    choose = make_chooser(target, NO_RECORDS)
    made = draft_whole(torch.fx.symbolic_trace(torch.nn.ReLU()), (x,), target, choose, ask_all)()
    yield made, x
    made.sweep()


def test_a_library_gives_tensors_of_the_host_where_another_device_is_the_default(library):
    made, x = library
    with torch.device("meta"):
        (found,) = made.call(x)
    assert found.equal(x.relu())


def test_an_input_whose_memory_was_freed_is_an_error(library):
    made, x = library
    freed = x.clone()
    freed.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="an input has no memory"):
        made.call(freed)


@pytest.mark.skipif(not model_target().vector_instructions, reason="none are known of this processor")
def test_a_library_for_another_processor_says_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CC", "cc '-D__builtin_cpu_supports(name)=0'")
    target, x = model_target(), torch.ones(3, 16)
    choose = make_chooser(target, NO_RECORDS)
    made = draft_whole(torch.fx.symbolic_trace(torch.nn.ReLU()), (x,), target, choose, ask_all)()
    with pytest.raises(RuntimeError, match="this processor lacks instructions of .*graph-"):
        made.call(x)
    made.sweep()


def test_a_library_of_other_kernels_than_those_timed_is_stale(library):
    made, _ = library
    target = model_target()
    kernels = made.kernels(target)
    assert made.chosen(kernels, target) is made
    other = replace(made, manifest=msgspec.structs.replace(made.manifest, steps=()))
    assert replace(other, others=(made,)).chosen(kernels, target) is made
    with pytest.raises(StaleError):
        other.chosen(kernels, target)


def test_keeping_a_library_prunes_its_folder(library):
    made, _ = library
    half = folder() / "half"  # of a process that was killed
    half.mkdir()
    os.utime(half, (0, 0))
    made.keep(Verdict("key", "graph", 0))
    assert made.path.exists()
    assert not half.exists()


def test_what_cannot_be_kept_is_warned_of_and_no_more(library, monkeypatch: pytest.MonkeyPatch):
    made, x = library
    monkeypatch.setattr(os, "mkdir", refuse_below(folder()))
    with pytest.warns(UserWarning, match="a verdict is not kept, .*Read-only file system"):
        write_verdict(Verdict("full", "graph", 0))
    with pytest.warns(UserWarning, match="a graph's library is not kept"):
        replace(made, made=made.path.with_name("none")).keep(Verdict("key", "graph", 0))
    assert made.call(x)


def test_a_full_disk_leaves_no_verdict(whole, monkeypatch: pytest.MonkeyPatch):
    def full() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "x.so")

    model, inputs = torch.nn.Sequential(models.Block(20, 44)).eval(), (torch.randn(4, 20),)
    before = set(folder().glob("verdict-*"))
    with monkeypatch.context() as patch:
        patch.setattr(compilation, "draft_whole", lambda *_: full)
        with pytest.warns(UserWarning, match="left to Inductor: OSError: .*No space left"):
            run(model, inputs)
    monkeypatch.setattr(kernel, "_build_all", lambda missing, _: [(k, "LLVM ERROR: IO failure") for k in missing])
    monkeypatch.setattr("workers.scratch.tempfile.TemporaryFile", lambda **_: FileIO("/dev/full", "w"))
    said = f"left to Inductor: ScratchError: {folder()} cannot be written .No space.*another folder in XDG_CACHE_HOME"
    with pytest.warns(UserWarning, match=said):
        run(model, inputs)
    assert set(folder().glob("verdict-*")) == before


def test_two_that_write_a_verdict_at_once_both_succeed(monkeypatch: pytest.MonkeyPatch):
    both, write = threading.Barrier(2), Path.write_bytes

    def write_both(path: Path, data: bytes) -> None:
        write(path, data)
        both.wait(HANG_S)

    monkeypatch.setattr(Path, "write_bytes", write_both)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write_verdict, [Verdict("same", "graph", n) for n in range(2)]))
    found = read_verdict(SimpleNamespace(key="same"), None)
    assert found is not None
    assert found.flops in (0, 1)
