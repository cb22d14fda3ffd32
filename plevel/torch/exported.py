"""Exported programs of PyTorch as networks."""
# Over 300 lines: a program's inputs, calls and outputs, in one walk, and the values that they are compared with.

from __future__ import annotations

import operator
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import ml_dtypes
import torch
from torch._decomp import decomposition_table
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind
from torch.fx import GraphModule

import plevel.torch.aten_grouping
import plevel.torch.aten_layer
import plevel.torch.aten_matrix
import plevel.torch.aten_movement
import plevel.torch.aten_order
import plevel.torch.aten_pool
import plevel.torch.aten_reduction
import plevel.torch.aten_sampling
import plevel.torch.aten_writing  # noqa: F401  # all nine register their operators
from plevel.comparison import Reference, UnfitError
from plevel.torch.aten import OPERATORS
from plevel.torch.aten_complex import COMPLEX, Complex, call_complex, is_complex
from plevel.torch.control import MOST_UNROLLED, Run, control_of
from plevel.torch.frozen import is_dense, is_mask
from plevel.torch.joining import join_sizes
from plevel.torch.quantization import Rounded, quantized_parts
from plevel.torch.reach import find_reached, limited
from plevel.torch.symbol import (
    SYMBOLIC,
    Binding,
    find_bounds,
    find_extents,
    find_symbols,
    known,
    range_of,
    read_number,
    resized,
)
from strategy.expr import Constant, Expr, Tuple, Var
from strategy.network import layer
from strategy.network.derivation import derive_all
from strategy.network.graph import Network, NetworkError, require_known
from strategy.network.probe import make_sizes
from strategy.network.rewriter import extents
from strategy.network.size import PROBED
from strategy.types import DTYPES

aten = torch.ops.aten
MOST_BYTES = 2**30  # of weights: a library holds them all, packed
# Kept as they are: plevel has an operator for them, or better parts than PyTorch's decomposition.
_WHOLE = (
    aten.linear.default, aten.matmul.default, aten.scaled_dot_product_attention.default, aten.silu.default,
    aten.hardswish.default, aten.hardsigmoid.default, aten.mish.default, aten.relu6.default,
    aten.upsample_nearest2d.vec, aten.upsample_bilinear2d.vec, aten.upsample_bicubic2d.vec, aten.stft.default,
)
# PyTorch has parts of these, but does not take them by default.
_BY_PARTS = (aten.addmv.default, aten.dist.default, aten.ldexp.Tensor)
# Of a dtype and a device, which types fix, and of values that PyTorch would refuse.
_CLAIMS = (
    aten._assert_tensor_metadata.default, aten._assert_async.msg, aten._assert_scalar.default,
    aten.sym_constrain_range.default, aten.sym_constrain_range_for_size.default,
)
_STRIDED = {aten.as_strided.default: 3, aten.as_strided_scatter.default: 4}
"""Views by strides, and the number of arguments before the begin."""
_REFUSED = (ValueError, ArithmeticError, IndexError, TypeError, MemoryError)


Order = tuple[int, ...]


def import_graph(module: GraphModule, inputs: Sequence[Any]) -> tuple[Network, tuple[Order, ...]]:
    """The network of a graph of Dynamo's, which is exported anew, apart from what Dynamo knows of it.

    A network's outputs are row-major. One that the graph lays out otherwise, such as an image of channels_last, has its
    axes in that order, which is given, too; the order of others is empty.

    Raises:
        NetworkError: as `import_program`; it cannot be exported, or its weights are too large for a library.
    """
    find_weights(module)
    exported = _Autocast(module, torch.get_autocast_dtype("cpu")) if torch.is_autocast_enabled("cpu") else module
    with (
        torch._guards.tracing(None), torch.no_grad(), torch.autocast("cpu", enabled=False), warnings.catch_warnings()
    ):
        warnings.simplefilter("ignore", FutureWarning)  # PyTorch's, of itself
        depth = torch._C._functorch.get_dynamic_layer_stack_depth()
        try:
            program = torch.export.export(exported, tuple(inputs), strict=False)
        except Exception as error:  # of any type
            reason = " ".join(str(error).split())[:200]
            raise NetworkError(f"it cannot be exported: {type(error).__name__}: {reason}") from error
        finally:  # the graph enters the transforms of torch.func by calls, and an error is raised between them
            torch._C._functorch.pop_dynamic_layer_stack_and_undo_to_depth(depth)
        network, _ = import_program(program)
        if network.sizes is not None:
            raise NetworkError("its sizes are symbolic")
        # As PyTorch's own operators lay them out: their parts may do otherwise.
        orders = tuple(_order(node.meta["val"]) for node in _results(program))
        pairs = zip(network.outputs.items(), orders, strict=True)
        outputs = {name: layer.transpose(value, order) if order else value for (name, value), order in pairs}
        return replace(network, outputs=outputs), orders


