"""Examples of operators: workloads of usual sizes, to show what an operator has and how it is called."""

from __future__ import annotations

from typing import Any

from strategy.attrs import AttrsError
from strategy.op import Op, TypeRelationError
from strategy.workload import Workload, WorkloadError

_Example = tuple[dict[str, str], dict[str, Any]]
_IMAGE = "float32[1,64,56,56]"
_ROWS = "float32[128,768]"
_POOL = {"pool_size": [2, 2], "strides": [2, 2]}
_SLICE = {"begin": [0, 0], "end": [64, 256]}
# Where inputs of one matrix's shape, and no attributes, are no call of it, or not a usual one.
_EXAMPLES: dict[str, tuple[_Example, ...]] = {
    "avg_pool2d": (({"data": _IMAGE}, _POOL),),
    "batch_matmul": tuple(
        ({"x": f"{dtype}[12,128,64]", "y": f"{dtype}[12,128,64]"}, {}) for dtype in ("float32", "float16")
    ),
    "bias_add": (({"data": _ROWS, "bias": "float32[768]"}, {}),),
    "cast": (({"data": _ROWS}, {"dtype": "float16"}),),
    "clip": (({"data": _ROWS}, {"a_min": 0, "a_max": 6}),),
    "collapse_sum_like": (({"data": _ROWS, "collapse_type": "float32[768]"}, {}),),
    "concatenate": (({"data.0": _ROWS, "data.1": _ROWS}, {"axis": 1}),),
    "conv2d": (
        ({"data": _IMAGE, "weight": "float32[64,64,3,3]"}, {"padding": 1}),
        ({"data": _IMAGE, "weight": "float32[128,64,1,1]"}, {}),
        ({"data": _IMAGE, "weight": "float32[64,1,3,3]"}, {"padding": 1, "groups": 64}),
        ({"data": "float16[1,64,56,56]", "weight": "float16[64,64,3,3]"}, {"padding": 1}),
    ),
    "conv2d_backward_data": (
        ({"grad": _IMAGE, "weight": "float32[64,64,3,3]", "data": _IMAGE}, {"padding": 1}),
    ),
    "conv2d_backward_weight": (
        ({"grad": _IMAGE, "data": _IMAGE, "weight": "float32[64,64,3,3]"}, {"padding": 1}),
    ),
    "dense": tuple(
        ({"data": f"{dtype}[128,768]", "weight": f"{dtype}[3072,768]"}, {}) for dtype in ("float32", "float16")
    ),
    "expand_dims": (({"data": _ROWS}, {"axis": [0]}),),
    "global_avg_pool2d": (({"data": _IMAGE}, {}),),
    "layer_norm": (({"data": _ROWS, "gamma": "float32[768]", "beta": "float32[768]"}, {}),),
    "max_pool2d": (({"data": _IMAGE}, _POOL),),
    "max_pool2d_backward": (({"grad": "float32[1,64,28,28]", "data": _IMAGE}, _POOL),),
    "reshape": (({"data": _ROWS}, {"newshape": [128, 12, 64]}),),
    "reshape_like": (({"data": _ROWS, "shape_like": "float32[128,12,64]"}, {}),),
    "split": (({"data": _ROWS}, {"axis": 1, "indices": [256]}),),
    "squeeze": (({"data": "float32[1,128,768]"}, {}),),
    "strided_slice": (({"data": _ROWS}, _SLICE),),
    "strided_slice_backward": (({"grad": "float32[64,256]", "data": _ROWS}, _SLICE),),
    "take": (({"data": "float32[30000,768]", "indices": "int32[128]"}, {"axis": 0}),),
    "take_backward": (
        ({"grad": _ROWS, "indices": "int32[128]", "data": "float32[30000,768]"}, {"axis": 0}),
    ),
    "where": (({"condition": "bool[128,768]", "x": _ROWS, "y": _ROWS}, {}),),
}
_WEIGHTS = ("weight", "bias", "gamma", "beta")


def examples(op: Op) -> tuple[Workload, ...]:
    """Workloads of an operator; none of one that others have registered and that takes no matrices."""
    plain: _Example = ({a.name: _ROWS for a in op.arguments}, {})
    found = []
    for inputs, attrs in _EXAMPLES.get(op.name, (plain,)):
        constants = [name for name in inputs if name in _WEIGHTS and not op.name.endswith("_backward_weight")]
        try:
            found.append(Workload.make(op.name, inputs, attrs, constants=constants))
        except (AttrsError, TypeRelationError, WorkloadError):
            return ()
    return tuple(found)
