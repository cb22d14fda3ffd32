"""Curves and heat maps: what is drawn is what is on record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plevel.cli.error import CommandError
from plevel.cli.plot import Curve, HeatMap, _draw, _print, arrange, sparkline
from strategy.record import TaskStatus


def best(task_id: int, shape: str, implementation: str, median_s: float, target: str = "t") -> dict[str, Any]:
    return {
        "task_id": task_id, "workload": f"op({shape})", "target": target,
        "implementation": implementation, "estimate": {"median_s": median_s},
    }  # fmt: skip


def test_a_sparkline_is_the_best_so_far_on_a_logarithmic_scale() -> None:
    assert sparkline([(2, 1.0), (3, 0.1), (6, 0.01)], trials=8) == " █▅▅▅▁▁▁"
    assert sparkline([(1, 0.5)], trials=3) == "▁▁▁"
    long = sparkline([(1, 8.0), (501, 1.0)], trials=1000, width=10)
    assert long == "█████▁▁▁▁▁"


def test_a_heat_map_has_shapes_in_the_order_of_their_extents_and_the_newest_version() -> None:
    rows = [
        best(4, "f[16]", "a", 2.0), best(1, "f[16]", "a", 1.0), best(2, "f[9]", "b", 3.0),
        best(3, "f[9]", "b", 9.0, target="other"),
    ]  # fmt: skip
    found = arrange("op", rows, "t")
    assert found == HeatMap("op", "t", ("(f[9])", "(f[16])"), ("a", "b"), ((None, 3.0), (2.0, None)))
    with pytest.raises(CommandError, match="--target: op is measured on other, t"):
        arrange("op", rows, None)
    with pytest.raises(CommandError, match="--target 'x': op is measured on other, t"):
        arrange("op", rows, "x")
    with pytest.raises(CommandError, match="no measurements"):
        arrange("op", [], None)


def test_a_curve_of_one_point_claims_no_gain(capsys: pytest.CaptureFixture[str]) -> None:
    task = TaskStatus(
        task_id=3, workload="op(f[9])", implementation="a", version="1", plevel=1, tunable=True, trials=8
    )
    _print(Curve(task, ((3, 2e-3),)))
    assert "2.00 ms at trial 3 of 8, the only improvement" in capsys.readouterr().out


@pytest.mark.parametrize(("suffix", "begin"), [(".svg", b"<?xml"), (".png", b"\x89PNG")])
def test_pictures(suffix: str, begin: bytes, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the plot extra is not installed")
    task = TaskStatus(
        task_id=3, workload="op(f[9])", implementation="a$b^$", version="1", plevel=1, tunable=True, trials=9
    )
    for number, what in enumerate((
        Curve(task, ((1, 2e-6), (4, 1e-6))),
        HeatMap("op", "$^$", ("$f[9]^$",), ("a", "$b^$"), ((None, 3.0),)),
    )):  # fmt: skip
        out = tmp_path / f"{number}{suffix}"
        _draw(what, out)
        assert out.read_bytes().startswith(begin)
    with pytest.raises(CommandError, match="cannot be written"):
        _draw(Curve(task, ((1, 1.0),)), tmp_path / "none" / f"x{suffix}")
