"""The compile engine: fusion, selection per call, caching, running, and what it says of itself."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from strategy.compile import CompileEngine
from strategy.compile import compile as compile_graph
from strategy.compile.array import RunError
from strategy.compile.function import CompiledFunction, SymbolicFunction
from strategy.compile.fusion import describe, fuse
from strategy.compile.lower import Lowered
from strategy.expr import Constant, Expr, Tuple, TupleGetItem, Var, const
from strategy.extern import find_library, load_library
from strategy.fault import CompileError
from strategy.gradient import gradient
from strategy.inference import infer_type
from strategy.op import TypeRelationError, get_op
from strategy.op_strategy import OpStrategy, candidates
from strategy.ops.batch_matmul import batch_matmul
from strategy.ops.broadcast import add, greater, maximum, where
from strategy.ops.concatenate import concat, concatenate, split, stack
from strategy.ops.conv2d import conv2d
from strategy.ops.dense import dense
from strategy.ops.elemwise import exp, ones_like, relu, sigmoid, tanh, zeros_like
from strategy.ops.max_pool2d import max_pool2d
from strategy.ops.reduce import max as reduce_max
from strategy.ops.reduce import mean
from strategy.ops.reduce import sum as reduce_sum
from strategy.ops.reshape import reshape
from strategy.ops.softmax import softmax
from strategy.ops.statistics import std, variance
from strategy.ops.strided_slice import strided_slice
from strategy.ops.topk import topk
from strategy.ops.transpose import transpose
from strategy.record import Estimate
from strategy.reference import evaluate
from strategy.select import Level, Measured, NoRecords, Reason
from strategy.target import Target
from tests.limit import HANG_S

TARGET = Target.parse("cpu").with_threads(2)


class Records(NoRecords):
    """A database that holds what a test says was measured."""

    def __init__(self) -> None:
        self.found: list[Measured] = []

    def measured(self, workload, target, device):
        return self.found


@pytest.fixture
def engine() -> CompileEngine:
    return CompileEngine()


def values(*shapes: tuple[int, ...], dtype: str = "float32") -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    return [rng.uniform(-1, 1, s).astype(dtype) for s in shapes]


def compare(function, expr: Expr, inputs: dict[str, np.ndarray], tolerance: float = 2e-5) -> None:
    got, right = function(**inputs), evaluate(expr, inputs)
    pairs = zip(got, right, strict=True) if isinstance(right, tuple) else [(got, right)]
    for value, expected in pairs:
        assert value.shape == np.shape(expected)
        np.testing.assert_allclose(value, expected, rtol=tolerance, atol=tolerance)


def layer() -> tuple[Expr, dict[str, np.ndarray]]:
    weight, bias, x, residual = values((16, 32), (16,), (8, 32), (8, 16))
    graph = relu(dense(Var("x", "float32[8,32]"), Constant(weight)) + Constant(bias))
    return graph + Var("residual", "float32[8,16]"), {"x": x, "residual": residual}


def groups(expr: Expr) -> list[list[str]]:
    infer_type(expr)
    return [[c.op.name for c in g.calls] for g in fuse(expr)]


def test_a_processor_that_llvm_does_not_know_is_refused(engine):
    with pytest.raises(CompileError, match=r"LLVM knows no -mcpu=znvr4 of x86.*, did you mean znver4\?"):
        engine.compile(relu(Var("x", "float32[8]")), "llvm -mcpu=znvr4 -mtriple=x86_64-linux-gnu")


@pytest.mark.parametrize("processor", ["", "-mcpu=znver4 "])
def test_a_triple_that_llvm_does_not_know_is_refused(engine, processor):
    with pytest.raises(CompileError, match="LLVM knows no -mtriple=x86-64-linux-gnu: expected one such as x86_64-"):
        engine.compile(relu(Var("x", "float32[8]")), f"llvm {processor}-mtriple=x86-64-linux-gnu")


def test_an_anchor_takes_what_follows_it(engine):
    graph, inputs = layer()
    function = engine.compile(graph, TARGET)
    compare(function, graph, inputs)
    (only,) = function.explain()
    assert only.calls == ("dense", "add", "relu", "add")
    assert only.workload.endswith("+add(.,add0.rhs=float32[16]:const)+relu(.)+add(.,add2.rhs=float32[8,16])")


def test_every_implementation_of_an_anchor_schedules_the_whole(engine):
    graph, inputs = layer()
    (workload, _) = describe(fuse_one(graph))
    for candidate in candidates(workload, TARGET):
        if candidate.condition is not None and not candidate.condition.decide():
            continue
        records = Records()
        records.found = [
            Measured(
                implementation=candidate.implementation, version=candidate.version,
                config=candidate.fallback, level=Level.DEVICE, estimate=Estimate(1e-6, 1e-6, 1e-6, 9),
            )
        ]
        function = engine.compile(graph, TARGET, records)
        compare(function, graph, inputs)
        (told,) = function.explain()
        assert (told.implementation, told.reason) == (candidate.implementation, Reason.MEASURED)


def fuse_one(graph: Expr):
    infer_type(graph)
    (group,) = fuse(graph)
    return group


x, y = Var("x", "float32[4,5]"), Var("y", "float32[5]")


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        (lambda: sigmoid(x + y) * x, [["add", "sigmoid", "multiply"]]),
        (lambda: exp(tanh(x)) + exp(x), [["tanh", "exp", "add"], ["exp"]]),
        (lambda: relu(transpose(x)), [["transpose", "relu"]]),
        (lambda: relu(reduce_sum(x, axis=0)), [["sum"], ["relu"]]),
        (lambda: reduce_sum(relu(x)), [["relu"], ["sum"]]),
        (lambda: relu(softmax(x)), [["softmax"], ["relu"]]),
        (lambda: relu(y) + x, [["relu"], ["add"]]),
        (lambda: ones_like(relu(x)), [["relu"], ["ones_like"]]),
        (lambda: where(greater(x, x), x, x), [["greater", "where"]]),
        (lambda: relu(topk(x, k=2)[0]), [["topk"], ["relu"]]),
    ],
)
def test_what_becomes_one_function(graph, expected):
    assert sorted(groups(graph())) == sorted(expected)


def test_a_value_that_is_needed_twice_ends_a_function(engine):
    hidden = dense(x, Var("w", "float32[3,5]"))
    graph = relu(hidden) * sigmoid(hidden)
    assert groups(graph)[0] == ["dense"]
    a, w = values((4, 5), (3, 5))
    compare(engine.compile(graph, TARGET), graph, {"x": a, "w": w})
    both = Tuple([hidden, relu(hidden)])
    assert groups(both) == [["dense"], ["relu"]]
    compare(engine.compile(both, TARGET), both, {"x": a, "w": w})


def test_of_two_ends_the_anchor_is_extended():
    graph = tanh(x) + dense(x, Var("w", "float32[5,5]"))
    assert sorted(groups(graph)) == [["dense", "add"], ["tanh"]]


def test_a_long_chain_is_several_functions(engine):
    graph: Expr = x
    for _ in range(100):
        graph = graph * y + const(0.25)
    infer_type(graph)
    found = groups(graph)
    assert list(map(len, found)) == [64, 64, 64, 8]
    a, b = values((4, 5), (5,))
    compare(engine.compile(graph, TARGET), graph, {"x": a, "y": b})


@pytest.mark.full
def test_a_function_waits_for_what_its_epilogue_needs(engine):
    early = dense(x, Var("w", "float32[5,5]"))
    late = softmax(transpose(transpose(exp(x))))
    graph = early + late
    a, w = values((4, 5), (5, 5))
    assert groups(graph)[-1] == ["dense", "add"]
    compare(engine.compile(graph, TARGET), graph, {"x": a, "w": w})


def test_the_same_function_and_target_give_the_same_object():
    graph, _ = layer()
    again, _ = layer()
    one_thread = TARGET.with_threads(1)
    first = compile_graph(graph, TARGET)
    assert compile_graph(graph, TARGET) is first
    assert compile_graph(graph, one_thread) is not first
    assert compile_graph(graph, one_thread) is compile_graph(graph, one_thread)
    assert compile_graph(again, TARGET) is not first, "other constants"
    make = lambda n, op=relu: op(Var("x", f"float32[{n}]"))
    assert compile_graph(make(7), TARGET) is compile_graph(make(7), TARGET), "built twice, the same structure"
    assert compile_graph(make(7), TARGET) is not compile_graph(make(8), TARGET)
    assert compile_graph(make(7), TARGET) is not compile_graph(make(7, tanh), TARGET)
    assert compile_graph(reduce_sum(x, 0), TARGET) is not compile_graph(reduce_sum(x, 1), TARGET)


def test_calls_of_the_same_operator_attributes_and_types_share_their_code(engine):
    graph = softmax(softmax(softmax(x)))
    function = engine.compile(graph, TARGET)
    assert len({id(k.artefact) for k in function._kernels}) == 1
    (a,) = values((4, 5))
    compare(function, graph, {"x": a})


def test_new_measurements_take_effect(engine):
    graph, inputs = layer()
    records = Records()
    before = engine.compile(graph, TARGET, records)
    assert before.explain()[0].reason is Reason.PLEVEL
    (workload, _) = describe(fuse_one(graph))
    pack = next(c for c in candidates(workload, TARGET) if c.implementation == "dense_nopack.cpu")
    records.found.append(
        Measured(
            implementation=pack.implementation, version=pack.version, config=pack.fallback,
            level=Level.DEVICE, estimate=Estimate(1e-6, 1e-6, 1e-6, 9),
        )
    )
    after = engine.compile(graph, TARGET, records)
    assert after is not before
    assert after is engine.compile(graph, TARGET, records)
    assert after.explain()[0].implementation == "dense_nopack.cpu"
    compare(after, graph, inputs)


def test_the_logger_tells_what_explain_gives(engine, caplog):
    graph, _ = layer()
    with caplog.at_level(logging.INFO, logger="plevel.compile"):
        function = engine.compile(softmax(graph), TARGET)
    told = [f"{e.workload}: {e.implementation}: {e.explanation}" for e in function.explain()]
    assert [r.getMessage() for r in caplog.records if r.name == "plevel.compile"] == told
    assert "has the highest plevel" in told[0]
    assert [e.implementation for e in function.explain()][1] == "softmax_row.cpu"


@pytest.mark.parametrize("function", [softmax, partial(mean, axis=-1)])
def test_tasks_end_where_an_axis_of_rows_does(engine, function):
    """Half of 3×4×512 rows are one and a half of the outer axis."""
    graph = function(Var("x", "float32[3,4,512,64]"))
    found = engine.compile(graph, TARGET)
    assert next(e.implementation for e in found.explain()).endswith("_row.cpu")
    compare(found, graph, {"x": values((3, 4, 512, 64))[0]})


def test_symbolic_dimensions_are_bound_by_each_call(engine):
    (w,) = values((3, 5))
    n = Var("x", "float32[m,5]")
    graph = softmax(dense(n, Constant(w)) * const(2.0))
    function = engine.compile(graph, TARGET)
    assert isinstance(function, SymbolicFunction)
    assert engine.compile(graph, TARGET) is function
    for m in (1, 4, 17):
        (a,) = values((m, 5))
        compare(function, graph, {"x": a})
    assert function.at({"m": 4}) is function.at({"m": 4})
    assert {e.workload.split(",")[0] for e in function.explain()} >= {"dense(data=float32[17"}
    with pytest.raises(RunError, match=r"x must be float32\[m,5\], got float32\[4,6\]"):
        function(values((4, 6))[0])
    pair = engine.compile(n + Var("z", "float32[m,5]"), TARGET)
    with pytest.raises(RunError, match="z: dimension m is 3 here, but 4 elsewhere"):
        pair(*values((4, 5), (3, 5)))


@pytest.fixture
def compiles(monkeypatch) -> list[str]:
    """The functions compiled since the test began, by their inputs' types."""
    found: list[str] = []
    original = Lowered.compile

    def count(self, **options):
        found.append(",".join(a.type for a in self.arguments))
        return original(self, **options)

    monkeypatch.setattr(Lowered, "compile", count)
    return found


