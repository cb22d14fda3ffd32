"""An implementation whose code changes must change its version, or say why records still mean the same.

`tests/data/versions.json` holds for each implementation its declared version and a digest of the
code that it is made of. After a change that alters what an implementation computes or how fast it
is, raise `version` where it is added to its strategy, or `PROCESSOR_VERSION` in strategy/cpu/passes.py where
the change is in the lowering that all share on processors; then, and also after a change that alters
neither, run

    python tests/unit/test_version.py --because "why records of before still hold"

which writes the digests, the reason where the version stayed, and the list that workers register with.
"""

from __future__ import annotations

import argparse
import ast
import functools
import hashlib
import importlib.util
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from strategy import op
from strategy.cpu.passes import PROCESSOR_VERSION
from strategy.installed import installed
from strategy.op import all_ops
from strategy.op_strategy import OpImplementation, evaluate
from strategy.record import ALL
from strategy.target import Target
from strategy.workload import Workload

LOWERING = ("strategy.cpu.masking", "strategy.cpu.passes")
RECORDED = Path(__file__).parents[1] / "data" / "versions.json"
LISTED = Path(__file__).parents[2] / "strategy" / "implementations.json"
TARGETS = (
    Target.parse({"kind": "llvm", "mcpu": "znver4", "num-cores": 2, "libs": ["cblas"]}),
    Target.parse("cuda -arch=sm_90 -libs=cublas,cudnn"),
)
# What each operator is evaluated on, so that all of its implementations are offered.
EXAMPLES: dict[str, list[tuple[dict[str, str], dict[str, Any]]]] = {
    "dense": [
        ({"data": "float32[64,32]", "weight": "float32[48,32]"}, {}),
        ({"data": "float16[64,32]", "weight": "float16[48,32]"}, {}),
    ],
    "batch_matmul": [
        ({"x": "float32[2,8,8]", "y": "float32[2,8,8]"}, {}),
        ({"x": "float16[2,8,8]", "y": "float16[2,8,8]"}, {}),
    ],
    "conv2d": [
        ({"data": "float32[1,16,8,8]", "weight": "float32[4,16,3,3]"}, {}),
        ({"data": "float32[1,4,8,8]", "weight": "float32[4,4,1,1]"}, {}),
        ({"data": "float32[1,4,8,8]", "weight": "float32[4,1,3,3]"}, {"groups": 4}),
        ({"data": "float16[1,16,8,8]", "weight": "float16[4,16,3,3]"}, {}),
    ],
    "conv2d_backward_data": [
        ({"grad": "float32[1,4,6,6]", "weight": "float32[4,4,3,3]", "data": "float32[1,4,8,8]"}, {})
    ],
    "conv2d_backward_weight": [
        ({"grad": "float32[1,4,6,6]", "data": "float32[1,4,8,8]", "weight": "float32[4,4,3,3]"}, {})
    ],
    "concatenate": [({"data.0": "float32[4]", "data.1": "float32[3]"}, {})],
    "avg_pool2d": [({"data": "float32[1,4,8,8]"}, {"pool_size": [2, 2]})],
    "bias_add": [({"data": "float32[4,4]", "bias": "float32[4]"}, {})],
    "cast": [({"data": "float32[4,4]"}, {"dtype": "int32"})],
    "collapse_sum_like": [({"data": "float32[4,4]", "collapse_type": "float32[4]"}, {})],
    **{
        scan: [({"data": "float32[4,4]"}, {}), ({"data": "float32[4,4]"}, {"axis": 0})]
        for scan in ("cumsum", "cumprod")
    },
    **{
        reduction: [({"data": "float32[4,4]"}, {"axis": [axis]}) for axis in (0, 1)]
        for reduction in ("sum", "mean", "max", "min", "prod")
    },
    "expand_dims": [({"data": "float32[4,4]"}, {"axis": [0]})],
    "clip": [({"data": "float32[4,4]"}, {"a_min": 0, "a_max": 1})],
    "global_avg_pool2d": [({"data": "float32[1,4,8,8]"}, {})],
    "layer_norm": [({"data": "float32[4,4]", "gamma": "float32[4]", "beta": "float32[4]"}, {})],
    "max_pool2d": [({"data": "float32[1,4,8,8]"}, {"pool_size": [2, 2]})],
    "max_pool2d_backward": [
        ({"grad": "float32[1,4,7,7]", "data": "float32[1,4,8,8]"}, {"pool_size": [2, 2]})
    ],
    "reshape": [({"data": "float32[4,4]"}, {"newshape": [16]})],
    "reshape_like": [({"data": "float32[4,4]", "shape_like": "float32[16]"}, {})],
    "split": [({"data": "float32[4,4]"}, {"indices": [2]})],
    **{
        sort: [({"data": "float32[4,4]"}, {}), ({"data": "float32[4,4096]"}, {})]
        for sort in ("argsort", "topk")
    },
    "strided_slice": [({"data": "float32[4,4]"}, {"begin": [0], "end": [2]})],
    "strided_slice_backward": [
        ({"grad": "float32[2,4]", "data": "float32[4,4]"}, {"begin": [0], "end": [2]})
    ],
    "take": [({"data": "float32[4,4]", "indices": "int32[3]"}, {"axis": 0})],
    "take_backward": [
        ({"grad": "float32[3,4]", "indices": "int32[3]", "data": "float32[4,4]"}, {"axis": 0})
    ],
    "where": [({"condition": "bool[4]", "x": "float32[4]", "y": "float32[4]"}, {})],
}


