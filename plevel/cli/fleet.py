"""`plevel why` and `plevel fleet`: explanations of jobs, pauses, renamed and transferred devices, pilot jobs."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Annotated

import typer

from plevel.cli import location, option, scale
from plevel.cli.error import UsageError

app = typer.Typer(help="Administer the farm: pauses, devices and pilot jobs.", no_args_is_help=True)
_IDENTITY = "A device's identity, from `plevel workers --json`."
app.command()(scale.scale)


def why(
    job: Annotated[int, option.number("JOB", "The number.")],
    url: option.Url = None,
    database: option.Database = None,
    as_json: option.AsJson = False,
) -> None:
    """Explain why a job is not running, or print which worker has it.

    Example: plevel why 17 --url http://farm:8765
    """
    from plevel.cli.output import print_json

    with location.locate(url, database).connect() as service:
        found = service.why(job)
    if as_json:
        print_json(found)
        return
    print(f"job {found['job']} of run {found['run']} is {found['state']}")
    for reason in found["reasons"]:
        print(f"  {reason}")


@app.command()
def pause(
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="The reason, which is shown.", show_default=False)
    ],
    device: Annotated[str | None, typer.Option("--device", metavar="ID", help="The device's identity.")] = None,
    target: Annotated[
        str | None, typer.Option("--target", metavar="TARGET", help="A target, by its key or as cpu: all its devices.")
    ] = None,
    since: Annotated[
        datetime | None,
        typer.Option("--from", metavar="TIME", help="Its start: 2026-11-03T10:00, UTC; default: now."),
    ] = None,
    until: Annotated[
        datetime | None,
        typer.Option("--until", metavar="TIME", help="Its end: 2026-11-03T12:00, UTC; default: no end."),
    ] = None,
    url: option.Url = None,
    database: option.Database = None,
    as_json: option.AsJson = False,
) -> None:
    """Pause a device or a target, now or during a window; running jobs finish.

    Example: plevel fleet pause --device 3f2a/cpu:0-3 --reason "new fans"
    """
    from plevel.cli.output import tell

    if (device is None) == (target is None):
        raise UsageError("--device, --target: name exactly one")
    begin, end = option.read_window("--from", since, "--until", until)
    if end is not None and end <= time.time():
        raise UsageError(f"--until {until}: has passed: give a later time, in UTC")
    given = {"device": device, "target": option.read_key(target), "starts_at": begin, "ends_at": end}
    with location.locate(url, database).connect() as service:
        made = service.pause(reason, **{k: v for k, v in given.items() if v is not None})
    tell(
        f"pause {made['id']} is set; end it with 'plevel fleet resume {made['id']}'", made, as_json=as_json
    )


@app.command()
def resume(
    pause: Annotated[int, option.number("PAUSE", "The number.")],
    url: option.Url = None,
    database: option.Database = None,
    as_json: option.AsJson = False,
) -> None:
    """End a pause.

    Example: plevel fleet resume 3
    """
    from plevel.cli.output import tell

    with location.locate(url, database).connect() as service:
        service.resume(pause)
    tell(f"pause {pause} has ended", {"ended": pause}, as_json=as_json)


@app.command()
def pauses(
    url: option.Url = None, database: option.Database = None, as_json: option.AsJson = False
) -> None:
    """List current and future pauses.

    Example: plevel fleet pauses
    """
    from plevel.cli.output import print_rows

    with location.locate(url, database).connect() as service:
        found = service.pauses()
    rows = (
        (str(p["id"]), p["device"] or p["target"], _shown(p["starts_at"]), _shown(p["ends_at"]),
         p["reason"])
        for p in found
    )
    columns = ("pause", "of", "from", "until", "reason")
    print_rows(found, columns, rows, as_json=as_json, right=("pause",), none="no pauses")


@app.command()
def rename(
    old: Annotated[str, typer.Argument(metavar="OLD", help=_IDENTITY, show_default=False)],
    new: Annotated[str, typer.Argument(metavar="NEW", help="Its new identity.", show_default=False)],
    url: option.Url = None,
    database: option.Database = None,
    as_json: option.AsJson = False,
) -> None:
    """Transfer a device's history to another identity, as after a reinstallation.

    Example: plevel fleet rename 3f2a/cpu:0-3 91bc/cpu:0-3
    """
    from plevel.cli.output import tell

    with location.locate(url, database).connect() as service:
        service.rename_device(old, new)
    tell(f"the records of {old} now belong to {new}", {"old": old, "new": new}, as_json=as_json)


@app.command()
def move(
    device: Annotated[str, typer.Argument(metavar="DEVICE", help=_IDENTITY, show_default=False)],
    token: Annotated[str, typer.Argument(metavar="TOKEN", help="A token's name.", show_default=False)],
    url: option.Url = None,
    database: option.Database = None,
    as_json: option.AsJson = False,
) -> None:
    """Transfer a device to another token; it belongs to the token that registered it first.

    Example: plevel fleet move 3f2a/cpu:0-3 lab-7
    """
    from plevel.cli.output import tell

    with location.locate(url, database).connect() as service:
        service.move_device(device, token)
    given = {"device": device, "token": token}
    tell(f"{device} now belongs to token {token}", given, as_json=as_json)


def _shown(instant: float | None) -> str:
    return "" if instant is None else f"{datetime.fromtimestamp(instant, UTC):%Y-%m-%d %H:%M} UTC"
