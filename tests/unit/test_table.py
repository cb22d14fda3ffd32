"""Tables of runs, tasks and selections in notebooks."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from strategy.op_strategy import candidates
from strategy.record import Estimate, RunState, RunStatus, TaskStatus
from strategy.select import Level, Measured, choose
from strategy.space import Config
from strategy.table import show_number
from strategy.target import Target
from strategy.workload import Workload

TARGET = Target.parse("llvm -mcpu=znver4")


def cells(html: str) -> list[list[str]]:
    """The rows of a table as text; fails where it is not well-formed."""
    body = ET.fromstring(html).find("tbody")
    assert body is not None
    return [["".join(cell.itertext()) for cell in row] for row in body]


def test_a_run_is_a_table_of_its_tasks_the_fastest_first() -> None:
    tasks = [
        TaskStatus(
            task_id=i, workload="w", implementation=name, version="1", plevel=10, tunable=True,
            trials=5, best=best,
        )
        for i, (name, best) in enumerate([
            ("none", None), ("slow", Estimate(2e-3, 2e-3, 2e-3, 9)),
            ("<script>fast", Estimate(1e-3, 0.9e-3, 1.1e-3, 9)),
        ])
    ]
    run = RunStatus(
        id=7, state=RunState.DONE, target=TARGET, trials=9, trials_done=8, created_at=0.0,
        message="</table>", tasks=tuple(tasks),
    )
    html = run._repr_html_()
    assert [row[2:7] for row in cells(html)] == [
        ["<script>fast", "10", "1.00 ms", "±10.0%", "5"], ["slow", "10", "2.00 ms", "±0.0%", "5"],
        ["none", "10", "", "", "5"],
    ]
    assert "run 7 is done, 8 of 9 trials" in html
    assert "<script>" not in html
    assert cells(tasks[1]._repr_html_()) == [["w", "", "slow", "10", "2.00 ms", "±0.0%", "5", "0"]]


def test_a_selection_says_why_and_marks_what_it_selected() -> None:
    layer = Workload.make("dense", {"data": "float32[8,64]", "weight": "float32[32,64]"})
    known = candidates(layer, TARGET)
    pack = next(c for c in known if c.implementation == "dense_pack.cpu")
    measured = Measured(
        implementation=pack.implementation, version=pack.version, config=Config(pack.fallback),
        level=Level.TARGET, estimate=Estimate(1e-3, 1e-3, 1e-3, 9),
    )
    answer = choose(layer, TARGET, known, [measured])
    html = answer._repr_html_()
    rows = {row[0]: row[1:] for row in cells(html)}
    assert rows["dense_pack.cpu"] == ["10", "1.00 ms", "±0.0%", "target"]
    assert rows["dense_gemv.cpu"][3].startswith("not valid: needs data.shape[0] == 1")
    assert html.count("<b>") == 5
    assert "<b>dense_pack.cpu</b>" in html
    assert answer.explanation in ET.fromstring(html).findtext("caption", "")


def test_one_is_singular() -> None:
    status = RunStatus(
        id=1, state=RunState.DONE, target=TARGET, trials=1, trials_done=1, created_at=0.0
    )
    assert "1 of 1 trial, on" in status._repr_html_()
    assert [show_number(n, "held-out workload") for n in (0, 1, 2)] == [
        "0 held-out workloads", "1 held-out workload", "2 held-out workloads",
    ]
