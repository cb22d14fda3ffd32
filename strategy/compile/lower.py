"""The only lowering: implementation, workload, target and config → scheduled module → artefact.

The builder calls it in a child process, the compile engine in the user's. A lowered function is in
destination-passing style: its parameters are the inputs, then prepared and constant ones, in the order of
`arguments`, and last the outputs, which it writes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from strategy.compile.artefact import MAIN, Artefact
from strategy.compile.extent import too_large
from strategy.compile.processor import unknown_processor
from strategy.cpu.widened import NARROW, wide_type
from strategy.fault import CompileError, InstantiationError, find_fault
from strategy.op import get_op
from strategy.op_strategy import OpImplementation, find_implementation
from strategy.schedule import Outs, ScheduleError
from strategy.signature import PREPARE, Argument, Role, Signature
from strategy.space import Config
from strategy.target import Target
from strategy.types import TensorType, TupleType
from strategy.workload import Workload

if TYPE_CHECKING:
    from strategy.cuda.template import Template


@dataclass(frozen=True)
class Lowered:
    """A scheduled module (`main`, and one `prepare_…` per prepared argument), not yet compiled."""

    module: Any
    signature: Signature
    target: Target
    template: Template | None = None  # CUDA C instead of `main`

    @property
    def arguments(self) -> tuple[Argument, ...]:
        return self.signature.arguments

    @cached_property
    def digest(self) -> str:
        """16 hexadecimal digits of the module's structure, equal for configurations with equal code."""
        from tvm_ffi import structural_hash

        found = structural_hash(self.module) & 0xFFFFFFFFFFFFFFFF
        if self.template is not None:
            text = f"{found:016x}\n{self.template.code}\n{self.template.launches}"
            return hashlib.sha256(text.encode()).hexdigest()[:16]
        return f"{found:016x}"

    def functions(self) -> Iterator[Lowered]:
        """Each function in a module of its own, in the order of their names."""
        import tvm

        for name, function in sorted((v.name_hint, f) for v, f in self.module.functions.items()):
            yield replace(self, module=tvm.IRModule({name: function}))

    def compile(self, *, checks: bool = True) -> Artefact:
        """Machine code in this process.

        Args:
            checks: let the functions check types and shapes of arguments, which is as much code as a small
                kernel.

        Raises:
            CompileError: LLVM does not know the processor or triple; TVM or LLVM failed.
        """
        import tvm

        from strategy.cpu.passes import processor_pipeline

        if unknown := unknown_processor(self.target):
            raise CompileError(unknown)
        target = tvm.target.Target(self.target.to_tvm())
        pipeline = "default" if self.target.is_gpu else processor_pipeline()
        try:
            config = {"tirx.disable_assert": not checks}
            with target, tvm.transform.PassContext(opt_level=3, config=config):
                executable = tvm.compile(self.module, target=target, tir_pipeline=pipeline)
        except Exception as error:  # TVM and LLVM raise various exceptions
            raise CompileError(f"{type(error).__name__}: {error}") from error
        return Artefact(executable, self.signature)


def lower(
    workload: Workload,
    target: Target,
    implementation: OpImplementation | str,
    config: Mapping[str, Any] | None = None,
) -> Lowered:
    """Schedule one implementation of a workload with one configuration.

    Args:
        implementation: itself, or the name of one in the strategy of the workload's operator.
        config: a configuration of the implementation's space; default: the fallback. Ignored if
            untunable.

    Raises:
        OpError: there is no implementation of that name.
        ConfigError: the configuration is not in the space.
        InstantiationError: compute, prepare or schedule refused.
    """
    if isinstance(implementation, str):
        implementation = find_implementation(workload, target, implementation)
    tunable: tuple[Config, ...] = ()
    if implementation.space is not None:
        space = implementation.space(workload.attr_node, workload.input_types, workload.out_type, target)
        tunable = (space.fallback if config is None else space.check(Config(config)),)
    try:
        return _instantiate(workload.unified, target, implementation, tunable)
    except Exception as error:  # TVM's primitives raise various exceptions
        ours = isinstance(error, ScheduleError)
        if (error.__cause__ is not None or not ours) and (reason := too_large(workload)):
            raise InstantiationError(f"{implementation.name}: {reason}") from error
        if ours:
            raise InstantiationError(f"{implementation.name}: {error}") from error
        fault = find_fault(error)
        at = f"{fault}: " if fault else ""
        raise InstantiationError(f"{implementation.name}: {at}{type(error).__name__}: {error}") from error


