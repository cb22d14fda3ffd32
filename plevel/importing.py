"""Models in files as networks, with what their own framework computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from plevel.comparison import Reference
from plevel.extra import require
from strategy.network.graph import Network, NetworkError
from strategy.network.size import Dims


@dataclass(frozen=True)
class Imported:
    """A network, and its reference, which keeps the values of these names, at these symbolic sizes.

    `example` has the sizes of the model's own example inputs, if it has any.
    """

    network: Network
    framework: str
    reference: Callable[[Sequence[str], Sequence[int]], Reference]
    example: tuple[int, ...] = ()


def import_model(path: Path, dims: Dims) -> Imported:
    """The model in a file of `torch.export.save` (`.pt2`), or in an ONNX file.

    Args:
        dims: sizes for the symbolic ones of an ONNX file, or sums of other symbols.

    Raises:
        NetworkError: the file cannot be read, or has what plevel has no operator for.
        EmbeddedError: the package that reads it is not installed.
    """
    if path.suffix == ".onnx":
        return _import_onnx(path, dims)
    if dims:
        raise NetworkError(
            "--dim: only ONNX files have sizes to give; a .pt2 file has those of its export: call torch.export.export "
            "with inputs of other sizes, or with dynamic_shapes for all sizes"
        )
    if path.suffix == ".pt2":
        return _import_program(path)
    raise NetworkError("a model is a .pt2 file of torch.export.save, or an .onnx file")


def _import_program(path: Path) -> Imported:
    require("torch", "torch")
    from plevel.torch.exported import example_sizes, import_program, run_program
    from plevel.torch.program import load_program

    program = load_program(path)
    network, plain = import_program(program)
    example = example_sizes(plain, network)
    return Imported(network, "torch", lambda wanted, sizes: run_program(program, plain, wanted, sizes), example)


def _import_onnx(path: Path, dims: Dims) -> Imported:
    require("onnx", "onnx")
    from plevel.onnx.file import read_model
    from plevel.onnx.network import import_symbolic, run_model

    model, symbols = read_model(path, dims)

    def reference(wanted: Sequence[str], sizes: Sequence[int]) -> Reference:
        symbols.bind(sizes)
        return run_model(model, wanted)

    return Imported(import_symbolic(model, symbols), "onnx", reference)
