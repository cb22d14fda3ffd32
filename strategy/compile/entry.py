"""The entry of an exported library, in C: it reads the shapes, decides the rows' conditions, and calls a row.

`workspace.h` and `entry.c` are common to all libraries; the rest, which depends on the workload, is generated here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from string import Template

import msgspec

from strategy.compile.artefact import ALIGNMENT
from strategy.compile.c_text import c_condition, c_name, c_names, c_tensor, c_type
from strategy.compile.lower import Lowered
from strategy.condition import SpecializedCondition
from strategy.extern import find_library
from strategy.signature import Argument, Role
from strategy.table import show_number
from strategy.target import Target
from strategy.types import TensorType
from strategy.workload import Workload


@dataclass(frozen=True)
class LibraryRow:
    """A lowered function, and the conditions (over symbols) that must and must not hold for it."""

    lowered: Lowered
    must: tuple[SpecializedCondition, ...] = ()
    must_not: tuple[SpecializedCondition, ...] = ()


@dataclass(frozen=True)
class Parameter:
    """A parameter of the entry: an argument of one or more rows."""

    name: str  # in C
    argument: Argument
    row: int  # the first row that has it, whose function prepares it


_HEADER = Template("""\
/* $workload
 * for $target
 *
$functions *
 * All buffers are row-major, contiguous and aligned to $alignment bytes, and no extent is 0. Functions return 0, or
 * another number on failure. $threads
 */
#ifndef $guard
#define $guard
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
$declarations
#ifdef __cplusplus
}
#endif
#endif
""")


# Of a function for TVM.
_TYPE = "(void *, const Any *, int32_t, Any *)"
# Macros for instructions that compilers of today's systems may not know by name.
_NEW = {"avx512bf16": "PLEVEL_NEED_BF16", "avx512fp16": "PLEVEL_NEED_FP16"}


@cache
def common_code() -> str:
    """The code in C that all libraries have in common: workspaces, TVM's hooks, and their arguments."""
    return "".join(files(__package__).joinpath(name).read_text() for name in ("workspace.h", "entry.c"))


def instructions_code(target: Target, dtypes: Collection[str]) -> str:
    """The macro of the instructions without which a library of kernels for these dtypes refuses to run, in C."""
    # A virtual machine may hide those of float16, by which LLVM moves bfloat16, too, and which other code has none of.
    has_narrow = any(dtype.endswith("float16") for dtype in dtypes)
    needed = [name for name in target.vector_instructions if name != "avx512fp16" or has_narrow]
    asked = (f'{_NEW.get(name, "PLEVEL_NEED")}("{name}")' for name in needed)
    return f"#define PLEVEL_INSTRUCTIONS {' '.join(asked)}"