def _instantiate(
    workload: Workload, target: Target, implementation: OpImplementation, tunable: tuple[Config, ...]
) -> Lowered:
    import tvm
    from tvm import te

    from strategy.cuda.template import Template

    symbols = _Symbols()
    attrs, types = workload.attr_node, workload.input_types
    preparations = implementation.prepare(attrs, types, *tunable) if implementation.prepare else {}
    arguments: list[Argument] = []
    parameters: list[Any] = []
    tensors: list[Any] = []
    functions: dict[str, Any] = {}
    with tvm.target.Target(target.to_tvm()):
        for index, given in enumerate(workload.inputs):
            tensor = symbols.placeholder(given.name, types[index])
            role = Role.CONSTANT if given.constant else Role.INPUT
            transform = preparations.get(index)
            if transform is not None and given.constant:
                packed = transform(tensor)
                functions[PREPARE + given.name] = _transform_function(tensor, packed, target)
                tensor, role = te.placeholder(packed.shape, packed.dtype, name=given.name), Role.PREPARED
            arguments.append(Argument(given.name, role, _type_text(tensor)))
            parameters.append(tensor)
            tensors.append(tensor if transform is None or given.constant else transform(tensor))
        outputs = _compute(workload, target, implementation, tensors, tunable)
        outputs, out_type = _compose_epilogue(workload, symbols, outputs, arguments, parameters)
        kinds = out_type.fields if isinstance(out_type, TupleType) else (out_type,)
        for i, (output, kind) in enumerate(zip(outputs, kinds, strict=True)):
            name = "output" if len(outputs) == 1 else f"output{i}"
            arguments.append(Argument(name, Role.OUTPUT, _type_text(output, kind)))
        outs = Outs(tuple(outputs), (*parameters, *outputs))
        schedule = implementation.schedule(attrs, outs, target, *tunable)
    template = schedule if isinstance(schedule, Template) else None
    if template is None:
        if not hasattr(schedule, "mod"):
            raise ScheduleError(
                f"its schedule gives {type(schedule).__name__}: return a tvm.s_tir.Schedule, or a Template"
            )
        functions[MAIN] = schedule.mod[MAIN]
    module = tvm.IRModule(
        {name: function.with_attr("global_symbol", name) for name, function in functions.items()}
    )
    signature = Signature(tuple(arguments), target.threads, implementation.library)
    return Lowered(module, signature, target, template)


def _compute(
    workload: Workload, target: Target, implementation: OpImplementation, tensors: Sequence[Any],
    tunable: tuple[Config, ...],
) -> list[Any]:
    """The implementation's outputs, as its epilogue reads them.

    An epilogue reads narrow floats of a processor before they are rounded: those that loops write, too.
    """
    from tvm import te, topi

    attrs, out_type = workload.attr_node, workload.out_type
    outputs = list(implementation.compute(attrs, tensors, out_type, *tunable))
    if target.is_gpu or not workload.epilogue or not isinstance(outputs[0].op, te.ExternOp):
        return outputs
    if not isinstance(out_type, TensorType) or out_type.dtype not in NARROW:
        return outputs
    wide = implementation.compute(attrs, tensors, wide_type(out_type), *tunable)
    return [topi.cast(output, out_type.dtype) for output in wide]


