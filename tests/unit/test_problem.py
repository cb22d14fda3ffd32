"""Problem documents: what the client is told, and what the log is."""

from __future__ import annotations

from contextlib import closing

import pytest

from service.api.connection import answer_to
from service.api.problem import problem_of, response_of
from service.errors import (
    LOGGED,
    DatabaseError,
    InvalidError,
    SchemaError,
    ServiceError,
    StoppedError,
    UnansweredError,
)
from service.store.db import Store


def test_a_defect_is_logged_with_its_trace_and_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    problem = problem_of(RuntimeError("the secret of line 7"), "requests[3] of a batch")
    assert problem.status == 500
    assert "secret" not in problem.detail and "log" in problem.detail
    (record,) = caplog.records
    assert record.getMessage() == "requests[3] of a batch failed"
    assert "the secret of line 7" in (record.exc_text or str(record.exc_info))


def test_the_fault_of_a_request_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    problem = problem_of(InvalidError("inputs: none is given"), "POST /v1/select")
    assert (problem.status, problem.detail) == (422, "inputs: none is given")
    assert caplog.records == []


def test_an_absent_database_takes_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise DatabaseError("the database does not answer: gone") from OSError("no route")
    except DatabaseError as error:
        problem = problem_of(error, "GET /readyz")
    assert problem.status == 503
    (record,) = caplog.records
    assert record.getMessage() == "GET /readyz failed: the database does not answer: gone"
    assert record.exc_info is None


def test_clients_are_not_told_where_the_database_is(caplog: pytest.LogCaptureFixture) -> None:
    with closing(Store("postgresql://nobody@127.0.0.1:1/x")) as store:
        with pytest.raises(UnansweredError, match=r"127\.0\.0\.1") as caught, store.read():
            pass
        problem = problem_of(caught.value, "GET /readyz")
    assert (problem.status, problem.detail) == (503, f"the database does not answer: {LOGGED}")
    (record,) = caplog.records
    assert "127.0.0.1" in record.getMessage()


def test_a_path_writes_no_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    problem_of(DatabaseError("gone"), "GET /v1/\n2026-01-01 ERROR \x1b[31mforged\u2028é")
    (record,) = caplog.records
    assert record.getMessage() == r"GET /v1/\n2026-01-01 ERROR \x1b[31mforged\u2028é failed: gone"


@pytest.mark.parametrize(
    ("error", "again"),
    [(UnansweredError("gone"), "1"), (StoppedError("stopping"), "1"), (SchemaError("newer"), None)],
)
def test_whoever_may_succeed_soon_is_told_when(error: ServiceError, again: str | None) -> None:
    assert response_of(error, "GET /v1/runs").headers.get("retry-after") == again
    assert (b"retry-after: 1\r\n" in answer_to(error)) is (again is not None)
