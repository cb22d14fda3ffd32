"""Errors that end a command: one clear line each, and an exit code."""

from __future__ import annotations


class CommandError(Exception):
    """A failure: exit code 1. The message names what failed and the remedy.

    Args:
        answered: the document of `--json` is printed already.
    """

    exit_code = 1

    def __init__(self, message: str, *, answered: bool = False) -> None:
        super().__init__(message)
        self.answered = answered


class UsageError(CommandError):
    """Wrong usage of the command line: exit code 2."""

    exit_code = 2
