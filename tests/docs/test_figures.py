"""The tables of the documentation are those that `make figures` makes of the results in `benchmarks/`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from benchmarks import figures, fixture, result
from tests.docs.page import ROOT

SHOWN = {page: figures.find_names(page.read_text()) for page in figures.PAGES}
LIBRARIES = {  # of the other scripts
    "figures", "fixture", "gpu_case", "gpu_child", "gpu_peer", "gpu_summary", "metaschedule", "peer_search", "race",
    "recording", "result",
}
RATIO = r"\d+\.\d+(?=×)"
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
            assert "save(" in text or ".saved(" in text or "import Call, benchmark" in text, path.name


def performance_of_readme() -> list[str]:
    """The rows and paragraphs of README.md's section on performance."""
    section = (ROOT / "README.md").read_text().partition("\n## Performance\n")[2].partition("\n## ")[0]
    return re.split(r"\n\n|\n(?=\|)", section)


def test_each_model_in_the_readme_has_the_ratios_of_one_result() -> None:
    peers = [f"{peer} / confirmed" for peer in ("Inductor", "ONNX Runtime", "OpenVINO")]
    measured = set()
    for path in result.FOLDER.glob("models-*.json"):
        found = result.read(path.stem)
        if set(peers) <= set(found.columns):
            places = [list(found.columns).index(peer) for peer in peers]
            measured |= {tuple(f"{row[i]:.2f}" for i in places if row[i] is not None) for row in found.rows}
    told = []
    for part in performance_of_readme():
        shown = [re.findall(RATIO, cell) for cell in part.split("|")[2:-1]]
        if len(shown) == len(peers):
            told += zip(*shown, strict=True)  # "one; another" are of two runs
    assert len(told) >= 9
    assert set(told) <= measured


def test_the_ratios_of_the_readme_are_those_of_a_section_of_the_documentation() -> None:
    sections = [section for page in figures.PAGES for section in re.split(r"(?m)^#+ ", page.read_text())]
    numbers = [set(re.findall(r"\d+\.\d+", section)) for section in sections]
    for part in performance_of_readme():
        assert any(known.issuperset(re.findall(RATIO, part)) for known in numbers), part


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


def test_models_are_summed_up_by_the_range_of_their_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result, "FOLDER", tmp_path)
    monkeypatch.setattr(figures, "FOLDER", tmp_path)
    monkeypatch.setattr(figures, "read", lambda name: result.read(name, tmp_path))
    monkeypatch.setattr("sys.argv", ["benchmarks/models.py"])
    columns = {"model": "", **dict.fromkeys(figures._RATIOS, "×")}
    for variant, note, rows in [
        ("a", "untuned", [["net", 1.5, 0.996, 0.994, None, 2.0]]),
        ("b", "untuned; others used 0.1 cores meanwhile", [["net", 11.0, 1.2, 1.1, None, 2.0]]),
        ("c", "64 trials for each distinct workload", [["net", 3.0, 3.0, 3.0, 3.0, 3.0]]),
        ("left-out", "untuned", [["net", 0.1, 0.1, 0.1, 0.1, 0.1]]),
    ]:
        result.save(columns, rows, variant=variant, note=note)
    page = figures.render("<!-- models without models-left-out -->\nold\n<!-- end -->\n")
    assert "| net | tuned | 1 | 3.00× | 3.00× | 3.00× | 3.00× | 3.00× |" in page
    assert "| net | untuned | 2 | 1.50× to 11.00× | 1.00× to 1.20× | **0.99× to 1.10×** |  | 2.00× |" in page
    assert page.startswith("<!-- models without models-left-out -->\n\n| model |")
    assert "old" not in page


def test_a_run_keeps_the_rows_of_an_earlier_one_that_it_has_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(result, "FOLDER", tmp_path)
    monkeypatch.setattr("sys.argv", ["benchmarks/models.py"])
    result._read_earlier.cache_clear()
    result.save({"model": "", "time": "s"}, [["a", 1.0], ["b", 2.0]], note="untuned")
    written = result.read("models", tmp_path)
    result.write(replace(written, versions={**written.versions, "a package": "1.0"}))  # which is not there any more
    for rows in ([["b", 3.0]], [["b", 3.0], ["c", 4.0]]):  # the second is of the same run
        result.save({"model": "", "time": "s"}, rows, note="again", merge=True)
    found = result.read("models", tmp_path)
    assert found.rows == (("a", 1.0), ("b", 3.0), ("c", 4.0))
    assert found.note is not None
    assert f"a: `python benchmarks/models.py`, {written.date}" in found.note
    assert found.note.count("untuned") == 1
    capsys.readouterr()
    result.save({"model": "", "seconds": "s"}, [["c", 4.0]], merge=True)
    assert result.read("models", tmp_path).rows == (("c", 4.0),)
    assert "models: a, b are replaced: of other columns\n" in capsys.readouterr().err


def test_an_interrupted_run_keeps_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result, "FOLDER", tmp_path)
    monkeypatch.setattr("sys.argv", ["benchmarks/forms_cpu.py"])

    def measure() -> None:
        table = result.Table({"": "", "time": "s"})
        with table.saved(note="fallbacks"):
            table.add("one", 1.0)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure()
    found = result.read("forms_cpu", tmp_path)
    assert found.rows == (("one", 1.0),)
    assert str(found.note).startswith("fallbacks; ended early")


def test_other_programs_are_not_told_of_where_the_system_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "open", fail)
    assert result._Cores.now().less(result._BEGAN).others == 0


@pytest.mark.parametrize("text", ["0", "-1", "some"])
def test_a_benchmark_refuses_numbers_that_are_not_above_zero(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = fixture.make_parser("What is measured.\n\n    python benchmarks/x.py\n")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--trials", type=fixture.natural)
    assert vars(parser.parse_args(["--rounds", "7", "--trials", "0"])) == {"rounds": 7, "trials": 0}
    assert "\n\n    python benchmarks/x.py\n" in parser.format_help()
    with pytest.raises(SystemExit):
        parser.parse_args(["--rounds", text])
    assert f"argument --rounds: {text}" in (told := capsys.readouterr().err) or f"value: '{text}'" in told


def test_a_benchmark_names_the_packages_that_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["benchmarks/x.py"])
    fixture.need("json")
    with pytest.raises(SystemExit, match=r"^x.py needs no_such and no_other: pip install no_such no_other$"):
        fixture.need("json", "no_such", "no_other")


def test_an_incomplete_result_is_refused(tmp_path: Path) -> None:
    (tmp_path / "noise.json").write_text('{"script": "noise", "rows": []}')
    with pytest.raises(msgspec.ValidationError):
        result.read("noise", tmp_path)
