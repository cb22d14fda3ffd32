"""The set of `docker-compose.yml` as plain processes: two services on one PostgreSQL, a proxy, workers."""

from __future__ import annotations

import configparser
import itertools
import re
import subprocess
import sys
import tomllib
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import yaml
from typer.testing import CliRunner

from plevel.cli.main import app
from service.settings import Settings
from service.store.db import Store
from service.store.tables import run
from strategy.record import RunStatus
from tests.integration.process import Service
from tests.integration.scene import drawn
from tests.integration.test_faults import TRIALS, Proxy, Worker, check, ends
from tests.limit import HANG_S, wait_until

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return found["services"]


def test_the_set_is_whole(compose: dict[str, Any]) -> None:
    kinds = {name: (c.get("command") or ["-"])[0] for name, c in compose.items()}
    assert {n for n, kind in kinds.items() if kind == "serve"} == {"service-1", "service-2"}
    assert {n for n, kind in kinds.items() if kind == "worker"} == {"worker", "worker-gpu"}
    assert compose["worker-gpu"]["profiles"] == ["gpu"]
    for name, one in compose.items():
        for needed in one.get("depends_on", ()):
            assert needed in compose, name
    proxied = (ROOT / "deploy/Caddyfile").read_text()
    assert "service-1:8765 service-2:8765" in proxied and "proxy:8080" in proxied


def test_workers_do_not_know_the_database(compose: dict[str, Any]) -> None:
    """They run what they compile."""
    for name, one in compose.items():
        known = "PLEVEL_DATABASE" in one.get("environment", {})
        assert known == (name in ("service-1", "service-2", "setup")), name


def test_a_source_distribution_has_what_make_and_the_tests_need() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    included = {name.removeprefix("/") for name in project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]}
    assert included >= {".ci", "deploy", "docker-compose.yml", "docs", "mkdocs.yml", "tests"}
    assert all((ROOT / name).exists() for name in included)


def test_the_packages_that_programs_import_have_their_types() -> None:
    assert all((ROOT / package / "py.typed").exists() for package in ("plevel", "strategy"))


def test_the_image_is_built_from_what_is_shipped(compose: dict[str, Any]) -> None:
    rules = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in rules
    let_in = {rule.removeprefix("!") for rule in rules if rule.startswith("!")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    described = {"pyproject.toml", project["project"]["readme"], *project["project"]["license-files"]}
    assert let_in == {*packages, *described, "wheels"}
    image = (ROOT / "deploy/Containerfile").read_text()
    for_gpus = compose["worker-gpu"]["build"]["args"]["EXTRAS"]
    extras = [*re.findall(r"EXTRAS=([\w,]+)", image), for_gpus]
    for extra in ",".join(extras).split(","):
        assert extra in project["project"]["optional-dependencies"]
    # The image's user may write to its mounts.
    owned = image.partition("--owner=plevel")[2].split()
    mounted = {
        volume.split(":")[1]
        for name in ("setup", "worker")
        for volume in compose[name]["volumes"]
        if not volume.startswith("/")
    }
    assert mounted <= set(owned)


@pytest.mark.parametrize("name", ["service-1", "worker", "worker-gpu", "setup"])
def test_every_command_is_one_that_there_is(compose: dict[str, Any], name: str) -> None:
    command = compose[name]["command"]
    if name == "setup":
        commands = [line.split() for line in re.findall(r"plevel ([^&|>;]+)", command[0])]
        assert [c[0] for c in commands] == ["db", "token"]
    else:
        commands = [command]
    for one in commands:
        words = [w for w in one if w.startswith("--")]
        path = one[: 1 if one[0] in ("serve", "worker") else 2]
        told = CliRunner(env={"COLUMNS": "200"}).invoke(app, [*path, "--help"])
        assert told.exit_code == 0, one
        assert all(word in told.stdout for word in words), (one, told.stdout)


@pytest.mark.parametrize("unit", ["plevel-service.service", "plevel-worker@.service"])
def test_units_start_commands_that_there_are(unit: str) -> None:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str
    parser.read(ROOT / "deploy" / unit)
    words = parser["Service"]["ExecStart"].split()
    assert words[0].endswith("/plevel")
    assert words[1] in ("serve", "worker")
    assert parser["Service"]["Restart"] == "always"
    example = ROOT / "deploy" / Path(parser["Service"]["EnvironmentFile"]).name
    named = re.findall(r"^#?(PLEVEL_\w+)=", example.read_text(), re.MULTILINE)
    assert named
    if words[1] == "serve":
        assert {name.removeprefix("PLEVEL_").lower() for name in named} <= set(Settings.model_fields)


def test_two_services_share_a_run_and_one_dies(
    compose: dict[str, Any], postgres_copy: str, tmp_path: Path
) -> None:
    flags = compose["service-1"]["command"]
    migrate = {"PLEVEL_MIGRATE": compose["service-1"]["environment"]["PLEVEL_MIGRATE"]}
    made = subprocess.run(
        [sys.executable, "-m", "plevel", "token", "create", "t", "--scope", "admin", "--scope",
         "worker", "--database", postgres_copy],
        capture_output=True, text=True, check=True, timeout=HANG_S,
    )
    secret = made.stdout.strip()
    auth = flags[flags.index("--auth") + 1]
    folders = [tmp_path / str(i) for i in range(2)]
    services, workers = [], []
    proxy = Proxy(0)
    proxy.FATES = ("pass",)
    proxy.token = secret
    try:
        for folder in folders:
            folder.mkdir()
            services.append(
                Service(postgres_copy, folder, PLEVEL_AUTH=auth, PLEVEL_POLL_S="0.1", **migrate)
            )
            services[-1].http.headers["authorization"] = f"Bearer {secret}"
        turns = itertools.cycle([one.url for one in services])
        proxy.choose = lambda: next(turns)
        run_id = services[0].call("POST", "/v1/runs", drawn(trials=TRIALS), RunStatus).id
        workers = [Worker(proxy.url, tmp_path / f"w{i}", f"host-{i}") for i in range(2)]
        holder = _holder(postgres_copy, services)
        holder.process.kill()
        left = next(one for one in services if one is not holder)
        proxy.choose = lambda: left.url
        check(postgres_copy, ends(left, run_id))
    finally:
        for worker in workers:
            worker.close()
        proxy.close()
        for one in services:
            one.close()


def _holder(url: str, services: list[Service]) -> Service:
    """The service that tunes the run."""

    def find() -> str | None:
        with store.read() as c:
            name: str | None = c.scalar(sa.select(run.c.tuner))
        return name

    with closing(Store(url)) as store:
        wait_until(find, "the tuning")
        tuner = find() or ""
    return next(s for s in services if f"/{s.process.pid}/" in tuner)


def test_workers_of_one_host_share_its_timing_lock(compose: dict[str, Any]) -> None:
    for name in ("worker", "worker-gpu"):
        assert "/run/lock:/run/lock" in compose[name]["volumes"], name
