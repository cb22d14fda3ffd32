"""Types of the service's error documents (RFC 9457), by which they are told from those of proxies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_PREFIX = "urn:plevel:"


def problem_type(kind: str) -> str:
    """The `type` of a problem document."""
    return f"{_PREFIX}{kind}"


def kind_of(problem: Mapping[str, Any]) -> str:
    """The kind of error that the service names in a problem document; empty if it is another program's."""
    named = problem.get("type")
    return named.removeprefix(_PREFIX) if isinstance(named, str) and named.startswith(_PREFIX) else ""
