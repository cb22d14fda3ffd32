"""`plevel builder`: a Dask worker that builds for `plevel worker --build-on`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from plevel.cli import option
from plevel.cli.error import UsageError

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
    name: Annotated[str | None, typer.Option("--name", help="The worker's name in Dask; default: its address.")] = None,
    log: option.Log = None,
    as_json: Annotated[bool, typer.Option("--json", help="As --log json.")] = False,
) -> None:
    """Build for the workers of other hosts, as a worker of a Dask cluster (extra 'cluster').

    It builds in children with limits, as 'plevel worker' does, and works until Ctrl-C or SIGTERM. It must have the
    versions of plevel, TVM and libc of the hosts that time.

    Example: plevel builder --scheduler tls://head:8786 --tls-ca ca.pem --tls-cert node.pem --tls-key node.key
    """
    from plevel.embedded import require, require_worker

    require_worker()
    require("cluster", "distributed")
    from strategy.host import usable_cores
    from workers.__main__ import check_host
    from workers.cluster.client import SecurityError, secure
    from workers.cluster.site import ARTEFACTS
    from workers.cpu import DeviceError

    try:
        check_host()
        secure(scheduler, tls_ca, tls_cert, tls_key)
    except (DeviceError, SecurityError) as error:
        raise UsageError(f"--scheduler {error}" if isinstance(error, SecurityError) else str(error)) from error
    environment = dict(os.environ)
    if artefacts is not None:
        environment[ARTEFACTS] = str(artefacts.absolute())
    if as_json or log == "json":
        environment["DASK_LOGGING"] = repr(_JSON)
    given = {
        "--tls-ca-file": tls_ca, "--tls-cert": tls_cert, "--tls-key": tls_key, "--name": name,
        "--nthreads": threads or usable_cores(),
    }  # fmt: skip
    command = [
        sys.executable, "-P", "-m", "distributed.cli.dask_worker", scheduler, "--preload", "workers.cluster.site",
        "--no-dashboard", *option.pass_on(given),
    ]  # fmt: skip
    os.execve(sys.executable, command, environment)  # its signals and exit status are Dask's  # noqa: S606
