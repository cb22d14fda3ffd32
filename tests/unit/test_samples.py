"""Samples: the cases of a test that `make test` leaves to `make test-full`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = """
import pytest

@pytest.fixture(params=["one", "other"])
def place(request):
    return request.param

@pytest.mark.sample(2)
@pytest.mark.parametrize("n", range(5))
def test_many(n): ...

@pytest.mark.in_turn("place")
@pytest.mark.parametrize("n", range(3))
def test_both(place, n): ...

@pytest.mark.sample(2)
@pytest.mark.in_turn("place")
@pytest.mark.parametrize("n", range(4))
def test_few(place, n): ...

@pytest.mark.full
def test_long(): ...

def test_plain(place): ...
"""


def collect(folder: Path, *arguments: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.conftest", "--collect-only", "-q", *arguments],
        cwd=folder, env={"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True, text=True, check=False,
    )
    return [line.partition("::")[2] for line in done.stdout.splitlines() if "::" in line]


def test_a_sample_is_spread_and_takes_the_places_in_turn(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").touch()
    (tmp_path / "test_it.py").write_text(TESTS)
    assert collect(tmp_path) == [
        "test_many[0]", "test_many[2]", "test_both[one-1]", "test_both[other-0]", "test_both[other-2]",
        "test_few[one-0]", "test_few[other-1]", "test_plain[one]", "test_plain[other]",
    ]
    assert len(collect(tmp_path, "--full")) == 5 + 2 * 3 + 2 * 4 + 1 + 2
    assert collect(tmp_path, "test_it.py::test_both[one-0]") == ["test_both[one-0]"]


def test_files_that_wait_are_spread_among_those_that_compute(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").touch()
    for name in ("acceptance/a", "integration/b", "kernel/c", "migration/d", "torch/e", "unit/f", "unit/g"):
        (tmp_path / "tests" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"tests/{name[:-1]}test_{name[-1]}.py").write_text(f"def test_{name[-1]}(): ...\n")
    assert [name[-1] for name in collect(tmp_path)] == [*"eacdbfg"]


def test_the_longest_files_come_behind_those_of_pytorch(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").touch()
    names = "acceptance/test_a", "integration/test_races", "integration/test_tuner", "kernel/test_c", "torch/test_e"
    for name in names:
        (tmp_path / "tests" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"tests/{name}.py").write_text(f"def {name.partition('/')[2]}(): ...\n")
    assert collect(tmp_path) == ["test_e", "test_races", "test_tuner", "test_a", "test_c"]
