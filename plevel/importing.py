"""Models in files as networks, with what their own framework computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from plevel.comparison import Reference
from strategy.network.graph import Network, NetworkError


@dataclass(frozen=True)
class Imported:
    """A network, and its reference, which keeps the values of these names."""

    network: Network
    reference: Callable[[Sequence[str]], Reference]


class ExtraError(RuntimeError):
    """A package that reads a kind of file is not installed; the message names the extra."""


def import_model(path: Path) -> Imported:
    """The model in a file of `torch.export.save` (`.pt2`).

    Raises:
        NetworkError: the file cannot be read, or has what plevel has no operator for.
        ExtraError: the package that reads it is not installed.
    """
    if path.suffix == ".pt2":
        return _import_program(path)
    raise NetworkError(f"{path}: a model is a .pt2 file of torch.export.save")


def _import_program(path: Path) -> Imported:
    require("torch", "torch")
    from plevel.torch.exported import import_program, load_program, run_program

    program = load_program(path)
    network, plain = import_program(program)
    return Imported(network, lambda wanted: run_program(program, plain, wanted))


def require(module: str, extra: str) -> None:
    """Raise `ExtraError` if a module of an extra is not installed."""
    if find_spec(module) is None:
        raise ExtraError(f"the {extra!r} extra is not installed ({module} is missing): pip install 'plevel[{extra}]'")
