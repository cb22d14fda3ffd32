"""`plevel token`: tokens of a service."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from plevel.cli import location, option

app = typer.Typer(help="Create, list and revoke the tokens of a service.", no_args_is_help=True)


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of its holder.", show_default=False)],
    scope: Annotated[
        list[str],
        option.choice("--scope", ("read", "submit", "worker", "admin"), "A scope to allow; repeatable."),
    ],
    expires: Annotated[
        str | None, typer.Option("--expires", metavar="DURATION", help="Its lifetime: 90d, 12h …; default: no end.")
    ] = None,
    url: option.Url = None,
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", metavar="NAME", callback=option.check_given, show_default=False,
                     help="Restrict the token to this namespace."),
    ] = None,
    database: option.Database = None,
    as_json: option.AsJson = False,
) -> None:
    """Create a token and print its secret, which is not shown again.

    Example: plevel token create lab-7 --scope worker --expires 90d
    """
    from plevel.cli.output import tell

    expires_in_s = None if expires is None else option.read_duration("--expires", expires)
    place = location.locate(url, database, makes=True)
    location.make_database(place)
    with place.connect() as service:
        made = service.create_token(name, scope, expires_in_s, namespace)
    tell(made["secret"], made, as_json=as_json)


@app.command("list")
def list_tokens(
    url: option.Url = None, database: option.Database = None, as_json: option.AsJson = False
) -> None:
    """List the tokens, without their secrets.

    Example: plevel token list
    """
    from plevel.cli.output import print_rows, show_ago

    with location.locate(url, database).connect() as service:
        found = service.tokens()
    rows = (
        (str(t["id"]), t["name"], ", ".join(t["scopes"]), t.get("namespace") or "all", show_ago(t["created_at"]),
         _state(t["revoked_at"], t["expires_at"]))
        for t in found
    )
    columns = ("token", "name", "scopes", "namespace", "made", "state")
    print_rows(found, columns, rows, as_json=as_json, right=("token",), none="no tokens yet")


@app.command()
def revoke(
    token: Annotated[int, option.number("TOKEN", "Its number, from `plevel token list`.")],
    url: option.Url = None,
    database: option.Database = None,
    as_json: option.AsJson = False,
) -> None:
    """Revoke a token; it takes effect within seconds.

    Example: plevel token revoke 3
    """
    from plevel.cli.output import tell

    with location.locate(url, database).connect() as service:
        service.revoke_token(token)
    tell(f"token {token} is revoked", {"revoked": token}, as_json=as_json)


def _state(revoked_at: float | None, expires_at: float | None) -> str:
    if revoked_at is not None:
        return "revoked"
    if expires_at is None:
        return "good"
    days = (expires_at - time.time()) / 86400
    return f"valid for {days:.1f} days" if days > 0 else "expired"
