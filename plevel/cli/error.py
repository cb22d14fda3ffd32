"""Errors that end a command: one clear line each, and an exit code."""

from __future__ import annotations


class CommandError(Exception):
    """A failure: exit code 1. The message names what failed and the remedy."""

    exit_code = 1


class UsageError(CommandError):
    """Wrong usage of the command line: exit code 2."""

    exit_code = 2