def _order(value: torch.Tensor) -> Order:
    if value.is_contiguous():
        return ()
    order = sorted(range(value.ndim), key=value.stride, reverse=True)
    if not value.permute(order).is_contiguous():
        raise NetworkError("an output is a part of a tensor, or repeats one, and a library writes whole ones")
    return tuple(order)


class _Autocast(torch.nn.Module):  # type: ignore[misc]
    """A graph with the autocast that is around its call: an export has only what is within a module."""

    def __init__(self, module: GraphModule, dtype: torch.dtype) -> None:
        super().__init__()
        self.module, self.dtype = module, dtype

    def forward(self, *inputs: Any) -> Any:
        with torch.autocast("cpu", self.dtype):
            return self.module(*inputs)


def find_weights(module: GraphModule) -> dict[str, torch.Tensor]:
    """A graph's parameters, buffers and constants by name.

    Raises:
        NetworkError: they are too large for a library, sparse, or wrappers of other tensors.
    """
    held = dict((*module.named_parameters(), *module.named_buffers()))
    for node in module.graph.nodes:
        if node.op == "get_attr":
            value = reduce(getattr, node.target.split("."), module)
            if isinstance(value, torch.Tensor):  # else a branch of torch.cond
                held[node.target] = value
    if not all(map(is_dense, held.values())):
        raise NetworkError("its weights are not all dense tensors of PyTorch's own type")
    require_few(sum(t.nbytes for t in held.values()))
    return held


def require_few(size: int) -> None:
    """Raise `NetworkError` for weights of more bytes than a library may have."""
    if size > MOST_BYTES:
        raise NetworkError(f"its weights have {size / 2**30:.1f} GiB, and a library at most {MOST_BYTES >> 30} GiB")


