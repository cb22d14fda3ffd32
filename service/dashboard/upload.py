"""`/import`: tuning logs, read into the database from the browser."""

from __future__ import annotations

from fastapi import APIRouter, Response

from service.dashboard.view import render

router = APIRouter(include_in_schema=False)


@router.get("/import")
def show() -> Response:
    """The page; its script sends each file to `POST /v1/records:import`, which reads it as it comes."""
    return render("import.html")
