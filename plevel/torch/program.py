"""Files of exported programs of PyTorch."""

from __future__ import annotations

from pathlib import Path
from zipfile import is_zipfile

import torch
from torch.export import ExportedProgram

from strategy.network.graph import NetworkError


def load_program(path: Path) -> ExportedProgram:
    """The program in a file of `torch.export.save`; raise `NetworkError` if there is none."""
    try:
        with path.open("rb") as file:
            if not is_zipfile(file):  # PyTorch would log a traceback of its own
                raise NetworkError("no exported program, or cut short: write one with torch.export.save")
    except OSError as error:
        raise NetworkError(f"cannot be read: {error.strerror}") from error
    try:
        program = torch.export.load(path)
    except Exception as error:
        raise NetworkError(
            f"no exported program ({type(error).__name__}): write one with torch.export.save"
        ) from error
    _forget_multiples(program)
    return program


def _forget_multiples(program: ExportedProgram) -> None:
    """Leave ranges to symbols: PyTorch keeps those of their multiples, too, and cannot decompose what it loads then."""
    for node in program.graph.nodes:
        for extent in getattr(node.meta.get("val"), "shape", ()):
            if isinstance(extent, torch.SymInt):
                ranges = extent.node.shape_env.var_to_range
                for key in [k for k in ranges if not k.is_Symbol]:
                    del ranges[key]
                return
