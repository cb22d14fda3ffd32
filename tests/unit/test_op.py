"""The operator registry: registration, levels of attributes, schedules, and other packages."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from strategy import op as registry
from strategy.document import NAMED_AFTER
from strategy.generic_func import GenericFunc
from strategy.op import (
    OpError,
    TOpPattern,
    TypeRelationError,
    TypeReporter,
    all_ops,
    get_op,
    register_compute,
    register_op,
    register_op_attr,
    register_strategy,
)
from strategy.op_strategy import evaluate
from strategy.pattern import (
    register_broadcast_schedule,
    register_injective_schedule,
    register_reduce_schedule,
    register_schedule,
    schedule_injective,
)
from strategy.target import Target
from strategy.type_relation import broadcast_relation, identity_relation
from strategy.types import Dim, IncompleteType, TensorType, TupleType, may_equal
from strategy.workload import Workload
from tests.limit import HANG_S

CPU, CUDA = Target.parse("llvm -mcpu=x86-64"), Target.parse("cuda -arch=sm_90")


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    """Remove what a test registers at its end."""
    all_ops()
    monkeypatch.setattr(registry, "_ops", dict(registry._ops))


def new_op(name="twice"):
    return (
        register_op(name)
        .describe("Twice each element.")
        .set_num_inputs(1)
        .add_argument("data", "Tensor", "The input tensor.")
        .set_support_level(3)
        .add_type_rel("Identity", identity_relation())
        .set_attr("TOpPattern", TOpPattern.kElemWise)
    )


def test_a_registration_is_kept_whole():
    op = new_op()
    assert get_op("twice") is op
    assert (op.description, op.num_inputs, op.support_level) == ("Twice each element.", 1, 3)
    assert op.arguments[0].description == "The input tensor."
    assert op.get_attr("TOpPattern") == TOpPattern.kElemWise
    assert str(op.infer_type([TensorType([2])], op.attrs_type())) == "float32[2]"


def test_errors_of_registration():
    new_op()
    with pytest.raises(OpError, match="operator twice is already registered"):
        register_op("twice")
    with pytest.raises(OpError, match=r"unknown operator 'thrice', did you mean twice\?; known: those of 'plevel ops"):
        get_op("thrice")
    with pytest.raises(OpError, match="operator thrice is not registered"):
        register_compute("thrice", len)


def test_the_same_level_is_an_error_lower_is_ignored_higher_replaces():
    op = new_op()
    op.set_attr("hint", "ten", 10)
    with pytest.raises(OpError, match="attribute hint is already registered at level 10"):
        op.set_attr("hint", "other", 10)
    op.set_attr("hint", "nine", 9)
    assert op.get_attr("hint") == "ten"
    op.set_attr("hint", "eleven", 11)
    assert op.get_attr("hint") == "eleven"
    with pytest.raises(OpError, match="level 11"):
        op.set_attr("hint", "again", 11)


def test_reset_touches_one_attribute_of_one_operator():
    op, other = new_op(), new_op("other")
    for one in (op, other):
        one.set_attr("hint", 1).set_attr("other_hint", 2)
    op.reset_attr("hint")
    assert op.get_attr("hint") is None
    assert op.get_attr("other_hint") == 2
    assert other.get_attr("hint") == 1
    op.set_attr("hint", 3)
    assert op.get_attr("hint") == 3


def test_attributes_are_registered_by_value_or_by_decorator():
    op = new_op()
    register_op_attr("twice", "one", 1)

    @register_op_attr("twice", "function")
    def function():
        return 2

    assert op.get_attr("one") == 1
    assert op.get_attr("function") is function
    with pytest.raises(OpError, match="at level 10"):
        register_op_attr("twice", "function", len)


@pytest.mark.parametrize(
    "register", [register_injective_schedule, register_broadcast_schedule, register_reduce_schedule]
)
def test_a_schedule_needs_the_compute_first(register):
    new_op()
    with pytest.raises(OpError, match="twice has no compute: call register_compute before"):
        register("twice")
    register_compute("twice", lambda attrs, inputs, out_type: inputs)
    register("twice")
    (condition, implementation), *_ = evaluate(Workload.make("twice", {"data": "float32[2]"}), CPU)
    assert condition is None
    assert implementation.name == f"{register.__name__.split('_')[1]}.cpu"
    with pytest.raises(OpError, match="attribute FTVMStrategy is already registered at level 10"):
        register("twice")


def test_a_schedule_of_ones_own_is_looked_up_per_target():
    new_op()
    register_compute("twice", lambda attrs, inputs, out_type: inputs)
    schedule = GenericFunc("schedule_pool", lambda attrs, outs, target: "generic")
    schedule.register("cpu", lambda attrs, outs, target: "cpu")
    register_schedule("twice", schedule)
    workload = Workload.make("twice", {"data": "float32[2]"})
    names = {t.kind: next(iter(evaluate(workload, t)))[1] for t in (CPU, CUDA)}
    assert (names["llvm"].name, names["cuda"].name) == ("pool.cpu", "pool.generic")
    assert names["llvm"].schedule(None, None, CPU) == "cpu"
    schedule.register("gpu", lambda attrs, outs, target: "gpu")
    assert next(iter(evaluate(workload, CUDA)))[1].name == "pool.gpu"


def test_a_schedule_may_be_a_plain_function():
    new_op()
    register_compute("twice", lambda attrs, inputs, out_type: inputs)

    def schedule_double(attrs, outs, target):
        return "plain"

    register_schedule("twice", schedule_double)
    workload = Workload.make("twice", {"data": "float32[2]"})
    for target in (CPU, CUDA):
        ((_, implementation),) = evaluate(workload, target)
        assert implementation.name == "double.generic"
        assert implementation.schedule(None, None, target) == "plain"


def test_a_target_without_a_pattern_schedule_has_no_implementation():
    assert not list(evaluate(Workload.make("transpose", {"data": "float32[2,3]"}), Target.parse("metal")))


def test_a_new_target_is_added_from_outside(monkeypatch):
    conv2d_strategy = get_op("conv2d").get_attr("FTVMStrategy")
    monkeypatch.setattr(conv2d_strategy, "_by_key", dict(conv2d_strategy._by_key))

    @conv2d_strategy.register("mytarget")
    def conv2d_strategy_mytarget(attrs, inputs, out_type, target):
        from strategy.op_strategy import OpStrategy

        strategy = OpStrategy()
        strategy.add_implementation(len, len, name="conv2d_nchw.mytarget")
        return strategy

    workload = Workload.make("conv2d", {"data": "float32[1,3,8,8]", "weight": "float32[4,3,3,3]"})
    mine = Target.parse({"kind": "c", "keys": ["mytarget", "cpu"]})
    assert [i.name for _, i in evaluate(workload, mine)] == ["conv2d_nchw.mytarget"]
    assert "conv2d_nchw.cpu" in [i.name for _, i in evaluate(workload, CPU)]
    monkeypatch.setattr(schedule_injective, "_by_key", dict(schedule_injective._by_key))
    schedule_injective.register("mytarget", lambda attrs, outs, target: None)
    moved = Workload.make("transpose", {"data": "float32[2,3]"})
    assert next(iter(evaluate(moved, mine)))[1].name == "injective.mytarget"


@pytest.mark.parametrize("name", all_ops())
def test_every_operator_has_examples(name):
    """Tests of versions, of all dtypes, of memory and of gradients run them."""
    op = get_op(name)
    assert op.examples, f"{name} has no example: add .example(inputs, attrs) to its registration"
    for example in op.examples:
        workload = Workload.make(name, example.inputs, dict(example.attrs))
        assert list(evaluate(workload, CPU)), f"{workload} runs nowhere"


PACKAGE = """
from strategy.op import TOpPattern, get_op, register_compute, register_op
from strategy.op_strategy import OpStrategy
from strategy.pattern import register_broadcast_schedule
from strategy.type_relation import identity_relation, require_float

