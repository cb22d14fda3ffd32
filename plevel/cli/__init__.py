"""The command line: one file per command, the shared options, and what is shown."""
