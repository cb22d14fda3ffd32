"""Calls of cuBLAS and cuDNN on a device by their C interfaces: library steps of a program.

The libraries use the current context and the given stream. float32 is multiplied without TF32; float16 and
bfloat16 are accumulated in float32, including the last reduction. Constants
are those of `library_types.h`, `cublas_api.h` and cuDNN's API reference (its legacy interface, which
cuDNN 9 still has).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from ctypes import byref, c_char_p, c_double, c_float, c_int, c_longlong, c_size_t, c_void_p
from functools import cache
from typing import Any

from strategy.cuda.program import Convolution, Gemm, LibraryCall, evaluate
from strategy.extern import NVIDIA, ExternError, LoadedLibrary, find_library, open_library

_DATA = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}  # cudaDataType
_COMPUTE_32F, _COMPUTE_64F = 68, 70
_DEFAULT_ALGORITHM = -1
_NO_NARROW_REDUCTION = 16  # of cublasMath_t, with the default mode, without TF32

_CUDNN_DATA = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 9}
_NCHW, _CROSS_CORRELATION = 0, 1
_TENSOR_OP_MATH, _FMA_MATH = 1, 3
_ALGORITHMS = {
    "implicit_gemm": 0, "implicit_precomp_gemm": 1, "gemm": 2, "fft": 4, "fft_tiling": 5, "winograd": 6,
    "winograd_nonfused": 7,
}


class CudaError(RuntimeError):
    """A device, driver or library is missing or failed; the message has the remedy."""


def installed_libraries() -> list[str]:
    """This host's libraries, by their names in targets."""
    return [role for role in NVIDIA if find_library(role) is not None]


def describe_library(role: str) -> dict[str, str]:
    """The version and the file of an open library."""
    loaded = open_library(role)
    parts = [c_int() for _ in range(3)]  # major, minor, patch
    for number, part in enumerate(parts):
        loaded.function(f"{role}GetProperty", c_int)(c_int(number), byref(part))
    version = ".".join(str(part.value) for part in parts)
    return {"version": version, "path": loaded.library.path}


def prepare_call(
    call: LibraryCall, stream: int, addresses: Mapping[str, int], allocate: Callable[[int], int]
) -> Callable[[], None]:
    """A function that queues one library call on a stream, with routines and handles resolved once.

    Args:
        addresses: device addresses of the call's buffers, by name.
        allocate: returns a workspace of the requested size in bytes.

    Raises:
        CudaError: the library is missing, or does not support the call.
    """
    try:
        if isinstance(call, Gemm):
            return _prepare_gemm(call, _open_cublas(stream), addresses)
        return _prepare_convolution(call, _open_cudnn(stream), addresses, allocate)
    except ExternError as error:
        raise CudaError(str(error)) from error


class _Routines:
    """A library's routines with checked status, and its handle in this process."""

    def __init__(self, loaded: LoadedLibrary, explain: str) -> None:
        self._loaded = loaded
        self._explain = explain
        self.handle = c_void_p()

    def __call__(self, name: str, *arguments: Any) -> None:
        """Call a routine; raise `CudaError` with the library's message if it fails."""
        self.bind(name, *arguments)()

    def bind(self, name: str, *arguments: Any) -> Callable[[], None]:
        """A call for repeated use, with its routine resolved once."""
        routine = self._loaded.function(name, c_int)

        def call() -> None:
            status = routine(*arguments)
            if status:
                said = self._loaded.function(self._explain, c_char_p)(c_int(status))
                raise CudaError(f"{name} failed: {said.decode()}")

        return call


@cache
def _open_cublas(stream: int) -> _Routines:
    """Open cuBLAS with a handle on the stream, for the lifetime of this process."""
    cublas = _Routines(open_library("cublas"), "cublasGetStatusString")
    cublas("cublasCreate_v2", byref(cublas.handle))
    cublas("cublasSetStream_v2", cublas.handle, c_void_p(stream))
    cublas("cublasSetMathMode", cublas.handle, c_int(_NO_NARROW_REDUCTION))
    return cublas


