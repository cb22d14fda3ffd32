"""Shared libraries for use without plevel: one entry that checks the shapes and jumps, with a header.

A library holds the functions of one or more rows (a selection has one, a dispatch table several).
Its entry reads the symbolic dimensions, decides the rows' conditions and calls the row that holds.
It can be called from C by the header's function, which needs no TVM: where the runtime of TVM is
not loaded, parallel loops run on OpenMP. TVM loads the same file as a module with the function
`main`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

from strategy.condition import Expr, ExpressionError, SpecializedCondition
from strategy.dispatch import DispatchTable
from strategy.extern import find_library
from strategy.lower import ALIGNMENT, Argument, CompileError, Lowered, Role, lower
from strategy.space import ConfigError
from strategy.types import TensorType
from strategy.workload import Workload

_C_TYPES = {
    "float64": "double", "float32": "float", "float16": "uint16_t", "bfloat16": "uint16_t",
    "bool": "uint8_t",
}  # fmt: skip
# What C, and the entry's own code, has taken already; names with an underscore in front are the entry's.
_TAKEN = frozenset(
    "auto break case char const continue default do double else enum extern float for goto if inline "
    "int long register restrict return short signed sizeof static struct switch typedef union unsigned "
    "void volatile while alignas alignof bool constexpr false nullptr thread_local true typeof asm "
    "linux unix errno stdin stdout stderr NAN INFINITY NULL INT64_C MIN MAX CPU Any Tensor Body log2 "
    "ceil_div floor_div floor_mod tensor_of any_of "
    # C++ includes the header, too.
    "and and_eq bitand bitor catch class compl concept const_cast decltype delete dynamic_cast explicit "
    "export friend mutable namespace new noexcept not not_eq operator or or_eq private protected public "
    "reinterpret_cast requires static_assert static_cast template this throw try typeid typename using "
    "virtual wchar_t xor xor_eq".split()
)
_DTYPE_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "bool": 6}


@dataclass(frozen=True)
class LibraryRow:
    """A lowered function, and the conditions (over symbols) that must and must not hold for it."""

    lowered: Lowered
    must: tuple[SpecializedCondition, ...] = ()
    must_not: tuple[SpecializedCondition, ...] = ()


@dataclass(frozen=True)
class _Parameter:
    """A parameter of the entry: an argument that one or more rows share."""

    name: str  # in C
    argument: Argument
    row: int  # the first row that takes it: whose preparation makes it


def table_rows(table: DispatchTable) -> list[LibraryRow]:
    """The rows of a dispatch table, lowered.

    Raises:
        InstantiationError: a chosen implementation cannot be lowered with the dimension symbolic.
    """
    rows = []
    for row in table.rows:
        shape = table.workload.bind(table.pinned(row.holds))
        try:
            lowered = lower(shape, table.target, row.implementation, row.config)
        except ConfigError:
            # Chosen from the space for symbols, which that for the one size need not contain.
            lowered = lower(table.workload, table.target, row.implementation, row.config)
        pairs = list(zip(table.conditions, row.holds, strict=True))
        rows.append(
            LibraryRow(
                lowered,
                tuple(c for c, held in pairs if held),
                tuple(c for c, held in pairs if not held),
            )
        )
    return rows


def export_library(
    workload: Workload, rows: Sequence[LibraryRow], path: Path, name: str | None = None
) -> Path:
    """Writes the shared library to `path`, and its header beside it with the suffix `.h`.

    Args:
        name: what C calls the function; `plevel_OP` where None.

    Returns:
        The header's path. Nothing is left behind where the export fails.

    Raises:
        CompileError: no C compiler, or it failed.
    """
    name = name or f"plevel_{_word(workload.op)}"
    dims = _dims(workload)
    parameters, by_row = _parameters(rows, dims)
    header = _header(name, workload, rows, parameters, dims)
    source = header + _source(name, workload, rows, parameters, by_row, dims)
    with tempfile.TemporaryDirectory(prefix="plevel-") as folder:
        made = Path(folder)
        _merge(rows).compile().write_object(made / "rows.o")
        (made / "entry.c").write_text(source)
        _link(made, path, {row.lowered.signature.library for row in rows} - {None})
    header_path = path.with_suffix(".h")
    header_path.write_text(header)
    return header_path


def _merge(rows: Sequence[LibraryRow]) -> Lowered:
    """One module of all rows, their functions called `rowN_main`, `rowN_prepare_…`."""
    import tvm

    functions = {}
    for i, row in enumerate(rows):
        for variable, function in row.lowered.module.functions.items():
            symbol = f"row{i}_{variable.name_hint}"
            functions[symbol] = function.with_attr("global_symbol", symbol)
    first = rows[0].lowered
    return Lowered(tvm.IRModule(functions), first.signature, first.target)


def _parameters(
    rows: Sequence[LibraryRow], dims: Iterable[str]
) -> tuple[list[_Parameter], list[list[int]]]:
    """The entry's parameters after `dims`, outputs last; and for each row which of them it takes."""
    found: dict[tuple[str, ...], _Parameter] = {}
    for i, row in enumerate(rows):
        for a in row.lowered.arguments:
            p = found.setdefault(_identity(row, a), _Parameter(a.name, a, i))
            if p.argument.tensor.is_constant and not a.tensor.is_constant:
                # A row may be for one size only: the entry takes what is symbolic in another.
                found[_identity(row, a)] = _Parameter(a.name, a, p.row)
    ordered = sorted(found.items(), key=lambda item: item[1].argument.role is Role.OUTPUT)
    names: dict[str, int] = {_c_name(d): 1 for d in dims}
    parameters = []
    for _, p in ordered:
        base = _c_name(p.name) + ("_packed" if p.argument.role is Role.PREPARED else "")
        names[base] = names.get(base, 0) + 1
        unique = base if names[base] == 1 else f"{base}{names[base]}"
        parameters.append(_Parameter(unique, p.argument, p.row))
    place = {key: i for i, (key, _) in enumerate(ordered)}
    return parameters, [[place[_identity(row, a)] for a in row.lowered.arguments] for row in rows]


