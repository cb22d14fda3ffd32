"""The documentation does what it says: its blocks run, its commands exist, its links lead somewhere."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.docs.page import PAGES, ROOT, Block, make_script, read_blocks
from tests.limit import HANG_S
from tests.port import free_port

# Run as one program by tests/kernel/test_documentation.py.
ELSEWHERE = {"operators.md"}
LONGEST = {"tutorial.md", "extending.md", "build-farm.md"}  # they compile
_COMMAND = re.compile(r"^(?:\$ )?(?:\w+=\S+ )*plevel((?: [a-z]+){1,2})\b(.*)$")


def blocks_of(page: Path) -> list[Block]:
    return read_blocks(page.read_text())


def run_page(page: Path, folder: Path, port: int, timeout_s: float = 2 * HANG_S) -> None:
    script = make_script(blocks_of(page))
    if re.search(r"^\s*curl ", script, re.MULTILINE) and shutil.which("curl") is None:
        pytest.skip("no curl on this host (Debian: apt install curl)")
    script = script.replace("8765", str(port))
    home, work, programs = folder / "home", folder / "work", folder / "bin"
    work.mkdir()
    programs.mkdir()
    (programs / "plevel").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tests.quick "$@"\n')
    (programs / "plevel").chmod(0o755)
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PLEVEL_", "XDG_"))}
    environment = clean | {
        "HOME": str(home), "PYTHONPATH": f"{ROOT}{os.pathsep}{work}", "NO_COLOR": "1",
        "PATH": os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]]),
    }
    with (folder / "output").open("w+") as output:
        shell = subprocess.Popen(
            [*one_core(), "bash", "-c", script], cwd=work, env=environment, stdin=subprocess.DEVNULL,
            stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )
        try:
            code = shell.wait(timeout_s)
        finally:
            with suppress(ProcessLookupError):  # what it started in the background, too
                os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()
        output.seek(0)
        assert code == 0, f"{page.name}: {output.read()[-4000:]}"


def one_core() -> list[str]:
    """The beginning of a command that has one core: threads of a kernel spin for each other, and all cores are busy."""
    return ["taskset", "-c", str(min(os.sched_getaffinity(0)))] if shutil.which("taskset") else []


def runnable() -> list[Path]:
    return [p for p in PAGES if p.name not in ELSEWHERE and any(b.runs for b in blocks_of(p))]


@pytest.fixture(scope="module")
def runs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[Path, Future[None]]]:
    """The pages of this session, two at a time: most of each is waiting for processes that start."""
    asked = [
        i.callspec.params["page"] for i in request.session.items
        if getattr(i, "originalname", "") == "test_the_blocks_of_a_page_run"
    ]
    asked.sort(key=lambda p: p.name not in LONGEST)
    with ThreadPoolExecutor(2) as pool:
        yield {
            page: pool.submit(run_page, page, tmp_path_factory.mktemp(page.stem), free_port())
            for page in asked
        }
        pool.shutdown(cancel_futures=True)


def pages() -> list[Any]:
    """Those to run; the longest ones, which take longer than all others, are larger samples."""
    return [pytest.param(p, marks=[pytest.mark.full] if p.name in LONGEST else []) for p in runnable()]


@pytest.mark.parametrize("page", pages(), ids=lambda p: p.name)
def test_the_blocks_of_a_page_run(page: Path, runs: dict[Path, Future[None]]) -> None:
    runs[page].result()


def test_a_block_that_fails_fails_its_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text('```sh\ntrue\n```\n\n```python\nassert 1 == 2\n```\n\n```sh\ntouch "$HOME/on"\n```\n')
    with pytest.raises(AssertionError, match="the block at line 5 failed"):
        run_page(page, tmp_path, free_port())


def commands() -> dict[str, Any]:
    import typer

    from plevel.cli.main import app

    def walk(group: Any, path: tuple[str, ...]) -> dict[str, Any]:
        found = {}
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                found |= walk(command, (*path, name))
            else:
                found[" ".join((*path, name))] = command
        return found

    return walk(typer.main.get_command(app), ())


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_the_commands_of_a_page_exist_with_their_options(page: Path) -> None:
    """In any block of shell, run or not, and in indented ones."""
    known = commands()
    text = page.read_text()
    fenced = [b.body for b in read_blocks(text) if b.language == "sh"]
    indented = re.findall(r"^ {4}plevel .*$", text, re.MULTILINE)
    for line in "\n".join([*fenced, *indented]).replace("\\\n", " ").splitlines():
        match = _COMMAND.match(line.strip())
        if match is None:
            continue
        words = match[1].split()
        name = next((n for n in (" ".join(words), words[0]) if n in known), None)
        assert name is not None, f"{page.name}: there is no command 'plevel{match[1]}'"
        assert re.search(r" [\w.]+=[^ ']*\[", line) is None, f"{page.name}: zsh takes brackets for a pattern: {line}"
        options = {o for p in known[name].params for o in (*p.opts, *p.secondary_opts)}
        for option in re.findall(r"(?<!\S)\[?(--[a-z][a-z-]*)", match[2].partition(" #")[0]):
            assert option in options | {"--help", "--debug"}, f"{page.name}: {line.strip()}"


@pytest.mark.full
def test_the_site_builds_and_every_link_leads_somewhere(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="the docs extra is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)],
        capture_output=True, text=True, check=False, timeout=HANG_S, cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    for page in ("cli", "rest", "settings", "python"):
        assert (tmp_path / "reference" / f"{page}.html").is_file()
    python = (tmp_path / "reference" / "python.html").read_text()
    for name in ("plevel.client.Client.select", "strategy.record.RunRequest.trials", "strategy.target.Target"):
        assert f'id="{name}"' in python
    assert "__enter__" not in python
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 15
    for page in pages:
        loaded = re.findall(r'<(?:script|link|img)[^>]* (?:src|href)="(https?://[^"]+)"', page.read_text())
        assert loaded == [], f"{page.name} asks another host for {loaded}"


def test_links_of_the_pages_outside_of_the_site_lead_somewhere() -> None:
    for page in ROOT.glob("*.md"):
        for link, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", page.read_text()):
            assert "://" in link or (ROOT / link).exists(), f"{page.name}: {link}"
            if anchor and "://" not in link:
                assert anchor in anchors_of(ROOT / link if link else page), f"{page.name}: {link}#{anchor}"


def anchors_of(page: Path) -> set[str]:
    """The anchors of a page's headings, as its site and GitHub make them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()) for title in titles}