def _compose_epilogue(
    workload: Workload,
    symbols: _Symbols,
    outputs: list[Any],
    arguments: list[Argument],
    parameters: list[Any],
) -> tuple[list[Any], Any]:
    """The outputs after the workload's epilogue, whose further inputs join the parameters, and their type."""
    out_type = workload.out_type
    for step in workload.epilogue:
        if len(outputs) != 1:
            raise ScheduleError(
                f"{workload.op} has {len(outputs)} outputs, an epilogue takes one: leave the epilogue out"
            )
        op = get_op(step.op)
        attrs = op.attrs_type.from_json(step.attrs)
        operands, types = [], []
        for operand in step.operands:
            if operand is None:
                operands.append(outputs[0])
                types.append(out_type)
                continue
            tensor = symbols.placeholder(operand.name, operand.tensor)
            role = Role.CONSTANT if operand.constant else Role.INPUT
            arguments.append(Argument(operand.name, role, _type_text(tensor)))
            parameters.append(tensor)
            operands.append(tensor)
            types.append(operand.tensor)
        out_type = op.infer_type(types, attrs)
        compute = op.get_attr("FTVMCompute")
        if compute is None:
            raise ScheduleError(f"{step.op} cannot be an epilogue: it has no compute for all targets")
        outputs = list(compute(attrs, operands, out_type))
    return outputs, out_type


class _Symbols:
    """The TE variables of a function's symbolic dimensions, one per name."""

    def __init__(self) -> None:
        self._variables: dict[str, Any] = {}

    def placeholder(self, name: str, kind: TensorType) -> Any:
        from tvm import te

        return te.placeholder([self._extent(d) for d in kind.shape], kind.dtype, name=name)

    def _extent(self, dim: Any) -> Any:
        from tvm import te

        if dim.is_constant:
            return int(dim)
        if dim.op != "var":
            raise ScheduleError(f"dimension '{dim}' is an expression: use names or integers")
        name = str(dim)
        return self._variables.setdefault(name, te.var(name, "int64"))


def _show(dim: Any) -> str:
    """A dimension with the values of those that are known."""
    if dim.value is not None:
        return str(int(dim))
    return str(dim) if dim.op == "var" else f"({f' {dim.op} '.join(map(_show, dim.args))})"


def _type_text(tensor: Any, kind: Any = None) -> str:
    """The type of a TE tensor; extents that are expressions, as plevel's type `kind` has them."""
    from tvm import tirx

    known = tensor.shape if kind is None else kind.shape

    def text(extent: Any, dim: Any) -> str:
        if isinstance(extent, tirx.IntImm):
            return str(int(extent))  # TVM writes one of 64 bits with its type
        return str(extent) if isinstance(extent, tirx.Var) else _show(dim)

    return f"{tensor.dtype}[{','.join(map(text, tensor.shape, known))}]"


def _transform_function(source: Any, packed: Any, target: Target) -> Any:
    """The scheduled function that prepares a constant input: parallel outside, vectors inside."""
    from tvm import s_tir, te

    from strategy.cuda.schedule import bind_flat
    from strategy.schedule import VIEW, lanes_of

    schedule = s_tir.Schedule(te.create_prim_func([source, packed], index_dtype_override="int64"))
    for block in schedule.get_child_blocks(schedule.get_sblock("root")):
        if VIEW in schedule.get(block).annotations:
            schedule.compute_inline(block)
    for block in schedule.get_child_blocks(schedule.get_sblock("root")):
        if target.is_gpu:
            bind_flat(schedule, schedule.get_loops(block))
            continue
        loops = schedule.get_loops(block)
        if len(loops) > 1 and schedule.get(block).init is None:  # the innermost loop of a sum is its reduction
            _, inner = schedule.split(loops[-1], [None, lanes_of(target, str(packed.dtype))])
            schedule.vectorize(inner)
        schedule.parallel(loops[0])
    return schedule.mod[MAIN]
