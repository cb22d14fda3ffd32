"""The backend of `torch.compile`: what it replaces, that the numbers stay, and what it leaves alone."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import subprocess
import sys
import threading
import warnings
import weakref
from collections import defaultdict
from pathlib import Path
from types import ModuleType

import pytest

torch = pytest.importorskip("torch", reason="the torch extra is not installed")

from torch._dynamo.exc import BackendCompilerFailed, RestartAnalysis
from torch._inductor import cpu_vec_isa
from torch._inductor.codecache import CppPythonBindingsCodeCache, PyCodeCache
from torch.testing._internal.two_tensor import TwoTensor

from plevel.client import Client, UnreachableError
from plevel.torch import backend, compilation, explain, freezing, frozen, kernel, operation, store
from plevel.torch.backend import plevel
from plevel.torch.kernel import kernel_digest
from plevel.torch.native import native
from plevel.torch.option import OptionError
from plevel.torch.plan import model_target
from plevel.torch.toolchain import ask_toolchain
from strategy.compile.export import link
from strategy.select import NO_RECORDS, select
from strategy.types import TensorType
from strategy.workload import Workload
from tests.torch import models
from workers import pool

ROOT = Path(__file__).parents[2]
ALL = {"confirm": False}
AWAY = {"database": "http://away.example:1"}
pytestmark = pytest.mark.usefixtures("fresh")


def compiled(model, options=ALL):
    return torch.compile(model, backend=plevel, options=options)


def close(found, expected):
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=2e-5)


@pytest.mark.full
@pytest.mark.parametrize("make", [models.transformer, models.convolutions, models.decoder, models.activations])
def test_products_are_replaced_and_the_numbers_stay(make):
    model, inputs = make()
    # A model of float32 may run where new tensors are of another dtype.
    torch.set_default_dtype(torch.float64 if make is models.activations else torch.float32)
    try:
        with torch.inference_mode():
            close(compiled(model)(*inputs), model(*inputs))
    finally:
        torch.set_default_dtype(torch.float32)
    (report,) = explain(model)
    replaced = {"transformer": 6, "convolutions": 4, "activations": 13, "decoder": 7}[make.__name__]
    assert report.replaced == replaced
    single = [row for row in report.rows if row.implementation]
    assert str(report).count("highest plevel") == len(single)
    # Products are merged where that was timed or measured, and softmax is replaced where it was timed.
    left = {models.transformer: 1, models.decoder: 2}.get(make, 0)
    assert len(report.rows) - len(single) == left


def test_convolutions_of_groups_and_of_lines_are_replaced():
    model, inputs = models.grouped()
    with torch.inference_mode():
        close(compiled(model)(*inputs), model(*inputs))
    (report,) = explain(model)
    assert report.replaced == 6
    listed = ("[32,4,3,3]", "[64,1,3,3]", "[48,8,1,1]", "[16,48,1,5]", "[16,16,1,3]", "[8,4,1,3]")
    assert all(weight in str(report) for weight in listed)


class Narrow(torch.nn.Module):
    """Two products of which one has an activation, and the sum with an input or a product with a number behind them."""

    def __init__(self):
        super().__init__()
        self.block, self.last = models.Block(), torch.nn.Linear(64, 48, bias=False)

    def forward(self, x):
        y = self.block(x)
        return self.last(y) * 0.5, self.last(x) * 0.3, torch.softmax(y @ y.transpose(0, 1), -1)


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.full), "autocast"]
)
def test_products_of_16_bits_are_replaced(dtype):
    torch.manual_seed(0)
    model, x = Narrow().eval(), torch.randn(24, 64)
    if dtype != "autocast":
        model, x = model.to(dtype), x.to(dtype)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, dtype == "autocast"):
        expected = model(x)
        for found, right in zip(compiled(model)(x), expected, strict=True):
            assert found.dtype == right.dtype
            torch.testing.assert_close(found, right, atol=0.02, rtol=0.02)
    (report,) = explain(model)
    assert report.replaced == 5  # autocast converts y after its transposition
    kind = "float16" if dtype is torch.float16 else "bfloat16"
    products = [row.workload for row in report.rows if row.workload.op == "dense"]
    assert all(w.inputs[0].type.startswith(kind) for w in products)
    epilogues = {str(w).partition("const)")[2] for w in products}
    summed = {f"+add(.,add1.rhs={kind}[24,64])"} if dtype != "autocast" else {""}  # autocast adds in float32
    # PyTorch rounds 0.5 * y alone, and 0.3 not at all.
    assert {e.partition("const)")[2] for e in epilogues if "bias_add" in e} == {"+gelu(.)", *summed}
    assert {e for e in epilogues if "bias_add" not in e} >= {"", f"+multiply(.,multiply0.rhs={kind}[1]:const)"}


def test_matrices_that_autocast_converts_behind_their_transposition_are_read_as_they_were():
    torch.manual_seed(0)
    x, y = torch.randn(2, 24, 64), torch.randn(2, 16, 64)

    def forward(x, y):
        return x.sin() @ y.cos().mT

    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(compiled(forward)(x, y), forward(x, y), atol=0.1, rtol=0.02)
    (report,) = explain()[-1:]
    (row,) = report.rows
    assert (report.replaced, row.workload.inputs[1].type) == (1, "bfloat16[2,16,64]")


def test_a_long_chain_behind_a_product_is_left_to_inductor_in_part():
    torch.manual_seed(0)
    layer, x = torch.nn.Linear(8, 8, bias=False).eval(), torch.randn(4, 8)

    def forward(x):
        y = layer(x)
        for _ in range(80):
            y = y * 0.5 + 0.25
        return y

    with torch.inference_mode():
        close(compiled(forward)(x), forward(x))
    (report,) = explain()[-1:]
    (row,) = report.rows
    assert (report.replaced, len(row.workload.epilogue)) == (1, 63)


class Shared(torch.nn.Module):
    """Both orders of a sum, a sum of two products, weights used twice, and rows that are not aligned."""

    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(32, 32, bias=False), torch.nn.Linear(32, 32)

    def forward(self, x):
        x = x[1:]
        left = x + self.a(x)
        right = self.a(left) + left
        return self.a(right) + self.b(right), (self.b(right[:, ::2].repeat(1, 2)) * right).relu()


@pytest.mark.full
def test_shared_weights_residuals_and_views():
    torch.manual_seed(1)
    model, x = Shared().eval(), torch.randn(34, 33)[:, 1:].contiguous()
    with torch.inference_mode():
        close(compiled(model)(x), model(x))
        close(compiled(model)(x + 1), model(x + 1))
    assert explain(model)[0].replaced == 5


@pytest.mark.full
def test_a_permutation_that_changes_nothing_transposes_nothing():
    x, y = torch.randn(8, 64), torch.randn(64, 64)
    for product in (lambda x, y: x @ y.permute(0, 1), lambda x, y: x @ y.permute(1, 0)):
        with torch.inference_mode():
            close(compiled(product)(x, y), product(x, y))
        torch._dynamo.reset()


class Merged(torch.nn.Module):
    """Two products of one operand, whose weights are frozen: one kernel computes both, side by side."""

    def __init__(self, function):
        super().__init__()
        self.keys, self.values = torch.nn.Linear(16, 16, bias=False), torch.nn.Linear(16, 24, bias=False)
        self.function = function

    def forward(self, x):
        return self.function(self.keys(x), self.values(x))


def attend(heads):
    return torch.nn.functional.scaled_dot_product_attention(heads, heads, heads)


HEADS = torch.randn(2, 5, 4, 8).transpose(1, 2)


@pytest.mark.full
def test_outputs_have_the_strides_of_pytorch(everywhere):
    """Whoever calls the model may view them by those: products that are merged lie side by side."""
    merged = Merged(lambda keys, values: (keys, values.view(2, -1, 4, 6).transpose(1, 2)))

    def attended(heads):
        found = attend(heads)
        return found, found.transpose(1, 2), found + 1

    for function, given in ((merged, torch.randn(6, 16)), (attended, HEADS)):
        with torch.inference_mode():
            found, expected = compiled(function)(given), function(given)
        close(found, expected)
        assert [t.stride() for t in found] == [t.stride() for t in expected]
    assert found[0].data_ptr() == found[1].data_ptr() != found[2].data_ptr()
    assert explain(merged)[0].replaced == 1


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("function", "given"),
    [
        (Merged(lambda keys, values: (keys + 1, values.as_strided((5, 2, 24), (24, 24, 1)))), torch.randn(6, 16)),
        (Merged(lambda keys, values: (keys + 1, values.as_strided((3, 8), (4, 1), 0))), torch.randn(1, 16)),
        (lambda heads: (attend(heads).as_strided((10, 32), (32, 1)),), HEADS),
    ],
    ids=["merged", "merged of one row", "attention"],
)
def test_what_is_viewed_by_strides_has_those_of_pytorch(function, given, everywhere):
    """As Longformer takes windows that overlap."""
    with torch.inference_mode():
        close(compiled(function)(given), function(given))
    assert explain()[-1].replaced == 1


def test_a_softmax_of_more_axes_than_kernels_take_stays_inductors(everywhere):
    def forward(x):
        return x.view(1, 2, 1, 2, 1, 2, 1, 2, 4).softmax(-1)

    x = torch.randn(16, 4)
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.filterwarnings("error", "plevel")
        close(compiled(forward)(x), forward(x))
    assert explain()[-1].rows == ()


def test_a_call_writes_the_buffer_of_inductor_and_copies_what_is_not_aligned():
    from plevel.torch import operation
    from plevel.torch.plan import model_target
    from strategy.select import NO_RECORDS, select
    from strategy.workload import Workload

    workload = Workload.make("relu", {"data": "float32[3,16]"})
    kernels, errors = kernel.build([select(workload, model_target(), NO_RECORDS)])
    assert not errors
    built = kernels[workload]
    operation.load(built)
    operation.operator()
    run = operation.native().run
    data = torch.randn(4 * 16 + 1)
    for offset in (0, 1):
        given = data[offset : offset + 48].view(3, 16)
        out = torch.full((49 + 16,), 7.0)
        run(given, built.digest, out=out[offset : offset + 48].view(3, 16))
        close(out[offset : offset + 48].view(3, 16), given.relu())
        assert (out[offset + 48 :] == 7).all()
        close(torch.ops.plevel.run([given], built.digest, [3, 16], [], torch.float32), given.relu())
    with pytest.raises(KeyError, match="no kernel 'other' is loaded"):
        run(data, "other", out=data)
    with pytest.raises(TypeError, match="1 inputs and 0 sizes, got 2 and 0"):
        run(data, data, built.digest, out=data)


def resident():
    """Bytes of memory in use, without those that the allocator keeps."""
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_workspaces_end_with_their_thread_and_smaller_ones_are_not_kept():
    from plevel.torch import operation
    from plevel.torch.plan import model_target
    from strategy.select import NO_RECORDS, select
    from strategy.workload import Workload

    counts = [1 << 20, *((1 << 20) + (i << 14) for i in range(1, 9))]
    workloads = [Workload.make("relu", {"data": f"float32[{n}]"}) for n in counts]
    kernels, errors = kernel.build([select(w, model_target(), NO_RECORDS) for w in workloads])
    assert not errors
    for built in kernels.values():
        operation.load(built)
    data, out = torch.randn(counts[-1] + 1)[1:], torch.empty(counts[-1])

    def call(n):
        run(data[:n], kernels[workload_of[n]].digest, out=out[:n])

    run, workload_of = operation.native().run, dict(zip(counts, workloads, strict=True))
    call(counts[0])
    before = resident()
    for _ in range(100):
        thread = threading.Thread(target=call, args=(counts[0],))
        thread.start()
        thread.join()
    # The allocator keeps a freed block for each of its arenas, of which a busy process has some dozens.
    assert resident() - before < 40 * 4 * counts[0]
    before = resident()
    for n in counts[1:]:
        call(n)
    # Half of what all of them would take: the allocator keeps some blocks here, too.
    assert resident() - before < 4 * 4 * counts[0]


def test_the_digest_tells_selections_apart():
    import msgspec

    workload = Workload.make("dense", {"data": "float32[8,8]", "weight": "float32[8,8]"}, constants=["weight"])
    one = select(workload, model_target(), NO_RECORDS)
    others = [
        msgspec.structs.replace(one, version="0.0"),
        msgspec.structs.replace(one, implementation="other"),
        msgspec.structs.replace(one, target=one.target.with_threads(one.target.threads + 1)),
        msgspec.structs.replace(one, workload=workload.bind({}), config=type(one.config)({"other": 1})),
    ]
    assert len({kernel_digest(s) for s in (one, *others)}) == 5
    assert kernel_digest(one) == kernel_digest(msgspec.structs.replace(one, explanation="for another reason"))


def test_a_kernel_that_is_damaged_on_disk_is_built_again():
    workload = Workload.make("dense", {"data": "float32[8,8]", "weight": "float32[8,8]"}, constants=["weight"])
    one = select(workload, model_target(), NO_RECORDS)
    path = kernel.build([one])[0][workload].path
    for damaged, size in ((path, 1000), (path, 0), (path.with_name(f"{path.name}.json"), 1)):
        os.truncate(damaged, size)
        assert kernel.build([one])[0][workload].inputs
        assert damaged.stat().st_size > size
        assert store.is_library(path)


def test_a_kernel_that_this_host_cannot_load_is_built_again(tmp_path: Path):
    workload = Workload.make("dense", {"data": "float32[8,9]", "weight": "float32[8,9]"}, constants=["weight"])
    one = select(workload, model_target(), NO_RECORDS)
    path = kernel.build([one])[0][workload].path
    (tmp_path / "newer.c").write_text("int of_a_newer_system(void); int call(void) { return of_a_newer_system(); }")
    link(["newer.c"], tmp_path).replace(path)
    assert store.is_library(path)
    operation.load(kernel.build([one])[0][workload])


def test_training_passes_through_untouched():
    torch.manual_seed(9)
    model, inputs = models.Block(), (torch.randn(8, 64),)
    found = compiled(model)(*inputs)
    close(found, model(*inputs))
    found.sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    constant = torch.nn.Module()  # without parameters, and with a buffer that Dynamo makes an input
    constant.register_buffer("factor", torch.randn(8))
    constant.forward = lambda x: x * constant.factor
    compiled(constant)(torch.randn(8))
    for reports in (explain(model), explain(constant)):
        assert reports
        assert all("gradients are enabled" in r.note and not r.rows for r in reports)


def test_parameters_that_change_are_never_stale():
    def step(model):
        model(x).sum().backward()
        torch.optim.SGD(model.parameters(), lr=1.0, fused=True).step()

    def exchange(model):
        model.weight.data = torch.randn(24, 16)

    torch.manual_seed(12)
    model, x = torch.nn.Linear(16, 24), torch.randn(8, 16)
    plain = torch.compile(model, backend="inductor")  # of graphs of other backends none is frozen
    fast = compiled(model)
    load = lambda model: model.load_state_dict(torch.nn.Linear(16, 24).state_dict())
    for change, notes in (
        (lambda model: None, ["frozen"]),
        (step, ["frozen", "frozen"]),
        (load, ["frozen", "frozen", "changed twice"]),
        (exchange, ["frozen", "frozen", "changed twice"]),
    ):
        change(model)
        with torch.no_grad(), warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always", UserWarning)
            close(fast(x), model(x))
            close(plain(x), model(x))
        assert ["changed twice" if "changed twice" in r.note else "frozen" for r in explain(model)] == notes
        assert len([w for w in found if "changed twice" in str(w.message)]) == (change is load)
    torch._dynamo.reset()
    with torch.no_grad():
        close(compiled(model)(x), model(x))
    assert explain(model)[-1].rows


@pytest.mark.parametrize("cleared", [False, True])
def test_the_constants_of_a_graph_end_with_it(cleared: bool, monkeypatch: pytest.MonkeyPatch):
    held, pack = [], operation.pack
    torch._dynamo.reset()
    gc.collect()
    others = explain()
    monkeypatch.setattr(PyCodeCache, "modules", [ModuleType(f"earlier{i}") for i in range(9)])

    def packed(*given):
        if cleared:  # as another thread does at the end of its `fresh_cache`
            PyCodeCache.modules.clear()
        found = pack(*given)
        held.append(weakref.ref(found))
        return found

    monkeypatch.setattr(operation, "pack", packed)
    model, x = torch.nn.Linear(16, 52).eval(), torch.randn(8, 16)
    held.append(weakref.ref(model.weight))
    with torch.no_grad():
        close(compiled(model)(x), model(x))
    assert len(held) == 3
    assert len(explain()) == len(others) + 1
    del model
    torch._dynamo.reset()
    gc.collect()
    assert not [r for r in held if r() is not None]
    assert len(explain()) == len(others)


def test_scalars_are_not_those_of_an_equal_graph_in_the_cache():
    class Scaled(torch.nn.Linear):
        def __init__(self, scale):
            super().__init__(16, 40)
            self.scale = torch.nn.Parameter(torch.tensor(scale))

        def forward(self, x):
            return super().forward(x) * self.scale

    x = torch.randn(8, 16)
    for scale in (3.0, 5.0):
        torch._dynamo.reset()
        model = Scaled(scale)
        with torch.no_grad():
            close(compiled(model)(x), model(x))


def test_tensors_without_versions_or_memory_are_watched():
    with torch.inference_mode():
        model = torch.nn.Linear(16, 24)
    fast, x = compiled(model), torch.randn(8, 16)
    with torch.inference_mode():
        close(fast(x), model(x))
    model.weight.data = torch.randn(24, 16)  # no inference tensor any more, and yet without a version
    freezing.is_volatile(model)
    model, inner = torch.nn.Linear(16, 24), torch.randn(24, 16)
    fast = compiled(model)
    with torch.no_grad():
        close(fast(x), model(x))
        model.weight.untyped_storage().resize_(0)
        with pytest.raises(RuntimeError, match="not allocated"), pytest.warns(UserWarning, match="out of bounds"):
            fast(x)
        model.weight.untyped_storage().resize_(inner.nbytes)
        model.weight.copy_(inner)
        close(fast(x), model(x))


def test_a_pruned_weight_that_is_scaled_is_not_stale():
    torch.manual_seed(18)
    model, x = torch.nn.Linear(16, 24), torch.randn(8, 16)
    with torch.no_grad():
        model.weight[6:18] *= -0.0
    fast = compiled(model)
    with torch.no_grad():
        close(fast(x), model(x))
        model.weight.data.mul_(2)
        close(fast(x), model(x))


@pytest.mark.parametrize(
    ("tensor", "change"),
    [
        (torch.ones(64, 16, dtype=torch.bfloat16), lambda t: t.view(-1)[::2].mul_(2)),
        (torch.ones(8, 4, 5, 5).to(memory_format=torch.channels_last), lambda t: t.mul_(2)),
        (torch.tensor(1.0).expand(4, 4), lambda t: t[0, 0].mul_(2)),
        (torch.ones(6, 40)[:, 3:20], lambda t: t.mul_(2)),
        (torch.ones(7, dtype=torch.complex64), lambda t: t.mul_(2)),
        (torch.cat([torch.ones(20), torch.zeros(100), torch.ones(1)]), lambda t: t.mul_(2)),
        (torch.ones(1, dtype=torch.int8), lambda t: t.mul_(2)),
        (torch.zeros(40), lambda t: t.fill_(1)),
    ],
    ids=["bfloat16", "channels_last", "expanded", "part", "complex", "zeros but for the end", "one", "zeros"],
)
def test_a_stamp_tells_changes_that_versions_do_not_count(tensor, change):
    before = freezing._stamp(tensor)
    assert freezing._stamp(tensor) == before
    change(tensor.data)
    assert freezing._stamp(tensor) != before


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t[1].add_(1),
        lambda t: t[1].data.add_(1),
        lambda t: setattr(t[1], "data", t[1].clone()),
        lambda t: t[1].untyped_storage().resize_(0),
        lambda t: t.pop(1),
    ],
    ids=["written", "written without a version", "moved", "freed", "gone"],
)
@torch.no_grad()
def test_the_runtime_tells_every_change_of_a_watched_tensor(change):
    with torch.inference_mode():
        uncounted = torch.ones(3)
    tensors = [torch.ones(5), torch.nn.Parameter(torch.ones(40)), uncounted, torch.empty(0)]
    references = [weakref.ref(t) for t in tensors]
    is_same = native().watch(tuple(map(freezing._watched, tensors)))
    counts = [sys.getrefcount(t) for t in tensors]
    assert all(is_same({}) is True for _ in range(100))
    assert [sys.getrefcount(t) for t in tensors] == counts
    change(tensors)
    assert is_same({}) is False
    held = [sys.getrefcount(r) for r in references]
    del is_same
    assert [sys.getrefcount(r) for r in references] == [n - 1 for n in held]


def test_the_runtime_watches_some_bytes_of_live_tensors():
    alive = torch.ones(99)
    for watched in ([], ((),), ((None, -1, 0, 0),), ((weakref.ref(torch.ones(1)), -1, 0, 0),),
                    ((weakref.ref(alive), -1, alive.data_ptr(), 65),)):
        with pytest.raises((TypeError, ValueError)):
            native().watch(watched)


@pytest.mark.parametrize("options", [ALL, {}], ids=["unconfirmed", "confirmed"])
def test_what_a_parameter_wraps_is_watched(options):
    torch.manual_seed(19)
    model, x = torch.nn.Linear(16, 24, bias=False), torch.randn(8, 16)
    model.weight = torch.nn.Parameter(TwoTensor(torch.randn(24, 16), torch.randn(24, 16)))
    fast = compiled(model, options)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("error", "plevel")
        for _ in range(2):
            found, expected = fast(x), model(x)
            close(found.a, expected.a)
            close(found.b, expected.b)
            model.weight.mul_(2)


@pytest.mark.parametrize("options", [ALL, {}], ids=["unconfirmed", "confirmed"])
def test_a_model_with_a_sparse_weight_is_compiled(options):
    torch.manual_seed(20)
    model, x = torch.nn.Linear(16, 24), torch.randn(8, 16)
    model.adjacency = torch.nn.Parameter(torch.randn(8, 8).relu().to_sparse())
    model.forward = lambda x: torch.sparse.mm(model.adjacency, torch.nn.functional.linear(x, model.weight, model.bias))
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("error", "plevel")
        close(compiled(model, options)(x), model(x))


@pytest.mark.parametrize("change", [lambda weight: weight.mul_(2), lambda weight: weight.data.mul_(2)])
def test_weights_that_another_thread_changes_during_the_compilation_are_not_stale(
    change, monkeypatch: pytest.MonkeyPatch
):
    def compile_and_change(*given):
        found = frozen.compile_frozen(*given)
        change(model.weight)
        monkeypatch.undo()
        return found

    monkeypatch.setattr(compilation, "compile_frozen", compile_and_change)
    torch.manual_seed(14)
    model, x = torch.nn.Linear(16, 24), torch.randn(8, 16)
    fast = compiled(model)
    with torch.no_grad():
        with pytest.warns(UserWarning, match="another thread changed its parameters"):
            close(fast(x), model(x))
        change(model.weight)
        close(fast(x), model(x))


def test_a_buffer_that_another_graph_changes_is_not_stale():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("sum", torch.zeros(16))

        def forward(self, x):
            self.sum += x
            torch._dynamo.graph_break()
            return x * self.sum

    fast = compiled(Model())
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for count in range(1, 5):
            close(fast(torch.ones(16)), torch.full((16,), float(count)))


@pytest.mark.parametrize("options", [ALL, {}], ids=["unconfirmed", "confirmed"])
def test_a_constant_that_is_an_output_may_be_written(options):
    class Grid(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x), self.weight * 2, self.bias.exp()[1:]

    torch.manual_seed(17)
    model, x = Grid(16, 24).eval(), torch.randn(8, 16)
    fast = compiled(model, options)
    with torch.no_grad():
        for _ in range(2):
            found = fast(x)
            for one, right in zip(found, model(x), strict=True):
                close(one, right)
                assert one.stride() == right.stride()
                one.zero_()


def test_the_last_graph_that_dynamo_compiles_of_a_function_serves_all_other_weights():
    torch.manual_seed(15)
    layers, x = [torch.nn.Linear(20, 28).eval() for _ in range(5)], torch.randn(8, 20)
    with torch.no_grad(), torch._dynamo.config.patch(recompile_limit=3), warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(2):
            for layer in layers:
                close(compiled(layer)(x), layer(x))
    (said,) = [str(w.message) for w in found if "plevel" in str(w.message)]  # PyTorch's imports warn, too
    assert "isolate_recompiles" in said
    reports = [str(r) for layer in layers for r in explain(layer)]
    assert [r.count("weight=float32[28,20]:const") for r in reports] == [1, 1, 0]
    torch._dynamo.reset()
    with torch.no_grad(), torch._dynamo.config.patch(recompile_limit=3), warnings.catch_warnings():
        warnings.simplefilter("error")
        for layer in layers:
            close(torch.compile(layer, backend=plevel, options=ALL, isolate_recompiles=True)(x), layer(x))
    assert all("weight=float32[28,20]:const" in str(explain(layer)[-1]) for layer in layers)


def test_a_graph_that_differentiates_its_weights_is_not_taken_for_the_last_of_a_function():
    class Jacobian(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(6, 4)

        def forward(self, x):
            return torch.func.vmap(torch.func.jacrev(lambda row: self.linear(row).tanh()))(x)

    model, x = Jacobian().eval(), torch.randn(3, 6)
    with torch.no_grad(), warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", UserWarning)
        close(compiled(model)(x), model(x))
    assert not [w for w in found if "isolate_recompiles" in str(w.message)]


def test_a_buffer_that_a_model_assigns_does_not_leave_it_uncompiled():
    class Counting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(16, 16)
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x):
            self.count = self.count + 1
            return self.linear(x) * self.count

    torch.manual_seed(16)
    model, x = Counting().eval(), torch.randn(8, 16)
    fast = compiled(model)
    with torch.no_grad(), torch._dynamo.config.patch(recompile_limit=3), warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for count in range(1, 6):
            close(fast(x), model.linear(x) * count)
    assert len([w for w in found if "isolate_recompiles" in str(w.message)]) == len(found) == 1


def test_a_cache_that_is_marked_static_may_be_another_at_each_call():
    """As those of transformers are."""

    class Cache:
        def __init__(self):
            self.keys, self.place = torch.zeros(8, 16), torch.zeros(1, dtype=torch.int64)
            torch._dynamo.mark_static_address(self.keys)
            torch._dynamo.mark_static_address(self.place)

    layer = torch.nn.Linear(16, 16).eval()

    def forward(x, cache):
        cache.keys.index_copy_(0, cache.place, layer(x))
        cache.place.add_(1)
        return layer(cache.keys)

    torch.manual_seed(14)
    fast = compiled(forward)
    caches, expected = [Cache() for _ in range(3)], [Cache() for _ in range(3)]
    with torch.no_grad():
        for x in torch.randn(2, 1, 16):
            for cache, right in zip(caches, expected, strict=True):
                close(fast(x, cache), forward(x, right))
                close(cache.keys, right.keys)
                assert cache.place == right.place
    assert [r.replaced for r in explain(layer)] == [1]
    assert torch._dynamo.utils.get_static_address_type(caches[0].keys) == "unguarded"


def test_a_tensor_that_another_backend_has_traced_may_be_exchanged():
    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.factor = torch.tensor([2.0])

        def forward(self, x):
            return x * self.factor

    model, x = Scaled(), torch.ones(4)
    before = model.factor
    torch.compile(model, backend="eager")(x)
    fast = compiled(model)
    with torch.no_grad():
        close(fast(x), x * 2)
        model.factor = torch.tensor([3.0])
        close(fast(x), x * 3)
    assert before == 2


def test_a_buffer_that_shares_memory_with_another_is_not_frozen_in_its_place():
    """PyTorch makes one input of both, and freezes parameters by their place among the inputs."""

    class Window(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(16, 16, bias=False)
            self.register_buffer("all", torch.zeros(16, 16))
            self.register_buffer("part", self.all[:])

        def forward(self, x):
            self.part.add_(self.linear(x))
            return self.linear(self.all)

    torch.manual_seed(13)
    model, x = Window().eval(), torch.randn(16, 16)
    fast = compiled(model)
    with torch.no_grad():
        with pytest.warns(UserWarning, match="shares memory with another"):
            found = [fast(x)]
        found.append(fast(x))
        for count, one in enumerate(found, 1):
            close(one, model.linear(count * model.linear(x)))
        close(model.all, 2 * model.linear(x))


def test_an_input_that_shares_memory_with_another_is_written_in_its_place():
    layer = torch.nn.Linear(16, 16).eval()

    def forward(x, first, whole):
        first.add_(layer(x))
        return layer(whole)

    torch.manual_seed(13)
    x, whole, expected = torch.randn(4, 16), torch.zeros(8, 16), torch.zeros(8, 16)
    fast = compiled(forward)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(3):
            close(fast(x, whole[:4], whole), forward(x, expected[:4], expected))
            close(whole, expected)


def test_several_threads_call_at_once():
    torch.manual_seed(6)
    model, inputs = models.Block().eval(), (torch.randn(8, 64),)
    with torch.inference_mode():
        expected = model(*inputs)
        function = compiled(model)
        function(*inputs)
    found: list[object] = []

    def work():
        with torch.inference_mode():
            found.extend(function(*inputs) for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 80
    for one in found:
        close(one, expected)


@pytest.mark.full
def test_a_graph_that_another_thread_compiles_is_frozen_too():
    torch.manual_seed(11)
    model, x = models.Block(16, 24).eval(), torch.randn(8, 16)

    def work():
        with torch.inference_mode():
            found.append(compiled(model)(x))

    found = []
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    with torch.inference_mode():
        close(found[0], model(x))
    (report,) = explain(model)
    assert "weight=float32[24,16]:const" in str(report)


def test_regions_that_dynamo_would_compile_once_have_kernels():
    block = models.Block().eval()
    region = torch.compiler.nested_compile_region(block)
    x = torch.randn(8, 64)
    with torch.inference_mode():
        close(compiled(lambda x: region(region(x)))(x), block(block(x)))
    assert explain()[-1].replaced == 4


@pytest.mark.full
def test_guards_on_modules_can_be_left_out_without_mixing_up_models():
    entries = []

    def leave_out(found):
        kept = torch.compiler.skip_guard_on_all_nn_modules_unsafe(found)
        entries.append((len(kept), sum(kept)))
        return kept

    x = torch.randn(8, 64)
    with torch.inference_mode():
        for seed in range(2):
            torch.manual_seed(seed)
            model = models.Block().eval()
            options = {**ALL, "guard_filter_fn": leave_out}
            fast = torch.compile(model, backend=plevel, options=options, isolate_recompiles=True)
            close(fast(x), model(x))
            close(fast(x + 1), model(x + 1))
    assert all(kept < found for found, kept in entries[1::2])
    assert len(entries) >= 2


def test_one_kernel_serves_all_sizes_with_one_packing_of_its_weight():
    torch.manual_seed(6)
    model = models.Block().eval()
    function = compiled(model)
    with torch.inference_mode():
        for rows in (8, 12, 40):
            x = torch.randn(rows, 64)
            close(function(x), model(x))
        torch._dynamo.reset()
        function = torch.compile(model, backend=plevel, options=ALL, dynamic=True)
        for shape in ((2, 5, 64), (3, 7, 64)):
            x = torch.randn(shape)
            close(function(x), model(x))
    static, dynamic, several = explain(model)
    keys = [row.workload.key for row in dynamic.rows]
    assert "data=float32[m,64]" in keys[0]
    assert keys[1].endswith("+add(.,add1.rhs=float32[m,64])")
    # Whatever the graph calls its sizes.
    assert [row.workload.key for row in several.rows] == keys
    assert (static.replaced, dynamic.replaced, several.replaced) == (2, 2, 2)
    assert all("m == 1" in row.reason for row in dynamic.rows)
    interfaces = [(store.folder() / f"{digest}.so.json").read_text() for digest in operation._loaded]
    assert all(interface.count('"role":"prepared"') <= 1 for interface in interfaces)


@pytest.mark.full
def test_attention_over_any_batch_and_number_of_tokens():
    torch.manual_seed(8)
    model = models.Decoder().eval()
    function = torch.compile(model, backend=plevel, options=ALL, dynamic=True)
    with torch.inference_mode():
        for batch, tokens in ((2, 12), (3, 7), (5, 20)):
            x = torch.randn(batch, tokens, 32)
            close(function(x, is_causal=True), model(x, is_causal=True))
    (report,) = explain(model)
    (attention,) = [row for row in report.rows if row.workload.op == "attention"]
    assert "query=float32[m,2,n,16]" in attention.workload.key
    assert attention.implementation


def test_attention_with_heads_of_a_symbolic_size_stays_inductors():
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.filterwarnings("error", "plevel")
        close(torch.compile(attend, backend=plevel, options=ALL, dynamic=True)(HEADS), attend(HEADS))
    assert explain()[-1].rows == ()


def test_a_product_that_sums_over_a_symbolic_size_stays_inductors():
    def gram(x):
        return x @ x.t()

    x = torch.randn(8, 30)
    torch._dynamo.mark_dynamic(x, 1)
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.filterwarnings("error", "plevel")
        close(compiled(gram)(x), gram(x))
    assert explain()[-1].rows == ()


def test_a_convolution_of_all_batch_sizes():
    torch.manual_seed(7)
    layers = [torch.nn.Conv2d(4, 16, 3, groups=2), torch.nn.Hardswish(), torch.nn.Flatten(2), torch.nn.Conv1d(16, 8, 3)]
    model = torch.nn.Sequential(*layers).eval()
    function = compiled(model)
    with torch.inference_mode():
        for batch in (2, 3):
            x = torch.randn(batch, 4, 12, 12)
            torch._dynamo.mark_dynamic(x, 0)
            close(function(x), model(x))
    (report,) = explain(model)
    assert report.replaced == 2
    assert "float32[m,4,12,12]" in str(report)
    assert "float32[m,16,1,100]" in str(report)


@pytest.mark.full
@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def test_products_whose_rows_depend_on_values_are_replaced_and_may_be_none():
    torch.manual_seed(9)
    up, down = torch.nn.Linear(32, 48), torch.nn.Linear(48, 16)

    def function(x):
        y = up(x)
        return down(y[x[:, 0] > 0]).relu(), y

    x = torch.randn(20, 32)
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.filterwarnings("error", "plevel")
        fast = compiled(function)
        for given in (x, x + 5, x - 9):  # some rows, all of them, and none
            close(fast(given), function(given))
    (report,) = explain()[-1:]
    assert report.replaced == 2
    assert "data=float32[m,48]" in str(report)


def test_a_graph_whose_sizes_are_not_known_is_not_timed():
    x = torch.randn(7, 32)
    torch._dynamo.decorators.mark_unbacked(x, 0)
    model = torch.nn.Linear(32, 16)
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.filterwarnings("error", "plevel")
        close(compiled(model, {})(x), model(x))
    assert "a size of its inputs has no known value" in str(explain(model)[0])


def test_a_graph_of_nested_tensors_is_not_timed():
    torch.manual_seed(0)
    x = torch.nested.nested_tensor([torch.randn(n, 32) for n in (3, 5, 2)], layout=torch.jagged)
    model = torch.nn.Linear(32, 16)
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.filterwarnings("error", "plevel")
        close(compiled(model, {})(x).values(), model(x).values())
    assert "an input is a sparse or nested tensor" in str(explain(model)[0])


def test_a_graph_of_tensors_that_wrap_others_is_not_timed():
    torch.manual_seed(0)
    x, model = torch.randn(8, 32), torch.nn.Linear(32, 16)

    def forward(wrapper):
        return model(wrapper)

    with torch.inference_mode(), warnings.catch_warnings():
        warnings.filterwarnings("error", "plevel")
        close(compiled(forward, {})(TwoTensor(x, x.clone())).b, model(x))
    assert "an input is a sparse or nested tensor, or wraps others" in str(explain(model)[0])


def test_a_graph_that_cannot_be_exported_leaves_no_transform_of_functions_entered():
    torch.manual_seed(0)
    layer, x = torch.nn.Linear(6, 4), torch.randn(3, 6)

    def forward(x):
        return torch.func.vmap(torch.func.jacrev(lambda row: layer(row).tanh()))(x)

    with torch.no_grad():
        close(compiled(forward, {})(x), forward(x))
    assert "cannot be exported" in str(explain()[-1])


def test_a_graph_that_is_traced_again_is_no_error(monkeypatch: pytest.MonkeyPatch):
    def again(*given):
        raise RestartAnalysis

    monkeypatch.setattr("plevel.torch.backend._compile", again)
    with torch.inference_mode(), pytest.raises(RestartAnalysis):
        plevel(torch.fx.symbolic_trace(models.Block()), [torch.randn(8, 64)])


def test_other_packages_may_register_patterns_of_inductors_later(monkeypatch: pytest.MonkeyPatch):
    from torch._inductor.fx_passes import freezing_patterns
    from torch._inductor.pattern_matcher import Arg, CallFunction

    freezing_patterns.lazy_init()
    first, sign, seen = freezing_patterns.pass_patterns[0], torch.ops.aten.sign.default, []
    monkeypatch.setattr(first, "patterns", defaultdict(list, first.patterns))
    graph = torch.fx.Graph()
    graph.output(graph.call_function(sign, (graph.placeholder("x"),)))
    module = torch.fx.GraphModule({}, graph)
    with frozen.visiting(seen.append):
        register = freezing_patterns.register_freezing_graph_pattern(CallFunction(sign, Arg()))
        register(lambda match, x: seen.append(match.output_node().target))
        freezing_patterns.pass_patterns[0].apply(module.graph)
    assert seen == [module, sign]


def test_an_error_falls_back_with_one_warning(monkeypatch: pytest.MonkeyPatch):
    def broken(*given):
        raise OSError("the disk is gone")

    monkeypatch.setattr("plevel.torch.compilation.make_plan", broken)
    torch.manual_seed(10)
    model, inputs = models.Block().eval(), (torch.randn(8, 64),)
    with torch.inference_mode(), warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        close(compiled(model)(*inputs), model(*inputs))
    assert [str(w.message) for w in seen if "plevel" in str(w.message)] == [
        "plevel: a graph is left to Inductor: OSError: the disk is gone"
    ]
    assert "the disk is gone" in explain(model)[0].note


def test_a_folder_of_kernels_that_cannot_be_used_is_named_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "plevel").write_text("a file in the place of the folder")
    torch.manual_seed(10)
    model, x = models.Block().eval(), torch.randn(8, 64)
    with monkeypatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path))
        said = r"FolderError: \S*/plevel cannot be made .File exists.: name another folder in XDG_CACHE_HOME"
        with torch.inference_mode(), pytest.warns(UserWarning, match=f"left to Inductor: {said}"):
            close(compiled(model)(x), model(x))
    monkeypatch.setattr(store, "is_executable", lambda _: False)
    with pytest.raises(store.FolderError, match="noexec, and kernels cannot run from it: name another folder in XDG_"):
        store.folder()


def test_a_service_that_is_away_is_waited_for_and_warned_of_once(monkeypatch: pytest.MonkeyPatch):
    asked = []

    def ask(*given):
        asked.append(given)
        raise UnreachableError("no service answers")

    monkeypatch.setattr(Client, "evidence", ask)
    torch.manual_seed(3)
    first, second, x = models.Block(24, 40).eval(), models.Block(24, 48).eval(), torch.randn(8, 24)

    def forward(x):
        y = first(x)
        torch._dynamo.graph_break()
        return second(y)

    with torch.inference_mode(), warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        close(compiled(forward, AWAY)(x), forward(x))
    (said,) = (str(w.message) for w in seen if "plevel" in str(w.message))
    assert said.startswith("plevel: a graph is left to Inductor: UnreachableError: no service answers; it is not asked")
    notes = [report.note for report in explain()[-2:]]  # those of models that are gone go, too
    assert len(notes) == 2
    assert all(note.endswith("Error: no service answers") for note in notes)
    assert len(asked) == 1


def test_a_graph_that_is_left_to_inductor_as_records_failed_for_another_one_says_so_once():
    """As where a lock has the workloads of the other, but for one."""
    with pytest.raises(UnreachableError), backend._rest.asking("http://away.example:1"):
        raise UnreachableError("no service answers")
    torch.manual_seed(3)
    x, fast = torch.randn(8, 24), [compiled(models.Block(24, n).eval(), AWAY) for n in (40, 48)]
    said = "left to Inductor: RestingError: no service answers; it is not asked again for 30 s: graphs that"
    with torch.inference_mode():
        with pytest.warns(UserWarning, match=said):
            fast[0](x)
        fast[1](x)  # a second warning would be an error


def test_a_kernel_that_cannot_be_built_leaves_its_workload_to_inductor(monkeypatch: pytest.MonkeyPatch):
    ask, asked = pool._ask, []

    def fail_first(child, wanted, *limits):
        asked.append(wanted)
        if "gelu" in wanted.workload.key:
            os.kill(child.pid, signal.SIGKILL)
        return ask(child, wanted, *limits)

    monkeypatch.setattr(pool, "_ask", fail_first)
    torch.manual_seed(2)
    model, x = models.Block(48, 80).eval(), torch.randn(40, 48)
    with torch.inference_mode(), pytest.warns(UserWarning, match=r"gelu\(\.\) left to Inductor"):
        close(compiled(model)(x), model(x))
    (report,) = explain(model)
    assert len(asked) == 2
    assert report.replaced == 1


@pytest.mark.parametrize(
    "options", [{"databse": "x"}, {"confirm": "perhaps"}, {"database": ""}, {"lock": ""}, ["confirm"]], ids=repr
)
def test_a_wrong_option_of_the_installed_backend_is_refused_by_name(options: dict):
    model, inputs = models.transformer()
    with torch.inference_mode(), pytest.raises(BackendCompilerFailed, match="options of backend 'plevel'") as error:
        torch.compile(model, backend="plevel", options=options)(*inputs)
    assert isinstance(error.value.inner_exception, OptionError)


def test_the_mode_that_transformers_sets_is_taken_and_others_are_refused_by_name():
    x = torch.randn(8, 64)
    close(torch.compile(torch.relu, backend="plevel", mode="reduce-overhead")(x), torch.relu(x))
    torch._dynamo.reset()
    with pytest.raises(BackendCompilerFailed, match="mode 'max-autotune' is Inductor's.*leave it out"):
        torch.compile(torch.relu, backend="plevel", mode="max-autotune")(x)


@pytest.mark.full
def test_a_second_process_finds_kernels_and_inductors_cache():
    code = """
