"""`/docs`: the REST interface, as Swagger UI shows its OpenAPI document."""

from __future__ import annotations

from fastapi import APIRouter, Response

from service.dashboard.view import render

router = APIRouter(include_in_schema=False)


@router.get("/docs")
def show() -> Response:
    """The page; its files are this service's own, so that it is complete without another host."""
    return render("docs.html")
