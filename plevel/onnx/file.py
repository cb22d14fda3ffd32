"""ONNX files, read with care: whatever is wrong with one is a `NetworkError` of one line."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from io import BytesIO
from pathlib import Path
from typing import Any

import onnx
import onnx.checker
import onnx.helper
from google.protobuf.message import DecodeError

from plevel.onnx.types import nested
from plevel.reading import read_file
from strategy.network.graph import NetworkError
from strategy.network.size import MOST, Dims
from strategy.types import MAX_ELEMENTS

_MOST_NODES = 1 << 20
MAX_BYTES = 2**31 - 1  # of a protobuf message
_MOST_PIPED = 256 << 20
_STANDARD = ("", "ai.onnx")
_TERM = re.compile(r"(?:(?P<factor>[1-9]\d{0,8})\s*\*\s*)?(?P<name>[A-Za-z_]\w*)|(?P<number>[1-9]\d{0,8})")
_RUNTIME = "com.microsoft"
_LAYER_NORM = 17  # the operator set that has it


Formula = Mapping[str, int]
"""A sum of symbolic sizes: the factor of each name, and a number as that of ''."""


def read_model(path: Path, dims: Dims) -> tuple[Any, Symbols]:
    """A checked model with its external data, and those of its inputs' symbolic sizes that have no number yet.

    Raises:
        NetworkError: the file cannot be read, is damaged, names data outside of its folder, has none of these
            symbolic sizes, or an input's axis without a size or a name for it.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise NetworkError("larger than 2 GiB: keep the weights as external data")
        source = path if path.is_file() else BytesIO(read_file(path, _MOST_PIPED, "write a file and name that"))
        model = onnx.load(source, load_external_data=False)
    except OSError as error:
        raise NetworkError(f"cannot be read: {error.strerror}") from error
    except DecodeError as error:
        raise NetworkError("not an ONNX model, or cut short: export it again") from error
    external = [t for t in _tensors(model) if t.data_location == onnx.TensorProto.EXTERNAL]
    for tensor in external:
        _check_external(tensor, path.parent)
    own = _runtime_nodes(model)
    try:
        if own:
            _check_with(model, own)
        else:
            onnx.checker.check_model(str(path) if external else model)
        for tensor in external:
            onnx.external_data_helper.load_external_data_for_tensor(tensor, str(path.parent))
            tensor.data_location = onnx.TensorProto.DEFAULT
    except (onnx.checker.ValidationError, OSError, ValueError, RuntimeError) as error:
        raise NetworkError(f"no valid ONNX model: {_short(error)}") from error
    sparse = [t.values.name for g in nested(model.graph) for t in g.sparse_initializer]
    if sparse:
        raise NetworkError(f"initializer {sparse[0]!r:.80} is sparse, and plevel reads dense ones: write it as such")
    _require_few_calls(model)
    _require_few_parts(model)
    symbols = _fix_sizes(model.graph, dims)
    return model, symbols


def _runtime_nodes(model: Any) -> list[Any]:
    """The norms that ONNX Runtime's optimizer writes into ONNX's own domain, where ONNX does not have them yet."""
    version = next((o.version for o in model.opset_import if o.domain in _STANDARD), 1)
    lacked = {"SimplifiedLayerNormalization"} | ({"LayerNormalization"} if version < _LAYER_NORM else set())
    return [n for g in nested(model.graph) for n in g.node if n.op_type in lacked and n.domain in _STANDARD]


def _check_with(model: Any, own: Sequence[Any]) -> None:
    """Check a model whose `own` nodes ONNX does not know: as those of ONNX Runtime's domain.

    Data in other files are not there yet, and have no elements in the copy that is checked: with them it could be too
    large for a check in memory.
    """
    domains = [node.domain for node in own]
    if all(o.domain != _RUNTIME for o in model.opset_import):
        model.opset_import.append(onnx.helper.make_opsetid(_RUNTIME, 1))
    for node in own:
        node.domain = _RUNTIME
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    for tensor in _tensors(bare):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            tensor.ClearField("external_data")
            tensor.data_location = onnx.TensorProto.DEFAULT
            tensor.dims[:] = [0]
    onnx.checker.check_model(bare)
    for node, domain in zip(own, domains, strict=True):
        node.domain = domain


@dataclass(frozen=True)
class Symbols:
    """The symbolic sizes of a model's inputs by name, and those axes that depend on them."""

    names: tuple[str, ...]
    axes: Sequence[tuple[Any, Formula]]

    def require_none(self) -> None:
        """Raise `NetworkError` where there are any."""
        for dim, formula in self.axes:
            name, text = dim.dim_param, _shown(formula)
            first = next(filter(None, formula))
            if text in (name, name.replace(" ", "")):
                raise NetworkError(f"an input has the symbolic size {name!r}: give it with --dim {first}=1")
            raise NetworkError(
                f"an input's size {name!r} is {text}: give it a number, such as --dim "
                f"{name}={_value(formula, dict.fromkeys(formula, 7))}"
            )

    def bind(self, values: Sequence[int]) -> None:
        """Put numbers in the place of the sizes, in the order of their names."""
        at = dict(zip(self.names, values, strict=True))
        for dim, formula in self.axes:
            dim.dim_value = _value(formula, at)  # in place of the name


def _shown(formula: Formula) -> str:
    terms = [(name if factor == 1 else f"{factor}*{name}") if name else str(factor) for name, factor in formula.items()]
    return "+".join(terms)


def _value(formula: Formula, at: Mapping[str, int]) -> int:
    return sum(factor * (at[name] if name else 1) for name, factor in formula.items())