register_op("swish").describe("x * sigmoid(x)").set_num_inputs(1).add_argument(
    "data", "Tensor", "The input tensor."
).add_type_rel("Identity", identity_relation(require_float)).set_attr("TOpPattern", TOpPattern.kElemWise)

@register_compute("swish")
def compute_swish(attrs, inputs, out_type):
    from tvm import topi
    return [topi.multiply(inputs[0], topi.sigmoid(inputs[0]))]

register_broadcast_schedule("swish")

@get_op("conv2d").get_attr("FTVMStrategy").register("npu")
def conv2d_npu(attrs, inputs, out_type, target):
    strategy = OpStrategy()
    strategy.add_implementation(compute_swish, lambda attrs, outs, target: None, name="theirs")
    return strategy
"""


def test_another_package_brings_operators_and_strategies(tmp_path):
    (tmp_path / "swish_ops.py").write_text(PACKAGE)
    info = tmp_path / "swish_ops-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: swish-ops\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[plevel.ops]\nswish = swish_ops\n")
    program = (
        "import sys\n"
        "from strategy.op import get_op, find_op\n"
        "from strategy.op_strategy import evaluate\n"
        "from strategy.target import Target\n"
        "from strategy.workload import Workload\n"
        "w = Workload.make('swish', {'data': 'float32[4]'})\n"
        "print([i.name for _, i in evaluate(w, Target.parse('llvm'))])\n"
        "c = Workload.make('conv2d', {'data': 'float32[1,1,3,3]', 'weight': 'float32[1,1,3,3]'})\n"
        "print([i.name for _, i in evaluate(c, Target.parse({'kind': 'c', 'keys': ['npu', 'cpu']}))])\n"
        "print('tvm' in sys.modules)\n"
        "from strategy.installed import installed\n"
        "known = installed()\n"
        "print(known['swish'], ['*' in known[name] for name in ('conv2d', 'dense')], len(known['conv2d']) > 1)\n"
    )
    root = str(Path(registry.__file__).parent.parent)
    path = os.pathsep.join([str(tmp_path), root])
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=HANG_S, check=False,
        env={**os.environ, "PYTHONPATH": path}, cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "['broadcast.cpu', 'elementwise.cpu']", "['theirs']", "False", "{'*': 0} [True, False] True",
    ]


def make_package(folder: Path, name: str, text: str) -> None:
    """A package of operators as pip installs it."""
    (folder / f"{name}.py").write_text(text)
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[plevel.ops]\n{name} = {name}\n")


def run_with_packages(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(folder), str(Path(registry.__file__).parent.parent)])
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=HANG_S, check=False,
        env={**os.environ, "PYTHONPATH": path, "XDG_DATA_HOME": str(folder)}, cwd=folder,
    )


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("last_line", "error"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("raise ValueError('one\\ntwo')", "ValueError: one two"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("class Panic(BaseException): ...\nraise Panic('called unwrap on None')", "Panic: called unwrap on None"),
    ],
)
def test_a_package_that_cannot_be_loaded_is_reported_once_and_left_out(tmp_path, last_line, error):
    half = (
        "from strategy.op import get_op, register_op\nregister_op('half')\nget_op('dense').set_attr('x', 1)\n"
        "get_op('relu').example({'data': 'nonsense'})\n"
        "from strategy.ops.conv2d import conv2d_strategy\nconv2d_strategy.extend('cpu')("
        "lambda before, attrs, inputs, out_type, target: 1 / 0)\n"
        "from strategy.pattern import register_cpu_implementations\n"
        "register_cpu_implementations('relu', lambda strategy, attrs, inputs, out_type, target: 1 / 0)\n"
    )
    make_package(tmp_path, "broken", half + last_line)
    make_package(tmp_path, "sound", "from strategy.op import register_op\nregister_op('whole')\n")
    program = (
        "from strategy.op import all_ops, find_op\n"
        "print('half' in all_ops(), 'whole' in all_ops(), find_op('dense').get_attr('x'))\n"
        "print('nonsense' in str(find_op('relu').examples))\n"
        "from strategy.op_strategy import candidates\n"
        "from strategy.target import Target\n"
        "from strategy.workload import Workload\n"
        "w = Workload.make('conv2d', {'data': 'float32[1,1,3,3]', 'weight': 'float32[1,1,3,3]'})\n"
        "print(len(candidates(w, Target.parse('llvm'))) > 1)\n"
        "w = Workload.make('relu', {'data': 'float32[4]'})\n"
        "print(len(candidates(w, Target.parse('llvm'))) > 1)\n"
        "from strategy.installed import installed\n"
        "print([name for name, known in installed().items() if '*' in known])\n"
    )
    done = run_with_packages(tmp_path, "-c", program)
    assert (done.returncode, done.stdout) == (0, "False True None\nFalse\nTrue\nTrue\n[]\n"), done.stderr
    assert done.stderr == (
        "plevel: the operators of package broken (broken = broken in plevel.ops) are left out: "
        f"{error}: correct or remove the package\n"
    )


def test_a_package_with_damaged_metadata_is_named_and_takes_no_other_with_it(tmp_path):
    make_package(tmp_path, "damaged", "")
    (tmp_path / "damaged-1.0.dist-info" / "entry_points.txt").write_text("[console_scripts]\ndam")
    make_package(tmp_path, "nameless", "raise ValueError('one')")
    (tmp_path / "nameless-1.0.dist-info" / "METADATA").unlink()
    make_package(tmp_path, "sound", "from strategy.op import register_op\nregister_op('whole')\n")
    done = run_with_packages(tmp_path, "-c", "from strategy.op import get_op\nprint(get_op('whole').name)")
    assert (done.returncode, done.stdout) == (0, "whole\n"), done.stderr
    assert "plevel: the entry points of package damaged cannot be read: TypeError: " in done.stderr
    assert "the operators of package without a name in " in done.stderr


def test_a_package_hides_another_of_its_name_behind_it(tmp_path):
    """As one in a virtual environment that has no operators any more, or others, does that of the system."""
    behind = tmp_path / "behind"
    behind.mkdir()
    for name in ("same", "other"):
        make_package(behind, name, f"from strategy.op import register_op\nregister_op('of_{name}')\n")
    newer = tmp_path / "same-2.0.dist-info"
    newer.mkdir()
    (newer / "METADATA").write_text("Metadata-Version: 2.1\nName: same\nVersion: 2.0\n")
    code = f"""import sys
