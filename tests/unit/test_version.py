"""An implementation whose code changes must change its version, or say why records still mean the same.

`tests/data/versions.json` holds for each implementation its declared version and a digest of the
code that it is made of. After a change that alters what an implementation computes or how fast it
is, raise `version` where it is added to its strategy, or `PROCESSOR_VERSION` in strategy/cpu/passes.py where
the change is in the lowering that all share on processors. Then, and after any change of operators, run

    make operators

which writes the digests, the list that workers register with (`strategy/implementations.json`), and
`docs/operator-reference.md`. Where code has changed and no version has, it wants the reason:

    make operators BECAUSE="why records of before still hold"
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
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import pytest

from strategy import op
from strategy.cpu.passes import PROCESSOR_VERSION
from strategy.document import reference
from strategy.installed import installed
from strategy.op import all_ops
from strategy.op_strategy import OpImplementation, evaluate
from strategy.record import ALL
from strategy.target import Target
from strategy.workload import Workload
from tests.own import hide_packages

LOWERING = (
    "strategy.cpu.ahead", "strategy.cpu.amx_tasks", "strategy.cpu.binding", "strategy.cpu.broadcast",
    "strategy.cpu.masking", "strategy.cpu.passes", "strategy.cpu.registers", "strategy.cpu.skipping",
    "strategy.cpu.stack", "strategy.cpu.streaming", "strategy.tir",
)
RECORDED = Path(__file__).parents[1] / "data" / "versions.json"
LISTED = Path(__file__).parents[2] / "strategy" / "implementations.json"
REFERENCE = Path(__file__).parents[2] / "docs" / "operator-reference.md"
STALE = "run `make operators`; the first lines of this file say more"
TARGETS = (
    Target.parse({"kind": "llvm", "mcpu": "znver4", "num-cores": 2, "libs": ["cblas"]}),
    Target.parse("cuda -arch=sm_90 -libs=cublas,cudnn"),
    Target.parse("llvm -mcpu=sapphirerapids -num-cores=2"),
    Target.parse("llvm -mcpu=neoverse-v1 -mtriple=aarch64-linux-gnu -num-cores=2"),
)

def implementations() -> dict[str, OpImplementation]:
    """All that the installed operators offer, by name; `op:name` where names are shared."""
    found = {}
    for name, found_op in all_ops().items():
        for example in found_op.examples:
            workload = Workload.make(name, example.inputs, dict(example.attrs))
            for target in TARGETS:
                for _, implementation in evaluate(workload, target):
                    found[f"{name}:{implementation.name}"] = implementation
    return found


def code_digest(implementation: OpImplementation) -> str:
    """A digest of the modules that an implementation's functions are from, and what they build on.

    Comments, docstrings, layout and the operator's examples do not count.
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
    """The source files of a function, of the functions that it wraps, and of those that it is given."""
    while isinstance(function, functools.partial):
        for given in function.args:
            parts = vars(given).values() if is_dataclass(given) else [given]
            for part in filter(callable, parts):
                yield from _modules_of(part)
        function = function.func
    yield function.__module__
    for cell in getattr(function, "__closure__", None) or ():
        if callable(cell.cell_contents) and hasattr(cell.cell_contents, "__module__"):
            yield cell.cell_contents.__module__


_BUILT_ON = (
    "strategy.ops.", "strategy.cuda.", "strategy.schedule", "strategy.order", "strategy.pattern", "strategy.cpu.",
    "strategy.elementwise", "strategy.tir",
)


def _reach(modules: set[str]) -> Iterator[str]:
    seen: set[str] = set()
    waiting = [m for m in modules if m.startswith(_BUILT_ON)]
    while waiting:
        module = waiting.pop()
        if module in seen:
            continue
        seen.add(module)
        yield module
        waiting += _imports(module)


@functools.cache
def _imports(module: str) -> tuple[str, ...]:
    """The modules that a module imports, of those that an implementation may be built on."""
    found: list[str] = []
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{a.name}" for a in node.names)]
            found += [n for n in names if n.startswith(_BUILT_ON) and _is_module(n)]
    return tuple(found)


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


