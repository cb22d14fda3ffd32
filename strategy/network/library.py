"""The shared library of a plan, in C: tables of its steps, its weights, its header and its manifest."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template

import msgspec

from strategy.compile.artefact import ALIGNMENT
from strategy.compile.c_text import c_names, c_type, dlpack_type
from strategy.compile.export import link, place
from strategy.network.plan import Buffer, Plan, Port, Step, bytes_of
from strategy.select import Selection
from strategy.space import Config
from strategy.table import show_number
from strategy.target import Target
from strategy.types import TensorType
from strategy.workload import Workload

_HEADER = Template("""\
/* $about
 * for $target
 *
$ports *
 * Buffers are row-major and contiguous, and do not overlap; aligned to $alignment bytes they are not copied.
 * Parallel loops use $threads of OpenMP. Several threads may call it at once, each with $arena bytes of memory.
 * It returns 0, or another number on failure.
 *
 * ${name}_trace has a function called after each step of the manifest, with its number and its output;
 * NULL ends that.
 */
#ifndef $guard
#define $guard
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
int $name($arguments);
void ${name}_trace(void (*function)(int step, const void *output));
#ifdef __cplusplus
}
#endif
#endif
""")
# Kernels of two networks in one process have the same names; TVM's runtime finds none of its hooks.
_SYMBOLS = "{{ global: {name}; {name}_trace; __tvm_ffi_main; TVMFFIErrorSetRaisedFromCStrParts; local: *; }};\n"


class Tensor(msgspec.Struct, frozen=True):
    """An input or output."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class Kernel(msgspec.Struct, frozen=True):
    """A step: the value that it computes, and its implementation with the reason; without one it is a copy."""

    value: str | None
    workload: str | None = None
    implementation: str | None = None
    version: str | None = None
    config: Config | None = None
    reason: str | None = None
    because: str | None = None


class Manifest(msgspec.Struct, frozen=True):
    """The description of a library, for programs that load it."""

    model: str
    function: str
    target: str
    threads: int
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    weight_bytes: int
    arena_bytes: int
    steps: tuple[Kernel, ...]


def symbol_of(workload: Workload) -> str:
    """The name of a workload's kernel in the library."""
    return f"__plevel_{workload.digest}"


def write_library(
    plan: Plan, path: Path, name: str, about: str, target: Target, *, objects: Sequence[Path], weights: Path
) -> Path:
    """Link the shared library at `path`, with its header beside it; return the header's path.

    Args:
        about: the model, for the header.
        objects: of the kernels, each with the function `symbol_of` its workload.
        weights: all constants, as the plan has them.

    Raises:
        CompileError: there is no C compiler, or it failed.
    """
    header = _header(plan, name, about, target)
    with tempfile.TemporaryDirectory(prefix="plevel-") as folder:
        made = Path(folder)
        (made / "network.c").write_text(header + _source(plan, name, target, weights.resolve()))
        (made / "symbols").write_text(_SYMBOLS.format(name=name))
        sources = ["network.c", *map(str, objects), "-Wl,--version-script=symbols"]
        place(link(sources, made), path)
    beside = path.with_suffix(".h")
    beside.write_text(header)
    return beside


def describe(
    plan: Plan, name: str, about: str, target: Target, selections: Mapping[Workload, Selection]
) -> Manifest:
    """The manifest of a library."""

    def ports(found: Sequence[Port]) -> tuple[Tensor, ...]:
        return tuple(Tensor(p.name, p.type.dtype, p.type.concrete_shape) for p in found)

    def kernel(step: Step) -> Kernel:
        value = next((n for n in step.names if n), None)
        if step.workload is None:
            return Kernel(value)
        s = selections[step.workload]
        return Kernel(
            value, s.workload.key, s.implementation, s.version, s.config, s.reason, s.explanation
        )

    return Manifest(
        about, name, str(target), target.threads, ports(plan.inputs), ports(plan.outputs), plan.weight_bytes,
        plan.arena_bytes, tuple(map(kernel, plan.steps)),
    )  # fmt: skip