sys.path.append({str(behind)!r})
from strategy.op import all_ops
print([name for name in all_ops() if name.startswith("of_")])"""
    done = run_with_packages(tmp_path, "-c", code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "['of_other']\n", "")


def test_a_package_that_cannot_be_loaded_takes_no_other_with_it(tmp_path):
    """It looks an operator up, for which packages are loaded, and fails after that."""
    later = tmp_path / "later"
    later.mkdir()
    make_package(tmp_path, "broken", "from strategy.op import get_op\nget_op('dense')\nraise ValueError('one')")
    make_package(later, "sound", "from strategy.op import get_op, register_op\nget_op('dense')\nregister_op('whole')\n")
    look_up = "from strategy.op import get_op\nprint(get_op('whole').name)"
    program = f"import sys\nsys.path.append({str(later)!r})\n{look_up}"
    done = run_with_packages(tmp_path, "-c", program)
    assert (done.returncode, done.stdout) == (0, "whole\n"), done.stderr
    assert done.stderr.count("are left out: ValueError: one") == 1


def test_what_is_written_from_the_operators_has_none_of_other_packages(tmp_path):
    """`make operators` writes the lists and the reference that are shipped."""
    extends = (
        "from strategy.op import register_op\nfrom strategy.ops.dense import dense_strategy\n"
        "register_op('whole')\n"
        "dense_strategy.extend('cpu')(lambda before, attrs, inputs, out_type, target: 1 / 0)\n"
    )
    make_package(tmp_path, "sound", extends)
    program = (
        "import tests.unit.test_version as made\n"
        "def record(because):\n"
        "    print('whole' in made.all_ops(), '## whole' in made.reference(), made.installed()['dense'].get('*'))\n"
        "made.record = record\n"
        "made.main()\n"
    )
    done = run_with_packages(tmp_path, "-c", program)
    assert (done.returncode, done.stdout) == (0, "False False None\n"), done.stderr


@pytest.mark.full
def test_commands_go_on_without_a_package_that_cannot_be_loaded(tmp_path):
    make_package(tmp_path, "broken", "1 / 0")
    select = ("select", "relu", "-i", "data=float32[4]", "-t", "llvm")
    done = run_with_packages(tmp_path, "-m", "plevel", *select)
    assert done.returncode == 0
    assert "broadcast.cpu" in done.stdout
    (line,) = done.stderr.splitlines()
    assert "package broken" in line


BUGGY = """\
from strategy.op import get_op
from strategy.op_strategy import OpStrategy
from strategy.schedule import new_schedule

