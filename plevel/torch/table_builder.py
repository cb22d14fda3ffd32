"""Building of dispatch tables: the child that compiles the rows of one to a library with one entry."""

from __future__ import annotations

from pathlib import Path

import msgspec

from strategy.compile.entry import Entry
from strategy.compile.export import export_library, pack_once, table_rows
from strategy.record import convert
from strategy.select.dispatch import DispatchTable
from strategy.signature import Argument, Role
from workers.fork import Channel


class BuildTable(msgspec.Struct, frozen=True, kw_only=True):
    """A request: a table, and the path for its library."""

    table: DispatchTable
    path: str


class Interface(msgspec.Struct, frozen=True):
    """A library's arguments, and of a table's library the rows as they were built.

    `packs` has the workload's input of each packed argument that is named otherwise.
    """

    arguments: tuple[Argument, ...]
    packs: dict[str, str] = {}
    implementation: str = ""
    explanation: str = ""


def serve(channel: Channel) -> None:
    """The child's loop; an answer is the error, empty if there is none."""
    while True:
        request = convert(channel.receive(), BuildTable)
        try:
            _build(request.table, Path(request.path))
        except Exception as error:  # TVM and LLVM raise various exceptions
            channel.send({"error": f"{type(error).__name__}: {error}"})
        else:
            channel.send({"error": ""})


def _build(table: DispatchTable, path: Path) -> None:
    table = pack_once(table)
    rows = table_rows(table)
    export_library(table.workload, rows, path)
    arguments, packs = [], {}
    for p in Entry("plevel", table.workload, rows).parameters:
        given = p.argument
        if given.role is Role.PREPARED:
            packs[p.name] = given.name
            given = Argument(p.name, given.role, given.type)
        arguments.append(given)
    names = ", ".join(dict.fromkeys(row.implementation for row in table.rows))
    found = Interface(tuple(arguments), packs, names, table.explanation.replace("\n", "; "))
    path.with_name(f"{path.name}.json").write_bytes(msgspec.json.encode(found))