def _header(plan: Plan, name: str, about: str, target: Target) -> str:
    lines = [
        f" *   {word}: {port.type}, {'input' if const else 'output, written'}\n"
        for const, word, port in _arguments(plan)
    ]
    return _HEADER.substitute(
        about=about.replace("*/", "* /"), target=target, ports="".join(lines), alignment=ALIGNMENT, name=name,
        threads=show_number(target.threads, "thread"), arena=plan.arena_bytes, guard=f"{name.upper()}_H",
        arguments=_parameters(plan),
    )  # fmt: skip


def _arguments(plan: Plan) -> list[tuple[str, str, Port]]:
    """The C function's parameters: `const ` or nothing, the C name, and the input or output."""
    ports = (*plan.inputs, *plan.outputs)
    kinds = ["const "] * len(plan.inputs) + [""] * len(plan.outputs)
    return list(zip(kinds, c_names(p.name for p in ports), ports, strict=True))


def _parameters(plan: Plan) -> str:
    return ", ".join(f"{const}{c_type(port.type.dtype)} *{word}" for const, word, port in _arguments(plan))


def _source(plan: Plan, name: str, target: Target, weights: Path) -> str:
    ports = (*plan.inputs, *plan.outputs)
    kernels = dict.fromkeys(symbol_of(s.workload) for s in plan.steps if s.workload is not None)
    types = [b.type for step in plan.steps for b in step.buffers] + [p.type for p in ports]
    shapes = {t.concrete_shape: "" for t in types}
    shapes = {shape: f"_plevel_shape_{i}" for i, shape in enumerate(shapes)}

    def tensor(kind: TensorType) -> str:
        code, bits = dlpack_type(kind.dtype)
        return f"{code}, {bits}, {kind.ndim}, {shapes[kind.concrete_shape]}"

    def operand(b: Buffer) -> str:
        return f"{{{b.area.name}, {tensor(b.type)}, {b.at}}}"

    def step(number: int, found: Step) -> str:
        called = "NULL" if found.workload is None else f"__tvm_ffi_{symbol_of(found.workload)}"
        copied = bytes_of(found.buffers[0].type) if found.workload is None else 0
        return f"{{{called}, _plevel_operands[{number}], {len(found.buffers)}, {found.outputs}, {copied}}}"

    return "\n".join([
        f"#define PLEVEL_THREADS {target.threads}",
        f"#define PLEVEL_ALIGNMENT {ALIGNMENT}",
        "#define PLEVEL_LIBRARY_THREADS",
        f"#define PLEVEL_ARENA {plan.arena_bytes}",
        f"#define PLEVEL_INPUTS {len(plan.inputs)}",
        f"#define PLEVEL_PORTS {len(ports)}",
        f"#define PLEVEL_STEPS {len(plan.steps)}",
        f"#define PLEVEL_OPERANDS {max(len(s.buffers) for s in plan.steps)}",
        files("strategy.compile").joinpath("entry.c").read_text(),
        files(__package__).joinpath("network.c").read_text(),
        *(f"int __tvm_ffi_{kernel}(void *, const Any *, int32_t, Any *);" for kernel in kernels),
        *(f"static const int64_t {word}[] = {{{', '.join(map(str, s or (1,)))}}};" for s, word in shapes.items()),
        "static const Operand _plevel_operands[PLEVEL_STEPS][PLEVEL_OPERANDS] = {",
        *(f"  {{{', '.join(map(operand, s.buffers))}}}," for s in plan.steps),
        "};\nstatic const Step _plevel_steps[PLEVEL_STEPS] = {",
        *(f"  {step(i, s)}," for i, s in enumerate(plan.steps)),
        "};\nstatic const Port _plevel_ports[PLEVEL_PORTS] = {",
        *(f"  {{{bytes_of(p.type)}, {p.staged}, {tensor(p.type)}}}," for p in ports),
        "};",
        f'__asm__(".section .rodata\\n.balign {ALIGNMENT}\\n.globl _plevel_weights\\n.hidden _plevel_weights\\n"',
        f'        "_plevel_weights:\\n.incbin \\"{weights}\\"\\n.byte 0\\n.previous\\n");',
        f"int {name}({_parameters(plan)}) {{",
        f"  void *const _given[] = {{{', '.join(f'(void *){word}' for _, word, _ in _arguments(plan))}}};",
        "  return _plevel_run(_given);",
        "}",
        f"void {name}_trace(void (*function)(int step, const void *output)) {{ _plevel_trace = function; }}",
        "",
    ])  # fmt: skip