def implementations() -> dict[str, OpImplementation]:
    """All that the installed operators offer, by name; `op:name` where names are shared."""
    found = {}
    for name, found_op in all_ops().items():
        arguments = {a.name: "float32[4,4]" for a in found_op.arguments}
        for inputs, attrs in EXAMPLES.get(name, [(arguments, {})]):
            workload = Workload.make(name, inputs, attrs)
            for target in TARGETS:
                for _, implementation in evaluate(workload, target):
                    found[f"{name}:{implementation.name}"] = implementation
    return found


def code_digest(implementation: OpImplementation) -> str:
    """A digest of the modules that an implementation's functions are from, and what they build on.

    Comments, docstrings and layout do not count.
    """
    roles = (
        implementation.compute,
        implementation.schedule,
        implementation.space,
        implementation.prepare,
    )
    modules = {m for role in roles if role is not None for m in _modules_of(role)}
    return _digest(_reach(modules))


def _digest(modules: Iterable[str]) -> str:
    text = "\n".join(f"{m}\n{_code(m)}" for m in sorted(modules))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def versions() -> dict[str, tuple[int, str]]:
    """Version and digest of each implementation, and of the lowering for processors."""
    found = {name: (i.version, code_digest(i)) for name, i in implementations().items()}
    return found | {"lowering": (PROCESSOR_VERSION, _digest(LOWERING))}


def _modules_of(function: Any) -> Iterator[str]:
    """Where a function is from; a wrapper's wrapped functions too."""
    while isinstance(function, functools.partial):
        function = function.func
    yield function.__module__
    for cell in getattr(function, "__closure__", None) or ():
        if callable(cell.cell_contents) and hasattr(cell.cell_contents, "__module__"):
            yield cell.cell_contents.__module__


_BUILT_ON = (
    "strategy.ops.", "strategy.cuda.", "strategy.schedule", "strategy.order", "strategy.pattern", "strategy.cpu."
)  # fmt: skip


def _reach(modules: set[str]) -> Iterator[str]:
    seen: set[str] = set()
    waiting = [m for m in modules if m.startswith(_BUILT_ON)]
    while waiting:
        module = waiting.pop()
        if module in seen:
            continue
        seen.add(module)
        yield module
        for node in ast.walk(_tree(module)):
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{a.name}" for a in node.names)]
                waiting += [n for n in names if n.startswith(_BUILT_ON) and _is_module(n)]


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


@functools.cache
def _tree(module: str) -> ast.Module:
    path = sys.modules[module].__file__ if module in sys.modules else None
    path = path or importlib.import_module(module).__file__
    assert path is not None
    return ast.parse(Path(path).read_text())


@functools.cache
def _code(module: str) -> str:
    tree = _tree(module)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        first = body[0] if isinstance(body, list) and body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            body[0] = ast.Expr(ast.Constant("…"))
    return ast.dump(tree)


def test_no_code_changes_without_a_version() -> None:
    recorded = json.loads(RECORDED.read_text())
    current = versions()
    wrong = []
    for name, (version, code) in current.items():
        known = recorded.get(name)
        if known is None:
            wrong.append(f"{name} is new")
        elif known["version"] != version:
            wrong.append(f"{name} has version {version}, {known['version']} is recorded")
        elif known["code"] != code:
            wrong.append(f"the code of {name} has changed, its version {known['version']} has not")
    wrong += [f"{name} is gone" for name in recorded.keys() - current.keys()]
    assert not wrong, "see the first lines of this file:\n" + "\n".join(wrong)


def test_a_change_of_code_changes_the_digest_and_a_comment_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    implementation = implementations()["dense:dense_pack.cpu"]
    before = code_digest(implementation)
    original = _tree
    source = ast.unparse(_tree(implementation.compute.__module__))
    for text, same in (("# a comment\n" + source, True), (source + "\nADDED = 1\n", False)):
        _code.cache_clear()
        trees = {implementation.compute.__module__: ast.parse(text)}
        changed = functools.partial(lambda m, trees: trees.get(m) or original(m), trees=trees)
        monkeypatch.setattr(sys.modules[__name__], "_tree", changed)
        assert (code_digest(implementation) == before) is same
    _code.cache_clear()


def test_the_lowering_raises_all_versions_on_processors_and_no_other() -> None:
    workload = Workload.make("dense", *EXAMPLES["dense"][0])
    for target, raised in zip(TARGETS, (PROCESSOR_VERSION, 0), strict=True):
        declared = workload.operator.get_attr("FTVMStrategy")(
            workload.attr_node, workload.input_types, workload.out_type, target
        )
        found = {i.name: i.version for _, i in evaluate(workload, target)}
        assert found == {i.name: i.version + raised for _, i in declared}
    assert PROCESSOR_VERSION > 0


def listed() -> dict[str, dict[str, int]]:
    """Operator → implementation → version: what workers say that they can build."""
    found: dict[str, dict[str, int]] = {}
    for name, implementation in implementations().items():
        found.setdefault(name.partition(":")[0], {})[implementation.name] = implementation.version
    return found


def test_workers_know_what_is_installed() -> None:
    assert installed() == listed(), "see the first lines of this file"


def test_of_another_package_only_the_operator_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    other = op.Op("other").set_attr("FTVMStrategy", object())
    monkeypatch.setitem(op._ops, "other", other)
    assert installed()["other"] == {ALL: 0}


def record(because: str) -> None:
    """Writes the digests of what is there now."""
    known = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    written = {}
    for name, (version, code) in sorted(versions().items()):
        entry: dict[str, Any] = {"version": version, "code": code}
        old = known.get(name)
        if old and old["version"] == entry["version"]:
            if old["code"] != entry["code"]:
                entry["because"] = because
            elif "because" in old:
                entry["because"] = old["because"]
        written[name] = entry
    RECORDED.write_text(json.dumps(written, indent=1) + "\n")
    LISTED.write_text(json.dumps(listed(), indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--because", required=True, help="why records of before still hold")
    record(parser.parse_args().because)
