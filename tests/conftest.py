"""Fixtures of all tests: sizes of samples, a PostgreSQL server, and no skip without a reason."""

from __future__ import annotations

import fnmatch
import gc
import importlib
import itertools
import os
import shutil
import signal
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, settings

from tests.once import FOLDER
from tests.own import hide_packages
from workers.fork import without_torch

ALLOWED_SKIPS = Path(__file__).parent / "allowed_skips.txt"
TORCH = "tests/torch/"
OF_TORCH = 2  # processes
WAITING = ("tests/acceptance/", "tests/browser/", "tests/docs/", "tests/integration/")  # for processes that they start
# The longest files of those that come last: begun early, as one process would end long after the others.
LONGEST = tuple(f"tests/integration/test_{name}.py" for name in ("races", "training", "tuner"))
# Modules that most tests load. In a new environment each process begins with another part: all would compile the same.
PARTS = ("torch", "service.__main__", "distributed", "tvm", "plevel.cli.main")

# A seeded sample, so that a change fails for what it did; `--full` looks for more.
settings.register_profile(
    "sample",
    max_examples=12,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "full", max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


MEMORY = Path("/dev/shm")
MEMORY_BYTES = 4 << 30


def _prefer_memory() -> None:
    """Have temporary files in memory, where there is enough and what they hold may be executed.

    Copying a database, which every test of the store does, takes an eighth of the time of a disk there.
    """
    if "TMPDIR" in os.environ or not os.access(MEMORY, os.W_OK):
        return
    if shutil.disk_usage(MEMORY).free < MEMORY_BYTES or os.statvfs(MEMORY).f_flag & os.ST_NOEXEC:
        return
    os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)


_prefer_memory()
hide_packages()

# Threads that wait for their next part of a loop sleep: of what tests compute they took a tenth by looking for it.
os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "0")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


@pytest.fixture(scope="session", autouse=True)
def own_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Commands of tests neither read nor change this user's own database and settings."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("home")
        for name in ("DATA", "STATE", "CONFIG"):
            patch.setenv(f"XDG_{name}_HOME", str(folder / name.lower()))
        for name in ("PLEVEL_DATABASE", "PLEVEL_URL"):
            patch.delenv(name, raising=False)
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="all tests, with larger samples")


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("full" if config.getoption("--full") else "sample")
    if not hasattr(config, "workerinput"):
        folder = os.environ[FOLDER] = tempfile.mkdtemp(prefix="plevel-tests-")
        Path(folder).chmod(0o755)  # PostgreSQL runs as nobody
        config.add_cleanup(partial(shutil.rmtree, folder, ignore_errors=True))
    config.pluginmanager.register(_SkipRule(), "plevel-skips")
    if getattr(config, "workerinput", {}).get("of_all"):
        _load(**config.workerinput)
    # A script's background processes ignore SIGINT, and so would the commands whose Ctrl-C is tested.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _load(*, workerid: str, workercount: int, torch: bool, **_: Any) -> None:
    """Load what most tests do, its own part first; PyTorch, which TVM loads where it can, for its tests only."""
    gc.disable()  # until all is collected
    own = int(workerid.removeprefix("gw")) % len(PARTS)
    if own:  # the first compiles PyTorch meanwhile
        _compile(Path(__file__).parent, own - 1, max(1, workercount - 1))
    with nullcontext() if torch else without_torch():
        for name in (*PARTS[own:], *PARTS[:own]):
            with suppress(ImportError):
                importlib.import_module(name)


class _Unrun:
    """A module whose code is not run, as its dictionary is none: its loader ends once the code is compiled."""

    __dict__ = ()

    def __init__(self, spec: ModuleSpec) -> None:
        self.__spec__, self.__name__ = spec, spec.name


def _compile(folder: Path, first: int, step: int) -> None:
    """Have pytest compile one in so many files of tests, of which each process would compile all."""
    for path in sorted(folder.rglob("test_*.py"))[first::step]:
        with suppress(ImportError, TypeError):
            spec = find_spec(".".join(path.relative_to(folder.parent).with_suffix("").parts))
            if spec and spec.loader:
                spec.loader.exec_module(cast("ModuleType", _Unrun(spec)))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items[:] = arranged(items)
    if config.getoption("--full"):
        return
    kept = sampled([i for i in items if i.get_closest_marker("full") is None])
    left_out = set(items).difference(kept)
    if left_out:
        config.hook.pytest_deselected(items=[i for i in items if i in left_out])
        items[:] = kept