def test_each_row_of_a_table_is_compiled_once_for_all_sizes(engine, compiles):
    (w, bias) = values((24, 16), (24,))
    n = Var("x", "float32[m,16]")
    hidden = relu(dense(n, Constant(w)) + Constant(bias))
    graph = softmax(concatenate([hidden, hidden], axis=0) * const(0.5))
    function = engine.compile(graph, TARGET)
    assert not compiles, "nothing is compiled before it is called"
    for m in (1, 2, 3, 16, 17, 18, 40, 41, 100, 257, 1, 2):
        compare(function, graph, {"x": values((m, 16))[0]})
    # dense has rows for one row, up to 16 and more; what follows has one each, of twice the rows.
    assert len(compiles) == len(set(compiles)) <= 3 + 3, compiles
    assert all(e.explanation.startswith("its row of the dispatch table") for e in function.explain())
    again = len(compiles)
    for m in range(2, 60):
        compare(function, graph, {"x": values((m, 16))[0]})
    assert len(compiles) == again
    assert engine.compile(graph, TARGET) is function
    compare(function, graph, {"x": values((61, 16))[0]})
    assert len(compiles) == again, "what is selected is the same: so is the code"


@pytest.mark.sample(2)
@pytest.mark.parametrize(("begin", "end", "step"), [(1, 4, 1), (2, 2**31, 1), (1, 2**31, 2), (0, 5, 2), (4, 0, -2)])
def test_a_symbolic_axis_is_sliced(engine, begin, end, step):
    x = Var("x", "float32[n,3]")
    part = strided_slice(x, (begin,), (end,), (step,))
    graph = Tuple([part, *gradient(part, [x])])
    function = engine.compile(graph, TARGET)
    for n in (9, 5, 3, 8):
        (data,) = values((n, 3))
        whole = np.zeros_like(data)
        whole[begin:end:step] = 1
        found, slope = function(data)
        np.testing.assert_array_equal(found, data[begin:end:step])
        np.testing.assert_array_equal(slope, whole)


