"""`plevel builder`: a Dask worker that builds for `plevel worker --build-on`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from plevel.cli import option
from plevel.cli.error import CommandError, UsageError

# Python's configuration of logging, for Dask's processes.
_JSON = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"json": {"()": "strategy.log.JsonFormatter"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "json"}},
    "root": {"level": "INFO", "handlers": ["stderr"]},
}


def builder(
    scheduler: Annotated[
        str, typer.Option("--scheduler", metavar="ADDRESS", help="The Dask scheduler: tls://host:8786.")
    ],
    tls_ca: option.Authority = None,
    tls_cert: option.Certificate = None,
    tls_key: option.Key = None,
    threads: Annotated[
        int | None, typer.Option("--threads", metavar="N", min=1, help="Builds at once; default: one per core.")
    ] = None,
    artefacts: Annotated[
        Path | None,
        typer.Option(
            "--artefacts", metavar="DIR",
            help="The folder of what was built, which builders may share [PLEVEL_ARTEFACTS; default: in your cache].",
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="The worker's name in Dask; default: its address.")
    ] = None,
    log: option.Log = None,
    as_json: Annotated[bool, typer.Option("--json", help="As --log json.")] = False,
) -> None:
    """Build for the workers of other hosts, as a worker of a Dask cluster (extra 'cluster').

    It builds in children with limits, as 'plevel worker' does, and works until Ctrl-C or SIGTERM. It must have the
    versions of plevel, TVM and libc of the hosts that time.

    Example: plevel builder --scheduler tls://head:8786 --tls-ca ca.pem --tls-cert node.pem --tls-key node.key
    """
    from plevel.extra import require, require_worker

    require_worker()
    require("cluster", "distributed")
    if as_json or log == "json":
        os.environ["DASK_LOGGING"] = repr(_JSON)  # which Dask reads where it is imported, in its processes, too
    import asyncio

    from strategy.host import usable_cores
    from workers.__main__ import check_host
    from workers.cluster.builder import StartError, serve
    from workers.cluster.client import SecurityError, secure
    from workers.cluster.site import ARTEFACTS
    from workers.cpu import DeviceError

    try:
        check_host()
        security = secure(scheduler, tls_ca, tls_cert, tls_key)
    except (DeviceError, SecurityError) as error:
        raise UsageError(f"--scheduler {error}" if isinstance(error, SecurityError) else str(error)) from error
    if artefacts is not None:
        os.environ[ARTEFACTS] = str(artefacts.absolute())
    try:
        asyncio.run(serve(scheduler, security, threads or usable_cores(), name))
    except StartError as error:
        raise CommandError(f"--scheduler {scheduler}: {error}") from error
