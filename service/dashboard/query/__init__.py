"""What the pages ask of the store: read-only SQL, aggregated and paged in the database."""
