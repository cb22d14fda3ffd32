"""Generation of CUDA source and launches from a scheduled module, without a GPU.

TVM splits a scheduled function into kernels and a host function. The host function is read statement by statement
as a plan, and refused if it does more than launch kernels and call libraries, as it would then need TVM's
runtime.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from strategy.cuda.library import CALL, Handwritten, read_step
from strategy.cuda.limit import limits_of, require_arch
from strategy.cuda.program import (
    Launch,
    LibraryCall,
    Number,
    Pointer,
    Program,
    Scalar,
    Workspace,
    check_launch,
    times,
)
from strategy.cuda.race import find_races, keep_bounds
from strategy.fault import CompileError
from strategy.schedule import dtype_bytes

if TYPE_CHECKING:
    from strategy.target import Target

_OPERATIONS = {
    "Add": "+", "Sub": "-", "Mul": "*", "FloorDiv": "//", "FloorMod": "%", "Div": "//", "Mod": "%",
    "Min": "min", "Max": "max",
}
_DYNAMIC = "tirx.use_dyn_shared_memory"


class PlanError(ValueError):
    """The host part of a scheduled function does more than launch kernels."""


@dataclass(frozen=True)
class CudaSource:
    """CUDA C of functions, with the program of each."""

    code: str
    programs: dict[str, Program]


def tvm_target(target: Target) -> Any:
    """TVM's target with its host, and the limits that TVM's own schedules need."""
    import tvm

    limits = limits_of(target)
    data = target.to_tvm() | {
        "arch": require_arch(target),
        "max_threads_per_block": limits.threads,
        "max_num_threads": limits.threads,
        "max_shared_memory_per_block": min(limits.shared_bytes, 48 * 1024),
        "registers_per_block": limits.registers,
        "thread_warp_size": limits.warp,
    }
    return tvm.target.Target(data, host=tvm.target.Target("llvm"))


def emit_cuda(module: Any, target: Target, parameters: dict[str, tuple[str, ...]]) -> CudaSource:
    """The CUDA source of a scheduled module, after checking its launches against the target's limits.

    Args:
        parameters: the names of each function's parameters in its program, in order.

    Raises:
        PlanError: a function does more on the host than launch kernels, or nothing on the device.
        LimitError: a launch exceeds a limit of the device.
        CompileError: threads would write to one element at once.
    """
    import tvm
    from tvm.s_tir.analysis import calculate_allocated_bytes

    where = tvm_target(target)
    split, finish = _split(module, where)
    kernels = {
        variable.name_hint: function
        for variable, function in split.functions.items()
        if "tirx.kernel_launch_params" in function.attrs
    }
    limits = limits_of(target)
    programs, code = {}, ""
    for variable, function in split.functions.items():
        name = variable.name_hint
        if name in kernels:
            continue
        reader = _Reader(function, kernels, parameters[name])
        program = reader.read()
        code += reader.code
        for launch in program.launches:
            check_launch(launch, _shared_bytes(calculate_allocated_bytes, kernels, launch), limits)
        programs[name] = program
    if any(not program.steps for program in programs.values()):
        raise PlanError("no part of the function runs on the device: bind its loops to threads")
    if kernels:
        printed = tvm.get_global_func("target.build.cuda")(finish(kernels), where).inspect_source()
        code = str(printed) + code
    return CudaSource(code, programs)


def _shared_bytes(count: Any, kernels: dict[str, Any], launch: Launch) -> int:
    """Bytes of static shared memory that a kernel declares; 0 for handwritten ones."""
    if launch.kernel not in kernels:
        return 0
    found = count(kernels[launch.kernel])
    sizes = found.get("main", found) if hasattr(found, "get") else {}
    return int(sizes.get("shared", 0))


def _split(module: Any, target: Any) -> tuple[Any, Any]:
    """The module with kernels split off, and a function that makes the kernels' printable module."""
    import tvm
    from tvm.tirx import transform

    kept: list[Any] = []
    racing: list[str] = []

    @tvm.ir.instrument.pass_instrument
    class Keep:
        def run_before_pass(self, module: Any, info: Any) -> None:
            if info.name == "tirx.MakePackedAPI":  # from there on, the host part is packed calls
                kept.append(module)

        def run_after_pass(self, module: Any, info: Any) -> None:
            if info.name == "s_tir.LowerCrossThreadReduction":
                racing.extend(name for f in module.functions.values() for name in find_races(f))

    pipeline, _, finish_device = tvm.tirx.get_tir_pipeline("s_tir")
    with target, tvm.transform.PassContext(opt_level=3, instruments=[Keep()]):
        lowered = pipeline(transform.BindTarget(target)(keep_bounds(module)))
    if racing:
        raise CompileError(f"threads would add to one element of {', '.join(racing)} at once: TVM does not join them")

    def finish(kernels: dict[str, Any]) -> Any:
        functions = {v: f for v, f in lowered.functions.items() if v.name_hint in kernels}
        return finish_device()(tvm.IRModule(functions, attrs=lowered.attrs))

    return kept[0], finish


