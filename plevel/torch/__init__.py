"""PyTorch models with plevel's kernels: a backend of `torch.compile`, tuning, and extraction of workloads.

    import plevel.torch

    plevel.torch.tune(model.eval(), inputs)
    fast = torch.compile(model, backend="plevel")
    with torch.inference_mode():
        y = fast(*inputs)
    for report in plevel.torch.explain(model):
        print(report)

Importing this package loads no PyTorch; using it does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plevel.torch.explanation import Report, explain
    from plevel.torch.extraction import ExtractError, Extraction, extract
    from plevel.torch.tuning import tune

__all__ = ["ExtractError", "Extraction", "Report", "explain", "extract", "tune"]

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
