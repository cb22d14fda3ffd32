"""`plevel worker`: build and time jobs of a service on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from plevel.cli import location, option
from plevel.cli.error import UsageError


def worker(
    url: option.Url = None,
    threads: Annotated[
        int | None,
        typer.Option("--threads", metavar="N", min=1, help="Threads of a kernel; default: all."),
    ] = None,
    devices: Annotated[
        list[str] | None,
        typer.Option(
            "--device", metavar="SLOT", help="cpu, cores of it (cpu:0-3), or cuda:0; repeatable."
        ),
    ] = None,
    log: option.Log = None,
    hottest: Annotated[
        float | None,
        typer.Option("--max-temperature", metavar="C", help="Wait while a sensor is hotter, °C."),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file", metavar="FILE", help="A file with the service's token [PLEVEL_TOKEN_FILE]."
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="The worker's name; default: the host's.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As --log json.")] = False,
) -> None:
    """Build and time jobs of a service on this machine.

    It works until Ctrl-C or SIGTERM, then finishes what it is timing; a second signal stops it at once.

    Example: plevel worker --url http://farm:8765 --threads 8
    """
    place = location.locate(url, None, makes=True)
    if place.url is None:
        raise UsageError("--url: missing: name a service, as http://host:8765, or set PLEVEL_URL")
    option.check_choice("--log", log, ("text", "json"))
    from plevel.embedded import require_worker

    require_worker()
    from workers.__main__ import main

    arguments = ["--url", place.url]
    for device in devices or ():
        arguments += ["--device", device]
    if threads is not None:
        arguments += ["--threads", str(threads)]
    if token_file is not None:
        arguments += ["--token-file", str(token_file)]
    if as_json or log is not None:
        arguments += ["--log", "json" if as_json else str(log)]
    if hottest is not None:
        arguments += ["--max-temperature", str(hottest)]
    if name is not None:
        arguments += ["--name", name]
    raise typer.Exit(main(arguments))
