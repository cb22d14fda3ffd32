"""The shared library of a plan, in C: tables of its steps, its weights, its header and its manifest."""
# Over 300 lines: the library's texts in C and assembly, its header and its manifest, from one plan.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template

import msgspec

from strategy.compile.artefact import ALIGNMENT
from strategy.compile.c_text import c_names, c_type, dlpack_type
from strategy.compile.entry import common_code, instructions_code
from strategy.compile.export import link, place
from strategy.compile.huge_page import HUGE_PAGE
from strategy.folder import scratch
from strategy.network.extent import Extent
from strategy.network.plan import Buffer, Plan, Port, Step
from strategy.network.size import Encoded
from strategy.network.sizing import sizes_of, write_sizes
from strategy.record import to_json
from strategy.select import Reason, Selection
from strategy.select.dispatch import DispatchTable
from strategy.space import Config
from strategy.table import show_number
from strategy.target import Target
from strategy.types import MAX_RANK, TensorType
from strategy.workload import Workload

_HEADER = Template("""\
/* $about
 * for $target
 *
$ports$sizes *
 * Buffers are row-major and contiguous, and do not overlap; aligned to $alignment bytes they are not copied.
 * Parallel loops use $threads of OpenMP, and no more than the caller may use cores. Several threads may call it at
 * once, each with $arena bytes of memory$least.
 * It returns 0; -1 without memory;
 * -2 for ${wrong}a buffer that is NULL;
 * -3 on a processor without its instructions; or the number of the step that failed, from 1.
 *
 * ${name}_shapes and ${name}_call are for programs that load any such library. `inputs` has each input's rank and
 * then its extents. The first writes the extents of each output to its row of `outputs`; the second takes the buffers
 * of the inputs and then the outputs, and returns what ${name} does. Both return -2 for NULL, and for inputs of other
 * shapes than those above.
 *
 * ${name}_trace has a function called after each step of the manifest, with its number, from 0, and its output;
 * NULL ends that.
 */
#ifndef $guard
#define $guard
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
int $name($arguments);
int ${name}_shapes(const int64_t *inputs, int64_t (*outputs)[$most_rank]);
int ${name}_call(const int64_t *inputs, void *const *buffers);
void ${name}_trace(void (*function)(int step, const void *output));
#ifdef __cplusplus
}
#endif
#endif
""")
# Kernels of two networks in one process have the same names; TVM's runtime finds none of its hooks.
_SYMBOLS = "{{ global: {names}; __tvm_ffi_main; TVMFFIErrorSetRaisedFromCStrParts; local: *; }};\n"

# A stretch of the weights; its name is in front of the first one.
_STRETCH = Template("""\
#ifdef __x86_64__
.section .lrodata,"al",@progbits
#else
.section .rodata
#endif
.balign $alignment
$name$data
.section .note.GNU-stack,"",%progbits
""")
_STRETCH_BYTES = 16 * HUGE_PAGE  # an assembler holds one in memory
_LINKED = (
    '__asm__(".section .data.rel.ro,\\"aw\\"\\n.balign 8\\n.globl _plevel_weights\\n.hidden _plevel_weights\\n"',
    '        "_plevel_weights:\\n.quad _plevel_data\\n.previous\\n");',
)


class Tensor(msgspec.Struct, frozen=True):
    """An input or output; an extent that depends on symbolic sizes is a text such as `n` or `2*n*m + 1`."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]


class Range(msgspec.Struct, frozen=True):
    """The least and the greatest value of a symbolic size that a library takes."""

    low: int
    high: int


class Kernel(msgspec.Struct, frozen=True):
    """A step: the value that it computes, and its implementation with the reason; without one it is a copy.

    For a dispatch table those of its rows, and no configuration.
    """

    value: str | None
    workload: str | None = None
    implementation: str | None = None
    version: str | None = None
    config: Config | None = None
    reason: str | None = None
    because: str | None = None


class Manifest(msgspec.Struct, frozen=True):
    """The description of a library, for programs that load it.

    `sizes` has the symbolic sizes by name, in the order in which the function takes them, before its inputs;
    `arena_bytes` are those at the least of them.
    """

    model: str
    function: str
    target: str
    threads: int
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    weight_bytes: int
    arena_bytes: int
    steps: tuple[Kernel, ...]
    sizes: dict[str, Range] = {}


def prefix_of(workload: Workload) -> str:
    """The prefix of the names of a workload's functions in the library."""
    return f"__plevel_{workload.digest}_"


def symbol_of(workload: Workload) -> str:
    """The name of a workload's kernel in the library."""
    return f"{prefix_of(workload)}main"


def network_code() -> str:
    """The code in C that the libraries of all networks have in common."""
    return common_code() + files(__package__).joinpath("network.c").read_text()


