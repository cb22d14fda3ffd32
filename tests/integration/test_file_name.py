"""An SQLite file of any name is opened as that file, wherever it is named, and its URL leads back to it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from plevel.database import plevel_database
from plevel.direct import connect
from plevel.embedded import make_folder
from plevel.kernel_selection import open_records
from service.address import path_of, url_of
from service.errors import DatabaseError
from service.store import backup, migration
from service.store.db import Store, normal_url, show_url
from strategy.select import Reason, select
from tests.command import run_command
from tests.integration.process import Start
from tests.integration.test_asking import TARGET, dense, fill

NAMES = ["a?b.db", "a#b.db", "a%20b.db", "a b.db", "100%.db", "?", "%3F.db", "é&=.db"]


@pytest.mark.parametrize("name", NAMES)
def test_the_url_of_a_file_leads_back_to_it(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    url = url_of(path)
    assert path_of(url) == path
    assert normal_url(url).database == normal_url(str(path)).database == str(path)
    # A printed URL names the same file.
    assert path_of(show_url(normal_url(url))) == path
    assert path_of(normal_url(url).render_as_string(hide_password=False)) == path


def test_a_tilde_is_a_home_or_a_part_of_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/a?")
    assert path_of(url_of("~/a.db")) == Path("/home/a?/a.db")
    assert path_of(url_of("~no-such-user/a.db")) == tmp_path / "~no-such-user/a.db"


@pytest.fixture(params=NAMES)
def named(request: pytest.FixtureRequest, sqlite_copy: str, tmp_path: Path) -> Path:
    """A database with records, alone in its folder."""
    path = tmp_path / "alone" / request.param
    path.parent.mkdir()
    shutil.move(sqlite_copy.removeprefix("sqlite:///"), path)
    fill(str(path))
    return path


@pytest.mark.sample(3)
def test_each_place_that_names_a_file_opens_it(
    named: Path, start: Start, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for where in (named, str(named), url_of(named)):
        with plevel_database(where) as known:
            assert select(dense(8), TARGET, known).reason is Reason.MEASURED
        with open_records(str(where)) as known:
            assert select(dense(8), TARGET, known).reason is Reason.MEASURED
    with connect(None, url_of(named)) as records:
        assert len(list(records.iter_best(scope="target"))) == 3
    monkeypatch.setenv("PLEVEL_DATABASE", str(named))
    monkeypatch.chdir(named.parent)
    for option in ([], ["--database", str(named)], ["--database", named.name], ["--database", url_of(named)]):
        ended = run_command("coverage", "--json", *option)
        said = capsys.readouterr()
        assert not ended, said.err
        assert said.out.count('"task_id"') == 3
    service = start(str(named))
    assert len(service.http.get("/v1/records").json()["records"]) == 3
    service.close()
    store = Store(str(named))
    backup.backup(store, named.with_name("copy"))
    store.close()
    beside = {p.name.removesuffix("-wal").removesuffix("-shm") for p in named.parent.iterdir()}
    assert beside == {named.name, "copy"}


def test_a_file_that_nobody_may_write_is_opened(named: Path) -> None:
    named.chmod(0o444)
    named.parent.chmod(0o555)
    try:
        store = Store(url_of(named), read_only=True)
        with store.read() as c:
            assert c.exec_driver_sql("SELECT count(*) FROM record").scalar_one() == 3
        store.close()
    finally:
        named.parent.chmod(0o755)


@pytest.mark.full
def test_a_new_file_is_made_under_its_name(tmp_path: Path) -> None:
    for name in NAMES:
        make_folder(url_of(tmp_path / name))
        migration.upgrade(url_of(tmp_path / name))
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(NAMES)


def test_parameters_that_would_be_ignored_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DatabaseError, match=r"no parameters, and this one has \?b\.db=1: .* or %3F for a \?"):
        Store(f"sqlite:///{tmp_path}/a?b.db=1")
    with pytest.raises(DatabaseError, match="no parameters"):
        Store(f"sqlite:///{tmp_path}/a?b.db")
    assert not any(tmp_path.iterdir())
