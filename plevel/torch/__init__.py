"""PyTorch models with plevel's kernels: extraction of workloads, and a backend of `torch.compile`.

    import plevel.torch

    found = plevel.torch.extract(model, inputs)
    fast = torch.compile(model, backend="plevel")

Importing this package loads no PyTorch; using it does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plevel.torch.extraction import ExtractError, Extraction, extract

__all__ = ["ExtractError", "Extraction", "extract"]

_HOMES = {
    "ExtractError": "plevel.torch.extraction",
    "Extraction": "plevel.torch.extraction",
    "Report": "plevel.torch.explanation",
    "explain": "plevel.torch.explanation",
    "extract": "plevel.torch.extraction",
    "tune": "plevel.torch.tuning",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'plevel.torch' has no attribute {name!r}")