def _identity(row: LibraryRow, argument: Argument) -> tuple[str, ...]:
    """Arguments that rows can share: the same input, or the same packing of it."""
    if argument.preparation is None:
        return (argument.name, argument.role)
    from tvm_ffi import structural_hash

    packing = row.lowered.module[argument.preparation].without_attr("global_symbol")
    return (argument.name, argument.role, argument.type, str(structural_hash(packing)))


def _word(text: str) -> str:
    """A text as a part of a name in C: `data.0` is `data_0`."""
    return re.sub(r"\W", "_", text, flags=re.ASCII)


def _c_name(name: str) -> str:
    """What C calls an input or a dimension: by its own name, unless that is taken."""
    word = _word(name)
    return f"x_{word}" if word in _TAKEN or word.startswith(("_", "x_")) or word[0].isdigit() else word


def is_free(name: str) -> bool:
    """Whether a function of C, and of C++, may be called so beside what a library's entry needs."""
    return name.isascii() and name.isidentifier() and name not in _TAKEN


def _dims(workload: Workload) -> dict[str, tuple[str, int]]:
    """Each symbolic dimension: of which input it is read, and on which axis."""
    found: dict[str, tuple[str, int]] = {}
    for given in workload.inputs:
        for axis, dim in enumerate(given.tensor.shape):
            if not dim.is_constant:
                found.setdefault(str(dim), (given.name, axis))
    return found


