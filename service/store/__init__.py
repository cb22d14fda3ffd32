"""SQL: tables, connections, migrations, and what all that store share."""
