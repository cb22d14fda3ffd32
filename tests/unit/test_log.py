"""Log lines for machines."""

from __future__ import annotations

import json
import logging

from strategy.log import JsonFormatter


def test_a_line_has_the_ids_that_there_are() -> None:
    record = logging.LogRecord("workers.daemon", logging.INFO, "f", 1, "%s done", ("job 3",), None)
    record.run, record.job = 2, 3
    line = json.loads(JsonFormatter().format(record))
    assert line.pop("at") > 0
    assert line == {
        "level": "info", "logger": "workers.daemon", "message": "job 3 done", "run": 2, "job": 3,
    }


def test_an_exception_stays_on_one_line() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        info = (type(error), error, error.__traceback__)
    record = logging.LogRecord("service", logging.ERROR, "f", 1, "failed", (), info)
    text = JsonFormatter().format(record)
    assert "\n" not in text
    assert "two\nlines" in json.loads(text)["exception"]
