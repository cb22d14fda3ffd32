"""Files of exported programs of PyTorch."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from zipfile import is_zipfile

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree

from plevel.torch.inert import inert
from plevel.torch.quantization import NAMESPACE, define_quantized, is_quantized_defined
from strategy.network.graph import NetworkError

_UNKNOWN = re.compile(r"Deserializing (\S+) in pytree is not registered")
_UNRESOLVED = re.compile(r"failed to resolve torch\.ops\.(\S+) to an operator")
_PACKAGES = ("torchvision", "torchao")  # whose operators and tensors PyTorch takes where they are imported
_GROUPED = "torch.ops.transformers.grouped_mm_fallback"
_logger = logging.getLogger("torch.export")


def load_program(path: Path) -> ExportedProgram:
    """The program in a file of `torch.export.save`; raise `NetworkError` if there is none."""
    try:
        with path.open("rb") as file:
            if not path.is_file() or not is_zipfile(file):  # PyTorch would log a traceback of its own
                raise NetworkError("not an exported program, or cut short: write one with torch.export.save")
    except OSError as error:
        raise NetworkError(f"cannot be read: {error.strerror}") from error
    program = _load(path)
    _forget_multiples(program)
    return program


def _load(path: Path) -> ExportedProgram:
    """The program of a file, whatever packages its inputs' and outputs' types are of: their values are what counts."""
    known: set[str] = set()
    try:
        return _load_with(path, known)
    finally:
        for name in known:  # for the package's own type, if it is imported later
            _pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE.pop(name, None)
        if known:
            _pytree.treespec_loads.cache_clear()


def _load_with(path: Path, known: set[str]) -> ExportedProgram:
    """The program of a file, with types that stand in for others, whose names are added to `known`."""
    while True:
        with _reasons() as reasons, inert():
            try:
                return torch.export.load(path)
            except Exception as error:
                reason = reasons[-1] if reasons else error
        if _GROUPED in str(reason) and not hasattr(torch.ops.transformers, "grouped_mm_fallback"):
            _define_grouped()
            continue
        if f"torch.ops.{NAMESPACE}" in str(reason) and not is_quantized_defined():
            define_quantized()
            continue
        if unresolved := _UNRESOLVED.search(str(reason)):
            _define(unresolved[1])
            continue
        if "torchao" in str(reason) and "torchao" not in sys.modules:  # a tensor of a class of its own
            _import("torchao")
            continue
        unknown = _UNKNOWN.search(str(reason))
        if unknown is None or unknown[1] in known or not unknown[1].isprintable():
            why = f"{type(reason).__name__}: {' '.join(str(reason).split())[:200]}"
            raise NetworkError(f"not an exported program ({why}): write one with torch.export.save") from reason
        known.add(unknown[1])
        _stand_in(unknown[1])


@contextmanager
def _reasons() -> Iterator[list[BaseException]]:
    """The exceptions that PyTorch logs when it loads a file, in place of its log."""
    found: list[BaseException] = []

    def keep(record: logging.LogRecord) -> bool:
        if record.exc_info and record.exc_info[1]:
            found.append(record.exc_info[1])
        return False

    _logger.addFilter(keep)
    try:
        yield found
    finally:
        _logger.removeFilter(keep)


def _stand_in(name: str) -> None:
    """Take values of a type, of a package that this process has not imported, as lists."""
    kind = type(name.rpartition(".")[2], (list,), {"__doc__": f"Values in place of {name}."})
    _pytree._private_register_pytree_node(
        kind, lambda values: (list(values), None), lambda values, _: kind(values), serialized_type_name=name,
        to_dumpable_context=lambda _: "", from_dumpable_context=lambda _: None,
        flatten_with_keys_fn=lambda values: ([(_pytree.SequenceKey(i), v) for i, v in enumerate(values)], None),
    )


def _define_grouped() -> None:
    """Define an operator of transformers, which programs call that its models of experts are exported to.

    It is there for as long as the process, into which transformers, which defines it itself, cannot be imported then.
    """

    def grouped_mm_fallback(input: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
        found = input.new_zeros(input.shape[0], weight.shape[2])
        begin = 0
        for end, own in zip(offs.tolist(), weight, strict=True):
            found[begin:end] = input[begin:end] @ own
            begin = end
        return found

    # Evaluated, as `infer_schema` reads types and not their names.
    grouped_mm_fallback.__annotations__ = dict.fromkeys(("input", "weight", "offs", "return"), torch.Tensor)
    made = torch.library.custom_op("transformers::grouped_mm_fallback", grouped_mm_fallback, mutates_args=())
    made.register_fake(lambda data, weight, offs: data.new_empty(data.shape[0], weight.shape[2]))


def _define(name: str) -> None:
    """Define an operator by its package; raise `NetworkError` for one of a package that plevel does not know."""
    package = name.partition(".")[0]
    if package not in _PACKAGES or package in sys.modules:
        known = f"a package other than PyTorch, {' and '.join(_PACKAGES)}"
        why = f"of {known}" if package not in _PACKAGES else f"that the {package} that is installed lacks"
        raise NetworkError(f"it calls {name!r:.120}, an operator {why}: write the model without it, or end it before")
    _import(package, f"it calls {name!r:.120}, an operator")


def _import(package: str, of: str = "it has a tensor") -> None:
    """Import a package; raise `NetworkError` if this fails."""
    try:
        import_module(package)
    except Exception as error:  # whatever one for another PyTorch raises
        raise NetworkError(
            f"{of} of {package}, which cannot be imported here: install the one for this PyTorch "
            f"({type(error).__name__}: {' '.join(str(error).split())[:200]})"
        ) from error


def _forget_multiples(program: ExportedProgram) -> None:
    """Leave ranges to symbols: PyTorch keeps those of their multiples, too, and cannot decompose what it loads then."""
    for node in program.graph.nodes:
        for extent in getattr(node.meta.get("val"), "shape", ()):
            if isinstance(extent, torch.SymInt):
                ranges = extent.node.shape_env.var_to_range
                for key in [k for k in ranges if not k.is_Symbol]:
                    del ranges[key]
                return
