"""Selection of what `plevel build` and `plevel show` compile."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plevel.cli.build import _Plan
from plevel.cli.chosen import lower_chosen
from plevel.cli.location import Location
from strategy.op_strategy import candidates
from strategy.select import NO_RECORDS
from strategy.select.dispatch import dispatch
from strategy.target import Target
from strategy.workload_text import parse_workload

TARGET = Target.parse("llvm -mcpu=znver4 -num-cores=2")


class AskedError(Exception):
    pass


def test_what_is_built_is_selected_among_what_is_installed_here() -> None:
    """A service of another version would name its own implementations, with knobs that these may not have."""
    workload, asked = parse_workload("dense(data=float32[8,64],weight=float32[128,64]:const)"), []

    def answer(*of: Any, candidates: Any) -> None:
        asked.append((*of, candidates))
        raise AskedError

    place: Any = SimpleNamespace(connect=lambda: nullcontext(SimpleNamespace(select=answer)))
    with pytest.raises(AskedError):
        lower_chosen(workload, TARGET, None, None, place)
    assert asked == [(workload, TARGET, candidates(workload, TARGET))]


def test_a_table_that_is_built_is_of_what_is_installed_here(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = parse_workload("dense(data=float32[m,64],weight=float32[128,64]:const)")
    monkeypatch.setattr("plevel.database.plevel_database", lambda url, namespace: nullcontext(NO_RECORDS))
    place = Location(url="http://farm")
    plan = _Plan(workload, TARGET, None, Path("x.so"), None, None, None, place, bundle_libs=False, verify=False)
    assert plan._tabulate() == dispatch(workload, TARGET, NO_RECORDS)
