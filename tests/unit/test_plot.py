"""Curves and heat maps: what is drawn is what is on record."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from plevel.cli import output
from plevel.cli.error import CommandError
from plevel.cli.plot import Curve, HeatMap, _draw, _print, arrange, picture, sparkline
from strategy.record import Estimate, ModelBest, TaskStatus
from strategy.space import Config


def best(
    task_id: int, shape: str, implementation: str, median_s: float, target: str = "t", model: str = "M"
) -> dict[str, Any]:
    return {
        "scope": "model" if model else "target", "where": model,
        "task_id": task_id, "workload": f"op({shape})", "target": target,
        "implementation": implementation, "estimate": {"median_s": median_s},
    }


def test_a_sparkline_is_the_best_so_far_on_a_logarithmic_scale() -> None:
    assert sparkline([(2, 1.0), (3, 0.1), (6, 0.01)], trials=8) == " █▅▅▅▁▁▁"
    assert sparkline([(1, 0.5)], trials=3) == "▁▁▁"
    long = sparkline([(1, 8.0), (501, 1.0)], trials=1000, width=10)
    assert long == "█████▁▁▁▁▁"


def test_a_curve_fits_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(file=sys.stdout, width=40, highlight=False)
    monkeypatch.setattr(output, "make_console", lambda: console)
    task = TaskStatus(
        task_id=3, workload="op(f[9])", implementation="a", version="1", plevel=1, tunable=True, trials=500
    )
    _print(Curve(task, ((1, 2e-3), (400, 1e-3))))
    assert len(capsys.readouterr().out.splitlines()[1]) == 40


def test_a_heat_map_has_shapes_in_the_order_of_their_extents_and_the_newest_version() -> None:
    rows = [
        best(4, "f[16]", "a", 2.0), best(1, "f[16]", "a", 1.0), best(2, "f[9]", "b", 3.0),
        best(3, "f[9]", "b", 9.0, target="other"),
    ]
    found = arrange("op", rows, "t")
    assert found == HeatMap("op", "t", "M", ("(f[9])", "(f[16])"), ("a", "b"), ((None, 3.0), (2.0, None)))
    with pytest.raises(CommandError, match="--target: op is measured on other, t"):
        arrange("op", rows, None)
    with pytest.raises(CommandError, match="--target 'x': op is measured on other, t"):
        arrange("op", rows, "x")
    with pytest.raises(CommandError, match="no measurements"):
        arrange("op", [], None)


def test_a_heat_map_is_of_one_device_model() -> None:
    rows = [
        best(1, "f[9]", "a", 2.0), best(2, "f[9]", "b", 3.0), best(2, "f[9]", "b", 1.0, model="Fast"),
        best(1, "f[9]", "a", 2.0, model=""), best(2, "f[9]", "b", 1.0, model=""),
    ]
    found = arrange("op", rows, None)
    assert (found.model, found.seconds) == ("M", ((2.0, 3.0),))
    fast = arrange("op", rows, None, "Fast")
    assert (fast.model, fast.seconds) == ("Fast", ((1.0,),))
    with pytest.raises(CommandError, match="--device-model 'x': op is measured on Fast, M"):
        arrange("op", rows, None, "x")
    unknown = arrange("op", [row for row in rows if not row["where"]], None)
    assert (unknown.model, unknown.seconds) == ("", ((2.0, 1.0),))


@pytest.mark.parametrize("width", [40, 80, 400])
def test_no_name_of_a_heat_map_is_cut(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    console = Console(file=sys.stdout, width=width, highlight=False)
    monkeypatch.setattr(output, "make_console", lambda: console)
    names = tuple(f"conv2d_nchw_winograd_{n}x{n}.cpu" for n in range(6))
    _print(HeatMap("op", "llvm", "M", ("(f[9])",), names, (tuple(range(1, 7)),)))
    console.file = sys.stdout
    said = capsys.readouterr().out
    assert all(name in said for name in names)
    assert "…" not in said or width == 40  # where six times have no room


def test_a_picture_has_room_for_the_names(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the plot extra is not installed")
    names = tuple(f"conv2d_nchw_winograd_{n}x{n}.cpu" for n in range(4))
    figure = picture(HeatMap("op", "llvm", "M", ("(f[9])",), names, ((1.0, 2.0, 3.0, 4.0),)))
    figure.draw_without_rendering()
    boxes = [label.get_window_extent() for label in figure.axes[0].get_xticklabels()]
    assert [box.x0 >= 0 and box.y0 >= 0 for box in boxes] == [True] * 4


def test_a_curve_of_one_point_claims_no_gain(capsys: pytest.CaptureFixture[str]) -> None:
    task = TaskStatus(
        task_id=3, workload="op(f[9])", implementation="a", version="1", plevel=1, tunable=True, trials=8
    )
    _print(Curve(task, ((3, 2e-3),), "Model A"))
    said = capsys.readouterr().out
    assert said.startswith("task 3: a of op(f[9]), Model A\n")
    assert "2.00 ms at trial 3 of 8, the only improvement" in said
    one = ModelBest(device_model="A", best=Estimate(1.0, 1.0, 1.0, 1), best_config=Config(), confirmed=True)
    two = (one, msgspec.structs.replace(one, device_model="B"))
    assert Curve(msgspec.structs.replace(task, models=two), ((3, 2e-3),), "A").trials == 3


@pytest.mark.parametrize(("suffix", "begin"), [(".svg", b"<?xml"), (".png", b"\x89PNG")])
def test_pictures(suffix: str, begin: bytes, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the plot extra is not installed")
    task = TaskStatus(
        task_id=3, workload="op(f[9])", implementation="a$b^$", version="1", plevel=1, tunable=True, trials=9
    )
    for number, what in enumerate((
        Curve(task, ((1, 2e-6), (4, 1e-6))),
        HeatMap("op", "$^$", "$M^$", ("$f[9]^$",), ("a", "$b^$"), ((None, 3.0),)),
    )):
        out = tmp_path / f"{number}{suffix}"
        _draw(what, out)
        assert out.read_bytes().startswith(begin)
    with pytest.raises(CommandError, match="cannot be written"):
        _draw(Curve(task, ((1, 1.0),)), tmp_path / "none" / f"x{suffix}")


def test_more_shapes_than_an_image_has_pixels_for(tmp_path: Path) -> None:
    shapes = tuple(map(str, range(2100)))
    heat = HeatMap("op", "t", "", shapes, ("a",), ((1.0,),) * len(shapes))
    with pytest.raises(CommandError, match=r"x\.png: too many shapes .* name it \.svg or \.pdf"):
        _draw(heat, tmp_path / "x.png")
    assert not list(tmp_path.iterdir())
