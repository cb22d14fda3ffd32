"""Non-temporal stores: results that no cache keeps are written past all of them, without being read before.

LLVM's stores of this kind need an address of whole vectors, which each is asked for, and all lanes: a mask that leaves
out those beyond a loop's end is asked for, too. At other multiples of 16 bytes, as rows of odd lengths have them, a
vector is written in parts of 16, which the processor joins to lines. Such stores are not ordered with others: a fence
behind those of a task is.
"""

from __future__ import annotations

from typing import Any

from strategy.schedule import dtype_bytes
from strategy.target import Target
from strategy.tir import change_functions, find

_STREAM = "plevel.stream"
_KINDS = {"float32": "float", "float64": "double", "int32": "i32", "int64": "i64"}
_FENCE = "plevel_fence"
_ALL = "plevel_all_of"
_PART_BYTES = 16


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
    whole, part = min(64, lanes * bytes_), _PART_BYTES // bytes_
    parts = ""
    for number in range(lanes // part):
        places = ", ".join(f"i32 {number * part + i}" for i in range(part))
        parts += f"""
  %v{number} = shufflevector {vector} %v, {vector} poison, <{part} x i32> <{places}>
  %p{number} = getelementptr i8, ptr %p, i64 {number * _PART_BYTES}
  store <{part} x {_KINDS[dtype]}> %v{number}, ptr %p{number}, align {_PART_BYTES}, !nontemporal !0"""
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
  %q = and i64 %a, {_PART_BYTES - 1}
  %h = icmp eq i64 %q, 0
  br i1 %h, label %parts, label %cached
parts:{parts}
  ret i32 0
cached:
  store {vector} %v, ptr %p, align {bytes_}
  ret i32 0
}}
define linkonce_odr hidden i32 @{_ALL}_{lanes}(<{lanes} x i8> %m) alwaysinline nounwind {{
  %k = trunc <{lanes} x i8> %m to <{lanes} x i1>
  %b = bitcast <{lanes} x i1> %k to i{lanes}
  %a = icmp eq i{lanes} %b, -1
  %r = zext i1 %a to i32
  ret i32 %r
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

        def streamed(buffer: Any, value: Any, place: Any) -> Any:
            """The statement that writes a value past the caches; None if it is no vector of an argument."""
            kind = str(value.ty.dtype)
            if not kind.endswith(f"x{lanes}") or not isinstance(place, tirx.Ramp) or not _is_one(place.stride):
                return None
            if any(buffer.same_as(other) for other in own):
                return None
            address = tirx.address_of(tirx.BufferLoad(buffer, [place.base]))
            return tirx.Evaluate(tirx.call_extern("int32", _symbol(kind), address, value))

        def stored(store: Any) -> Any:
            found = streamed(store.buffer, store.value, store.indices[-1])
            return store if found is None else found

        def masked(statement: Any) -> Any:
            call = statement.value
            if getattr(getattr(call, "op", None), "name", "") != "tirx.masked_store":
                return statement
            buffer, value, place, mask = call.args
            kept = tirx.Var("kept", str(value.ty.dtype))
            whole = streamed(buffer, kept, place)
            if whole is None:
                return statement
            is_whole = tirx.call_extern("int32", f"{_ALL}_{lanes}", tirx.Cast(f"int8x{lanes}", mask)) != 0
            part = tirx.Evaluate(tirx.op.masked_store(buffer, kept, place, mask))
            return tirx.SeqStmt([tirx.Bind(kept, value), tirx.IfThenElse(is_whole, whole, part)])

        body = structural_map(loop.body, [(tirx.BufferStore, stored), (tirx.Evaluate, masked)])
        fence = tirx.call_extern("int32", _FENCE)
        annotations = {name: value for name, value in loop.annotations.items() if name != _STREAM}
        parallel = loop.kind == tirx.ForKind.PARALLEL
        body = tirx.SeqStmt([body, tirx.Evaluate(fence)]) if parallel else body
        made = tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, loop.thread_binding, annotations)
        return made if parallel else tirx.SeqStmt([made, tirx.Evaluate(fence)])

    return structural_map(function, [(tirx.For, change)])


def _is_one(value: Any) -> bool:
    from tvm import tirx

    return isinstance(value, tirx.IntImm) and int(value) == 1