def write_library(
    plan: Plan, path: Path, about: Manifest, target: Target, *, objects: Sequence[Path], weights: Path,
    tables: Sequence[str] = (), appended: bool = False,
) -> None:
    """Link the shared library at `path`, with its header and its manifest beside it: all three, or none.

    Args:
        about: the manifest, which has the model and the function's name for the header.
        objects: of the kernels, each with the function `symbol_of` its workload.
        weights: all constants, as the plan has them.
        tables: in C, the functions of workloads with symbolic dimensions.
        appended: leave the weights to the function NAME_map, which is to be called first, with the library's path: they
            follow the library in its file, which saves to assemble and to link them. NULL, before `dlclose`, ends that.

    Raises:
        CompileError: there is no C compiler, or it failed.
    """
    name, appended = about.function, appended and plan.weight_bytes > 0
    header = _header(plan, name, about.model, target)
    manifest = msgspec.json.format(msgspec.json.encode(to_json(about))).decode() + "\n"
    with scratch("draft") as made:  # with all weights: what a killed command left is deleted
        source = header + _source(plan, name, target, tables, appended=appended)
        (made / "network.c").write_text(source, encoding="utf-8")
        parts = {} if appended else _weight_parts(plan, weights.resolve())
        for file, text in parts.items():
            (made / file).write_text(text)
        names = [name, *(f"{name}_{each}" for each in ("shapes", "call", "trace", *(["map"] if appended else [])))]
        (made / "symbols").write_text(_SYMBOLS.format(names="; ".join(names)))
        sources = ["-fopenmp", "network.c", *parts, *map(str, objects), "-Wl,--version-script=symbols"]
        beside = {".h": header, ".json": manifest}
        place(link(sources, made), path, beside, appended=weights if appended else None)


def describe(
    plan: Plan, name: str, about: str, target: Target, selections: Mapping[Workload, Selection | DispatchTable]
) -> Manifest:
    """The manifest of a library."""

    def ports(found: Sequence[Port]) -> tuple[Tensor, ...]:
        return tuple(Tensor(p.name, p.type.dtype, _extents(plan, p)) for p in found)

    def kernel(step: Step) -> Kernel:
        value = next((n for n in step.names if n), None)
        if step.workload is None:
            return Kernel(value)
        s = selections[step.workload]
        if isinstance(s, DispatchTable):
            names = ", ".join(dict.fromkeys(row.implementation for row in s.rows))
            reason = max((row.reason for row in s.rows), key=list(Reason).index)
            return Kernel(value, s.workload.key, names, reason=reason, because=s.explanation.replace("\n", "; "))
        return Kernel(
            value, s.workload.key, s.implementation, s.version, s.config, s.reason, s.explanation
        )

    return Manifest(
        about, name, str(target), target.threads, ports(plan.inputs), ports(plan.outputs), plan.weight_bytes,
        plan.arena_bytes, tuple(map(kernel, plan.steps)), {s.name: Range(s.low, s.high) for s in sizes_of(plan)},
    )


def _header(plan: Plan, name: str, about: str, target: Target) -> str:
    lines = [
        f" *   {word}: {_show(plan, port)}, {'input' if const else 'output, written'}\n"
        for const, word, port in _arguments(plan)
    ]
    return _HEADER.substitute(
        about=about.replace("*/", "* /"), target=target, ports="".join(lines), alignment=ALIGNMENT, name=name,
        threads=show_number(target.threads, "thread"), arena=plan.arena_bytes, guard=f"PLEVEL_{name}_H",
        arguments=_parameters(plan), least=" at the least sizes" if plan.sizes else "", most_rank=MAX_RANK,
        wrong="a size out of range, an axis of 2^63 elements or more, or " if plan.sizes else "",
        sizes="".join(
            [f" *   {s.name}: a symbolic size, from {s.low} to {s.high}\n" for s in sizes_of(plan)]
            + [f" *   {e}: from {low} to {high}\n" for e, low, high in (plan.sizes.bounds if plan.sizes else ())]
        ),
    )


def _arguments(plan: Plan) -> list[tuple[str, str, Port]]:
    """The C function's parameters: `const ` or nothing, the C name, and the input or output."""
    ports = (*plan.inputs, *plan.outputs)
    kinds = ["const "] * len(plan.inputs) + [""] * len(plan.outputs)
    return list(zip(kinds, c_names((p.name for p in ports), [s.name for s in sizes_of(plan)]), ports, strict=True))


def _parameters(plan: Plan) -> str:
    sizes = [f"int64_t {s.name}" for s in sizes_of(plan)]
    return ", ".join(sizes + [f"{const}{c_type(port.type.dtype)} *{word}" for const, word, port in _arguments(plan)])


def _show(plan: Plan, port: Port) -> str:
    return f"{port.type.dtype}[{','.join(map(str, _extents(plan, port)))}]"


def _extents(plan: Plan, port: Port) -> tuple[int | str, ...]:
    return tuple(e if isinstance(e, int) else str(e) for e in plan.encoded(port.type))


