"""Models of PyTorch for the tests here, which are skipped where it is not installed."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

HAS_TORCH = find_spec("torch") is not None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"))
            item.add_marker(pytest.mark.filterwarnings("ignore::FutureWarning:torch"))
            if not HAS_TORCH:
                item.add_marker(pytest.mark.skip(reason="the torch extra is not installed"))


@pytest.fixture(scope="session", autouse=True)
def caches(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Folders of compiled code that no other run of these tests has filled."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("torch")
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder / "inductor"))
        patch.setenv("XDG_CACHE_HOME", str(folder))
        patch.setenv("OMP_WAIT_POLICY", "passive")
        yield
