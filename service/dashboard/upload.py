"""`/import`: import of tuning logs from the browser."""

from __future__ import annotations

from fastapi import APIRouter, Response

from service.dashboard.view import render

router = APIRouter(include_in_schema=False)


@router.get("/import")
def show() -> Response:
    """The page, whose script streams each file to `POST /v1/records:import`."""
    return render("import.html")
