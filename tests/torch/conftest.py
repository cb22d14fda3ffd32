"""Settings of the tests of PyTorch models, which are skipped where it is not installed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.integration.conftest import migrated_file, service  # noqa: F401 - for the hooks
from workers.sandbox import WORKER_IMPORTS, ForkServer


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"))
            item.add_marker(pytest.mark.filterwarnings("ignore::FutureWarning:torch"))
            # Of its own modules, which `pytest.warns` emits anew from those of the tests.
            item.add_marker(pytest.mark.filterwarnings("ignore:`torch.jit"))
            # Inductor's own, where it packs weights of a graph with symbolic sizes.
            item.add_marker(pytest.mark.filterwarnings("ignore:Raw SymInt value"))


@pytest.fixture(scope="session")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of compiled code that no other run of these tests has filled."""
    return tmp_path_factory.mktemp("torch")


@pytest.fixture(scope="session")
def fork_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """One fork server for all builds, as each takes longer to load TVM than most libraries to build."""
    imports = (*WORKER_IMPORTS, "workers.network_builder", "plevel.torch.table_builder")
    with ForkServer(tmp_path_factory.mktemp("logs"), imports) as server:
        yield server


# Of each module, as tests of other folders follow in the same process.
@pytest.fixture(scope="module", autouse=True)
def caches(full: bool, cache_folder: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch, ExitStack() as config:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(cache_folder / "inductor"))
        patch.setenv("XDG_CACHE_HOME", str(cache_folder))
        patch.setenv("XDG_DATA_HOME", str(cache_folder))
        for name in ("PLEVEL_DATABASE", "PLEVEL_URL"):
            patch.delenv(name, raising=False)
        if find_spec("torch") is not None:
            import torch._inductor.config

            from plevel.torch import backend

            patch.setattr(backend._budget, "base_s", math.inf)  # however slow the machine
            changes: dict[str, object] = {
                # A pool of processes that each import PyTorch takes longer than what these models compile.
                "compile_threads": 1,
                # Else the compiler is asked for each kind of vectors, with a process that loads what it made.
                "cpp.vec_isa_ok": True,
            }
            if not full:  # Inductor's own vectors, which take its compiler twice as long, are larger samples
                changes["cpp.simdlen"] = 1
            config.enter_context(torch._inductor.config.patch(changes))
            patch.setenv("TORCHINDUCTOR_VEC_ISA_OK", "1")  # of processes that a test starts
        yield


@pytest.fixture
def fresh() -> Iterator[None]:
    """No graph that an earlier test compiled; none is left for a later one."""
    import torch

    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are in place of all that has one, products merged."""
    from plevel.torch.plan import Plan

    monkeypatch.setattr(Plan, "preferred", lambda self: frozenset(self.selections))


@pytest.fixture(scope="module", autouse=True)
def builds(caches: None, request: pytest.FixtureRequest) -> Iterator[None]:
    if find_spec("torch") is None:
        yield
        return
    server = request.getfixturevalue("fork_server")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("workers.pool.ForkServer", lambda *_: nullcontext(server))
        yield
