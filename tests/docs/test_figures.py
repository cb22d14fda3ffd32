"""The tables of the documentation are those that `make figures` makes of the results in `benchmarks/`."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from benchmarks import figures, result
from tests.docs.page import ROOT

SHOWN = {page: figures.find_names(page.read_text()) for page in figures.PAGES}
LIBRARIES = {"figures", "fixture", "metaschedule", "peer_search", "race", "recording", "result"}  # of the other scripts
SOAK = {"soak"}  # it has no figure beside a peer: it counts faults, and fails


@pytest.mark.parametrize("page", [p for p, names in SHOWN.items() if names], ids=lambda p: p.name)
def test_the_tables_of_a_page_are_those_of_its_results(page: Path) -> None:
    assert page.read_text() == figures.render(page.read_text()), "run: make figures"


def test_every_marker_of_a_table_is_read() -> None:
    for page, names in SHOWN.items():
        assert page.read_text().count("<!-- figures:") == len(names), page


def test_every_result_is_complete_and_shown() -> None:
    names = {path.stem for path in result.FOLDER.glob("*.json")}
    for name in names:
        found = result.read(name)
        assert found.name == name
        assert found.rows
        assert {len(row) for row in found.rows} == {len(found.columns)}
        assert (ROOT / "benchmarks" / f"{found.script}.py").exists()
    assert names == {name for shown in SHOWN.values() for name in shown}


def test_every_benchmark_leaves_a_result() -> None:
    for path in (ROOT / "benchmarks").glob("*.py"):
        if path.stem not in LIBRARIES | SOAK:
            text = path.read_text()
            assert "save(" in text or "import Call, benchmark" in text, path.name


def test_a_cell_is_shown_in_its_unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result, "FOLDER", tmp_path)
    monkeypatch.setattr("sys.argv", ["benchmarks/noise.py", "--database", "postgresql://me:secret@db/x"])
    columns = {"": "", "time": "s", "share": "%", "ratio": "×"}
    result.save(columns, [["one", 1.5e-5, 0.056, 2], ["two", (3268, "jobs/s"), None, 0.004]], peer="chance", runs=7)
    found = result.read("noise", tmp_path)
    assert "secret" not in (tmp_path / "noise.json").read_text()
    assert json.loads((tmp_path / "noise.json").read_text())["rows"][1][1] == [3268, "jobs/s"]
    monkeypatch.setattr(figures, "read", lambda name: found)
    page = figures.render("Text.\n\n<!-- figures: noise -->\nold\n<!-- end -->\n\nMore.\n")
    assert "old" not in page
    assert "| one | 15 µs | 5.6 % | 2.00× |" in page
    assert "| two | 3,268 jobs/s |  | 0.00× |" in page
    assert "`python benchmarks/noise.py --database URL`" in page
    assert "beside chance; medians of 7" in page
    assert page.startswith("Text.\n\n<!-- figures: noise -->\n\n|  | time |")
    assert page.endswith("\n<!-- end -->\n\nMore.\n")


def test_a_run_keeps_the_rows_of_an_earlier_one_that_it_has_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(result, "FOLDER", tmp_path)
    monkeypatch.setattr("sys.argv", ["benchmarks/models.py"])
    result._read_earlier.cache_clear()
    result.save({"model": "", "time": "s"}, [["a", 1.0], ["b", 2.0]], note="untuned")
    written = result.read("models", tmp_path)
    for rows in ([["b", 3.0]], [["b", 3.0], ["c", 4.0]]):  # the second is of the same run
        result.save({"model": "", "time": "s"}, rows, note="again", merge=True)
    found = result.read("models", tmp_path)
    assert found.rows == (("a", 1.0), ("b", 3.0), ("c", 4.0))
    assert found.note is not None
    assert f"a: {written.date}" in found.note
    assert found.note.count("untuned") == 1
    capsys.readouterr()
    result.save({"model": "", "seconds": "s"}, [["c", 4.0]], merge=True)
    assert result.read("models", tmp_path).rows == (("c", 4.0),)
    assert "models: a, b are replaced: of other columns\n" in capsys.readouterr().err


def test_an_incomplete_result_is_refused(tmp_path: Path) -> None:
    (tmp_path / "noise.json").write_text('{"script": "noise", "rows": []}')
    with pytest.raises(msgspec.ValidationError):
        result.read("noise", tmp_path)
