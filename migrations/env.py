"""Runs migrations on the connection that `service.migration` hands over, within its transaction."""

from __future__ import annotations

from alembic import context

from service.models import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,  # SQLite alters a table by copying it
)
context.run_migrations()