def test_sizes_that_the_types_forbid_are_refused_at_the_call(engine):
    graph = dense(Var("x", "float32[m,k]"), Var("w", "float32[n,l]"))
    function = engine.compile(graph, TARGET)
    compare(function, graph, dict(zip("xw", values((4, 5), (3, 5)), strict=True)))
    with pytest.raises(TypeRelationError, match="dense: weight is"):
        function(*values((4, 5), (3, 6)))


def test_new_measurements_are_taken_by_the_next_compile(engine, compiles):
    graph = dense(Var("x", "float32[m,32]"), Var("w", "float32[16,32]"))
    function = engine.compile(graph, TARGET, records := Records())
    inputs = dict(zip("xw", values((64, 32), (16, 32)), strict=True))
    compare(function, graph, inputs)
    (first,) = function.explain()
    (workload, _) = describe(fuse_one(dense(Var("x", "float32[64,32]"), Var("w", "float32[16,32]"))))
    slow = [c for c in candidates(workload, TARGET) if c.implementation == "dense_nopack.cpu"]
    records.found = [
        Measured(
            implementation=c.implementation, version=c.version, config=c.fallback,
            level=Level.DEVICE, estimate=Estimate(1e-6, 1e-6, 1e-6, 9),
        )
        for c in slow
    ]
    records.instances = lambda symbolic, target, device: [(workload, records.found)]
    assert engine.compile(graph, TARGET, records) is function
    compare(function, graph, inputs)
    (second,) = function.explain()
    assert first.implementation != second.implementation == "dense_nopack.cpu"
    assert second.reason is Reason.MEASURED
    assert len(compiles) == 2