class _Reader:
    """Reader of one host function."""

    def __init__(self, function: Any, kernels: dict[str, Any], parameters: tuple[str, ...]) -> None:
        self._function = function
        self._kernels = kernels
        self._parameters = parameters
        self._buffers: dict[Any, str] = {}  # by the variable of the buffer
        self._bound: dict[Any, Any] = {}
        self._workspaces: list[Workspace] = []
        self.code = ""  # source of handwritten kernels
        self._steps: list[Launch | LibraryCall] = []

    def read(self) -> Program:
        for parameter, name in zip(self._function.params, self._parameters, strict=True):
            self._buffers[parameter] = name
        for statement in _statements(self._function.body):
            self._read(statement)
        return Program(self._parameters, tuple(self._steps), tuple(self._workspaces))

    def _read(self, statement: Any) -> None:
        kind = type(statement).__name__
        if kind == "DeclBuffer":
            self._buffers[statement.buffer] = self._source_of(statement.data)
        elif kind == "AllocBuffer":
            self._allocate(statement.buffer)
        elif kind == "Bind":
            self._bound[statement.var] = statement.value
        elif kind == "Evaluate" and _called(statement.value) == "tirx.call_ffi_kernel":
            self._launch(statement.value)
        elif kind == "Evaluate" and _is_step(statement.value):
            self._step(statement.value)
        elif kind != "Evaluate" or _called(statement.value) is not None:
            raise PlanError(f"the host part has a {kind}, not a launch: {statement!s:.200}")

    def _allocate(self, buffer: Any) -> None:
        if buffer.scope() != "global":
            raise PlanError(
                f"the host part holds {buffer.name} in its own memory ({buffer.scope()}): bind the "
                "loops that fill it to threads"
            )
        name = f"workspace{len(self._workspaces)}"
        size: Number = dtype_bytes(str(buffer.dtype))
        for extent in buffer.shape:
            size = times(size, self._number(extent))
        self._workspaces.append(Workspace(name, size))
        self._buffers[buffer] = name

    def _source_of(self, pointer: Any) -> str:
        """The name of what `tirx.buffer_data(buffer)` points to."""
        if _called(pointer) == "tirx.buffer_data":
            for known, name in self._buffers.items():
                if known.same_as(pointer.args[0]):
                    return name
        raise PlanError(f"a kernel is given {pointer!s:.80}, which is no buffer of the function")

    def _launch(self, call: Any) -> None:
        name, *rest = call.args
        dims = [str(p) for p in call.attrs.launch_params]
        kernel = self._kernels[str(name.value)]
        arguments, extents = rest[: len(rest) - len(dims)], rest[len(rest) - len(dims) :]
        found: list[Pointer | Scalar] = []
        for parameter, argument in zip(kernel.params, arguments, strict=True):
            if _called(argument) == "tirx.buffer_data":
                found.append(Pointer(self._source_of(argument)))
            else:
                found.append(Scalar(str(parameter.ty), self._number(argument)))
        sizes = {dim: self._number(e) for dim, e in zip(dims, extents, strict=True)}
        unknown = [
            d for d in sizes if d != _DYNAMIC and not d.startswith(("blockIdx", "threadIdx"))
        ]
        if unknown:
            raise PlanError(f"{name.value} is launched with {unknown[0]}, which has no place here")
        block = [sizes.get(f"threadIdx.{axis}", 1) for axis in "xyz"]
        dynamic = sizes.get(_DYNAMIC, 0)
        if not all(isinstance(e, int) for e in [*block, dynamic]):
            raise PlanError(
                f"{name.value}: its block or shared memory depends on a symbolic dimension"
            )
        x, y, z = (sizes.get(f"blockIdx.{axis}", 1) for axis in "xyz")
        self._steps.append(
            Launch(str(name.value), tuple(found), (x, y, z), tuple(map(int, block)), int(dynamic))  # type: ignore[arg-type]
        )

    def _step(self, call: Any) -> None:
        _, text, *pointers = call.args
        step = read_step(str(text.value), [self._source_of(pointer) for pointer in pointers])
        if isinstance(step, Handwritten):
            self.code += step.code
            self._steps.append(step.launch)
        else:
            self._steps.append(step)

    def _number(self, expression: Any) -> Number:
        """A TVM integer expression as a number, or an expression in JSON."""
        kind = type(expression).__name__
        if kind == "IntImm":
            return int(expression)
        if kind == "Var":
            for known, value in self._bound.items():
                if known.same_as(expression):
                    return self._number(value)
            return str(expression.name)
        if kind == "Cast":
            return self._number(expression.value)
        if kind in _OPERATIONS:
            left, right = self._number(expression.a), self._number(expression.b)
            return [_OPERATIONS[kind], left, right]
        raise PlanError(
            f"a size of the launch is {expression!s:.80}, which is no arithmetic of dimensions"
        )


def _statements(body: Any) -> Iterator[Any]:
    if type(body).__name__ == "SeqStmt":
        for part in body.seq:
            yield from _statements(part)
    else:
        yield body


def _called(value: Any) -> str | None:
    """The name of the operator that an expression calls, None if it is no call."""
    return (
        str(value.op.name) if type(value).__name__ == "Call" and hasattr(value.op, "name") else None
    )


def _is_step(value: Any) -> bool:
    return _called(value) == "tirx.call_extern" and str(value.args[0].value) == CALL
