"""`plevel worker`: build and time jobs of a service on this machine."""

from __future__ import annotations

import math
import socket
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
            "--device", metavar="SLOT", help="cpu, cores of it (cpu:0-3), or cuda:0; repeatable; default: cpu."
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
        str | None, typer.Option("--name", metavar="NAME", help="The worker's name; default: the host's.")
    ] = None,
    lifetime: Annotated[
        str | None,
        typer.Option("--lifetime", metavar="DURATION", help="End after 55m, 2h …; what is unfinished is given back."),
    ] = None,
    idle_exit: Annotated[
        str | None, typer.Option("--idle-exit", metavar="DURATION", help="End after so long without a job: 5m …")
    ] = None,
    grace: Annotated[
        str, typer.Option("--grace", metavar="DURATION", help="Time to finish what is being timed after SIGTERM.")
    ] = "90s",
    build_on: Annotated[
        str | None,
        typer.Option("--build-on", metavar="ADDRESS", help="A Dask scheduler whose workers build, too: tls://host:8786."),
    ] = None,
    tls_ca: option.Authority = None,
    tls_cert: option.Certificate = None,
    tls_key: option.Key = None,
    as_json: Annotated[bool, typer.Option("--json", help="As --log json.")] = False,
) -> None:
    """Build and time jobs of a service on this machine.

    It works until Ctrl-C or SIGTERM, then finishes what it is timing; a second signal stops it at once.
    With --build-on it builds on a Dask cluster as well (extra 'cluster').
    With a --lifetime it leases no job that takes longer than what is left, to judge by those before it.

    Example: plevel worker --url http://farm:8765 --threads 8
    """
    service = location.locate_service(url)
    if hottest is not None and not 0 < hottest < math.inf:
        raise UsageError(f"--max-temperature {hottest:g}: give degrees Celsius greater than 0")
    given = {"--lifetime": lifetime, "--idle-exit": idle_exit, "--grace": grace}
    seconds = {name: option.read_duration(name, text) for name, text in given.items() if text is not None}
    for limit in ("--lifetime", "--idle-exit"):
        if seconds.get(limit) == 0:
            raise UsageError(f"{limit} {given[limit]}: it would end before its first job: write a longer time")
    from functools import partial

    from plevel.client import UnreachableError
    from plevel.environment import read_token
    from plevel.extra import require_worker

    require_worker()
    try:
        read_token(token_file)
    except UnreachableError as error:
        raise UsageError(str(error)) from error
    from workers.__main__ import Options, main

    options = Options(
        url=service, devices=devices or ("cpu",), threads=threads, token=partial(read_token, token_file),
        name=name or socket.gethostname(), hottest_c=hottest, lifetime_s=seconds.get("--lifetime", math.inf),
        idle_exit_s=seconds.get("--idle-exit", math.inf), grace_s=seconds["--grace"], build_on=build_on,
        tls_ca=tls_ca, tls_cert=tls_cert, tls_key=tls_key, log="json" if as_json or log == "json" else "text",
    )
    raise typer.Exit(main(options))