class Entry:
    """The C function of a library, and those that prepare its constant inputs.

    Args:
        name: the C name of the function.
        workload: the workload that it computes.
        rows: the lowered functions, of which the first whose conditions hold is called.
        prefix: of the symbols of TVM's functions, for several entries in one library.
    """

    def __init__(
        self, name: str, workload: Workload, rows: Sequence[LibraryRow], prefix: str = ""
    ) -> None:
        self.prefix = prefix
        self.name = name
        self.workload = workload
        self.rows = tuple(rows)
        # For each symbolic dimension, the input and axis to read it from.
        self.dims: dict[str, tuple[str, int]] = {}
        for given in workload.all_inputs:
            for axis, dim in enumerate(given.tensor.shape):
                if not dim.is_constant:
                    self.dims.setdefault(str(dim), (given.name, axis))
        self.parameters, self._taken = _parameters(self.rows, workload, self.dims)
        self._threads = self.rows[0].lowered.signature.threads

    def header(self) -> str:
        """The text of the header, which needs no TVM."""
        lines, declarations = [], []
        for p in self.parameters:
            a = p.argument
            meaning = {
                Role.INPUT: "input",
                Role.CONSTANT: "constant input",
                Role.OUTPUT: "output, written",
                Role.PREPARED: f"prepared once from {a.name} by {self.name}_prepare_{p.name}",
            }[a.role]
            lines.append(f" *   {p.name}: {a.type}, {meaning}\n")
            if a.role is Role.PREPARED:
                declarations.append(f"{self._preparation_head(p)};")
        declarations.append(f"int {self.name}({self._arguments()});")
        if self.workload.assumptions.clauses:
            lines.append(f" *   needs {self.workload.assumptions}, and fails otherwise\n")
        for i, row in enumerate(self.rows):
            when = [str(c) for c in row.must] + [f"not ({c})" for c in row.must_not]
            lines.append(f" *   row {i}: {' and '.join(when) or 'always'}\n")
        return _HEADER.substitute(
            workload=str(self.workload).replace("*/", "* /"), target=self.rows[0].lowered.target,
            functions="".join(lines), alignment=ALIGNMENT, guard=f"PLEVEL_{self.name}_H",
            threads=f"Loops use {show_number(self._threads, 'thread')}, no more than the caller may use cores.",
            declarations="\n".join(declarations),
        )

    def source(self) -> str:
        """The text of the source, the header included."""
        dtypes = {argument.tensor.dtype for row in self.rows for argument in row.lowered.arguments}
        lines = [
            self.header(),
            f"#define PLEVEL_THREADS {self._threads}",
            f"#define PLEVEL_ALIGNMENT {ALIGNMENT}",
            *_library_threads(self.rows),
            instructions_code(self.rows[0].lowered.target, dtypes),
            common_code(),
            *self.main(),
            *self._function(),
        ]
        for p in self.parameters:
            if p.argument.preparation is not None:
                lines += self._preparation(p)
        return "\n".join(lines) + "\n"

    def main(self) -> list[str]:
        """The function `main` for TVM: find the row, and call it with its arguments."""
        place = {
            p.argument.name: i
            for i, p in enumerate(self.parameters)
            if p.argument.role is not Role.PREPARED
        }
        lines = []
        for i, row in enumerate(self.rows):
            lines += [
                f"int __tvm_ffi_{self.prefix}row{i}_{variable.name_hint}{_TYPE} PLEVEL_OWN;"
                for variable in row.lowered.module.functions
            ]
        op = self.workload.op
        count = show_number(len(self.parameters), "tensor")
        lines += [
            "",
            f"int __tvm_ffi_{self.prefix}main{_TYPE} PLEVEL_SHOWN;",
            f"int __tvm_ffi_{self.prefix}main(void *_self, const Any *_args, int32_t _count, Any *_result) {{",
            f'  if (_count != {len(self.parameters)}) return _plevel_refuse("{op}: expected {count}: see the header");',
            f"  if (_plevel_ready() || _plevel_unaligned(_args, {len(self.parameters)})) return -1;",
        ]
        for dim, (argument, axis) in self.dims.items():
            lines += [
                f"  const Tensor *_t_{dim} = tensor_of(&_args[{place[argument]}]);",
                f"  if (!_t_{dim} || _t_{dim}->ndim <= {axis})",
                f'    return _plevel_refuse("{op}: {argument} is no tensor of its type: see the header");',
                f"  const int64_t {c_name(dim)} = _t_{dim}->shape[{axis}];",
                f"  if ({c_name(dim)} < 1)",
                f'    return _plevel_refuse("{op}: {dim} is not positive: this library takes no empty tensors");',
            ]
        assumed = self.workload.assumptions
        if assumed.clauses:
            lines += [
                f"  if (!{c_condition(assumed)})",
                f'    return _plevel_refuse("{op}: {assumed} does not hold: export it for this size");',
            ]
        for i, (row, taken) in enumerate(zip(self.rows, self._taken, strict=True)):
            tests = [c_condition(c) for c in row.must] + [f"!{c_condition(c)}" for c in row.must_not]
            lines += [
                f"  if ({' && '.join(tests) or '1'}) {{",
                f"    Any _own[{len(taken)}] = {{{', '.join(f'_args[{t}]' for t in taken)}}};",
                f"    return __tvm_ffi_{self.prefix}row{i}_main(_self, _own, {len(taken)}, _result);",
                "  }",
            ]
        why = f"{op}: no row of this library is for these sizes: export it for them"
        return [*lines, f'  return _plevel_refuse("{why}");', "}", ""]

    def _function(self) -> list[str]:
        """The function for C: make tensors of pointers and extents."""
        count = len(self.parameters)
        lines = [f"int {self.name}({self._arguments()}) {{"]
        for i, p in enumerate(self.parameters):
            lines += c_tensor(f"_t{i}", p.name, p.argument.tensor)
        anys = ", ".join(f"any_of(&_t{i})" for i in range(count))
        return [
            *lines,
            f"  Any _args[{count}] = {{{anys}}}, _result = {{0}};",
            f"  return __tvm_ffi_main(NULL, _args, {count}, &_result);",
            "}",
        ]

    def _arguments(self) -> str:
        parts = [f"int64_t {c_name(d)}" for d in self.dims]
        for p in self.parameters:
            const = "" if p.argument.role is Role.OUTPUT else "const "
            parts.append(f"{const}{c_type(p.argument.tensor.dtype)} *{p.name}")
        return ", ".join(parts)

    def _source_type(self, p: Parameter) -> TensorType:
        """The type of the constant input that a preparation packs."""
        return next(i.tensor for i in self.workload.inputs if i.name == p.argument.name)

    def _preparation_head(self, p: Parameter) -> str:
        """The C function that packs a constant input."""
        from_, to = c_type(self._source_type(p).dtype), c_type(p.argument.tensor.dtype)
        name = c_name(p.argument.name)
        return f"int {self.name}_prepare_{p.name}(const {from_} *{name}, {to} *{p.name})"

    def _preparation(self, p: Parameter) -> list[str]:
        return [
            f"{self._preparation_head(p)} {{",
            "  if (_plevel_ready()) return -1;",
            *c_tensor("_from", c_name(p.argument.name), self._source_type(p)),
            *c_tensor("_to", p.name, p.argument.tensor),
            "  Any _args[2] = {any_of(&_from), any_of(&_to)}, _result = {0};",
            "  if (_plevel_unaligned(_args, 2)) return -1;",
            f"  return __tvm_ffi_row{p.row}_{p.argument.preparation}(NULL, _args, 2, &_result);",
            "}",
            f"int __tvm_ffi_prepare_{p.name}(void *self, const Any *args, int32_t count, Any *result) {{",
            "  if (_plevel_ready() || _plevel_unaligned(args, count)) return -1;",
            f"  return __tvm_ffi_row{p.row}_{p.argument.preparation}(self, args, count, result);",
            "}",
        ]


