"""Schedules by pattern, and operators whose whole strategy is one compute and one such schedule.

    register_compute("add", compute_add)
    register_broadcast_schedule("add")

The schedules are plain: elementwise stages are inlined, outer loops are parallel, the innermost is vectorised. They
support any function of TE computes, epilogues included.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any

from strategy import elementwise
from strategy.attrs import Attrs
from strategy.cpu.binding import CHOICE, LOAD, REINTERPRET, is_cpu
from strategy.cpu.widened import NARROW
from strategy.elementwise import PARALLEL_FROM, fuse_contiguous, inline_injective
from strategy.generic_func import GenericFunc, generic_func, override_native_generic_func
from strategy.op import OpError, get_registered_op, register_strategy
from strategy.op_strategy import OpStrategy, find_body
from strategy.schedule import STAGE, Outs, dtype_bytes, new_schedule
from strategy.space import Config
from strategy.target import Target
from strategy.tir import reads_along
from strategy.types import TensorType, Type

Compute = Callable[[Any, Sequence[Any], Any], list[Any]]

# Version of all implementations made here, raised when a schedule changes, or many a compute.
PLAIN_VERSION = 4

schedule_injective = GenericFunc("schedule_injective")
schedule_broadcast = GenericFunc("schedule_broadcast")
schedule_reduce = GenericFunc("schedule_reduce")
schedule_extern = GenericFunc("schedule_extern")


def register_schedule(
    name: str, schedule: GenericFunc | Callable[..., Any], level: int = 10, version: int = PLAIN_VERSION
) -> None:
    """Make the strategy of an operator from its compute and a schedule.

    The implementation is named after the schedule and the matching key of the target, as in TVM: `injective.cpu`, or
    `pool.generic` for the default.

    Args:
        name: the operator.
        schedule: `(attrs, outs, target)`; a generic function, or a plain one for all targets.
        level: the level of the attribute.
        version: of the implementation, where the compute has changed since `PLAIN_VERSION`.

    Raises:
        OpError: the operator has no compute, or a strategy of this level. GenericFuncError: no parameter is `target`.
    """
    chosen = schedule if isinstance(schedule, GenericFunc) else generic_func(schedule)
    op = get_registered_op(name)
    if op.get_attr("FTVMCompute") is None:
        raise OpError(f"{name} has no compute: call register_compute before registering a schedule")
    pattern = chosen.name.removeprefix("schedule_")

    def from_schedule(attrs: Attrs, inputs: Sequence[TensorType], out_type: Type, target: Target) -> OpStrategy:
        strategy = OpStrategy()
        found = find_body(chosen, target)
        if found is None:
            return strategy
        key, body = found
        name = f"{pattern}.{key or 'generic'}"
        strategy.add_implementation(op.get_attr("FTVMCompute"), body, name=name, version=version)
        return strategy

    register_strategy(name, GenericFunc(f"{name}_strategy", from_schedule, chooses=True), level)


def register_extern_strategy(name: str, compute: Callable[..., Any], version: int = 1) -> None:
    """Make the generic strategy `NAME_strategy` of an operator from a compute, left as TVM has it: `NAME.generic`."""

    @override_native_generic_func(f"{name}_strategy")
    def strategy(attrs: Attrs, inputs: Sequence[TensorType], out_type: Type, target: Target) -> OpStrategy:
        found = OpStrategy()
        found.add_implementation(compute, schedule_extern.dispatch(target), name=f"{name}.generic", version=version)
        return found

    register_strategy(name, strategy)


def register_cpu_implementations(name: str, add: Callable[..., None]) -> None:
    """Add CPU implementations to a strategy that has a body for all targets, as those of `register_schedule`.

    Args:
        name: the operator.
        add: `(strategy, attrs, inputs, out_type, target)`, adds implementations to the strategy.
    """
    generic: GenericFunc = get_registered_op(name).get_attr("FTVMStrategy")

    @generic.extend("cpu")
    def strategy(
        before: Callable[..., OpStrategy], attrs: Attrs, inputs: Sequence[TensorType], out_type: Type, target: Target
    ) -> OpStrategy:
        found = before(attrs, inputs, out_type, target)
        add(found, attrs, inputs, out_type, target)
        return found


def register_injective_schedule(name: str, level: int = 10) -> None:
    """As `register_schedule`, for operators whose output elements each depend on few input elements."""
    register_schedule(name, schedule_injective, level)


def register_broadcast_schedule(name: str, level: int = 10, changes: int = 0) -> None:
    """As `register_schedule`, for operators that broadcast; on CPUs with constant shapes they can be tuned.

    Args:
        name: the operator.
        level: the level of the attribute.
        changes: the times that the compute has changed, which are added to the versions.
    """
    register_schedule(name, schedule_broadcast, level, PLAIN_VERSION + changes)
    register_cpu_implementations(name, partial(add_elementwise, changes=changes))


def register_reduce_schedule(name: str, level: int = 10) -> None:
    """As `register_schedule`, for reductions."""
    register_schedule(name, schedule_reduce, level)


def add_elementwise(
    strategy: OpStrategy, attrs: Attrs, inputs: Sequence[TensorType], out_type: Type, target: Target, changes: int = 0
) -> None:
    """Add `elementwise.cpu`: the operator's compute, with a tunable schedule; `changes` of it raise the version."""
    if not isinstance(out_type, TensorType) or not all(d.is_constant and int(d) >= 1 for d in out_type.shape):
        return
    compute = next(i.compute for _, i in strategy)
    strategy.add_implementation(
        lambda attrs, inputs, out_type, config: compute(attrs, inputs, out_type), elementwise.schedule,
        "elementwise.cpu", 12, version=2 + changes, space=elementwise.space, symbolic=False,
    )


