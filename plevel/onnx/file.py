"""ONNX files, read with care: whatever is wrong with one is a `NetworkError` of one line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx
import onnx.checker
from google.protobuf.message import DecodeError

from strategy.network.graph import NetworkError

MAX_BYTES = 2**31 - 1  # of a protobuf message


def read_model(path: Path, dims: Mapping[str, int]) -> Any:
    """A checked model with its external data, its inputs' symbolic sizes replaced.

    Args:
        dims: sizes by the names that the model has for them.

    Raises:
        NetworkError: the file cannot be read, is damaged, names data outside of its folder, or has other
            symbolic sizes.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise NetworkError("larger than 2 GiB: keep the weights as external data")
        model = onnx.load(path, load_external_data=False)
    except OSError as error:
        raise NetworkError(f"cannot be read: {error.strerror}") from error
    except DecodeError as error:
        raise NetworkError("no ONNX model, or cut short: export it again") from error
    external = [t for t in _tensors(model.graph) if t.data_location == onnx.TensorProto.EXTERNAL]
    for tensor in external:
        _check_external(tensor, path.parent)
    try:
        onnx.checker.check_model(str(path) if external else model)
        for tensor in external:
            onnx.external_data_helper.load_external_data_for_tensor(tensor, str(path.parent))
            tensor.data_location = onnx.TensorProto.DEFAULT
    except (onnx.checker.ValidationError, OSError, ValueError, RuntimeError) as error:
        raise NetworkError(f"no valid ONNX model: {_short(error)}") from error
    _fix_sizes(model.graph, dims)
    return model


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def _tensors(graph: Any) -> Iterator[Any]:
    """The tensors of a graph: initializers, and those of nodes' attributes; subgraphs are not entered."""
    yield from graph.initializer
    for node in graph.node:
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
        raise NetworkError(f"{tensor.name}: its data is at {location!r:.80}, outside of the model's folder: refused")
    if not file.is_file():
        raise NetworkError(f"{tensor.name}: its data is at {location!r:.80}, and there is no such file")
    try:
        begin, length = int(said.get("offset", 0)), int(said.get("length", 0))
    except ValueError as error:
        raise NetworkError(f"{tensor.name}: its data has a place that is no number") from error
    if begin < 0 or length < 0 or begin + length > file.stat().st_size:
        raise NetworkError(f"{tensor.name}: {location!r:.80} is shorter than its data")


def _fix_sizes(graph: Any, dims: Mapping[str, int]) -> None:
    """Put sizes in the place of symbols in the inputs; forget what the file says of values behind them."""
    known = {tensor.name for tensor in graph.initializer}
    unused = dict(dims)
    for given in graph.input:
        if given.name in known:
            continue
        for axis, dim in enumerate(given.type.tensor_type.shape.dim):
            if dim.HasField("dim_value") and dim.dim_value > 0:
                continue
            if dim.dim_param not in dims:
                raise NetworkError(
                    f"input {given.name!r} has the symbolic size {dim.dim_param!r} at axis {axis}: "
                    f"give it with --dim {dim.dim_param}=1"
                    if dim.dim_param
                    else f"input {given.name!r} has no size at axis {axis}: export it with sizes"
                )
            unused.pop(dim.dim_param, None)
            dim.dim_value = dims[dim.dim_param]  # in place of the name
    if unused:
        raise NetworkError(f"--dim {', '.join(unused)}: no input has such a symbolic size")
    del graph.value_info[:]
    for output in graph.output:
        output.type.tensor_type.ClearField("shape")