def _prepare_gemm(call: Gemm, cublas: _Routines, addresses: Mapping[str, int]) -> Callable[[], None]:
    m, n, k, lda, ldb, ldc, batch = (
        c_int(evaluate(size, {}))
        for size in (call.m, call.n, call.k, call.lda, call.ldb, call.ldc, call.batch)
    )
    stride_a, stride_b, stride_c = (
        c_longlong(evaluate(stride, {})) for stride in (call.stride_a, call.stride_b, call.stride_c)
    )
    wide = call.dtype == "float64"
    number = c_double if wide else c_float
    one, zero = byref(number(1)), byref(number(0))
    kind, out_kind = c_int(_DATA[call.dtype]), c_int(_DATA[call.out_dtype])
    shape = (c_int(call.transpose_a), c_int(call.transpose_b), m, n, k)
    a, b, c = (
        (c_void_p(addresses[buffer]), dtype, distance)
        for buffer, dtype, distance in ((call.a, kind, lda), (call.b, kind, ldb), (call.c, out_kind, ldc))
    )
    last = (c_int(_COMPUTE_64F if wide else _COMPUTE_32F), c_int(_DEFAULT_ALGORITHM))
    if batch.value == 1:
        return cublas.bind("cublasGemmEx", cublas.handle, *shape, one, *a, *b, zero, *c, *last)
    return cublas.bind(
        "cublasGemmStridedBatchedEx", cublas.handle, *shape, one, *a, stride_a, *b, stride_b, zero,
        *c, stride_c, batch, *last,
    )


@cache
def _open_cudnn(stream: int) -> _Routines:
    """Open cuDNN with a handle on the stream, for the lifetime of this process."""
    if find_library("cublas") is not None:
        open_library("cublas")  # cuDNN loads it by name
    cudnn = _Routines(open_library("cudnn"), "cudnnGetErrorString")
    cudnn("cudnnCreate", byref(cudnn.handle))
    cudnn("cudnnSetStream", cudnn.handle, c_void_p(stream))
    return cudnn


class _Descriptor:
    """A cuDNN descriptor, usable as an argument of routines; destroyed with this value."""

    def __init__(self, cudnn: _Routines, kind: str) -> None:
        self._as_parameter_ = c_void_p()  # the attribute that ctypes passes
        cudnn(f"cudnnCreate{kind}Descriptor", byref(self._as_parameter_))
        end = weakref.finalize(self, cudnn, f"cudnnDestroy{kind}Descriptor", self._as_parameter_)
        end.atexit = False  # the context may be gone by then


def _prepare_convolution(
    call: Convolution,
    cudnn: _Routines,
    addresses: Mapping[str, int],
    allocate: Callable[[int], int],
) -> Callable[[], None]:
    kind = c_int(_CUDNN_DATA[call.dtype])
    wide = call.dtype == "float64"
    number = c_double if wide else c_float
    narrow = call.dtype in ("float16", "bfloat16")
    data, output = (_Descriptor(cudnn, "Tensor") for _ in range(2))
    weight, window = _Descriptor(cudnn, "Filter"), _Descriptor(cudnn, "Convolution")
    for tensor, shape in ((data, call.data_shape), (output, call.output_shape)):
        cudnn("cudnnSetTensor4dDescriptor", tensor, c_int(_NCHW), kind, *map(c_int, shape))
    cudnn("cudnnSetFilter4dDescriptor", weight, kind, c_int(_NCHW), *map(c_int, call.weight_shape))
    steps = (*call.padding, *call.strides, *call.dilation)
    compute = c_int(_CUDNN_DATA["float64" if wide else "float32"])
    cudnn(
        "cudnnSetConvolution2dDescriptor", window, *map(c_int, steps), c_int(_CROSS_CORRELATION), compute
    )
    cudnn("cudnnSetConvolutionGroupCount", window, c_int(call.groups))
    cudnn("cudnnSetConvolutionMathType", window, c_int(_TENSOR_OP_MATH if narrow else _FMA_MATH))
    algorithm, size = c_int(_ALGORITHMS[call.algorithm]), c_size_t()
    cudnn(
        "cudnnGetConvolutionForwardWorkspaceSize", cudnn.handle, data, weight, window, output,
        algorithm, byref(size),
    )
    workspace = c_void_p(allocate(size.value) if size.value else None)
    return cudnn.bind(
        "cudnnConvolutionForward", cudnn.handle, byref(number(1)), data,
        c_void_p(addresses[call.data]), weight, c_void_p(addresses[call.weight]), window, algorithm,
        workspace, size, byref(number(0)), output, c_void_p(addresses[call.output]),
    )
