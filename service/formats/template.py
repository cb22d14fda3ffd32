"""AutoTVM's templates and their arguments as workloads, and back.

The computation of a template, without its algorithm, names the operator, so that all templates of a computation
share workloads: `conv2d_nchw.cuda` and `conv2d_nchw_winograd.cuda` are implementations of
`autotvm.conv2d_nchw`.
"""

from __future__ import annotations

import re
from typing import Any

from service.formats.entry import Reason, RejectError
from strategy.foreign import clean_name
from strategy.types import TensorType
from strategy.workload import Input, Workload

# The parts of a template's name that are its algorithm.
_HOW = re.compile(
    r"(?:_(?:winograd|nnpack|spatial_pack|direct|tensorcore|int8|cudnn|cublas|cublaslt|cblas|mkl"
    r"|mkldnn|dnnl|rocblas|miopen|nopack|pack|dynamic|small_batch|large_batch))+$"
)
# The names of a computation's arguments, by the number of them; others are called arg0, arg1 …
_CONV = "data weight strides padding dilation out_dtype"
_PACKED = "data weight strides padding dilation layout out_layout out_dtype"
_GROUP = "data weight strides padding dilation groups out_dtype"
_TRANSPOSED = "data weight strides padding out_dtype output_padding"
_SIGNATURES: dict[str, tuple[str, ...]] = {
    "conv1d_ncw": (_CONV,), "conv1d_nwc": (_CONV,),
    "conv2d_nchw": (_CONV,), "conv2d_nhwc": (_CONV,), "conv2d_hwcn": (_CONV,),
    "conv2d_NCHWc": (_PACKED,), "depthwise_conv2d_NCHWc": (_PACKED,),
    "conv3d_ncdhw": (_GROUP,), "conv3d_ndhwc": (_GROUP,), "group_conv2d_nchw": (_GROUP,),
    "depthwise_conv2d_nchw": (_CONV,), "depthwise_conv2d_nhwc": (_CONV,),
    "conv1d_transpose_nchw": (_TRANSPOSED, "data weight strides padding out_dtype"),
    "conv1d_transpose_ncw": (_TRANSPOSED, "data weight strides padding out_dtype"),
    "conv2d_transpose_nchw": (_TRANSPOSED, "data weight strides padding out_dtype"),
    "topi_nn_conv2d": (
        "data weight strides padding layout out_dtype",
        "data weight strides padding dilation layout out_dtype",
    ),
    "topi_nn_depthwise_conv2d_nchw": ("data weight strides padding out_dtype", _CONV),
    "dense": ("data weight bias out_dtype",),
    "batch_matmul": ("a b", "a b out_shape", "a b out_shape out_dtype transpose_a transpose_b"),
}


def family(name: str) -> str:
    """The computation of a template: `conv2d_nchw` for `conv2d_nchw_winograd.cuda`."""
    what = name.partition(".")[0]
    return _HOW.sub("", what) or what


def workload_of(name: str, args: list[Any], kwargs: dict[str, Any]) -> Workload:
    """The workload of a template's arguments: tensors become inputs, others attributes.

    Raises:
        TypeSyntaxError, WorkloadError: a malformed type or name.
    """
    what = family(name)
    inputs: list[Input] = []
    attrs: dict[str, Any] = {}
    for place, value in zip(_names(what, len(args)), args, strict=True):
        if _is_tensor(value):
            inputs.append(_input(place, value))
        else:
            attrs[place] = _taken(place, value, inputs)
    if kwargs:
        attrs["kwargs"] = kwargs
    return Workload(f"autotvm.{clean_name(what)}", tuple(inputs), attrs)


def _names(what: str, count: int) -> list[str]:
    for signature in _SIGNATURES.get(what, ()):
        if len(names := signature.split()) == count:
            return names
    return [f"arg{i}" for i in range(count)]


def _is_tensor(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 3 and value[0] == "TENSOR"


def _input(name: str, value: list[Any]) -> Input:
    _, shape, dtype = value
    if not isinstance(shape, list) or not isinstance(dtype, str):
        raise RejectError(Reason.TYPE, f"{value!r:.80} is not a tensor")
    return Input(name, str(TensorType(shape, dtype)))


def _taken(place: str, value: Any, inputs: list[Input]) -> Any:
    """`value` with the tensors in its lists replaced by the names of the inputs they become."""
    if isinstance(value, dict):
        raise RejectError(Reason.WORKLOAD, f"argument {place} is an object, which AutoTVM's logs never have")
    if not isinstance(value, list):
        return value
    taken = []
    for i, entry in enumerate(value):
        if _is_tensor(entry):
            inputs.append(_input(f"{place}.{i}", entry))
            taken.append({"input": f"{place}.{i}"})
        else:
            taken.append(_taken(f"{place}.{i}", entry, inputs))
    return taken


def arguments_of(workload: Workload, what: str) -> tuple[list[Any], dict[str, Any]]:
    """The inverse of `workload_of` for a template of this family."""
    tensors = {i.name: tensor(i) for i in workload.inputs}
    attrs = dict(workload.attrs)
    kwargs = attrs.pop("kwargs", {})
    count = len(attrs) + sum("." not in name for name in tensors)
    args = [
        tensors[name] if name in tensors else _restored(attrs[name], tensors)
        for name in _names(what, count)
    ]
    return args, kwargs


def _restored(value: Any, tensors: dict[str, list[Any]]) -> Any:
    if isinstance(value, dict) and value.keys() == {"input"}:
        return tensors[value["input"]]
    return [_restored(v, tensors) for v in value] if isinstance(value, list) else value


def tensor(value: Input) -> list[Any]:
    """An input in AutoTVM's form of tensors."""
    kind = value.tensor
    shape = [d.value if d.is_constant else str(d) for d in kind.shape]
    return ["TENSOR", shape, kind.dtype]
