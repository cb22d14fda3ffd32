"""Selection of what `plevel build` and `plevel show` compile."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plevel.cli.build import _Plan
from plevel.cli.chosen import lower_chosen, tell_outdated
from plevel.cli.location import Location
from strategy.op_strategy import Candidate, candidates
from strategy.record import Estimate
from strategy.select import NO_RECORDS, Level, Measured, choose
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


def test_answers_that_an_update_took_from_the_measured_ones_are_told() -> None:
    workload = parse_workload("dense(data=float32[8,64],weight=float32[128,64]:const)")
    new, old = Candidate("new", "2.0", 20), Candidate("old", "1.0", 10)

    def answer(*versions: str) -> Any:
        found = [
            Measured(
                implementation=name, version=version, config=new.fallback, level=Level.MODEL, target=TARGET.key,
                model="", estimate=Estimate(1e-6, 0.99e-6, 1.01e-6, 20),
            )
            for name, version in zip(("new", "old"), versions, strict=False)
        ]
        return choose(workload, TARGET, [new, old], found)

    now = [answer(), answer("2.0"), answer("1.0", "1.0")]
    assert tell_outdated([None, *(a.reason for a in now)]) == ""
    found = tell_outdated(a.reason for a in (answer("1.0"), answer("2.0")))
    assert found == " (1 more in other versions than are installed: tune again)"