import torch, json
from torch._dynamo.utils import counters
from tests.torch import models
from torch._dynamo.exc import BackendCompilerFailed

from plevel.torch import explain, kernel
from plevel.torch.backend import plevel

built = []
build = kernel._build_all
kernel._build_all = lambda missing, ask: built.extend(missing) or build(missing, ask)
torch.manual_seed(8)
model, x = models.Block(24, 56).eval(), torch.randn(12, 24)  # which no other test compiles
with torch.inference_mode():
    out = torch.compile(model, backend=plevel, options={"confirm": False})(x)
    torch.testing.assert_close(out, model(x), atol=2e-5, rtol=2e-5)
print(json.dumps([len(built), counters["inductor"]["fxgraph_cache_hit"], explain(model)[0].replaced]))
"""
    import json

    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    seen = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        seen.append(json.loads(done.stdout.splitlines()[-1]))
    assert seen == [[2, 0, 2], [0, 1, 2]]


def test_pairs_of_packed_weights_are_passed_on():
    """AMX convolutions pack two weights of bfloat16 into an int32."""
    assert operation._type(TensorType.parse("int32[2,16,32,16]")) == (0, 32, (2, 16, 32, 16))


def test_large_constants_ask_for_huge_pages(monkeypatch: pytest.MonkeyPatch):
    asked = {"advise": [], "collapse": []}
    for name, found in asked.items():
        monkeypatch.setattr(operation.huge_page, name, lambda at, size, found=found: found.append(size))
    model = torch.nn.Linear(768, 1024).eval()
    x = torch.randn(64, 768)
    with torch.inference_mode():
        close(compiled(model)(x), model(x))
    weight = model.weight.nbytes
    assert max(asked["advise"]) >= weight
    assert max(asked["collapse"]) >= weight


def test_inductor_waits_for_the_thread_that_asks_its_compiler_with_its_settings(monkeypatch: pytest.MonkeyPatch):
    def ask(argtypes: list[str], source: str):
        cpu_vec_isa.valid_vec_isa_list()
        order.append(torch._inductor.config.cpp.simdlen)
        raise RuntimeError("no C++ compiler")  # as Inductor is told again

    order: list[object] = []
    monkeypatch.setattr(CppPythonBindingsCodeCache, "load_pybinding_async", ask)
    monkeypatch.setattr(cpu_vec_isa, "valid_vec_isa_list", lambda: order.append(threading.current_thread()))
    ask_toolchain.cache_clear()
    try:
        with torch._inductor.config.patch({"cpp.simdlen": 512}):
            thread = ask_toolchain()
        cpu_vec_isa.valid_vec_isa_list()
        assert order == [thread, 512, threading.current_thread()]
        assert ask_toolchain() is thread
    finally:
        ask_toolchain.cache_clear()
