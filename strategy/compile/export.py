"""Shared libraries for use without plevel: one entry that checks the shapes and calls a row, with a header.

A library has the functions of one or more rows (a selection has one, a dispatch table several). Its entry
(`entry.py`) reads the symbolic dimensions and calls the row whose conditions hold. C calls the header's function,
which needs no TVM: without TVM's runtime, parallel loops run on OpenMP. TVM loads the same file as a module
with the function `main`.
"""

from __future__ import annotations

import os
import shlex
import shutil
import struct
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import msgspec

from strategy.compile.c_text import c_word
from strategy.compile.entry import Entry, LibraryRow, identity
from strategy.compile.huge_page import HUGE_PAGE, MOST_PAGE
from strategy.compile.lower import Lowered, lower
from strategy.draft import drafted
from strategy.extern import find_library
from strategy.fault import CompileError, InstantiationError, ToolError
from strategy.folder import scratch
from strategy.select import Reason
from strategy.select.dispatch import DispatchTable, Row
from strategy.space import Config, ConfigError
from strategy.workload import Workload


def lower_row(table: DispatchTable, row: Row) -> Lowered:
    """The function of one row; raise `InstantiationError` as `table_rows`."""
    shape = table.workload.bind(table.pinned(row.holds))
    try:
        return lower(shape, table.target, row.implementation, row.config)
    except ConfigError:
        # From the space for symbols, which the space of this size need not contain.
        return lower(table.workload, table.target, row.implementation, row.config)


def table_rows(table: DispatchTable) -> list[LibraryRow]:
    """The rows of a dispatch table, lowered.

    Raises:
        InstantiationError: a chosen implementation cannot be lowered with the dimension symbolic.
    """
    rows = []
    for row in table.rows:
        lowered = lower_row(table, row)
        pairs = list(zip(table.conditions, row.holds, strict=True))
        rows.append(
            LibraryRow(
                lowered,
                tuple(c for c, held in pairs if held),
                tuple(c for c, held in pairs if not held),
            )
        )
    return rows


def pack_once(table: DispatchTable) -> DispatchTable:
    """The table with one packing of each constant for all of its rows, where an implementation is valid in all.

    A row keeps its implementation where that can pack as the common one does, with the knobs that they share
    alike; elsewhere it takes the common one.
    """
    if len(table.rows) == 1:  # nothing to compare, and each lowering takes time
        return table
    names = set(table.rows[0].valid).intersection(*(row.valid for row in table.rows))
    usable = [c for c in table.candidates if c.implementation in names]
    if not usable:
        return table
    first = max(usable, key=lambda c: c.plevel)
    common = Row(
        holds=(), example={}, valid=(), implementation=first.implementation, version=first.version,
        config=first.fallback, reason=Reason.PLEVEL,
    )
    common = next((row for row in table.rows if row.implementation in names), common)
    wanted = _packings(lower(table.workload, table.target, common.implementation, common.config))

    def packed(row: Row) -> Row:
        shared = {name: common.config.get(name, value) for name, value in row.config.items()}
        for config in (row.config, Config(shared)):
            tried = msgspec.structs.replace(row, config=config)
            with suppress(InstantiationError, ConfigError):
                if _packings(lower_row(table, tried)) == wanted:
                    return tried
        chosen = {n: getattr(common, n) for n in ("implementation", "version", "config", "reason")}
        return msgspec.structs.replace(row, **chosen, ratio={})

    return msgspec.structs.replace(table, rows=tuple(map(packed, table.rows)))


def _packings(lowered: Lowered) -> set[tuple[str, ...]]:
    row = LibraryRow(lowered)
    return {identity(row, a) for a in lowered.arguments if a.preparation is not None}


def export_library(
    workload: Workload,
    rows: Sequence[LibraryRow],
    path: Path,
    name: str | None = None,
    *,
    bundle: bool = False,
) -> Path:
    """Write the shared library to `path`, and its header beside it with the suffix `.h`.

    Args:
        name: the C name of the function; default: `plevel_OP`.
        bundle: copy the vendor libraries that it calls beside it and load those, so that the folder can
            be moved; otherwise it loads them from their paths on this host.

    Returns:
        The header's path. A failed compilation leaves no files.

    Raises:
        CompileError: there is no C compiler, or it failed.
        ExternError: a vendor library to copy cannot be loaded.
    """
    entry = Entry(name or f"plevel_{c_word(workload.op)}", workload, rows)
    with scratch("draft") as made:
        merge(rows).compile().write_object(made / "rows.o")
        (made / "entry.c").write_text(entry.source(), encoding="utf-8")
        libraries = vendor_libraries(rows)
        _link(made, path, libraries, entry.header(), beside=bundle)
    if bundle:
        for library in libraries:
            if library.resolve() != (path.parent / library.name).resolve():
                place(library, path.parent / library.name)
    return path.with_suffix(".h")


