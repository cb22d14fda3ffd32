"""Ask/tell search over a space of configurations. No SQL, no HTTP."""