def _weight_parts(plan: Plan, weights: Path) -> dict[str, str]:
    """Sources in assembly by the names of their files, which the linker puts one behind the other."""
    # Pages of a file's mapping are huge only where both begin at multiples of one.
    alignment = ALIGNMENT if plan.weight_bytes < HUGE_PAGE else HUGE_PAGE
    name = ".globl _plevel_data\n.hidden _plevel_data\n_plevel_data:\n"
    each = [(n, min(_STRETCH_BYTES, plan.weight_bytes - n)) for n in range(0, plan.weight_bytes, _STRETCH_BYTES)]
    data = [f'.incbin "{weights}", {begin}, {count}' for begin, count in each] or [".byte 0"]
    return {
        f"weights{i}.S": _STRETCH.substitute(alignment=alignment, name="" if i else name, data=text)
        for i, text in enumerate(data)
    }


def _source(plan: Plan, name: str, target: Target, tables: Sequence[str], *, appended: bool) -> str:
    ports = (*plan.inputs, *plan.outputs)
    kernels = dict.fromkeys(symbol_of(s.workload) for s in plan.steps if s.workload is not None)
    types = [b.type for step in plan.steps for b in step.buffers] + [p.type for p in ports]
    shapes = {plan.encoded(t): "" for t in types}
    shapes = {shape: f"_plevel_shape_{i}" for i, shape in enumerate(shapes)}
    extents = {e: -1 - i for i, e in enumerate(dict.fromkeys(e for s in shapes for e in s if isinstance(e, Extent)))}

    def shape(encoded: Encoded) -> str:
        return ", ".join(str(e if isinstance(e, int) else extents[e]) for e in encoded) or "1"

    def tensor(kind: TensorType) -> str:
        code, bits = dlpack_type(kind.dtype)
        return f"{code}, {bits}, {kind.ndim}, {shapes[plan.encoded(kind)]}"

    def operand(b: Buffer) -> str:
        return f"{{{b.area.name}, {tensor(b.type)}, {b.at}}}"

    def step(number: int, found: Step) -> str:
        called = "NULL" if found.workload is None else f"__tvm_ffi_{symbol_of(found.workload)}"
        return f"{{{called}, _plevel_operands[{number}], {len(found.buffers)}, {found.outputs}}}"

    return "\n".join([
        f"#define PLEVEL_THREADS {target.threads}",
        f"#define PLEVEL_ALIGNMENT {ALIGNMENT}",
        f"#define PLEVEL_HUGE {HUGE_PAGE}ULL",
        f"#define PLEVEL_WEIGHT_BYTES {plan.weight_bytes}ULL",
        *(["#define PLEVEL_APPENDED"] if appended else []),
        "#define PLEVEL_LIBRARY_THREADS",
        instructions_code(target, {buffer.type.dtype for step in plan.steps for buffer in step.buffers}),
        f"#define PLEVEL_SIZES {len(sizes_of(plan))}",
        f"#define PLEVEL_EXTENTS {max(1, len(extents))}",
        f"#define PLEVEL_PLACES {max(1, len(plan.places))}",
        f"#define PLEVEL_INPUTS {len(plan.inputs)}",
        f"#define PLEVEL_PORTS {len(ports)}",
        f"#define PLEVEL_STEPS {len(plan.steps)}",
        f"#define PLEVEL_RANK {max([1, *map(len, shapes)])}",
        f"#define PLEVEL_OPERANDS {max(len(s.buffers) for s in plan.steps)}",
        f"#define PLEVEL_MOST_RANK {MAX_RANK}",
        network_code(),
        *(f"int __tvm_ffi_{kernel}(void *, const Any *, int32_t, Any *);" for kernel in kernels),
        *(f"static const int64_t {word}[] = {{{shape(s)}}};" for s, word in shapes.items()),
        *write_sizes(plan, list(extents)),
        *tables,
        "static const Operand _plevel_operands[PLEVEL_STEPS][PLEVEL_OPERANDS] = {",
        *(f"  {{{', '.join(map(operand, s.buffers))}}}," for s in plan.steps),
        "};\nstatic const Step _plevel_steps[PLEVEL_STEPS] = {",
        *(f"  {step(i, s)}," for i, s in enumerate(plan.steps)),
        "};\nstatic const Port _plevel_ports[PLEVEL_PORTS] = {",
        *(f"  {{{p.staged}, {tensor(p.type)}}}," for p in ports),
        "};",
        *([f"int {name}_map(const char *path) {{ return _plevel_map(path); }}"] if appended else _LINKED),
        f"int {name}({_parameters(plan)}) {{",
        f"  void *const _given[] = {{{', '.join(f'(void *){word}' for _, word, _ in _arguments(plan))}}};",
        f"  const int64_t _sizes[] = {{{', '.join([*(s.name for s in sizes_of(plan)), '0'])}}};",
        "  return _plevel_run(_sizes, _given);",
        "}",
        f"int {name}_shapes(const int64_t *inputs, int64_t (*outputs)[{MAX_RANK}]) {{",
        "  return _plevel_shapes(inputs, outputs);",
        "}",
        f"int {name}_call(const int64_t *inputs, void *const *buffers) {{ return _plevel_call(inputs, buffers); }}",
        f"void {name}_trace(void (*function)(int step, const void *output)) {{ _plevel_trace = function; }}",
        "",
    ])
