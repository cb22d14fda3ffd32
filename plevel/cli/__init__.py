"""The command line: one file per command, with shared options and output."""