def compute(attrs, inputs, out_type):
    return [inputs[0].no_such_field]

def schedule(attrs, outs, target):
    return new_schedule(outs).no_such_field

def plain(attrs, inputs, out_type):
    from tvm import topi
    return [topi.nn.relu(inputs[0])]

@get_op("relu").get_attr("FTVMStrategy").register("npu")
def relu_npu(attrs, inputs, out_type, target):
    strategy = OpStrategy()
    strategy.add_implementation(compute, schedule, "bad_compute.npu")
    strategy.add_implementation(plain, schedule, "bad_schedule.npu")
    return strategy

@get_op("exp").get_attr("FTVMStrategy").register("npu")
def exp_npu(attrs, inputs, out_type, target):
    raise KeyError("a bug")
"""


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("arguments", "line", "error"),
    [
        (("show", "relu", "-I", "bad_compute.npu"), 6, "bad_compute.npu: {}: AttributeError"),
        (("show", "relu", "-I", "bad_schedule.npu"), 9, "bad_schedule.npu: {}: AttributeError"),
        (("select", "exp"), 24, "{}: KeyError: 'a bug' (in an operator's code: correct it there)"),
    ],
)
def test_a_bug_in_an_operators_code_shows_file_and_line(tmp_path, arguments, line, error):
    make_package(tmp_path, "buggy", BUGGY)
    given = ("-i", "data=float32[4]", "-t", "llvm -keys=npu,cpu")
    done = run_with_packages(tmp_path, "-m", "plevel", *arguments, *given)
    assert done.returncode == 1
    assert done.stderr.startswith("plevel: " + error.format(f"{tmp_path / 'buggy.py'}:{line}"))
    assert done.stderr.count("\n") == 1


@pytest.mark.full
def test_a_bug_in_an_operators_code_is_recorded_with_file_and_line(tmp_path):
    make_package(tmp_path, "buggy", BUGGY)
    program = (
        "from strategy.record import JobEntry\n"
        "from strategy.space import Config\n"
        "from strategy.op_strategy import candidates\n"
        "from strategy.target import Target\n"
        "from strategy.workload import Workload\n"
        "from workers.builder import Build, build\n"
        "t = Target.parse('llvm -keys=npu,cpu')\n"
        "for op, name in (('relu', 'bad_compute.npu'), ('exp', 'x')):\n"
        "    w = Workload.make(op, {'data': 'float32[4]'})\n"
        "    version = candidates(w, t)[0].version if op == 'relu' else '1.0'\n"
        "    entry = JobEntry(index=0, task_id=0, implementation=name, version=version, config=Config())\n"
        "    print(build(Build(workload=w, target=t, entry=entry, path='lib.so')).message)\n"
    )
    done = run_with_packages(tmp_path, "-c", program)
    first, second = done.stdout.splitlines()
    assert first.startswith(f"bad_compute.npu: {tmp_path / 'buggy.py'}:6: AttributeError"), done.stderr
    assert second == f"{tmp_path / 'buggy.py'}:24: KeyError: 'a bug'"


def test_an_operator_has_one_strategy_per_level():
    op = new_op()
    register_strategy("twice", lambda attrs, inputs, out_type, target: None)
    with pytest.raises(OpError, match="twice: attribute FTVMStrategy is already registered at level 10"):
        register_strategy("twice", lambda attrs, inputs, out_type, target: None)
    register_strategy("twice", strategy := (lambda attrs, inputs, out_type, target: None), level=15)
    assert op.get_attr("FTVMStrategy") is strategy


def test_every_operator_is_complete():
    for name, op in all_ops().items():
        assert op.description, name
        assert name in NAMED_AFTER, f"{name}: say whose name it is, Relay's or ONNX's, in strategy/document.py"
        assert len(op.arguments) == op.num_inputs, name
        assert all(a.description for a in op.arguments), name
        assert all(f.description for f in op.attrs_type.fields().values()), name
        for needed in ("TOpPattern", "FTVMStrategy", "FReference"):
            assert op.get_attr(needed) is not None, f"{name} has no {needed}"
        if op.get_attr("TOpPattern") in (TOpPattern.kElemWise, TOpPattern.kBroadcast):
            assert op.get_attr("FTVMCompute") is not None, f"{name} cannot be an epilogue"


def test_every_operator_can_be_evaluated_without_tvm():
    program = (
        "import sys\n"
        "from strategy.op import all_ops\n"
        "from strategy.op_strategy import candidates\n"
        "from strategy.target import Target\n"
        "from strategy.workload import Workload\n"
        "assert len(all_ops()) > 30\n"
        "w = Workload.make('conv2d', {'data': 'float32[1,4,9,9]', 'weight': 'float32[8,4,3,3]'})\n"
        "print([c.implementation for c in candidates(w, Target.parse('llvm'))])\n"
        "assert 'tvm' not in sys.modules and 'tvm_ffi' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=HANG_S, check=False,
        cwd=Path(registry.__file__).parent.parent,
    )
    assert done.returncode == 0, done.stderr
    names = ast.literal_eval(done.stdout)
    assert {"conv2d_nchw.cpu", "conv2d_nchw_im2col.cpu", "conv2d_nchw_winograd_2x2.cpu"} <= set(names)


def test_a_relation_reports_assigns_and_checks():
    op = new_op()
    known, unknown = TensorType(["m", 4]), IncompleteType()
    reporter = TypeReporter(op, [known, unknown])
    assert reporter.tensor(1) is None
    reporter.assign(1, TensorType([8, 4]))
    reporter.assign(0, TensorType([8, 4]))
    assert str(reporter.types[0]) == "float32[m,4]", "what may be equal is kept"
    with pytest.raises(TypeRelationError, match=r"twice: data is float32\[m,4\], but must be int8\[8,4\]"):
        reporter.assign(0, TensorType([8, 4], "int8"))
    m, four = known.shape
    reporter.check(m > 4, 0, "undecided passes")
    reporter.check((m % 2 == 0) & (four == 4), 0, "what is undecided of a conjunction passes")
    assert list(map(str, reporter.assumed)) == ["m > 4", "(m % 2) == 0"]
    for false in (four > 4, (m > 4) & (four > 4), np.bool_(False)):
        with pytest.raises(TypeRelationError, match=r"twice: data is float32\[m,4\]: too few"):
            reporter.check(false, 0, "too few")


def test_a_relation_may_be_called_with_incomplete_types():
    op = get_op("add")
    reporter = TypeReporter(op, [TensorType([2]), IncompleteType(), IncompleteType()])
    assert broadcast_relation()(reporter.types, op.attrs_type(), reporter) is False
    with pytest.raises(TypeRelationError, match=r"add: inputs \(float32\[2\], \?\) do not determine"):
        op.infer_type([TensorType([2]), IncompleteType()], op.attrs_type())
    with pytest.raises(TypeRelationError, match=r"add takes 2 inputs \(lhs, rhs\), got 1"):
        op.infer_type([TensorType([2])], op.attrs_type())


@pytest.mark.parametrize(
    ("a", "b", "equal"),
    [
        ("float32[2]", "float32[2]", True),
        ("float32[m]", "float32[2]", True),
        ("float32[2]", "float32[3]", False),
        ("float32[2]", "int32[2]", False),
        ("float32[2]", "float32[2,1]", False),
    ],
)
def test_types_may_be_equal_where_nothing_says_otherwise(a, b, equal):
    one, other = TensorType.parse(a), TensorType.parse(b)
    assert may_equal(one, other) is may_equal(other, one) is equal
    assert may_equal(TupleType([one, one]), TupleType([one, other])) is equal
    assert not may_equal(TupleType([one]), one)
    assert not may_equal(TupleType([one]), TupleType([one, one]))


def test_arithmetic_on_symbolic_dimensions_is_a_dimension():
    product = Dim("m") * 4
    assert isinstance(product, Dim)
    assert str(TensorType([product])) == "float32[m * 4]"
    assert int(product.substitute({"m": 3}).evaluate({})) == 12


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
def test_sums_of_narrow_integers_name_their_dtype(dtype):
    for op, inputs in (
        ("conv2d", {"data": f"{dtype}[1,3,4,4]", "weight": f"{dtype}[2,3,3,3]"}),
        ("batch_matmul", {"x": f"{dtype}[1,3,4]", "y": f"{dtype}[1,5,4]"}),
    ):
        with pytest.raises(TypeRelationError, match=rf"{op}: .* give out_dtype = int32 or int64"):
            Workload.make(op, inputs)
        assert Workload.make(op, inputs, {"out_dtype": "int32"}).out_type.dtype == "int32"


def test_an_out_dtype_holds_the_numbers():
    for dtype, out, message in (
        ("float32", "int32", "is for integers"), ("int8", "float32", "is for floating-point"),
        ("int64", "int32", "is wider than"), ("float32", "float16", "is wider than"),
        ("float16", "bfloat16", "is wider than"),
    ):
        inputs = {"x": f"{dtype}[1,3,4]", "y": f"{dtype}[1,5,4]"}
        with pytest.raises(TypeRelationError, match=message):
            Workload.make("batch_matmul", inputs, {"out_dtype": out})
