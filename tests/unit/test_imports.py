"""Dependencies of imports: strategy and service need no TVM, and importing loads little."""

from __future__ import annotations

import ast
import compileall
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.limit import HANG_S

ROOT = Path(__file__).parents[2]

# Stands before everything else in a child: there, these modules are not installed.
_WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
"""
_TVM = ("tvm", "tvm_ffi")


def run_without(names: tuple[str, ...], code: str) -> str:
    """Run code without the named packages; return its output."""
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT.format(names=set(names)) + code],
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_S,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_environment_of_these_tests_does_hide_a_package() -> None:
    code = "try:\n    import tvm\nexcept ModuleNotFoundError:\n    print('hidden')"
    assert run_without(_TVM, code) == "hidden\n"


def test_strategy_evaluates_and_enumerates_without_tvm() -> None:
    code = """
from strategy.op_strategy import candidates
from strategy.target import Target
from strategy.workload import Workload

workload = Workload.make(
    "dense", {"data": "float32[128,768]", "weight": "float32[3072,768]"}, constants=["weight"]
)
target = Target.parse("llvm -mcpu=znver4 -num-cores=2")
found = candidates(workload, target)
for c in found:
    sizes = sum(1 for _, _ in zip(c.space, range(300))) if c.space is not None else 0
    print(c.implementation, sizes)
assert not any(m.partition(".")[0] in ("tvm", "tvm_ffi") for m in sys.modules)
"""
    sizes = dict(line.split() for line in run_without(_TVM, code).splitlines())
    assert {"dense_nopack.cpu", "dense_pack.cpu", "dense_large_m.cpu"} <= sizes.keys()
    assert int(sizes["dense_pack.cpu"]) >= 200


def test_the_service_imports_without_tvm_and_what_its_children_or_a_migration_need() -> None:
    run_without(
        (*_TVM, "scipy", "xgboost", "alembic"),
        "import service.app, service.tuning.tuner, service.records.log, service.queue.job, service.store.migration",
    )


def test_workers_import_without_sql_and_web_frameworks() -> None:
    names = ("sqlalchemy", "alembic", "fastapi", "starlette", "uvicorn")
    run_without(names, "import workers.daemon, workers.builder, workers.runner")


def test_the_client_needs_only_the_base_install() -> None:
    names = ("sqlalchemy", "fastapi", "starlette", "uvicorn", "xgboost", *_TVM)
    run_without(names, "import plevel.cli.main, plevel\nplevel.Client, plevel.Embedded")
    nothing = "from plevel.direct import Direct\nasked = Direct(None)\n"
    run_without(names, f"{nothing}assert [*asked.iter_coverage(), *asked.iter_best()] == []")


def test_only_the_use_of_models_imports_pytorch() -> None:
    run_without(("torch",), "import plevel, strategy.select, plevel.cli.main, plevel.torch")


def parsed(package: str, word: str) -> dict[Path, ast.Module]:
    """The modules of a package that have a word in their text."""
    texts = {path: path.read_text() for path in sorted((ROOT / package).rglob("*.py"))}
    return {path: ast.parse(text) for path, text in texts.items() if word in text}


def _imports_at_import(tree: ast.Module) -> set[str]:
    """Top-level packages that a module imports when it is imported: not those inside functions."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                continue
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
                continue
            if isinstance(child, ast.Import):
                found.update(a.name.partition(".")[0] for a in child.names)
            elif isinstance(child, ast.ImportFrom) and child.module and not child.level:
                found.add(child.module.partition(".")[0])
            visit(child)

    visit(tree)
    return found


@pytest.mark.parametrize("package", ["strategy", "service", "plevel"])
def test_no_module_imports_tvm_when_it_is_imported(package: str) -> None:
    trees = parsed(package, "tvm")
    assert trees
    assert [str(path) for path, tree in trees.items() if _imports_at_import(tree) & {*_TVM}] == []


def test_the_finder_of_imports_finds_them() -> None:
    source = "import tvm.te\nif x:\n    from os import path\ndef f():\n    import json\n"
    assert _imports_at_import(ast.parse(source)) == {"tvm", "os"}


def _foreign_after(code: str) -> set[str]:
    """The packages besides Python's own that are loaded once `code` has run."""
    listed = (
        "found = {m.partition('.')[0] for m in sys.modules if not m.startswith('_')}\n"
        "print(*sorted(found - set(sys.stdlib_module_names) - {'sitecustomize', 'usercustomize'}))"
    )
    return set(run_without((), f"import sys\n{code}\n{listed}").split())