@pytest.mark.full
def test_what_has_no_row_for_all_sizes_is_compiled_for_each(engine, compiles, monkeypatch):
    strategy = get_op("softmax").get_attr("FTVMStrategy")
    monkeypatch.setattr(strategy, "_by_key", dict(strategy._by_key))
    _, original = strategy.find(TARGET)

    def concrete_only(attrs, inputs, out_type, target):
        found, own = OpStrategy(), original(attrs, inputs, out_type, target)
        for _, i in own:
            found.add_implementation(
                i.compute, i.schedule, i.name, i.plevel, space=i.space, symbolic=False
            )
        return found

    strategy.register("cpu", concrete_only, override=True)
    graph = relu(softmax(Var("x", "float32[m,4]")))
    function = engine.compile(graph, TARGET)
    for m in (5, 9, 5):
        compare(function, graph, {"x": values((m, 4))[0]})
    assert sum(t.startswith("float32[5,4]") for t in compiles) == 1
    assert sum(t.startswith("float32[9,4]") for t in compiles) == 1
    assert sum(t.startswith("float32[m,4]") for t in compiles) == 1, "relu has a row for all"


def test_of_many_sizes_the_last_are_kept(engine, monkeypatch):
    monkeypatch.setattr("strategy.compile.function.MAX_FUNCTIONS", 2)
    n = Var("many", "float32[m]")
    function = engine.compile(relu(n), TARGET)
    for m in (1, 2, 1, 3):
        np.testing.assert_array_equal(function(-np.ones(m, "float32")), np.zeros(m))
    assert [e.workload for e in function.explain()] == [f"relu(data=float32[{m}])" for m in (1, 3)]