_HEADER = Template("""\
/* $workload
 * for $target
 *
$functions *
 * All buffers are row-major, contiguous and aligned to $alignment bytes. Functions return 0, or
 * another number where they failed. $threads
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


def _header(
    name: str,
    workload: Workload,
    rows: Sequence[LibraryRow],
    parameters: Sequence[_Parameter],
    dims: Mapping[str, Any],
) -> str:
    lines, declarations = [], []
    for p in parameters:
        a = p.argument
        meaning = {
            Role.INPUT: "input",
            Role.CONSTANT: "constant input",
            Role.OUTPUT: "output, written",
            Role.PREPARED: f"prepared once from {a.name} by {name}_prepare_{p.name}",
        }[a.role]
        lines.append(f" *   {p.name}: {a.type}, {meaning}\n")
        if a.role is Role.PREPARED:
            source = _source_type(workload, a)
            declarations.append(f"{_preparation_head(name, p, source)};")
    declarations.append(f"int {name}({_c_arguments(parameters, dims)});")
    for i, row in enumerate(rows):
        when = [str(c) for c in row.must] + [f"not ({c})" for c in row.must_not]
        lines.append(f" *   row {i}: {' and '.join(when) or 'always'}\n")
    threads = rows[0].lowered.signature.threads
    return _HEADER.substitute(
        workload=str(workload).replace("*/", "* /"), target=rows[0].lowered.target,
        functions="".join(lines), alignment=ALIGNMENT, guard=f"{name.upper()}_H",
        threads=f"Parallel loops use {threads} thread{'s' if threads > 1 else ''}.",
        declarations="\n".join(declarations),
    )  # fmt: skip


def _source_type(workload: Workload, argument: Argument) -> TensorType:
    """The type of the constant input that a preparation packs."""
    return next(i.tensor for i in workload.inputs if i.name == argument.name)


def _preparation_head(name: str, p: _Parameter, source: TensorType) -> str:
    """The C function that packs a constant input."""
    from_, to = _c_type(source.dtype), _c_type(p.argument.tensor.dtype)
    return f"int {name}_prepare_{p.name}(const {from_} *{_c_name(p.argument.name)}, {to} *{p.name})"


def _c_type(dtype: str) -> str:
    return _C_TYPES.get(dtype, f"{dtype}_t")


def _c_arguments(parameters: Sequence[_Parameter], dims: Mapping[str, Any]) -> str:
    parts = [f"int64_t {_c_name(d)}" for d in dims]
    for p in parameters:
        const = "" if p.argument.role is Role.OUTPUT else "const "
        parts.append(f"{const}{_c_type(p.argument.tensor.dtype)} *{p.name}")
    return ", ".join(parts)


_RUNTIME = """
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

/* The C ABI of tvm_ffi, as far as a caller needs it. */
typedef struct {
  int32_t type_index;
  uint32_t padding;
  union { int64_t i; double d; void *p; } v;
} Any;
typedef struct {
  void *data;
  struct { int32_t type, id; } device;
  int32_t ndim;
  struct { uint8_t code, bits; uint16_t lanes; } dtype;
  int64_t *shape, *strides;
  uint64_t byte_offset;
} Tensor;
typedef int (*Body)(int task, void *group, void *data);
enum { DLTENSOR_POINTER = 7, TENSOR_OBJECT = 70, OBJECT_HEADER = 24, CPU = 1 };

/* The runtime of TVM sets these pointers when it loads the library. */
extern int (*__TVMBackendParallelLaunch)(Body, void *, int) __attribute__((weak));
extern void *(*__TVMBackendAllocWorkspace)(int, int, uint64_t, int, int) __attribute__((weak));
extern int (*__TVMBackendFreeWorkspace)(int, int, void *) __attribute__((weak));

static int plevel_launch(Body body, void *data, int tasks) {
  struct { void *sync; int32_t tasks; } group = {NULL, tasks > 0 ? tasks : PLEVEL_THREADS};
  int failed = 0;
  #pragma omp parallel for schedule(static, 1) num_threads(group.tasks) reduction(|:failed)
  for (int task = 0; task < group.tasks; ++task) failed |= body(task, &group, data);
  return failed;
}
static void *plevel_alloc(int type, int id, uint64_t bytes, int code, int bits) {
  (void)type, (void)id, (void)code, (void)bits;
  return aligned_alloc(PLEVEL_ALIGNMENT, (bytes + PLEVEL_ALIGNMENT - 1) & ~(PLEVEL_ALIGNMENT - 1ULL));
}
static int plevel_free(int type, int id, void *memory) {
  (void)type, (void)id;
  free(memory);
  return 0;
}
static void plevel_ready(void) {
  PLEVEL_LIBRARY_THREADS;
  if (&__TVMBackendAllocWorkspace && !__TVMBackendAllocWorkspace)
    __TVMBackendAllocWorkspace = plevel_alloc;
  if (&__TVMBackendFreeWorkspace && !__TVMBackendFreeWorkspace)
    __TVMBackendFreeWorkspace = plevel_free;
  if (&__TVMBackendParallelLaunch && !__TVMBackendParallelLaunch)
    __TVMBackendParallelLaunch = plevel_launch;
}
__attribute__((weak)) void TVMFFIErrorSetRaisedFromCStrParts(
    const char *kind, const char **parts, int32_t count) {
  fprintf(stderr, "%s: ", kind);
  for (int32_t i = 0; i < count; ++i) if (parts[i]) fputs(parts[i], stderr);
  fputc('\\n', stderr);
}
static inline int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a ^ b) < 0); }
static inline int64_t ceil_div(int64_t a, int64_t b) { return -floor_div(-a, b); }
static inline int64_t floor_mod(int64_t a, int64_t b) { return a - b * floor_div(a, b); }
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))
static inline Tensor *tensor_of(const Any *a) {
  if (a->type_index == DLTENSOR_POINTER) return (Tensor *)a->v.p;
  return a->type_index == TENSOR_OBJECT ? (Tensor *)((char *)a->v.p + OBJECT_HEADER) : NULL;
}
static inline Any any_of(Tensor *t) { Any a = {DLTENSOR_POINTER, 0, {.p = t}}; return a; }
"""


def _source(
    name: str,
    workload: Workload,
    rows: Sequence[LibraryRow],
    parameters: Sequence[_Parameter],
    by_row: Sequence[Sequence[int]],
    dims: Mapping[str, tuple[str, int]],
) -> str:
    place = {
        p.argument.name: i for i, p in enumerate(parameters) if p.argument.role is not Role.PREPARED
    }
    threads = rows[0].lowered.signature.threads
    lines = [
        f"\n#define PLEVEL_THREADS {threads}",
        f"#define PLEVEL_ALIGNMENT {ALIGNMENT}",
        *_library_threads(rows),
        _RUNTIME,
    ]
    for i, row in enumerate(rows):
        lines += [
            f"int __tvm_ffi_row{i}_{variable.name_hint}(void *, const Any *, int32_t, Any *);"
            for variable in row.lowered.module.functions
        ]
    lines += [
        "",
        "int __tvm_ffi_main(void *_self, const Any *_args, int32_t _count, Any *_result) {",
        f"  if (_count != {len(parameters)}) return -1;",
        "  plevel_ready();",
    ]
    for dim, (argument, axis) in dims.items():
        lines += [
            f"  const Tensor *_t_{dim} = tensor_of(&_args[{place[argument]}]);",
            f"  if (!_t_{dim} || _t_{dim}->ndim <= {axis}) return -1;",
            f"  const int64_t {_c_name(dim)} = _t_{dim}->shape[{axis}];",
        ]
    for i, (row, taken) in enumerate(zip(rows, by_row, strict=True)):
        tests = [_c_condition(c) for c in row.must] + [f"!{_c_condition(c)}" for c in row.must_not]
        lines += [
            f"  if ({' && '.join(tests) or '1'}) {{",
            f"    Any _own[{len(taken)}] = {{{', '.join(f'_args[{t}]' for t in taken)}}};",
            f"    return __tvm_ffi_row{i}_main(_self, _own, {len(taken)}, _result);",
            "  }",
        ]
    lines += ["  return -2;", "}", ""]
    lines += _c_entry(name, parameters, dims)
    for p in parameters:
        if p.argument.preparation is not None:
            lines += _c_preparation(name, p, _source_type(workload, p.argument))
    return "\n".join(lines) + "\n"


def _library_threads(rows: Sequence[LibraryRow]) -> list[str]:
    """How the entry sets the threads of the vendor library that a row calls, if any does."""
    roles = {row.lowered.signature.library for row in rows}
    library = find_library("cblas") if "cblas" in roles else None
    if library is None:
        return ["#define PLEVEL_LIBRARY_THREADS"]
    setter = library.symbol("openblas_set_num_threads")
    return [f"void {setter}(int);", f"#define PLEVEL_LIBRARY_THREADS {setter}(PLEVEL_THREADS)"]


def _c_entry(name: str, parameters: Sequence[_Parameter], dims: Mapping[str, Any]) -> list[str]:
    lines = [f"int {name}({_c_arguments(parameters, dims)}) {{"]
    for i, p in enumerate(parameters):
        lines += _c_tensor(f"_t{i}", p.name, p.argument.tensor)
    anys = ", ".join(f"any_of(&_t{i})" for i in range(len(parameters)))
    return [
        *lines,
        f"  Any _args[{len(parameters)}] = {{{anys}}}, _result = {{0}};",
        f"  return __tvm_ffi_main(NULL, _args, {len(parameters)}, &_result);",
        "}",
    ]


def _c_preparation(name: str, p: _Parameter, source: TensorType) -> list[str]:
    return [
        f"{_preparation_head(name, p, source)} {{",
        "  plevel_ready();",
        *_c_tensor("_from", _c_name(p.argument.name), source),
        *_c_tensor("_to", p.name, p.argument.tensor),
        "  Any _args[2] = {any_of(&_from), any_of(&_to)}, _result = {0};",
        f"  return __tvm_ffi_row{p.row}_{p.argument.preparation}(NULL, _args, 2, &_result);",
        "}",
        f"int __tvm_ffi_prepare_{p.name}(void *self, const Any *args, int32_t count, Any *result) {{",
        "  plevel_ready();",
        f"  return __tvm_ffi_row{p.row}_{p.argument.preparation}(self, args, count, result);",
        "}",
    ]


def _c_tensor(variable: str, pointer: str, kind: Any) -> list[str]:
    extents = [_c_expression(d) for d in kind.shape] or ["1"]
    letters = kind.dtype.rstrip("0123456789")
    dtype = f"{{{_DTYPE_CODES[letters]}, {kind.dtype[len(letters) :] or 8}, 1}}"
    return [
        f"  int64_t {variable}_shape[] = {{{', '.join(extents)}}};",
        f"  Tensor {variable} = {{(void *){pointer}, {{CPU, 0}}, {kind.ndim}, {dtype}, {variable}_shape, NULL, 0}};",
    ]


_C_CALLS = {
    "//": "floor_div", "%": "floor_mod", "ceildiv": "ceil_div", "min": "MIN", "max": "MAX",
    "log2": "log2",
}  # fmt: skip
_C_INFIX = {"and": "&&", "or": "||", "/": "/ (double)"} | {
    op: op for op in ("+", "-", "*", "<", "<=", ">", ">=", "==", "!=")
}


def _c_expression(expr: Expr) -> str:
    """The expression in C, over 64-bit integers named as `_c_name` has the dimensions."""
    if expr.op == "const":
        value = expr.args[0]
        return f"INT64_C({int(value)})" if isinstance(value, int) else repr(float(value))
    if expr.op == "var":
        return _c_name(expr.args[0]) if expr.value is None else f"INT64_C({expr.value})"
    args = [_c_expression(a) for a in expr.args]
    if expr.op in _C_CALLS:
        return f"{_C_CALLS[expr.op]}({', '.join(args)})"
    if expr.op in _C_INFIX:
        return f"({args[0]} {_C_INFIX[expr.op]} {args[1]})"
    if expr.op == "not":
        return f"(!{args[0]})"
    if expr.op == "if":
        return f"({args[0]} ? {args[1]} : {args[2]})"
    raise ExpressionError(
        f"'{expr}' cannot be checked at run time: {expr.op} is not for dimensions"
    )


def _c_condition(condition: SpecializedCondition) -> str:
    clauses = [
        "(" + " || ".join(_c_expression(a) for a in clause.alternatives) + ")"
        for clause in condition.clauses
    ]
    return f"({' && '.join(clauses) or '1'})"


def _link(made: Path, path: Path, roles: Iterable[str | None]) -> None:
    compiler = (
        os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    )
    if not compiler:
        raise CompileError("no C compiler: install gcc or clang, or set CC")
    target = made / "library.so"
    command = [
        compiler,
        "-O2",
        "-fPIC",
        "-shared",
        "-fopenmp",
        "entry.c",
        "rows.o",
        "-o",
        str(target),
    ]
    for library in filter(None, map(find_library, filter(None, roles))):
        command += [library.path, f"-Wl,-rpath,{Path(library.path).parent}"]
    command.append("-lm")
    done = subprocess.run(command, cwd=made, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CompileError(
            f"{' '.join(command)} failed (CC names another compiler): {done.stderr.strip()[-2000:]}"
        )
    # Moved into place whole, so that a failure or a full disk leaves the old file alone.
    partial = path.with_name(f".{path.name}.partial")
    try:
        shutil.copyfile(target, partial)
        partial.chmod(0o755)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
