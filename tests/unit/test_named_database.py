"""A database file that is named and not there: every command that reads says so, and makes none."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from plevel.cli.main import app
from plevel.client import UnreachableError
from plevel.database import plevel_database
from tests.unit.test_cli import Called, called, commands

__all__ = ["called"]  # a fixture

DENSE = ("dense", "-i", "data=float32[8,8]", "-i", "weight=float32[8,8]", "--target", "llvm")
# The arguments that each command needs, beside its database.
READING: dict[str, tuple[str, ...]] = {
    "select": DENSE, "lock": ("{}/x.toml", "-o", "{}/x.lock"), "check": ("--against", "{}/x.lock"),
    "build": (*DENSE, "-o", "{}/x.so"), "show": DENSE, "runs": (), "coverage": (), "records": (),
    "plot": ("1",), "export": (), "workers": (), "status": (), "cancel": ("1",), "why": ("1",),
    "model list": (), "model train": ("dense", "--target", "llvm"), "model show": ("1",),
    "db current": (), "db check": (), "db downgrade": ("0005",),
    "db backup": ("{}/copy.db",), "db prune": ("--older-than", "1d"),
    "db purge": ("--reason", "x", "--until", "2030-01-01"), "fleet pause": ("--reason", "x", "--device", "d"),
    "fleet resume": ("1",), "fleet pauses": (), "fleet rename": ("a", "b"), "fleet move": ("a", "b"),
    "token list": (), "token revoke": ("1",),
    "bundle make": (*DENSE[:-2], "-o", "{}/x.bundle", "--key", "{}/x.key"),
}  # fmt: skip
MAKING = {"tune", "import", "serve", "db upgrade", "token create"}


def test_all_commands_are_here() -> None:
    found = {
        name
        for name, command in commands(typer.main.get_command(app))
        if any("--database" in p.opts for p in command.params)
    }
    assert found == READING.keys() | MAKING


@pytest.mark.parametrize("name", READING)
@pytest.mark.parametrize("by", ["option", "environment"])
def test_a_missing_file_is_one_line(
    name: str, by: str, called: Called, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = tmp_path / "mistyped.db"
    (tmp_path / "x.toml").write_text(
        '[[workload]]\nop = "dense"\ninputs = { data = "float32[8,8]", weight = "float32[8,8]" }\n'
    )
    arguments = [*name.split(), *(a.format(tmp_path) for a in READING[name])]
    if by == "option":
        arguments += ["--database", str(missing)]
    else:
        monkeypatch.setenv("PLEVEL_DATABASE", str(missing))
    done = called(*arguments)
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "mistyped.db" in done.stderr
    assert not missing.exists()


def test_the_user_s_own_file_may_still_be_missing(called: Called) -> None:
    assert called("select", *DENSE).returncode == 0
    assert called("records").returncode == 0


def test_a_library_s_caller_is_told_too(tmp_path: Path) -> None:
    with pytest.raises(UnreachableError, match="no such file"), plevel_database(tmp_path / "no.db"):
        pass
