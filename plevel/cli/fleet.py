"""`plevel why` and `plevel fleet`: why a job waits, pauses, and devices with a new name or owner."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from plevel.cli import option
from plevel.cli.error import UsageError

app = typer.Typer(help="For those who run the lab: pauses, and devices.", no_args_is_help=True)


def why(
    job: Annotated[int, typer.Argument(metavar="JOB", help="Its number.", show_default=False)],
    url: option.Url = None,
    database: option.Database = None,
    as_json: option.AsJson = False,
) -> None:
    """Say why a job is not running, or who has it.

    Example: plevel why 17 --url http://farm:8765
    """
    from plevel.cli.output import print_json
    from plevel.direct import connect

    place = option.locate(url, database)
    with connect(place.url, place.database) as service:
        found = service.why(job)
    if as_json:
        print_json(found)
        return
    print(f"job {found['job']} of run {found['run']} is {found['state']}")
    for reason in found["reasons"]:
        print(f"  {reason}")


@app.command()
def pause(
    reason: Annotated[str, typer.Option("--reason", help="Why.", show_default=False)],
    device: Annotated[str | None, typer.Option("--device", help="Of this identity.")] = None,
    target: Annotated[str | None, typer.Option("--target", help="All devices of this key.")] = None,
    since: Annotated[datetime | None, typer.Option("--from", help="UTC; now if not given.")] = None,
    until: Annotated[datetime | None, typer.Option("--until", help="UTC; else for good.")] = None,
    url: option.Url = None,
    database: option.Database = None,
    as_json: option.AsJson = False,
) -> None:
    """Give a device or a target no jobs, now or in a window to come; what it has, it finishes.

    Example: plevel fleet pause --device 3f2a/cpu:0-3 --reason "new fans"
    """
    from plevel.cli.output import tell
    from plevel.direct import connect

    if (device is None) == (target is None):
        raise UsageError("--device, --target: name one of them")
    given = {
        "device": device, "target": target, "starts_at": _instant(since), "ends_at": _instant(until),
    }  # fmt: skip
    place = option.locate(url, database)
    with connect(place.url, place.database) as service:
        made = service.pause(reason, **{k: v for k, v in given.items() if v is not None})
    tell(
        f"pause {made['id']}: 'plevel fleet resume {made['id']}' ends it", made, as_json=as_json
    )


@app.command()
def resume(
    pause: Annotated[int, typer.Argument(metavar="PAUSE", help="Its number.", show_default=False)],
    url: option.Url = None,
    database: option.Database = None,
    as_json: option.AsJson = False,
) -> None:
    """End a pause.

    Example: plevel fleet resume 3
    """
    from plevel.cli.output import tell
    from plevel.direct import connect

    place = option.locate(url, database)
    with connect(place.url, place.database) as service:
        service.resume(pause)
    tell(f"pause {pause} is over", {"ended": pause}, as_json=as_json)


@app.command()
def pauses(
    url: option.Url = None, database: option.Database = None, as_json: option.AsJson = False
) -> None:
    """List the pauses that go on or are to come.

    Example: plevel fleet pauses
    """
    from plevel.cli.output import make_console, make_table, print_json
    from plevel.direct import connect

    place = option.locate(url, database)
    with connect(place.url, place.database) as service:
        found = service.pauses()
    if as_json:
        print_json(found)
        return
    rows = [
        (str(p["id"]), p["device"] or p["target"], _shown(p["starts_at"]), _shown(p["ends_at"]),
         p["reason"])
        for p in found
    ]  # fmt: skip
    columns = ("pause", "of", "from", "until", "reason")
    make_console().print(make_table(columns, rows, right=("pause",)) if rows else "no pauses")


@app.command()
def rename(
    old: Annotated[str, typer.Argument(metavar="OLD", show_default=False)],
    new: Annotated[str, typer.Argument(metavar="NEW", show_default=False)],
    url: option.Url = None,
    database: option.Database = None,
    as_json: option.AsJson = False,
) -> None:
    """Give a device's history another identity, of a machine that was installed again.

    Example: plevel fleet rename 3f2a/cpu:0-3 91bc/cpu:0-3
    """
    from plevel.cli.output import tell
    from plevel.direct import connect

    place = option.locate(url, database)
    with connect(place.url, place.database) as service:
        service.rename_device(old, new)
    tell(f"what was measured as {old} is of {new} now", {"old": old, "new": new}, as_json=as_json)


@app.command()
def move(
    device: Annotated[str, typer.Argument(metavar="DEVICE", show_default=False)],
    token: Annotated[str, typer.Argument(metavar="TOKEN", help="A token's name.", show_default=False)],
    url: option.Url = None,
    database: option.Database = None,
    as_json: option.AsJson = False,
) -> None:
    """Give a device to another token: the one that registered it first has it until then.

    Example: plevel fleet move 3f2a/cpu:0-3 lab-7
    """
    from plevel.cli.output import tell
    from plevel.direct import connect

    place = option.locate(url, database)
    with connect(place.url, place.database) as service:
        service.move_device(device, token)
    given = {"device": device, "token": token}
    tell(f"{device} belongs to token {token} now", given, as_json=as_json)


def _instant(when: datetime | None) -> float | None:
    return None if when is None else when.replace(tzinfo=when.tzinfo or UTC).timestamp()


def _shown(instant: float | None) -> str:
    return "" if instant is None else f"{datetime.fromtimestamp(instant, UTC):%Y-%m-%d %H:%M} UTC"
