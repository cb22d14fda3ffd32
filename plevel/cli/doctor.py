"""`plevel doctor`: whether this host is fit for timing."""

from __future__ import annotations

from typing import Annotated

import typer

from plevel.cli import option
from plevel.cli.error import CommandError, UsageError


def doctor(
    device: Annotated[
        str, typer.Option("--device", metavar="SLOT", help="cpu, or cores of it: cpu:0-3.")
    ] = "cpu",
    threads: Annotated[
        int | None, typer.Option("--threads", metavar="N", min=1, help="The kernels' threads; default: one per core.")
    ] = None,
    as_json: option.AsJson = False,
) -> None:
    """Check whether this host is fit for timing, and print what to change.

    It exits with 1 if something should be changed.

    Example: plevel doctor --device cpu:0-3
    """
    from plevel.cli.output import print_rows
    from workers.cpu import DeviceError, assign, parse_cores
    from workers.doctor import examine

    try:
        cores = parse_cores(device)
        found = examine(assign(cores, len(cores) if threads is None else threads))
    except DeviceError as error:
        raise UsageError(str(error)) from error
    wrong = [f.what for f in found if f.remedy]
    rows = ((f.what, f.found, f.remedy or "good") for f in found)
    print_rows(found, ("what", "found", "remedy"), rows, as_json=as_json)
    if wrong:
        raise CommandError(f"timing on this host is less reliable because of: {', '.join(wrong)}", answered=True)
