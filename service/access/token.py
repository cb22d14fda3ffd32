"""Tokens: creation, listing, revocation and look-up. Functions run in the caller's transaction.

A token has 256 random bits, so that a plain SHA-256 of it is as hard to invert as a slower hash.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection
from typing import Any

import msgspec
import sqlalchemy as sa

from service.errors import InvalidError, NotFoundError
from service.store.listed import Texts
from service.store.namespace import check
from service.store.sql import among, now
from service.store.tables import TokenScope, token

PREFIX = "plevel_"  # recognised by scanners for leaked secrets
_LONGEST_NAME = 200
_LONGEST_S = 1e9
_NAMESPACED = frozenset({TokenScope.READ, TokenScope.SUBMIT})


class TokenInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A token without its secret. A `namespace` restricts it to that one."""

    id: int
    name: str
    scopes: tuple[TokenScope, ...]
    namespace: str | None = None
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None


class NewToken(msgspec.Struct, frozen=True, kw_only=True):
    """A new token, the only value that has its secret."""

    id: int
    secret: str


def digest_of(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def create(
    connection: sa.Connection,
    name: str,
    scopes: Collection[TokenScope],
    expires_in_s: float | None = None,
    namespace: str | None = None,
) -> NewToken:
    """A new token.

    Raises:
        InvalidError: it has no name or no scope, or would never be valid; or it has a namespace and a scope that spans
            namespaces (worker, admin).
    """
    if not 0 < len(name.strip()) <= _LONGEST_NAME or not name.isprintable():
        raise InvalidError(f"name {name!r:.80}: name its holder, in up to {_LONGEST_NAME} characters on one line")
    if expires_in_s is not None and not 0 < expires_in_s <= _LONGEST_S:
        raise InvalidError(f"expires {expires_in_s:g} s from now: give a time between a second and 30 years, or none")
    if not scopes:
        raise InvalidError(f"scopes: name at least one of {', '.join(TokenScope)}")
    if namespace is not None and not _NAMESPACED.issuperset(scopes):
        raise InvalidError("scopes: a token with a namespace may have read and submit only: leave out the others")
    if namespace is not None:
        check(namespace)
    secret = PREFIX + secrets.token_urlsafe(32)
    token_id = connection.execute(
        sa.insert(token)
        .values(
            name=name, digest=digest_of(secret), scopes=sorted(set(scopes)), namespace=namespace,
            created_at=now(),
            expires_at=None if expires_in_s is None else now() + expires_in_s,
        )
        .returning(token.c.id)
    ).scalar_one()
    return NewToken(id=int(token_id), secret=secret)


def list_all(connection: sa.Connection) -> list[TokenInfo]:
    """All tokens, the newest first, revoked ones included."""
    return [_info(row) for row in connection.execute(sa.select(token).order_by(token.c.id.desc()))]


def revoke(connection: sa.Connection, token_id: int) -> None:
    """Revoke a token; raise `NotFoundError`. Revoking it again changes nothing."""
    known = connection.execute(
        sa.update(token)
        .where(token.c.id == token_id)
        .values(revoked_at=sa.func.coalesce(token.c.revoked_at, now()))
    )
    if not known.rowcount:
        raise NotFoundError(
            f"token {token_id} does not exist: `plevel token list` lists the tokens"
        )


def find_each(connection: sa.Connection, digests: Collection[str]) -> dict[str, TokenInfo]:
    """The valid tokens of these digests, by them."""
    query = sa.select(token).where(among(token.c.digest, _DIGESTS), _is_good())
    return {row.digest: _info(row) for row in connection.execute(query, {"digests": sorted(digests)})}


_DIGESTS = sa.bindparam("digests", type_=Texts())


def find_good(connection: sa.Connection, ids: Collection[int]) -> set[int]:
    """Return the ids of the valid tokens."""
    return set(connection.scalars(sa.select(token.c.id).where(token.c.id.in_(ids), _is_good())))


def any_made(connection: sa.Connection) -> bool:
    """Return whether there has been a token: the end of the last one must not open a service."""
    return connection.scalar(sa.select(token.c.id).limit(1)) is not None


def _is_good() -> sa.ColumnElement[bool]:
    in_time = sa.or_(token.c.expires_at.is_(None), token.c.expires_at > now())
    return sa.and_(token.c.revoked_at.is_(None), in_time)


def _info(row: Any) -> TokenInfo:
    return TokenInfo(
        id=row.id, name=row.name, scopes=tuple(TokenScope(s) for s in row.scopes),
        namespace=row.namespace,
        created_at=row.created_at, expires_at=row.expires_at, revoked_at=row.revoked_at,
    )