class _WithoutExamples(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        declares = isinstance(node.func, ast.Attribute) and node.func.attr == "example"
        return node.func.value if declares else node


@functools.cache
def _code(module: str) -> str:
    tree = _WithoutExamples().visit(_tree(module))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        first = body[0] if isinstance(body, list) and body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            body[0] = ast.Expr(ast.Constant("…"))
    return ast.dump(tree)


def test_the_code_of_what_a_function_is_given_counts() -> None:
    found = implementations()
    for name, module in (("dense_mma", "strategy.cuda.mma"), ("dense_wgmma", "strategy.cuda.wgmma")):
        compute = found[f"dense:{name}.cuda"].compute
        assert {module, "strategy.ops.dense.mma"} <= set(_reach(set(_modules_of(compute))))
    plain = found["relu:broadcast.cpu"].schedule
    assert {"strategy.elementwise", "strategy.tir"} <= set(_reach(set(_modules_of(plain))))


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
    assert not wrong, f"{STALE}:\n" + "\n".join(wrong)


def test_a_change_of_code_changes_the_digest_and_comments_and_examples_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    implementation = implementations()["dense:dense_pack.cpu"]
    module, original = implementation.compute.__module__, _tree
    source = ast.unparse(_tree(module))

    def digest_with(line: str) -> str:
        _code.cache_clear()
        changed = ast.parse(f"{source}\n{line}\n")
        monkeypatch.setattr(sys.modules[__name__], "_tree", lambda m: changed if m == module else original(m))
        return code_digest(implementation)

    assert digest_with("# a comment") == digest_with("")
    assert digest_with("ADDED = 1") != digest_with("")
    assert digest_with("get_op('dense').example({'x': 'float32[1]'})") == digest_with("get_op('dense')")
    _code.cache_clear()


def test_the_lowering_raises_all_versions_on_processors_and_no_other() -> None:
    workload = Workload.make("dense", {"data": "float32[64,32]", "weight": "float32[48,32]"})
    for target in TARGETS:
        raised = 0 if target.is_gpu else PROCESSOR_VERSION
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
    assert installed() == listed(), STALE


def test_each_function_that_adds_implementations_does_so_for_an_example() -> None:
    """A name that no example offers is not in the list of what workers build, and its jobs would wait for ever."""
    silent, extended = [], 0
    for name, found_op in all_ops().items():
        examples = [Workload.make(name, e.inputs, dict(e.attrs)) for e in found_op.examples]
        known = [(w.attr_node, w.input_types, w.out_type, t) for w in examples for t in TARGETS]
        for key, outer in found_op.get_attr("FTVMStrategy")._by_key.items():
            body = outer
            while isinstance(body, functools.partial):  # of `GenericFunc.extend`
                (before,) = body.args
                extended += 1
                if not any(list(body(*k))[len(list(before(*k))) :] for k in known if key in k[-1].keys):
                    silent.append(f"{name}: {body.func.__module__}")
                body = before
    assert extended
    assert not silent, f"declare an example of a workload that each is offered for: {silent}"


def test_no_workload_is_offered_what_no_example_is() -> None:
    """As the one before, for the branches of such a function, at the shapes that run in guarded memory."""
    # Not above: it looks operators up when it is imported, before `main` hides those of others.
    from tests.kernel.test_memory import cases

    known = installed()
    silent = {
        f"{work.op}: {found.name}": str(work)
        for work in cases() for target in TARGETS for _, found in evaluate(work, target)
        if found.name not in known[work.op]
    }
    assert not silent, f"declare an example of a workload that each is offered for: {silent}"


def test_the_reference_of_operators_is_current() -> None:
    assert REFERENCE.read_text() == reference(), STALE


def test_of_another_package_only_the_operator_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    other = op.Op("other").set_attr("FTVMStrategy", object())
    monkeypatch.setitem(op._ops, "other", other)
    assert installed()["other"] == {ALL: 0}


def record(because: str | None) -> list[str]:
    """Write what is there now; without a reason, return the names whose code alone has changed, and write nothing."""
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
    unexplained = [name for name, entry in written.items() if entry.get("because", "") is None]
    if not unexplained:
        RECORDED.write_text(json.dumps(written, indent=1) + "\n")
        LISTED.write_text(json.dumps(listed(), indent=1, sort_keys=True) + "\n")
        REFERENCE.write_text(reference())
    return unexplained


@pytest.mark.full
def test_code_that_changed_without_a_version_needs_a_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("RECORDED", "LISTED", "REFERENCE"):
        monkeypatch.setattr(sys.modules[__name__], name, tmp_path / name)
    known = {name: {"version": version, "code": code} for name, (version, code) in versions().items()}
    known["dense:dense_pack.cpu"]["code"] = "another"
    del known["relu:broadcast.cpu"]  # as if it were new
    RECORDED.write_text(json.dumps(known))
    assert record(None) == ["dense:dense_pack.cpu"]
    assert json.loads(RECORDED.read_text()) == known
    assert not record("it is the same")
    now = json.loads(RECORDED.read_text())
    assert now["dense:dense_pack.cpu"]["because"] == "it is the same"
    assert "relu:broadcast.cpu" in now
    assert json.loads(LISTED.read_text()) == listed()
    assert REFERENCE.read_text() == reference()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--because", help="why records of before still hold")
    hide_packages()  # another environment lacks theirs
    unexplained = record(parser.parse_args().because or None)
    if unexplained:
        print(
            f"the code of {len(unexplained)} implementations has changed and their versions have not: raise them, "
            f'or say why records of before still hold, by make operators BECAUSE="…": {" ".join(unexplained)}',
            file=sys.stderr,
        )
    return bool(unexplained)


if __name__ == "__main__":
    sys.exit(main())
