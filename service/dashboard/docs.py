"""`/docs`: the OpenAPI document in Swagger UI."""

from __future__ import annotations

from fastapi import APIRouter, Response

from service.dashboard.view import render

router = APIRouter(include_in_schema=False)


@router.get("/docs")
def show() -> Response:
    """The page, whose files all come from this service."""
    return render("docs.html")
