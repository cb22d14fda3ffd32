"""SQL: tables, connections, migrations, and common parts of all that store."""
