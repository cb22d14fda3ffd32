"""Failures of building, and their origin (file and line) in an operator's code."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

_STRATEGY = Path(__file__).parent
_OPERATORS = _STRATEGY / "ops"
_STANDARD = Path(sysconfig.get_path("stdlib"))
_LIBRARIES = frozenset({"tvm", "tvm_ffi", "numpy", "msgspec"})


class InstantiationError(ValueError):
    """Compute, prepare or schedule refused this workload or configuration."""


class CompileError(RuntimeError):
    """TVM, LLVM or the linker could not compile a scheduled module."""


class ToolError(CompileError):
    """A compiler, linker or library of this host is missing or cannot be run: no fault of what is compiled."""


def find_fault(error: BaseException) -> str | None:
    """`FILE:LINE` of the innermost call in an operator's code, of plevel or a package; None without one.

    Operators' code is called by the strategy layer, and is neither part of it nor a library.
    """
    found, called = None, False
    for frame in traceback.extract_tb(error.__traceback__):
        path = Path(frame.filename)
        ours = path.is_relative_to(_STRATEGY) and not path.is_relative_to(_OPERATORS)
        if ours:
            called = True
        elif called and path.suffix == ".py" and not _is_library(path):
            found = f"{path}:{frame.lineno}"
    return found


def _is_library(path: Path) -> bool:
    if "site-packages" in path.parts:
        return not _LIBRARIES.isdisjoint(path.parts)
    return path.is_relative_to(_STANDARD)
