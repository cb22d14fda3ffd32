"""Help of commands: panels of a group, examples to copy, and terminals that are too narrow for two columns."""

from __future__ import annotations

import shutil
from functools import partial
from typing import Any

from typer.core import TyperGroup

WIDEST = 100  # columns of help
_LONGEST = 200  # characters of the line on a command, which is wrapped: none has more
_NARROW = 52  # columns below which click's layout is wider than the terminal
_NAME = 8  # columns of names beside their texts there; longer ones stand above them


class Panels(TyperGroup):
    """A group whose help lists its commands by purpose, with the whole line on each."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        known: dict[str, Any] = dict(self.commands)
        panels: dict[str, dict[str, Any]] = {}
        for name, command in known.items():
            panels.setdefault(command.rich_help_panel or "Commands", {})[name] = command
        indent = max(map(len, known))
        for panel, commands in panels.items():
            with formatter.section(panel):
                formatter.write_dl([(n.ljust(indent), c.get_short_help_str(_LONGEST)) for n, c in commands.items()])


def lay_out(command: Any) -> None:
    """Lay out the help of a command and of those in it."""
    # A terminal would paste each line of an example that is wrapped as a command.
    text, mark, example = (command.help or "").partition("Example: ")
    if mark:
        command.help = f"{text}\b\n{mark}{' '.join(example.split())}"
    command.get_help = partial(_help_of, command)
    for of in getattr(command, "commands", {}).values():
        lay_out(of)


def _help_of(command: Any, context: Any) -> str:
    """The text of a command's help, as wide as the terminal."""
    formatter = context.make_formatter()
    columns = shutil.get_terminal_size().columns
    if columns < _NARROW:
        formatter.width = max(columns - 1, _NAME)
        formatter.write_dl = partial(formatter.write_dl, col_max=_NAME)
    command.format_help(context, formatter)
    text: str = formatter.getvalue().rstrip("\n")
    return text
