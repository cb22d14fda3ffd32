"""Options of TLS between a scheduler and its builders and workers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Authority = Annotated[
    Path | None,
    typer.Option("--tls-ca", metavar="FILE", help="The authority that signed the scheduler's certificate, in PEM."),
]
Certificate = Annotated[
    Path | None,
    typer.Option("--tls-cert", metavar="FILE", help="This host's certificate for the scheduler, in PEM."),
]
Key = Annotated[Path | None, typer.Option("--tls-key", metavar="FILE", help="The certificate's key.")]
