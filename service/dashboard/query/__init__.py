"""Queries of the pages: read-only SQL, aggregated and paged in the database."""
