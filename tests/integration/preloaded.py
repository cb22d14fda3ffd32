"""Everything that services of tests are forked with, which no collection of garbage looks at again and so copies."""

from __future__ import annotations

import gc

import psycopg  # noqa: F401 - loaded here, as the next ones, so that no service does it
import uvicorn.lifespan.on
import uvicorn.protocols.http.httptools_impl  # noqa: F401

import strategy.ops  # noqa: F401
import tests.integration.forked  # noqa: F401

gc.freeze()
