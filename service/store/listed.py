"""Lists as one parameter of a statement: an array of PostgreSQL, JSON on SQLite."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql


class Integers(sa.TypeDecorator[Sequence[int]]):
    """Ids; integers beyond their range are left out, as no row has them."""

    impl = sa.String
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> Any:
        kind = sa.String() if dialect.name == "sqlite" else postgresql.ARRAY(sa.BigInteger())
        return dialect.type_descriptor(kind)

    def process_bind_param(self, value: Iterable[int] | None, dialect: sa.Dialect) -> Any:
        listed = [i for i in value or () if -(2**63) <= i < 2**63]
        return orjson.dumps(listed).decode() if dialect.name == "sqlite" else listed


class Texts(sa.TypeDecorator[Sequence[str]]):
    impl = sa.String
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> Any:
        return dialect.type_descriptor(sa.String() if dialect.name == "sqlite" else postgresql.ARRAY(sa.Text()))

    def process_bind_param(self, value: Sequence[str] | None, dialect: sa.Dialect) -> Any:
        return orjson.dumps(value).decode() if dialect.name == "sqlite" else value