def _zeros(shape: Any, _strides: Any = None, *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    """Zeros in place of a tensor that is written before it is read: PyTorch's has chance values to compare with."""
    return aten.full.default(shape, 0.0, dtype=dtype, device=device)


def _inverse(matrix: Any) -> Any:
    return aten.linalg_inv_ex.default(matrix)[0]


def _solution(matrix: Any, right: Any, *, left: bool = True) -> Any:
    return aten._linalg_solve_ex.default(matrix, right, left=left)[0]


def _linspace(start: Any, end: Any, steps: Any, **about: Any) -> Any:
    """PyTorch's parts round otherwise than PyTorch itself, which computes a range that is fixed."""
    if all(isinstance(n, int | float) for n in (start, end, steps)):
        return NotImplemented
    return decomposition_table[aten.linspace.default](start, end, steps, **about)


def import_program(program: ExportedProgram) -> tuple[Network, ExportedProgram]:
    """The network of an exported program, and the program in the operators whose values it names.

    Raises:
        NetworkError: operators that there are no parts for, all at once; extents that are no sums of products of
            symbolic sizes and of their quotients; changed buffers.
    """
    table = torch.export.default_decompositions()
    for kept in _WHOLE:
        table.pop(kept, None)
    table[aten.empty.memory_format] = _zeros
    table[aten.empty_permuted.default] = table[aten.empty_strided.default] = _zeros
    table[aten.linspace.default] = _linspace
    # Without the check for singular matrices, which a library, whose outputs are numbers alone, does not make.
    table[aten.linalg_inv.default] = table[aten.inverse.default] = _inverse
    table[aten.linalg_solve.default] = _solution
    for operation in _BY_PARTS:
        table[operation] = decomposition_table[operation]
    table.update(quantized_parts(list(program.graph.nodes)))
    try:
        plain = program.run_decompositions(table)
    except Exception as error:  # of any type
        _refuse_written(program)
        reason = " ".join(str(error).split())[:200]
        raise NetworkError(f"PyTorch cannot decompose it: {type(error).__name__}: {reason}") from error
    _drop_claims(plain)
    _refuse_unknown(plain)
    join_sizes(plain)
    symbols = find_symbols(plain)
    if not symbols:
        return _import(plain, {})[0], plain
    bounds = [range_of(plain, symbol) for symbol in symbols]
    known = find_extents(plain, symbols)
    while True:
        try:
            both = make_sizes(bounds, _fixed(plain), known, joint=True)
        except ValueError as error:
            raise NetworkError(f"{error}: export the model with fixed sizes, or with multiples of sizes") from error
        found: list[Network] = []
        reached = []
        for sizes in both:
            at = dict(zip(symbols, sizes.probes, strict=True))
            try:
                network, places = _import(plain, at)
                reached.append(places)
            except NetworkError as error:
                raise NetworkError(sizes.shown(error)) from error
            found.append(replace(network, sizes=sizes))
        more = derive_all(found[0].root, both[0], twin=found[1].root)
        if not more.has_quotients or more.known == both[0].known:
            each = [replace(s.knowing(more.known), bounds=tuple(find_bounds(plain, symbols))) for s in both]
            own, other = (limited(s, r, t) for s, r, t in zip(each, reached, reached[::-1], strict=True))
            return replace(found[0], sizes=own, twin=replace(found[1], sizes=other)), plain
        known = list(more.known)  # with those between plevel's own operators, which probes must tell apart, too


def _refuse_written(program: ExportedProgram) -> None:
    """Name what the program writes of its own: at constants PyTorch fails with an error that names none."""
    held = dict(zip(_nodes(program, "placeholder"), program.graph_signature.input_specs, strict=True))
    for node in _nodes(program, "call_function"):
        spec = held.get(node.args[0]) if node.args and isinstance(node.args[0], torch.fx.Node) else None
        writes = isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable
        if writes and spec and spec.kind is not InputKind.USER_INPUT:
            raise _stateful(spec)


def _stateful(spec: Any) -> NetworkError:
    return NetworkError(
        f"it changes {spec.target} ({spec.kind.name.lower()}) when it runs, and a library keeps no state: "
        "export it in eval mode, or take such state as an input and give the new one as an output"
    )


def _drop_claims(plain: ExportedProgram) -> None:
    """Leave out claims, and what is computed for them alone."""
    for module in _modules(plain):
        for node in list(module.graph.nodes):
            if node.op == "call_function" and node.target in _CLAIMS:
                module.graph.erase_node(node)
        module.graph.eliminate_dead_code()


def _modules(program: ExportedProgram) -> list[GraphModule]:
    """A program's graph, and those of the branches in it."""
    return [module for module in program.graph_module.modules() if isinstance(module, GraphModule)]


def _fixed(plain: ExportedProgram) -> set[int]:
    """The extents of inputs and weights that are no symbolic sizes."""
    values = [node.meta.get("val") for node in _nodes(plain, "placeholder")]
    return {n for v in values if isinstance(v, torch.Tensor) for n in v.shape if isinstance(n, int)}


def _import(plain: ExportedProgram, at: Binding) -> tuple[Network, list[tuple[int, int]]]:
    """The network of a program at one value of each of its symbols, and what `find_reached` finds in all of it."""
    values: dict[Any, Any] = {}
    names: dict[Expr, str] = {}
    inputs = []
    for spec, node in zip(plain.graph_signature.input_specs, _nodes(plain, "placeholder"), strict=True):
        if spec.kind is InputKind.USER_INPUT:
            if isinstance(spec.arg, ConstantArgument):  # which the program is specialised to
                continue
            if not isinstance(node.meta.get("val"), torch.Tensor):
                raise NetworkError(f"input {node.name} is no tensor: export the model with tensors alone")
            values[node] = Var(node.name, _type(node, node.meta["val"], at))
            inputs.append(values[node])
        elif node.users:
            values[node] = _constant(_held(plain, spec))
        names.update({values[node]: node.name} if isinstance(values.get(node), Expr) else {})
    reached: list[tuple[int, int]] = []
    _compute(plain.graph_module, values, names, at, _runner(values, at, reached))
    reached += find_reached(plain.graph_module.graph, at, values)
    return Network(tuple(inputs), _outputs(plain, values), names), reached


def _runner(values: dict[Any, Any], at: Binding, reached: list[tuple[int, int]]) -> Run:
    """The function that computes graphs within a program.

    The values of their nodes join `values`, and what each of its calls reaches joins `reached`.
    """
    unrolled = 0

    def run(module: GraphModule, operands: Sequence[Any]) -> tuple[Any, ...]:
        nonlocal unrolled
        unrolled += 1 + len(module.graph.nodes)
        if unrolled > MOST_UNROLLED:
            raise NetworkError(f"plevel unrolls loops of at most {MOST_UNROLLED} nodes and steps in all")
        values.update(zip(module.graph.find_nodes(op="placeholder"), operands, strict=True))
        _compute(module, values, {}, at, run)
        reached.extend(find_reached(module.graph, at, values))
        made = module.graph.output_node().args[0]
        return tuple(torch.fx.map_arg(made if isinstance(made, list | tuple) else (made,), lambda n: values[n]))

    return run


def _compute(module: GraphModule, values: dict[Any, Any], names: dict[Expr, str], at: Binding, run: Run) -> None:
    """Add the values of a graph's nodes, and their names, to those of its inputs."""
    for node in module.graph.nodes:
        if node.op == "get_attr":
            values[node] = getattr(module, node.target)  # a branch
        if node.op != "call_function":
            continue
        if isinstance(node.meta.get("val"), SYMBOLIC):
            try:
                values[node] = read_number(node.meta["val"], at)
            except NetworkError as error:
                raise NetworkError(f"{node.name} ({node.target}): {error}") from error
            continue
        args = torch.fx.map_arg(node.args, lambda n: values[n])
        kwargs = torch.fx.map_arg(node.kwargs, lambda n: values[n])
        if str(node.target) == "aten.slice.Tensor" and len(args) > 3 and isinstance(node.args[3], int):
            # A number of the program is no symbolic size, however large.
            axis = extents(args[0].real if isinstance(args[0], Complex) else args[0])[args[1]]
            args = (*args[:3], min(args[3], axis) if axis < PROBED else args[3], *args[4:])
        if n := _STRIDED.get(node.target):
            args = (*args[:n], *_memory(node, args[n:], at))
        control = control_of(node)
        try:
            values[node] = control(node, run, *args) if control else _call(node, args, kwargs, at)
        except _REFUSED as error:
            raise NetworkError(f"{node.name} ({node.target}): {error}") from error
        if isinstance(values[node], Expr) and not isinstance(values[node], Tuple):
            names[values[node]] = node.name


def _nodes(program: ExportedProgram, kind: str) -> list[Any]:
    return [node for node in program.graph.nodes if node.op == kind]


def _call(node: Any, args: Sequence[Any], kwargs: dict[str, Any], at: Binding) -> Any:
    if node.target is operator.getitem:
        made, index = args
        if index >= len(made):
            raise NetworkError(f"its output {index} is used, which plevel does not compute")
        return made[index]() if callable(made[index]) else made[index]  # some are made where they are read
    if _is_made(node):
        return _constant(node.target(*args, **kwargs))
    name, outputs = str(node.target), node.meta.get("val")
    if all(isinstance(v, torch.Tensor) and 0 in (n for n in v.shape if isinstance(n, int)) for v in _each(outputs)):
        empty = [_constant(torch.empty([known(n, at) for n in v.shape], dtype=v.dtype)) for v in _each(outputs)]
        return empty[0] if isinstance(outputs, torch.Tensor) else tuple(empty)
    makes_complex = isinstance(outputs, torch.Tensor) and outputs.is_complex()
    if makes_complex or name not in OPERATORS or is_complex([*args, *kwargs.values()]):
        found = call_complex(name, args, kwargs)
    else:
        found = OPERATORS[name](*args, **kwargs)
    for made, value in zip(_each(found), _each(outputs), strict=False):  # those that plevel computes
        if not (isinstance(made, Expr) and isinstance(value, torch.Tensor)):
            continue
        expected = _type(node, value, at)
        if str(made.tensor_type) != expected:
            raise NetworkError(f"{made.tensor_type} where PyTorch computes {expected}: plevel does not mix these types")
    return found


def _is_made(node: Any) -> bool:
    """Return whether a node has no inputs, and an operator that plevel lacks: PyTorch computes it, once."""
    return (
        str(node.target) not in OPERATORS
        and not node.all_input_nodes
        and isinstance(node.meta.get("val"), torch.Tensor)
        and torch.Tag.nondeterministic_seeded not in node.target.tags
        and node.target.namespace in ("aten", "prims")
        and not any(isinstance(a.type, torch.StringType) for a in node.target._schema.arguments)  # names of files
    )


def _memory(node: Any, rest: Sequence[Any], at: Binding) -> tuple[int | None, tuple[int, ...]]:
    """The begin of a view by strides, from its tensor's own, and the tensor's strides."""
    own = node.args[0].meta["val"]
    begin = rest[0] if rest else None
    if begin is not None:  # from the begin of the memory, of which the tensor may be a part
        begin -= known(own.storage_offset(), at)
        if begin < 0:
            raise NetworkError(f"{node.name} ({node.target}): memory before its tensor's: make a copy with .clone()")
    return begin, tuple(known(n, at) for n in own.stride())


def _each(outputs: Any) -> Sequence[Any]:
    return outputs if isinstance(outputs, list | tuple) and not isinstance(outputs, Complex) else (outputs,)


def _refuse_unknown(program: ExportedProgram) -> None:
    known_names = OPERATORS.keys() | COMPLEX
    unknown = Counter(
        str(node.target)
        for module in _modules(program)
        for node in module.graph.nodes
        if node.op == "call_function"
        and str(node.target) not in known_names
        and node.target is not operator.getitem
        and control_of(node) is None
        and not isinstance(node.meta.get("val"), SYMBOLIC)
        and not _is_made(node)
    )
    require_known(unknown)


def _held(program: ExportedProgram, spec: Any) -> Any:
    """A parameter, buffer or constant."""
    held = program.state_dict if spec.target in program.state_dict else program.constants
    if spec.target not in held:
        raise NetworkError(f"{spec.arg.name} ({spec.kind.name.lower()}) has no value: export the model anew")
    return held[spec.target]


def _constant(tensor: Any) -> Constant | Complex:
    if tensor.is_complex():
        return Complex(*(Constant(_array(part)) for part in (tensor.real, tensor.imag)))
    return Constant(_array(tensor))


def _array(tensor: Any) -> Any:
    """The values for NumPy, whose bfloat16 is from another package."""
    found = tensor.detach().resolve_conj().resolve_neg().contiguous().cpu()
    if found.dtype == torch.bfloat16:
        return found.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    try:
        return found.numpy()
    except TypeError as error:
        raise NetworkError(f"a weight is of {_dtype(found)}, which plevel has no kernels for") from error


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _type(node: Any, value: torch.Tensor, at: Binding) -> str:
    dtype = _dtype(value)
    if dtype not in DTYPES:
        raise NetworkError(f"{node.name} is of {dtype}, which plevel has no kernels for")
    return f"{dtype}[{','.join(str(known(n, at)) for n in value.shape)}]"


def _outputs(program: ExportedProgram, values: dict[Any, Any]) -> dict[str, Expr]:
    found = []
    for value in _results(program):
        if isinstance(value, torch.fx.Node) and isinstance(values[value], Complex):
            raise NetworkError(f"it returns {value!s:.40}, of complex numbers: return torch.view_as_real of them")
        if not isinstance(value, torch.fx.Node) or not isinstance(values[value], Expr):
            raise NetworkError(f"it returns {value!s:.40}, which is no tensor: return tensors alone")
        found.append(values[value])
    if not found:
        raise NetworkError("it returns no tensor: there is nothing to compute")
    if len(found) == 1:
        return {"output": found[0]}
    return {f"output{i}": value for i, value in enumerate(found)}


def _results(program: ExportedProgram) -> list[Any]:
    """The outputs of a program but for None and numbers, which are the same at each call."""
    (node,) = _nodes(program, "output")
    found = []
    for spec, value in zip(program.graph_signature.output_specs, node.args[0], strict=True):
        if spec.kind is not OutputKind.USER_OUTPUT:
            raise _stateful(spec)
        if not isinstance(spec.arg, ConstantArgument):
            found.append(value)
    return found


def example_sizes(plain: ExportedProgram, network: Network) -> tuple[int, ...]:
    """The symbolic sizes of a program's example inputs, if it has any, and its network takes them."""
    if network.sizes is None:
        return ()
    axes = (n for node in plain.graph.nodes for n in getattr(node.meta.get("val"), "shape", ()))
    known = next(n for n in axes if isinstance(n, torch.SymInt)).node.shape_env.backed_var_to_val
    sizes = tuple(int(known.get(symbol, -1)) for symbol in find_symbols(plain))
    fits = all(s.low <= n <= s.high for s, n in zip(network.sizes.sizes, sizes, strict=True))
    return sizes if fits else ()


def run_program(
    program: ExportedProgram, plain: ExportedProgram, wanted: Sequence[str], sizes: Sequence[int] = ()
) -> Reference:
    """PyTorch's own values for the program's example inputs, repeated or cut to the symbolic sizes if there are any.

    For a program without example inputs these are random numbers, and integers of 1: a mask of random ones could hide
    all that an attention sees, of which PyTorch's operators make different values.

    Args:
        plain: the program in the operators of its network, of which the `wanted` nodes' values are kept.

    Raises:
        UnfitError: PyTorch refuses them at these sizes.
    """
    at = dict(zip(find_symbols(plain), sizes, strict=True)) if sizes else {}
    pairs = zip(plain.graph_signature.input_specs, _nodes(plain, "placeholder"), strict=True)
    nodes = [node for spec, node in pairs if spec.kind is InputKind.USER_INPUT]
    if program.example_inputs is None:
        random = torch.Generator().manual_seed(0)
        given = [_drawn(node.meta["val"], at, random) for node in nodes]
    else:
        given, form = torch.utils._pytree.tree_flatten(program.example_inputs)
        given = [
            resized(x, node.meta["val"], at) if at and isinstance(x, torch.Tensor) else x
            for x, node in zip(given, nodes, strict=True)
        ]
    values: dict[str, Any] = {}

    class Keeper(torch.fx.Interpreter):  # type: ignore[misc]
        def run_node(self, node: Any) -> Any:
            found = super().run_node(node)
            if node.name in names and node.op != "output":  # of which a library's only output may have the name
                values[node.name] = _array(found)
            return found

    names, left = set(wanted), iter(given)
    inputs = [
        next(left) if spec.kind is InputKind.USER_INPUT else _held(plain, spec)
        for spec in plain.graph_signature.input_specs
    ]
    try:
        with torch.no_grad():
            if names or program.example_inputs is None:
                outputs = Keeper(plain.graph_module).run(*inputs)
            if program.example_inputs is not None:
                args, kwargs = torch.utils._pytree.tree_unflatten(given, form)
                # It has a guard against each size that PyTorch would trace anew, where its operators are right, too.
                outputs, _ = torch.utils._pytree.tree_flatten(program.module(check_guards=False)(*args, **kwargs))
    except (IndexError, RuntimeError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0][:200]
        place = f" at sizes {'×'.join(map(str, sizes))}" if sizes else ""
        taken = "its example inputs" if program.example_inputs else "random inputs, as it has no examples"
        raise UnfitError(f"PyTorch does not take {taken}{place}: {reason}") from error

    def moved(part: float) -> list[Any]:
        random = torch.Generator().manual_seed(0)
        with torch.no_grad():
            return _arrays(Rounded(plain.graph_module, part).run(*(_moved(x, part, random) for x in inputs)))

    return Reference(_arrays(given), _arrays(outputs), values, moved=moved)


def _moved(x: Any, part: float, random: torch.Generator) -> Any:
    """A tensor whose numbers are off by a part of them, up or down; integers, masks and numbers of 8 bits stay."""
    is_real = isinstance(x, torch.Tensor) and x.is_floating_point() and x.element_size() > 1
    if not is_real or is_mask(x):
        return x
    return x.detach() * (1 + part * torch.randn(x.shape, generator=random).sign().to(x.dtype))


def _drawn(like: Any, at: Binding, random: torch.Generator) -> Any:
    """A tensor of random numbers, or of integers of 1. What is no tensor stays as the program is specialised to it."""
    if not isinstance(like, torch.Tensor):
        return like
    shape = [known(n, at) for n in like.shape]
    is_real = like.is_floating_point() or like.is_complex()
    return (torch.randn(shape, generator=random) if is_real else torch.ones(shape)).to(like.dtype)


def _arrays(values: Sequence[Any]) -> list[Any]:
    """Those of tensors; numbers and None, which a program is specialised to, are no inputs or outputs of a library."""
    return [_array(value) for value in values if isinstance(value, torch.Tensor)]
