"""Exit codes of commands, importable before the command line is."""

from __future__ import annotations


def interrupted(arguments: list[str]) -> int:
    """The exit code of an interrupted command: 130, but 0 of a service, of which a stop is the end."""
    return 0 if next((a for a in arguments if not a.startswith("-")), "") == "serve" else 130