@pytest.mark.skipif(find_library("cblas") is None, reason="no OpenBLAS on this host")
def test_a_library_has_the_targets_threads(engine):
    for threads in (1, 2):
        many = Var("x", "float32[80,5]")
        function = engine.compile(dense(many, Var("w", "float32[3,5]")), TARGET.with_threads(threads))
        assert [e.implementation for e in function.explain()] == ["dense_cblas.cpu"]
        function(*values((80, 5), (3, 5)))
        assert load_library("cblas").threads == threads


def test_dimensions_that_are_computed_follow(engine):
    n = Var("x", "float32[m,4]")
    graph = Tuple([reshape(concat(n, n), (-1,)), reduce_sum(n, axis=0)])
    function = engine.compile(graph, TARGET)
    for m in (2, 5):
        compare(function, graph, {"x": values((m, 4))[0]})


def test_tuples_in_and_out(engine):
    low, high = split(x, (2,), axis=1)
    graph = Tuple([concatenate([high, low, x], axis=1), topk(x, k=2)[1], x, const(1.5)])
    function = engine.compile(graph, TARGET)
    (a,) = values((4, 5))
    compare(function, graph, {"x": a})
    call = topk(x, k=3)[0].tuple_value
    compare(engine.compile(call, TARGET), call, {"x": a})


@pytest.mark.full
def test_more_tensors_are_joined_than_a_function_takes(engine):
    parts = [Var(f"x{i}", "float32[3]") for i in range(66)]
    values = [np.full(3, i, np.float32) for i in range(66)]
    joined, stacked = engine.compile(Tuple([concatenate(parts), stack(parts, 1)]), TARGET)(*values)
    np.testing.assert_array_equal(joined, np.concatenate(values))
    np.testing.assert_array_equal(stacked, np.stack(values, 1))


def test_a_small_network_and_its_gradient(engine):
    data, w1, w2, labels = values((2, 3, 8, 8), (4, 3, 3, 3), (5, 64), (2, 5), dtype="float64")
    names = {"data": data, "w1": w1, "w2": w2}
    variables = [Var(n, f"float64[{','.join(map(str, a.shape))}]") for n, a in names.items()]
    hidden = relu(conv2d(variables[0], variables[1], padding=1))
    flat = reshape(max_sum(hidden), (2, -1))
    scores = softmax(dense(flat, variables[2]))
    loss = mean((scores - Constant(labels)) * (scores - Constant(labels)))
    graph = Tuple([loss, *gradient(loss, variables)])
    compare(engine.compile(graph, TARGET), graph, names, 1e-11)