def vendor_libraries(rows: Iterable[LibraryRow]) -> list[Path]:
    """The files of the vendor libraries that the rows call.

    Raises:
        ExternError: a library of the system cannot be loaded.
    """
    roles = sorted({row.lowered.signature.library or "" for row in rows} - {""})
    return [library.file for library in map(find_library, roles) if library is not None]


def merge(rows: Sequence[LibraryRow], prefix: str = "") -> Lowered:
    """One module of all rows, their functions called `rowN_main`, `rowN_prepare_…` after the prefix."""
    import tvm

    functions = {}
    for i, row in enumerate(rows):
        for variable, function in row.lowered.module.functions.items():
            symbol = f"{prefix}row{i}_{variable.name_hint}"
            functions[symbol] = function.with_attr("global_symbol", symbol)
    first = rows[0].lowered
    return Lowered(tvm.IRModule(functions), first.signature, first.target)


def _link(made: Path, path: Path, libraries: Iterable[Path], header: str, *, beside: bool) -> None:
    inputs = ["-fopenmp", "entry.c", "rows.o"]
    for library in libraries:
        inputs += [str(library), f"-Wl,-rpath,{'$ORIGIN' if beside else library.parent}"]
    place(link(inputs, made), path, {".h": header})


def find_compiler() -> str | None:
    """The command of the C compiler, None if this host has none."""
    return os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def missing_compiler() -> str:
    """The reason why there is no C compiler, and the remedy; empty where there is one."""
    try:
        words = compiler_command()
    except ToolError as error:
        return str(error)
    if shutil.which(words[0]):
        return ""
    return f"CC names {shlex.join(words)!r:.80}, which is no program: correct it, or unset it"


def compiler_command() -> list[str]:
    """The words of the C compiler's command.

    Raises:
        ToolError: there is no C compiler, or CC cannot be read.
    """
    compiler = find_compiler()
    if compiler is None:
        raise ToolError("no C compiler is on PATH: install gcc or clang (Debian: apt install gcc), or set CC")
    try:
        words = shlex.split(compiler)
    except ValueError:  # a quote that is not closed
        words = []
    if not words:
        raise ToolError(f"CC = {compiler!r:.80} is no command: correct its quotes, or unset it")
    return words


def link(inputs: Sequence[str], folder: Path) -> Path:
    """A shared library of C sources and objects, made in the folder, which `inputs` are relative to.

    Args:
        inputs: the files, and options of the compiler's before them.

    Raises:
        CompileError: the C compiler failed.
        ToolError: there is none, or it cannot be run.
    """
    compiler = compiler_command()
    made = folder / "library.so"
    command = [*compiler, "-O2", "-fPIC", "-shared", *inputs, "-o", str(made), "-lm"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except OSError as error:
        named = shlex.join(compiler)
        raise ToolError(f"{named} cannot be run (set CC for another compiler): {error.strerror}") from error
    if done.returncode:
        raise CompileError(
            f"{' '.join(command)} failed (set CC for another compiler): {done.stderr.strip()[-2000:]}"
        )
    return made


def place(source: Path, path: Path, beside: Mapping[str, str] | None = None, appended: Path | None = None) -> None:
    """Copy a library, with texts `beside` it by their suffixes; raise `OSError` as `drafted` does.

    Args:
        appended: a file for its end, to be mapped from where the last eight bytes say.
    """
    with drafted(path, (*(beside or {}), path.suffix)) as draft:
        with draft.open("wb") as copy:
            _copy(source, copy)
            if appended is not None:
                page = HUGE_PAGE if appended.stat().st_size >= HUGE_PAGE else MOST_PAGE
                begin = -(-copy.tell() // page) * page
                copy.seek(begin)
                _copy(appended, copy)
                copy.write(struct.pack("=Q", begin))
        draft.chmod(0o755)
        for suffix, text in (beside or {}).items():
            draft.with_suffix(suffix).write_text(text, encoding="utf-8")  # as JSON is, whatever the locale


def _copy(source: Path, copy: BinaryIO) -> None:
    # In large writes, after which file systems have it in huge pages: not by `shutil.copyfile`.
    with source.open("rb") as whole:
        shutil.copyfileobj(whole, copy, 4 * HUGE_PAGE)
