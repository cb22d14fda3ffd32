"""Tokens and the audit log, for administrators."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Response
from msgspec import Meta

from service.access import audit, token
from service.access.auth import Who
from service.api.wire import Body, describe, reply
from service.context import Ctx
from service.store.namespace import PATTERN
from service.store.tables import TokenScope
from strategy.record import Name

router = APIRouter(prefix="/v1", tags=["tokens"])


class TokenRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request for a token; without `expires_in_s` it is valid until it is revoked.

    A `namespace` restricts it to that one; its scopes are then `read` and `submit` at most.
    """

    name: Name
    scopes: Annotated[tuple[TokenScope, ...], Meta(min_length=1, max_length=4)]
    expires_in_s: Annotated[float, Meta(gt=0, le=1e9)] | None = None
    namespace: Annotated[str, Meta(pattern=PATTERN)] | None = None


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens, the newest first, without their secrets."""

    tokens: tuple[token.TokenInfo, ...]


class AuditLog(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that changed something, with who made them, the latest first."""

    entries: tuple[audit.AuditEntry, ...]


@router.post(
    "/tokens",
    **describe(
        "Create a token", takes=TokenRequest, gives=token.NewToken, status=201,
        example={"name": "lab-7", "scopes": ["worker"], "expires_in_s": 90 * 86400},
        note="Only this answer has the secret. Once a token exists, every request needs one.",
    ),
)
def create(context: Ctx, who: Who, body: Body[TokenRequest]) -> Response:
    with context.store.write() as connection:
        made = token.create(
            connection, body.name, body.scopes, body.expires_in_s, body.namespace
        )
        audit.note(
            connection, who, "token.create", token=made.id, name=body.name, scopes=body.scopes,
            namespace=body.namespace,
        )
    return reply(made, 201)


@router.get("/tokens", **describe("List tokens", gives=Tokens))
def list_tokens(context: Ctx) -> Response:
    with context.store.read() as connection:
        return reply(Tokens(tokens=tuple(token.list_all(connection))))


@router.delete(
    "/tokens/{token_id}",
    **describe(
        "Revoke a token", status=204, errors=(404,),
        note="All services refuse it within two seconds.",
    ),
)
def revoke(context: Ctx, who: Who, token_id: int) -> Response:
    with context.store.write() as connection:
        token.revoke(connection, token_id)
        audit.note(connection, who, "token.revoke", token=token_id)
    return Response(status_code=204)


@router.get("/audit", **describe("List the audit log", gives=AuditLog, errors=(422,)))
def show_audit(context: Ctx, limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> Response:
    with context.store.read() as connection:
        return reply(AuditLog(entries=tuple(audit.page(connection, limit))))
