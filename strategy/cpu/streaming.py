"""Non-temporal stores: results that no cache keeps are written past all of them, without being read before.

LLVM's stores of this kind need an address of whole vectors, which each is asked for. They are not ordered with others:
a fence behind those of a task is.
"""

from __future__ import annotations

from typing import Any

from strategy.schedule import dtype_bytes
from strategy.target import Target
from strategy.tir import change_functions, find

_STREAM = "plevel.stream"
_KINDS = {"float32": "float", "float64": "double", "int32": "i32", "int64": "i64"}
_FENCE = "plevel_fence"


def can_stream(dtype: str, target: Target) -> bool:
    """Return whether results of a dtype can be written by such stores."""
    return dtype in _KINDS and target.has("avx2")


def stream_stores(sch: Any, loop: Any, dtype: str, lanes: int) -> None:
    """Have the vectors that a scheduled loop writes to arguments, `lanes` of `dtype`, pass the caches."""
    sch.annotate(loop, "pragma_import_llvm", _source(dtype, lanes))
    sch.annotate(loop, _STREAM, lanes)


def _symbol(dtype: str) -> str:
    return f"plevel_stream_{dtype}"


def _source(dtype: str, lanes: int) -> str:
    vector, bytes_ = f"<{lanes} x {_KINDS[dtype]}>", dtype_bytes(dtype)
    whole = min(64, lanes * bytes_)
    return f"""
declare void @llvm.x86.sse.sfence()
define linkonce_odr hidden i32 @{_FENCE}() alwaysinline nounwind {{
  call void @llvm.x86.sse.sfence()
  ret i32 0
}}
define linkonce_odr hidden i32 @{_symbol(f"{dtype}x{lanes}")}(ptr %p, {vector} %v) alwaysinline nounwind {{
  %a = ptrtoint ptr %p to i64
  %r = and i64 %a, {whole - 1}
  %w = icmp eq i64 %r, 0
  br i1 %w, label %whole, label %apart
whole:
  store {vector} %v, ptr %p, align {whole}, !nontemporal !0
  ret i32 0
apart:
  store {vector} %v, ptr %p, align {bytes_}
  ret i32 0
}}
!0 = !{{i32 1}}
"""


def insert_streams(module: Any) -> Any:
    """Insert the stores of annotated loops of a module whose vectors are expressions."""
    return change_functions(module, _inserted)


def _inserted(function: Any) -> Any:
    from tvm import tirx
    from tvm_ffi import structural_map

    own = [allocation.buffer for allocation in find(function, tirx.AllocBuffer)]

    def change(loop: Any) -> Any:
        if _STREAM not in loop.annotations:
            return loop
        lanes = int(loop.annotations[_STREAM])

        def stored(store: Any) -> Any:
            place, kind = store.indices[-1], str(store.value.ty.dtype)
            if not kind.endswith(f"x{lanes}") or not isinstance(place, tirx.Ramp) or not _is_one(place.stride):
                return store
            if any(store.buffer.same_as(buffer) for buffer in own):
                return store
            address = tirx.address_of(tirx.BufferLoad(store.buffer, [place.base]))
            return tirx.Evaluate(tirx.call_extern("int32", _symbol(kind), address, store.value))

        body, fence = structural_map(loop.body, [(tirx.BufferStore, stored)]), tirx.call_extern("int32", _FENCE)
        annotations = {name: value for name, value in loop.annotations.items() if name != _STREAM}
        parallel = loop.kind == tirx.ForKind.PARALLEL
        body = tirx.SeqStmt([body, tirx.Evaluate(fence)]) if parallel else body
        made = tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, loop.thread_binding, annotations)
        return made if parallel else tirx.SeqStmt([made, tirx.Evaluate(fence)])

    return structural_map(function, [(tirx.For, change)])


def _is_one(value: Any) -> bool:
    from tvm import tirx

    return isinstance(value, tirx.IntImm) and int(value) == 1