def arranged(items: list[pytest.Item]) -> list[pytest.Item]:
    """Items with PyTorch's first, the longest of two processes, and files that wait spread among those that compute.

    The longest files come before both.
    """
    files: dict[str, dict[Path, int]] = {"torch": {}, "waiting": {}, "computing": {}}

    def kind(item: pytest.Item) -> str:
        if item.nodeid.startswith(TORCH):
            return "torch"
        return "waiting" if item.nodeid.startswith(WAITING) else "computing"

    for item in items:
        of_kind = files[kind(item)]
        of_kind.setdefault(item.path, len(of_kind))

    def place(item: pytest.Item) -> float:
        if item.nodeid.startswith(LONGEST):
            return -0.5 / len(items)  # behind the last of PyTorch
        of_kind = files[kind(item)]
        return of_kind[item.path] / len(of_kind) - (of_kind is files["torch"])

    return sorted(items, key=place)


def sampled(items: list[pytest.Item]) -> list[pytest.Item]:
    """Items without the cases that the markers `sample` and `in_turn` leave to larger samples."""
    turns: defaultdict[Path, defaultdict[tuple[str, int], list[pytest.Item]]] = defaultdict(lambda: defaultdict(list))
    met: Counter[tuple[str, int]] = Counter()
    for item in items:
        if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
            continue
        marker = item.get_closest_marker("in_turn")
        if marker and (name := next((n for n in marker.args if n in item.callspec.indices), None)):
            test, index = item.nodeid.partition("[")[0], item.callspec.indices[name]
            turns[item.path][test, met[test, index]].append(item)  # with cases of its other arguments as they come
            met[test, index] += 1
    left_out: set[pytest.Item] = set()
    for of_file in turns.values():
        for turn, found in enumerate(of_file.values(), 1):
            kept = found[turn % len(found)]
            left_out.update(item for item in found if item is not kept)
    cases: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item not in left_out and item.get_closest_marker("sample"):
            cases[item.nodeid.partition("[")[0]].append(item)
    for found in cases.values():
        (most,) = found[0].get_closest_marker("sample").args
        spread = {n * len(found) // most for n in range(most)}
        left_out.update(item for n, item in enumerate(found) if n not in spread and len(found) > most)
    return [i for i in items if i not in left_out]


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Leave the tests of PyTorch to two processes, as loading it takes 5 s in each; one that replaces another has all.

    In one alone they would end long after all others.
    """
    of_all = node.config.getoption("dist") == "loadfile" and node.config.args_source is node.config.ArgsSource.TESTPATHS
    number, processes = int(node.gateway.id.removeprefix("gw")), node.config.getoption("numprocesses")
    node.workerinput |= {"of_all": of_all, "torch": not (of_all and OF_TORCH <= number < processes)}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    mine = getattr(config, "workerinput", {}).get("torch", True)
    return True if not mine and collection_path == Path(__file__).with_name("torch") else None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each file to a process, and those of PyTorch to the processes that have collected them."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _check_nodes_have_same_collection(self) -> bool:
            collected = sorted(self.registered_collections.items(), key=lambda found: -len(found[1]))
            self.registered_collections = {n: [i for i in ids if not i.startswith(TORCH)] for n, ids in collected}
            same = super()._check_nodes_have_same_collection()
            self.registered_collections = dict(collected)  # its first is that of all
            # xdist leaves the count of the process that collected last, which may have none.
            self.config.pluginmanager.get_plugin("session").testscollected = len(collected[0][1])
            # Of more processes than files the last ones end: that of all has to stay.
            self.assigned_work = {node: self.assigned_work[node] for node, _ in collected}
            return same

        def _assign_work_unit(self, node: Any) -> None:
            """Assign the next that the process has collected; end it where there is none."""
            ids = set(self.registered_collections[node])
            scope = next((scope for scope, unit in self.workqueue.items() if ids.issuperset(unit)), None)
            if scope is None:
                node.shutdown()
            else:
                self.workqueue.move_to_end(scope, last=False)
                super()._assign_work_unit(node)

    return Scheduling(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Collect without the garbage collector, which would pass over ever more that stays: a tenth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Have the garbage collector pass over what is loaded by now: it lives to the end, and is most of the heap."""
    gc.freeze()


class _SkipRule:
    """Fails the session for a skip that `allowed_skips.txt` does not list, and ends its output with the others."""

    def __init__(self) -> None:
        self._allowed = read_allowed_skips(ALLOWED_SKIPS.read_text())
        self._found: list[str] = []
        self._tests: defaultdict[str, set[str]] = defaultdict(set)  # that were skipped, by the reason

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if not report.skipped or hasattr(report, "wasxfail"):
            return
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reason = reason.removeprefix("Skipped: ")
        if is_allowed(self._allowed, report.nodeid, reason):
            self._tests[reason].add(report.nodeid)
        else:
            self._found.append(f"{report.nodeid} | {reason}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._found and session.exitstatus in (
            pytest.ExitCode.OK,
            pytest.ExitCode.NO_TESTS_COLLECTED,
        ):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._found:
            terminalreporter.section("skips that tests/allowed_skips.txt does not list")
            for line in self._found:
                terminalreporter.line(line)

    def pytest_unconfigure(self, config: pytest.Config) -> None:
        terminal = config.pluginmanager.get_plugin("terminalreporter")
        for reason, tests in sorted(self._tests.items() if terminal else ()):
            terminal.write_line(f"not tested: {len(tests)} skipped: {reason}", yellow=True)


def read_allowed_skips(text: str) -> list[tuple[str, str]]:
    """Pairs of patterns, for a test's id and for its reason, of lines `id | reason`."""
    pairs = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        test, bar, reason = line.partition(" | ")
        if not bar or not reason.strip():
            raise ValueError(f"allowed_skips.txt: {line!r} gives no reason; write: id | reason")
        pairs.append((test.strip(), reason.strip()))
    return pairs


def is_allowed(allowed: list[tuple[str, str]], test: str, reason: str) -> bool:
    return any(fnmatch.fnmatchcase(test, t) and fnmatch.fnmatchcase(reason, r) for t, r in allowed)


# The operator that `hostile.py` registers when it is imported, that is, while tests are collected.
_hidden: dict[str, Any] = {}


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    """Show the operator of `hostile.py` to the modules that import it: no other is parametrized by it."""
    if isinstance(collector, pytest.Module) and "\nimport hostile\n" in collector.path.read_text():
        _show()
    report = yield
    _hide()
    return report


def _show() -> None:
    if _hidden:
        sys.modules["strategy.op"]._ops.update(_hidden)


def _hide() -> None:
    if "strategy.op" in sys.modules and "hostile" in (ops := sys.modules["strategy.op"]._ops):
        _hidden["hostile"] = ops.pop("hostile")


@pytest.fixture(scope="module", autouse=True)
def _old_heap_is_passed_over() -> Iterator[None]:
    """Collect a module's garbage at its end, and have the collector pass over what is left.

    Else each full collection goes through all that the process has loaded and cached.
    """
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _operators_of_tests_stay_in_their_modules(request: pytest.FixtureRequest) -> Iterator[None]:
    """Show the operator of `hostile.py` to the modules that import it."""
    if hasattr(request.module, "hostile"):
        _show()
    yield
    _hide()


@pytest.fixture(scope="session")
def full(pytestconfig: pytest.Config) -> bool:
    """True if larger samples are wanted."""
    return bool(pytestconfig.getoption("--full"))


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """A PostgreSQL of this session; the socket's folder."""
    from tests.postgres import PostgresServer

    with PostgresServer() as server:
        yield str(server.home)


_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def new_postgres(postgres_server: str) -> Callable[[], AbstractContextManager[str]]:
    """A function that creates an empty PostgreSQL database, dropped at the end, and returns its URL."""
    import psycopg

    from tests.postgres import create_database

    @contextmanager
    def make() -> Iterator[str]:
        name = f"test_{os.getpid()}_{next(_numbers)}"
        with psycopg.connect(
            f"host={postgres_server} user=plevel dbname=postgres", autocommit=True
        ) as admin:
            create_database(admin, name)
            yield f"postgresql+psycopg://plevel@/{name}?host={postgres_server}"
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)")

    return make


@pytest.fixture
def postgres_url(new_postgres: Callable[[], AbstractContextManager[str]]) -> Iterator[str]:
    """The URL of an empty PostgreSQL database, dropped at the end."""
    with new_postgres() as url:
        yield url


@pytest.fixture
def signals_kept() -> Iterator[None]:
    """Put the handlers of signals back."""
    before = {kind: signal.getsignal(kind) for kind in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for kind, handler in before.items():
        signal.signal(kind, handler)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """The URL of an SQLite file that does not exist yet."""
    return f"sqlite:///{tmp_path / 'plevel.db'}"