def _parameters(
    rows: Sequence[LibraryRow], workload: Workload, dims: Iterable[str]
) -> tuple[list[Parameter], list[list[int]]]:
    """The entry's parameters after `dims`, outputs last, and the indices of those of each row."""
    found: dict[tuple[str, ...], Parameter] = {}
    # Rows may know more of the extents than who calls has to say.
    types = {i.name: i.type for i in workload.all_inputs}
    for i, row in enumerate(rows):
        for a in row.lowered.arguments:
            own = a if a.role in (Role.OUTPUT, Role.PREPARED) else msgspec.structs.replace(a, type=types[a.name])
            p = found.setdefault(identity(row, a), Parameter(a.name, own, i))
            if a.role is Role.OUTPUT:
                # A row may fix dimensions: the entry has those that are symbolic in any row.
                mine, other = p.argument.tensor, a.tensor
                shape = [e if d.is_constant else d for d, e in zip(mine.shape, other.shape, strict=True)]
                general = msgspec.structs.replace(p.argument, type=str(TensorType(shape, mine.dtype)))
                found[identity(row, a)] = Parameter(p.name, general, p.row)
    ordered = sorted(found.items(), key=lambda item: item[1].argument.role is Role.OUTPUT)
    wanted = [p.name + ("_packed" if p.argument.role is Role.PREPARED else "") for _, p in ordered]
    names = c_names(wanted, [c_name(d) for d in dims])
    parameters = [
        Parameter(name, p.argument, p.row) for name, (_, p) in zip(names, ordered, strict=True)
    ]
    place = {key: i for i, (key, _) in enumerate(ordered)}
    return parameters, [[place[identity(row, a)] for a in row.lowered.arguments] for row in rows]


def identity(row: LibraryRow, argument: Argument) -> tuple[str, ...]:
    """Arguments that rows can share: the same input, or the same packing of it."""
    if argument.preparation is None:
        return (argument.name, argument.role)
    from tvm_ffi import structural_hash

    packing = row.lowered.module[argument.preparation].without_attr("global_symbol")
    return (argument.name, argument.role, argument.type, str(structural_hash(packing)))


def _library_threads(rows: Sequence[LibraryRow]) -> list[str]:
    """C code that sets the threads of the vendor library that a row calls, if any does."""
    roles = {row.lowered.signature.library for row in rows}
    library = find_library("cblas") if "cblas" in roles else None
    if library is None:
        return ["#define PLEVEL_LIBRARY_THREADS"]
    setter = library.symbol("openblas_set_num_threads")
    return [f"void {setter}(int);", f"#define PLEVEL_LIBRARY_THREADS {setter}(PLEVEL_THREADS)"]