def max_sum(hidden: Expr) -> Expr:
    """[2, 4, 8, 8] to [2, 4, 4, 4] by operators that have gradients."""
    rows = reshape(hidden, (2, 4, 4, 2, 4, 2))
    return reduce_sum(rows, axis=(3, 5))


@pytest.mark.full
def test_gradients_of_many_operators_compiled(engine):
    b = Var("b", "float64[3,5,2]")
    graph = tanh(batch_matmul(b, b)) / (exp(reduce_sum(b)) + ones_like(reduce_sum(b)))
    (found,) = gradient(graph)
    (value,) = values((3, 5, 2), dtype="float64")
    compare(engine.compile(found, TARGET), found, {"b": value}, 1e-11)


@pytest.mark.full
@pytest.mark.parametrize("form", ["7,10000", "7,n"])
def test_gradients_of_more_elements_than_float16_counts(engine, form):
    data = values((7, 10000), dtype="float16")[0]
    x, seed = Var("x", f"float16[{form}]"), Constant(np.full((), 4096), "float16")
    zeros = maximum(x, zeros_like(x) + const(1, "float16"))  # all equal
    graphs = [mean(x), variance(x), std(x), reduce_max(zeros)]
    graph = Tuple([g for found in graphs for g in gradient(found, [x if found is not graphs[3] else zeros], seed)])
    for got, right in zip(engine.compile(graph, TARGET)(data), evaluate(graph, {"x": data}), strict=True):
        assert np.abs(right).max() > 0.01
        np.testing.assert_allclose(got, right, rtol=0.01, atol=1e-4)


def test_memory_of_any_kind_is_taken(engine):
    graph = add(x, y)
    function = engine.compile(graph, TARGET)
    (a, b) = values((4, 5), (5,))
    strided = np.asfortranarray(a)
    shifted = np.zeros(21, "float32")[1:].reshape(4, 5)
    shifted[...] = a
    frozen = a.copy()
    frozen.setflags(write=False)
    for given in (a, strided, shifted, frozen, a[::-1][::-1]):
        np.testing.assert_array_equal(function(given, b), a + b)
    assert function(a, b) is not function(a, b)


@pytest.mark.parametrize(
    ("arrays", "named", "message"),
    [
        ((0,), {}, r"variable 'y' is missing: float32\[5\]"),
        ((0, 1, 2), {}, "3 arrays given for 2 variables: x, y"),
        ((0,), {"x": 0}, "variable 'x' is given twice"),
        ((0, 1), {"z": 0}, "unknown variable 'z': expected x, y"),
        ((1, 1), {}, r"x must be float32\[4,5\], got float32\[5\]"),
        ((2, 1), {}, r"x must be float32\[4,5\], got float64\[4,5\]"),
    ],
)
def test_arrays_that_do_not_fit(engine, arrays, named, message):
    function = engine.compile(add(x, y), TARGET)
    kinds = [*values((4, 5), (5,)), np.zeros((4, 5))]
    with pytest.raises(RunError, match=message):
        function(*(kinds[i] for i in arrays), **{k: kinds[v] for k, v in named.items()})


def test_a_conflict_of_types_is_no_compilation(engine):
    with pytest.raises(TypeRelationError, match=r"add: rhs is float32\[6\]"):
        engine.compile(x + Var("z", "float32[6]"), TARGET)


def test_a_graph_without_calls(engine):
    function = engine.compile(Tuple([x, const(2)]), TARGET)
    assert isinstance(function, CompiledFunction)
    (a,) = values((4, 5))
    got = function(a)
    np.testing.assert_array_equal(got[0], a)
    assert got[1] == 2
    assert function.explain() == []