@schedule_injective.register("cpu")
@schedule_broadcast.register("cpu")
@schedule_reduce.register("cpu")
def schedule_plain_cpu(attrs: Attrs, outs: Outs, target: Target) -> Any:
    """Inline elementwise stages; run others in parallel outside and in vectors inside."""
    schedule = new_schedule(outs)
    for block in inline_injective(schedule):
        spread(schedule, block, target)
    return schedule


@schedule_extern.register("cpu")
def schedule_extern_cpu(attrs: Attrs, outs: Outs, target: Target, config: Config | None = None) -> Any:
    """Return a compute that is written as loops, or calls a library, unchanged."""
    return new_schedule(outs)


def spread(schedule: Any, block: Any, target: Target) -> Any:
    """Run a block in parallel over its outer loops and in vectors over its inner spatial loop.

    Reduction loops go between the two. Returns the parallel loop, None if the block has no spatial loops.
    """
    from tvm import tirx

    found = schedule.get(block)
    loops = schedule.get_loops(block)
    kinds = [v.iter_type for v in found.iter_vars]
    if not loops or len(loops) != len(kinds) or not found.writes:
        return None
    spatial = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == tirx.IterVar.DataPar]
    reduction = [loop for loop, kind in zip(loops, kinds, strict=True) if kind != tirx.IterVar.DataPar]
    if spatial and not reduction:
        spatial = fuse_contiguous(schedule, block, spatial)
        loops = schedule.get_loops(block)
    extents = [schedule.get(loop).extent for loop in loops]
    known = all(isinstance(e, tirx.IntImm) for e in extents)
    work = math.prod(int(e) for e in extents) if known else PARALLEL_FROM
    terms = [schedule.get(loop).extent for loop in reduction]
    may_be_empty = any(not isinstance(extent, tirx.IntImm) or int(extent) == 0 for extent in terms)
    if not spatial:
        if may_be_empty:  # only the initial value, as below
            schedule.decompose_reduction(block, reduction[0])
        return None
    lanes = max(1, target.vector_bytes // dtype_bytes(str(found.writes[0].source.dtype)))
    inner = schedule.get(spatial[-1]).extent
    outer = spatial[:-1]
    vectorized = False
    while isinstance(inner, tirx.IntImm) and lanes > max(1, int(inner)):
        lanes //= 2
    if lanes > 1 and (not reduction or reads_along(found, reduced=False)):
        rest, vector = schedule.split(spatial[-1], [None, lanes])
        outer = [*outer, rest]
        schedule.reorder(*outer, *reduction, vector)
        schedule.vectorize(vector)
        vectorized = bool(reduction)
    else:
        outer = spatial
        schedule.reorder(*outer, *reduction)
    # A tensor has more rows than cores; the innermost stays a loop over vectors.
    fused = outer[0]
    if work >= PARALLEL_FROM:
        fused = schedule.fuse(*outer[:-1]) if len(outer) > 1 else outer[0]
        schedule.parallel(fused)
    if vectorized or may_be_empty:
        # With the initial value separate, the inner loop is only multiply and add; an empty reduction
        # leaves the initial value.
        schedule.decompose_reduction(block, reduction[0])
    return fused


def in_float32(compute: Compute) -> Compute:
    """The compute with accumulation in float32 for narrower floats; indices and bools stay.

    Values are not rounded between two such computes, of which one reads the other.
    """

    @wraps(compute)
    def wide(attrs: Any, inputs: Sequence[Any], out_type: Type) -> list[Any]:
        from tvm import topi

        if not isinstance(out_type, TensorType) or out_type.dtype not in NARROW:
            return compute(attrs, inputs, out_type)
        first = [next(i for i, t in enumerate(inputs) if t.same_as(tensor)) for tensor in inputs]
        widened = {i: _widen(inputs[i]) for i in set(first)}  # one that is given twice stays one
        outputs = compute(attrs, [widened[i] for i in first], TensorType(out_type.shape, "float32"))
        return [topi.cast(t, out_type.dtype) for t in outputs]

    return wide


def wrapping(function: Callable[..., Any], values: Sequence[Any], dtype: str) -> Any:
    """A function of TE tensors or expressions, of which 32-bit integers wrap around: TVM and LLVM rule that out."""
    from tvm import topi

    if dtype not in ("int32", "uint32"):
        return function(*values)
    return topi.cast(function(*(topi.cast(v, "int64") for v in values)), dtype)


def _widen(tensor: Any) -> Any:
    """A TE tensor in float32 if it is of a narrower float: without the rounding that makes it one, or converted."""
    from tvm import te, tirx, topi

    if str(tensor.dtype) not in NARROW:
        return tensor
    made = tensor.op
    if isinstance(made, te.ComputeOp) and len(made.body) == 1 and STAGE not in made.attrs:
        body = made.body[0]
        value = body.value if isinstance(body, tirx.Cast) else body
        if str(value.ty.dtype) in NARROW:
            value = _moved(value) if is_cpu() else None
        if value is not None and str(value.ty.dtype) not in NARROW:
            return te.compute(tensor.shape, partial(_element, made.axis, value), name=made.name, tag=made.tag)
    return topi.cast(tensor, "float32")


def _moved(value: Any) -> Any:
    """An expression that only chooses among elements, with each in float32; None for another."""
    from tvm import tirx

    if isinstance(value, tirx.FloatImm):
        return tirx.const(value.value, "float32")
    name = getattr(getattr(value, "op", None), "name", "")
    if name == LOAD:
        return _widen(value.args[0])(*value.args[1:])
    if name.endswith(REINTERPRET):
        return value.astype("float32")
    if not name.endswith(CHOICE):
        return None
    chosen = [_moved(part) for part in value.args[1:]]
    return None if any(part is None for part in chosen) else tirx.if_then_else(value.args[0], *chosen)


def _element(axes: Sequence[Any], value: Any, *index: Any) -> Any:
    """An expression over axes of a TE tensor in float32, at an index."""
    from tvm import tirx
    from tvm_ffi import structural_map

    places = [(axis.var, place) for axis, place in zip(axes, index, strict=True)]
    found = structural_map(value, [(tirx.Var, lambda v: next((p for a, p in places if a.same_as(v)), v))])
    return found.astype("float32")


def broadcast_place(shape: Sequence[Any], index: Sequence[Any]) -> list[Any]:
    """The place in a TE tensor of a shape of what is at `index` of a tensor that it broadcasts to."""
    from tvm import tirx

    own = index[len(index) - len(shape) :]
    return [0 if isinstance(n, tirx.IntImm) and int(n) == 1 else i for n, i in zip(shape, own, strict=True)]


def extents_of(kind: TensorType, inputs: Sequence[Any]) -> list[Any]:
    """The shape of a type as TE expressions, over the symbolic dimensions of the TE tensors `inputs`."""
    from tvm import tirx

    known = {str(e.name): e for t in inputs for e in t.shape if isinstance(e, tirx.Var)}
    return [int(d) if d.is_constant else d.evaluate(known) for d in kind.shape]
