"""The workloads of an ONNX model, named as those of a PyTorch model of the same calculations."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx.shape_inference

from plevel.extraction import (
    Extracted,
    Extraction,
    Missed,
    blocked_workloads,
    has_choice,
    library_workloads,
)
from plevel.onnx.file import read_model
from plevel.onnx.network import Unknown, import_model
from plevel.onnx.types import infer_types
from strategy.network.graph import NetworkError
from strategy.network.group import PRODUCTS
from strategy.network.size import Dims

_WEIGHTED = frozenset({"Conv", "ConvTranspose", "MatMul", "Gemm"})


def extract(path: Path, dims: Dims) -> Extraction:
    """The workloads of a model in a file; what plevel has no operator for is left out, and counted.

    Raises:
        NetworkError: the file cannot be read, or a size behind an unknown operator is not known.
    """
    model, symbols = read_model(path, dims)
    symbols.require_none()
    try:
        inferred = infer_types(model, data_prop=True)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError) as error:
        raise NetworkError(f"its sizes disagree: {' '.join(str(error).split())[:300]}") from error
    network, unknown = import_model(model, inferred=inferred)
    workloads = sorted(
        (
            Extracted(w, n, (w.flops or 0) if w.op in PRODUCTS else 0)
            for w, n in library_workloads(network).items()
            # A model with an operator that plevel lacks has no library.
            if w.op in PRODUCTS or (not unknown and has_choice(w))
        ),
        key=lambda e: -e.occurrences * e.flops,
    )
    if not unknown:
        workloads += [Extracted(w, n, 0) for w, n in blocked_workloads(network).items() if has_choice(w)]
    shapes = {t.name: tuple(t.dims) for t in model.graph.initializer}
    counts = Counter(u.node.op_type for u in unknown)
    missed = [
        Missed(op, n, sum(_flops(u, shapes) for u in unknown if u.node.op_type == op)) for op, n in counts.items()
    ]
    return Extraction(tuple(workloads), tuple(sorted(missed, key=lambda m: -m.flops)))


def _flops(unknown: Unknown, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """The operations of a product that is left out, by its weight; 0 for other operators."""
    node: Any = unknown.node
    weight = shapes.get(node.input[1]) if len(node.input) > 1 else None
    if node.op_type not in _WEIGHTED or weight is None:
        return 0
    per_output = math.prod(weight[1:] if node.op_type == "Conv" else weight[:1])
    return 2 * unknown.outputs[0].size * per_output
