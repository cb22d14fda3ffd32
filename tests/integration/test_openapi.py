"""Every operation of the OpenAPI document, asked as its schemas have it and as they do not: what it answers
is documented, and never a 5xx.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import requests
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strategy.record import RunStatus
from tests.integration.process import Service
from tests.integration.scene import request

if TYPE_CHECKING:
    # Loaded by the test only, as each process collects all.
    from schemathesis import APIOperation, Case

pytestmark = pytest.mark.in_turn("url")

ENDLESS = "GET /v1/runs/{run_id}/events"  # until the run ends


@pytest.fixture
def service(url: str, tmp_path: Path) -> Iterator[Service]:
    """A service that knows something; with `auto` the first token that is made would shut us out."""
    started = Service(url, tmp_path, PLEVEL_AUTH="open")
    run = started.call("POST", "/v1/runs", request(), RunStatus)
    started.work(started.register(), run.id, jobs=1)
    yield started
    started.close()


def operations(service: Service) -> list[APIOperation]:
    from schemathesis import openapi

    schema = openapi.from_url(f"{service.url}/openapi.json")
    found = [o for result in schema.get_all_operations() if (o := result.ok()).label != ENDLESS]
    assert len(found) > 30
    return found


def questions(operation: APIOperation) -> list[st.SearchStrategy[Case]]:
    """Valid ones, of anything and of what is there, and invalid ones, where it takes anything at all."""
    from schemathesis import GenerationMode

    described = operation.definition.raw
    found = [operation.as_strategy()]
    if operation.path_parameters:
        first = {p.name: 1 for p in operation.path_parameters}
        found.append(operation.as_strategy(path_parameters=first))
    if described.get("parameters") or described.get("requestBody"):
        found.append(operation.as_strategy(GenerationMode.NEGATIVE))
    return found


def test_answers_are_documented_and_never_a_server_s_error(service: Service, full: bool) -> None:
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi import checks

    found = [
        not_a_server_error, checks.status_code_conformance, checks.content_type_conformance,
        checks.response_schema_conformance,
    ]
    sample = settings(max_examples=40 if full else 1, suppress_health_check=list(HealthCheck))
    with requests.Session() as session:

        def ask(case: Case) -> None:
            if isinstance(case.body, dict) and "wait_s" in case.body:
                case.body["wait_s"] = 0
            case.call_and_validate(checks=found, session=session)

        for operation in operations(service):
            for cases in questions(operation):
                sample(given(cases)(ask))()
