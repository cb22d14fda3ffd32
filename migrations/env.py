"""Runs migrations on the connection that `service.store.migration` hands over, within its transaction."""

from __future__ import annotations

from alembic import context

from service.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,  # SQLite alters a table by copying it
)
context.run_migrations()