def test_a_value_is_not_an_input_that_it_is_written_over(engine):
    graph = Tuple([x + x, zeros_like(x), max_pool2d(Var("p", "float32[1,1,4,4]"), 2, 2)])
    function = engine.compile(graph, TARGET)
    a, p = values((4, 5), (1, 1, 4, 4))
    kept = a.copy()
    function(a, p)
    np.testing.assert_array_equal(a, kept)


@pytest.mark.full
def test_the_runtime_has_the_targets_threads():
    program = (
        "import sys\n"
        "sys.modules['torch'] = None\n"  # which TVM would load
        "import numpy as np, tvm\n"
        "from strategy.compile import compile\n"
        "from strategy.expr import Var\n"
        "from strategy.ops.elemwise import relu\n"
        "from strategy.target import Target\n"
        "threads = []\n"
        "for n in (2, 1, 2):\n"
        "    f = compile(relu(Var('x', 'float32[64,1024]')), Target.parse('cpu').with_threads(n))\n"
        "    f(np.zeros((64, 1024), 'float32'))\n"
        "    threads.append(tvm.get_global_func('runtime.NumThreads')())\n"
        "print(threads)\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "TVM_NUM_THREADS"}
    root = Path(__file__).parents[2]

    def run(**more):
        return subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=HANG_S,
            check=True, cwd=root, env={**environment, **more},
        )

    assert run().stdout == "[2, 1, 2]\n"
    told = run(TVM_NUM_THREADS="1")
    assert told.stdout == "[1, 1, 1]\n"
    assert "threads=2 is for 2 threads, but the runtime has 1: set TVM_NUM_THREADS" in told.stderr


def test_patterns_are_used(engine):
    assert get_op("relu").get_attr("TOpPattern") < get_op("dense").get_attr("TOpPattern")
    assert [len(g) for g in groups(relu(dense(x, Var("w", "float32[3,5]"))))] == [2]


def test_bfloat16_arrays_are_taken_wherever_they_lie():
    import ml_dtypes

    x = Var("x", "bfloat16[5,7]")
    function = compile_graph(relu(x), TARGET)
    memory = np.zeros(35 + 64, ml_dtypes.bfloat16)
    aligned = -memory.ctypes.data % 64 // 2
    for start in (aligned, aligned + 1):
        data = memory[start : start + 35].reshape(5, 7)
        data[...] = np.arange(-17, 18).reshape(5, 7)
        np.testing.assert_array_equal(function(data).astype("float32"), np.maximum(data.astype("float32"), 0))


def test_a_dimension_of_an_epilogue_alone_is_bound_by_the_call(engine):
    graph = relu(Var("x", "float32[m,3]")) * Var("scale", "float32[n]")
    function = engine.compile(graph, TARGET)
    x, scale = values((4, 3), (3,))
    np.testing.assert_allclose(function(x, scale), np.maximum(x, 0) * scale, rtol=1e-6)


def test_entries_of_tuples_may_be_tuples(engine):
    x = Var("x", "float32[8]")
    (a,) = values((8,))
    nested = Tuple([topk(x, k=2)[0].tuple_value, x])
    first = TupleGetItem(nested, 0)
    highest = np.sort(a)[:-3:-1]
    for graph, expected in (
        (first, highest), (Tuple([TupleGetItem(nested, 1), first]), a),
        (Tuple([relu(TupleGetItem(first, 0))]), np.maximum(highest, 0)),
    ):
        np.testing.assert_array_equal(engine.compile(graph, TARGET)(a)[0], expected)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)])
def test_arrays_without_elements_are_arguments(shape):
    memory = np.empty(256, np.uint8)
    aligned = np.ndarray(shape, np.float32, memory, -memory.ctypes.data % 64)
    text = ",".join(map(str, shape))
    assert compile_graph(relu(Var("x", f"float32[{text}]")), TARGET)(aligned).shape == shape
    symbolic = compile_graph(reduce_sum(Var("x", f"float32[{text.replace('0', 'm')}]")), TARGET)
    assert symbolic(aligned) == 0