def _require_few_calls(model: Any) -> None:
    """Refuse functions that call each other so often that the model has too many nodes without them."""
    bodies = {(f.domain, f.name): [n for g in nested(f) for n in g.node] for f in model.functions}
    calls = {key: [k for n in nodes if (k := (n.domain, n.op_type)) in bodies] for key, nodes in bodies.items()}
    counts: dict[tuple[str, str], int] = {}
    for key in TopologicalSorter(calls).static_order():
        counts[key] = len(bodies[key]) + sum(counts[k] for k in calls[key])
    if sum(counts.get((n.domain, n.op_type), 1) for g in nested(model.graph) for n in g.node) > _MOST_NODES:
        raise NetworkError(f"its functions have more than {_MOST_NODES} nodes at all places where they are called")


def _require_few_parts(model: Any) -> None:
    """Refuse a `Split` into so many parts that ONNX's inference of types, which makes each of them, takes long."""
    for graph in _graphs(model):
        for node in graph.node:
            for given in node.attribute:
                if node.op_type == "Split" and given.name == "num_outputs" and given.i > _MOST_NODES:
                    raise NetworkError(
                        f"node {node.name!r:.80} (Split): num_outputs = {given.i}: at most {_MOST_NODES}"
                    )


def _graphs(model: Any) -> Iterator[Any]:
    """The graph of a model, its functions, and the graphs within these."""
    return (graph for owner in (model.graph, *model.functions) for graph in nested(owner))


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def _tensors(model: Any) -> Iterator[Any]:
    """The tensors of a model's graphs and functions: initializers, and those of nodes' attributes."""
    for each in _graphs(model):
        yield from getattr(each, "initializer", ())  # a function has none
        for node in each.node:
            for attribute in node.attribute:
                if attribute.type == onnx.AttributeProto.TENSOR:
                    yield attribute.t


def _check_external(tensor: Any, folder: Path) -> None:
    """Raise `NetworkError` unless the tensor's bytes are in a file of the model's folder."""
    said = {entry.key: entry.value for entry in tensor.external_data}
    location = said.get("location", "")
    home = folder.resolve()
    file = (home / location).resolve()
    if not location or Path(location).is_absolute() or not file.is_relative_to(home):
        raise NetworkError(f"{tensor.name}: its data, {location!r:.80}, is outside of the model's folder: move it in")
    if not file.is_file():
        raise NetworkError(f"{tensor.name}: its data is at {location!r:.80}: there is no such file")
    try:
        begin, length = int(said.get("offset", 0)), int(said.get("length", 0))
    except ValueError as error:
        raise NetworkError(f"{tensor.name}: the offset or length of its data is not a number") from error
    if begin < 0 or length < 0 or begin + length > file.stat().st_size:
        raise NetworkError(f"{tensor.name}: {location!r:.80} is shorter than its data")


def _formula(name: str, dims: Dims, used: set[str], within: tuple[str, ...] = ()) -> Formula:
    """A size as the sum that its name says, such as "past + 1" or PyTorch's "32*s0", or by the sizes that are given.

    Args:
        used: to which the names are added that it depends on.
        within: the names of the sums that it is a part of.

    Raises:
        NetworkError: names depend on each other, or a number of the sum is out of range.
    """
    if name in within:
        raise NetworkError(f"--dim {', '.join(within)}: given by each other: give one of them a number")
    used.add(name)
    given = dims.get(name)
    if isinstance(given, int):
        return {"": given}
    if given is not None and [of for _, of in given] == [name]:  # a multiple of its own name
        return {name: given[0][0]}
    terms = _terms(name) if given is None else list(given)
    if terms == [(1, name)]:
        return {name: 1}
    found: Counter[str] = Counter()
    for factor, of in terms:
        each = _formula(of, dims, used, (*within, name)) if of else {"": 1}
        found.update({key: factor * times for key, times in each.items()})
    if max(found.values()) > MOST:
        raise NetworkError(f"--dim: {name:.80} is {_shown(found)}, and a number is at most {MOST}: give smaller ones")
    return found


def _terms(name: str) -> list[tuple[int, str]]:
    """The factors and names of a sum; the name itself where it is none. A number has no name."""
    terms = [_TERM.fullmatch(term.strip()) for term in name.split("+")]
    if not all(terms):
        return [(1, name)]
    return [(int(t["number"] or t["factor"] or 1), t["name"] or "") for t in terms if t]


def _fix_sizes(graph: Any, dims: Dims) -> Symbols:
    """Put sizes in the place of symbols in the inputs; forget what the file says of values behind them."""
    axes: list[tuple[Any, Formula]] = []
    known = {tensor.name for tensor in graph.initializer}
    unused = dict(dims)
    for given in graph.input:
        if given.name in known:
            continue
        for axis, dim in enumerate(given.type.tensor_type.shape.dim):
            if dim.HasField("dim_value") and dim.dim_value > 0:
                if dim.dim_value > MAX_ELEMENTS:
                    raise NetworkError(f"input {given.name!r}: dimension {dim.dim_value} is out of range")
                continue
            name = dim.dim_param
            if not name:
                raise NetworkError(f"input {given.name!r} has no size at axis {axis}: export it with sizes")
            used: set[str] = set()
            formula = _formula(name, dims, used)
            for n in used:
                unused.pop(n, None)
            if formula.keys() == {""}:
                dim.dim_value = formula[""]  # in place of the name
            else:
                axes.append((dim, formula))
    if unused:
        raise NetworkError(f"--dim {', '.join(unused)}: no input has such a symbolic size")
    for each in nested(graph):
        del each.value_info[:]
    for output in graph.output:
        output.type.tensor_type.ClearField("shape")
    names = dict.fromkeys(name for _, formula in axes for name in formula if name)
    return Symbols(tuple(names), axes)
