"""Range of days, words and sort order of lists, from the query of the URL."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import Query

from service.errors import InvalidError
from service.records.filter import MAX_TEXT
from strategy.suggestion import suggest

Words = Annotated[str, Query(max_length=MAX_TEXT)]  # `service.records.filter.has_words`


@dataclass(frozen=True)
class Span:
    """The interval from `since` to before `until`, Unix times; None is unbounded."""

    since: float | None = None
    until: float | None = None

    def conditions(self, column: Any) -> list[sa.ColumnElement[bool]]:
        found = []
        if self.since is not None:
            found.append(column >= self.since)
        if self.until is not None:
            found.append(column < self.until)
        return found


ALWAYS = Span()


def read_span(since: str, until: str) -> Span:
    """The days from `since` to `until`, both included, in UTC; an empty text is unbounded.

    Raises:
        InvalidError: not a date, or `until` is before `since`.
    """
    first, last = _read_day("since", since), _read_day("until", until)
    if first and last and last < first:
        raise InvalidError(f"until: {until} is before since ({since}): exchange them")
    return Span(first and first[0], last and last[1])


def _read_day(name: str, text: str) -> tuple[float, float] | None:
    """Return the instants at which a day begins and ends; None for an empty text."""
    if not text.strip():
        return None
    try:
        day = datetime.strptime(text.strip(), "%Y-%m-%d").replace(tzinfo=UTC)
        return day.timestamp(), (day + timedelta(days=1)).timestamp()
    except (ValueError, OverflowError) as error:
        raise InvalidError(f"{name}: {text!r:.40} is no date: write it as 2026-01-31") from error


def read_sort(text: str, known: Collection[str], default: str) -> str:
    """The column to sort a list by, with the prefix `-` for descending order.

    Raises:
        InvalidError: no such column.
    """
    if not text:
        return default
    name = text.removeprefix("-")
    if name not in known:
        meant = suggest(name, known) or f": expected one of {', '.join(known)}"
        raise InvalidError(f"sort: {name!r:.40} is no sortable column{meant}")
    return text


def read_choice(name: str, text: str, known: Collection[str]) -> str | None:
    """The value of a field that is one of a few; None if it is empty.

    Raises:
        InvalidError: it is none of them.
    """
    if text and text not in known:
        raise InvalidError(f"{name}: {text!r:.40} is unknown: expected one of {', '.join(known)}")
    return text or None


def order(sort: str, columns: Mapping[str, Any]) -> sa.UnaryExpression[Any]:
    """The ORDER BY of a query; rows without a value come last in either direction."""
    column = columns[sort.removeprefix("-")]
    found: sa.UnaryExpression[Any] = sa.desc(column) if sort.startswith("-") else sa.asc(column)
    if getattr(column, "primary_key", False):  # never NULL; no index of PostgreSQL is in the order DESC NULLS LAST
        return found
    return found.nulls_last()
