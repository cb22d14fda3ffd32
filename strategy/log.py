"""Logging of processes: text, or JSON with ids."""

from __future__ import annotations

import json
import logging
import sys
from typing import Literal

Form = Literal["text", "json"]
_IDS = ("run", "job", "worker", "device")


class JsonFormatter(logging.Formatter):
    """A formatter of one JSON object per line: `at` (Unix time), `level`, `logger`, `message`, and ids.

    The ids are from `extra=` of the logging call: run, job, worker, device.
    """

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name in _IDS if (value := getattr(record, name, None)) is not None}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure(form: Form, text: str, level: int = logging.INFO) -> None:
    """Make this process log to stderr, as JSON or in the format `text`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else logging.Formatter(text))
    logging.basicConfig(level=level, handlers=[handler])
