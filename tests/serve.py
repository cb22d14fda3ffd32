"""The service in a thread of this process, over a real socket."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import uvicorn

from service.__main__ import listen
from service.app import create_app
from service.settings import Settings


@contextlib.contextmanager
def serve(database: str, **settings: Any) -> Iterator[str]:
    """Serve without a tuner, so that nothing happens but what tests do; yields the URL."""
    app = create_app(Settings(database=database, tune=False, poll_s=0.2, **settings))
    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    with listen("127.0.0.1", 0) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            app.state.context.stop()
            thread.join()
