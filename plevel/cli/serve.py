"""`plevel serve`: the service, over a database."""

from __future__ import annotations

from typing import Annotated

import typer

from plevel.cli import option


def serve(
    database: option.Database = None,
    host: Annotated[str, typer.Option("--host", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="0 takes a free one.")
    ] = 8765,
) -> None:
    """Run the service over a database.

    It goes on until Ctrl-C or SIGTERM, and brings the schema up to date first.
    """
    where = option.locate_database(database)
    from plevel.embedded import make_folder, require_service

    require_service()
    make_folder(where)
    from service.__main__ import main

    raise typer.Exit(main(["--database", where, "--host", host, "--port", str(port)]))