def test_importing_strategy_loads_next_to_nothing() -> None:
    """The few packages that keep imports quick; `benchmarks/import_time.py` measures them."""
    found = _foreign_after("import strategy, strategy.select, strategy.workload")
    assert found <= {"msgspec", "strategy", "typing_extensions"}


def test_help_loads_neither_service_nor_numpy() -> None:
    code = """
import io
from plevel.cli.main import main
out, sys.stdout = sys.stdout, io.StringIO()
try:
    main(["--help"])
except SystemExit as end:
    assert end.code == 0
help, sys.stdout = sys.stdout.getvalue(), out
assert "tune" in help
"""
    found = _foreign_after(code)
    assert "typer" in found
    assert not found & {"strategy", "service", "workers", "numpy", "httpx", "sqlalchemy", "tvm"}


def test_commands_and_the_service_load_what_few_of_them_use_where_they_do() -> None:
    few = {"alembic", "rich", "pygments"}
    begun = """
import plevel.__main__
sys.argv[1:] = ["--version"]
try:
    plevel.__main__.main()
except SystemExit:
    pass
"""
    loaded = _foreign_after(f"{begun}import plevel.direct, service.store.migration, workers.client")
    assert "httpx" in loaded
    assert not loaded & {*few, "numpy", "tvm"}
    assert not _foreign_after("import service.__main__") & {*few, "httpx", "tvm"}


def test_a_program_of_others_has_the_command_line_of_httpx() -> None:
    assert {"rich", "pygments"} <= _foreign_after("import plevel.client, httpx; assert httpx.main.name == 'main'")


def test_one_module_inserts_jobs() -> None:
    """A column added to the queue is then filled in one place."""
    found = {
        str(path.relative_to(ROOT))
        for path, tree in parsed("service", "insert").items()
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and ast.unparse(call) in ("sa.insert(job)", "sa.insert(job_entry)")
    }
    assert found == {"service/queue/insertion.py"}


def test_no_child_takes_modules_from_the_current_folder() -> None:
    """A project may have a `service.py` or a `random.py` of its own: `python -P` leaves that out."""
    found = 0
    for package in ("plevel", "service", "strategy", "workers"):
        for path, tree in parsed(package, "sys.executable").items():
            for node in ast.walk(tree):
                if isinstance(node, ast.List) and node.elts and ast.unparse(node.elts[0]) == "sys.executable":
                    found += 1
                    assert ast.unparse(node.elts[1]) == "'-P'", f"{path}:{node.lineno}"
    assert found >= 7


def import_beside(folder: Path) -> subprocess.CompletedProcess[str]:
    """Import the client in a process whose first folder of modules is a user's."""
    return subprocess.run(
        [sys.executable, "-c", "import plevel; plevel.Client"],
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_S,
        env=os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"},
        cwd=folder,
    )


def test_a_users_module_named_strategy_is_told_of(tmp_path: Path) -> None:
    (tmp_path / "strategy.py").touch()
    done = import_beside(tmp_path)
    assert done.returncode == 1
    assert f"ImportError: {tmp_path}/strategy.py hides the package 'strategy' of plevel" in done.stderr


def test_a_users_package_named_service_leaves_the_client(tmp_path: Path) -> None:
    (tmp_path / "service").mkdir()
    (tmp_path / "service" / "__init__.py").touch()
    done = import_beside(tmp_path)
    assert done.returncode == 0
    assert f"UserWarning: {tmp_path}/service/__init__.py hides the package 'service' of plevel" in done.stderr


def test_a_link_to_plevel_has_its_other_packages(tmp_path: Path) -> None:
    (tmp_path / "plevel").symlink_to(ROOT / "plevel")
    done = import_beside(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_program_without_sources_has_its_packages(tmp_path: Path) -> None:
    """As one that PyInstaller makes."""
    for name in ("plevel", "strategy", "service", "workers", "migrations"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "ops", "static"))
    assert compileall.compile_dir(tmp_path, quiet=1, legacy=True)
    for source in tmp_path.rglob("*.py"):
        source.unlink()
    done = import_beside(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_users_folder_without_modules_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "strategy").mkdir()
    done = import_beside(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
