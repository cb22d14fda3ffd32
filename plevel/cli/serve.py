"""`plevel serve`: run the service over a database."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from plevel.cli import location, option


def serve(
    database: option.Database = None,
    host: Annotated[
        str | None,
        typer.Option("--host", metavar="ADDRESS", help="The address to listen on [PLEVEL_HOST; default: 127.0.0.1]."),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port", metavar="PORT", min=0, max=65535,
            help="The port; 0 chooses a free one [PLEVEL_PORT; default: 8765].",
        ),
    ] = None,
    auth: Annotated[
        str | None,
        option.choice(
            "--auth", ("auto", "open", "token"),
            "Require tokens: if any exist (auto), never (open), or always (token) [PLEVEL_AUTH; default: auto].",
        ),
    ] = None,
    log: option.Log = None,
    tls_cert: Annotated[
        Path | None, typer.Option("--tls-cert", metavar="FILE", help="Serve HTTPS with this PEM certificate chain.")
    ] = None,
    tls_key: option.Key = None,
    as_json: Annotated[bool, typer.Option("--json", help="As --log json.")] = False,
) -> None:
    """Run the service over a database.

    It migrates the schema, then serves until Ctrl-C or SIGTERM. Until a token is created ('plevel token
    create'), it answers this host only.

    Example: plevel serve --database plevel.db --port 8765
    """
    where = location.locate_database(database)
    from plevel.embedded import make_folder
    from plevel.extra import require_service

    require_service()
    make_folder(where)
    from service.__main__ import run

    options = {
        "database": where, "host": host, "port": port, "auth": auth, "tls_cert": tls_cert, "tls_key": tls_key,
        "log": "json" if as_json else log,
    }
    raise typer.Exit(run(options))
