"""Tensor cores through `nvcuda::wmma`: intrinsics for a schedule's 16 × 16 × 16 tiles.

TVM has them in `tvm.s_tir.tensor_intrin.cuda` with many others, which take 25 s to import. These five are made at
their first use, in a tenth of a second.
"""

# TVMScript's decorator has no types.
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

from functools import cache
from typing import Any

TILE = 16
SHARED = "shared.dyn"


@cache
def register_wmma(dtype: str) -> dict[str, str]:
    """Register the intrinsics for operands of `dtype`, summed in float32; their names by role.

    `load_a` reads [m, k], `load_b` reads [n, k], both from dynamic shared memory. `store` writes
    [m, n] to static shared memory: dynamic memory is one buffer, which TVM gives one dtype. `multiply`
    adds the product to the accumulator that `fill` has set to zero.
    """
    from tvm.s_tir import TensorIntrin

    names = {}
    for role, pair in _pairs(dtype).items():
        names[role] = f"plevel_wmma_{role}_{dtype}"
        TensorIntrin.register(names[role], *pair, override=True)
    return names


def _pairs(dtype: str) -> dict[str, tuple[Any, Any]]:
    from tvm.script import tirx as T  # noqa: N812

    def index(buffer: Any, stride: Any) -> Any:
        """The index of an operand's fragment in its array: fragments are contiguous."""
        row = buffer.elem_offset // stride // TILE
        return row * (stride // TILE) + buffer.elem_offset % stride // TILE

    def load(scope: str, layout: str) -> tuple[Any, Any]:
        @T.prim_func(s_tir=True)
        def wanted(a: T.handle, c: T.handle) -> None:
            A = T.match_buffer(a, (TILE, TILE), dtype, align=64, offset_factor=TILE, scope=SHARED)
            C = T.match_buffer(c, (TILE, TILE), dtype, align=64, offset_factor=TILE, scope=scope)
            with T.sblock("root"):
                T.reads(A[0:TILE, 0:TILE])
                T.writes(C[0:TILE, 0:TILE])
                for i, j in T.grid(TILE, TILE):
                    with T.sblock("load"):
                        vi, vj = T.axis.remap("SS", [i, j])
                        C[vi, vj] = A[vi, vj]

        @T.prim_func(s_tir=True)
        def done(a: T.handle, c: T.handle) -> None:
            s1 = T.int32()
            s0 = T.int32()
            d1 = T.int32()
            d0 = T.int32()
            A = T.match_buffer(
                a, (TILE, TILE), dtype, align=64, offset_factor=TILE, scope=SHARED, strides=[s1, s0]
            )
            C = T.match_buffer(
                c, (TILE, TILE), dtype, align=64, offset_factor=TILE, scope=scope, strides=[d1, d0]
            )
            with T.sblock("root"):
                T.reads(A[0:TILE, 0:TILE])
                T.writes(C[0:TILE, 0:TILE])
                T.evaluate(
                    T.tvm_load_matrix_sync(
                        C.data, TILE, TILE, TILE, index(C, d1),
                        A.access_ptr("r", ptr_type=dtype), s1, layout, dtype="void",
                    )
                )  # fmt: skip

        return wanted, done

    @T.prim_func(s_tir=True)
    def fill_wanted(c: T.handle) -> None:
        C = T.match_buffer(
            c, (TILE, TILE), "float32", align=64, offset_factor=TILE, scope="wmma.accumulator"
        )
        with T.sblock("root"):
            T.reads()
            T.writes(C[0:TILE, 0:TILE])
            for i, j in T.grid(TILE, TILE):
                with T.sblock("init"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    C[vi, vj] = T.float32(0)

    @T.prim_func(s_tir=True)
    def fill_done(c: T.handle) -> None:
        d1 = T.int32()
        d0 = T.int32()
        C = T.match_buffer(
            c, (TILE, TILE), "float32", align=64, offset_factor=TILE, scope="wmma.accumulator",
            strides=[d1, d0],
        )  # fmt: skip
        with T.sblock("root"):
            T.reads()
            T.writes(C[0:TILE, 0:TILE])
            T.evaluate(
                T.tvm_fill_fragment(
                    C.data, TILE, TILE, TILE, index(C, d1), T.float32(0), dtype="void"
                )
            )

    @T.prim_func(s_tir=True)
    def store_wanted(a: T.handle, c: T.handle) -> None:
        A = T.match_buffer(
            a, (TILE, TILE), "float32", align=64, offset_factor=TILE, scope="wmma.accumulator"
        )
        C = T.match_buffer(c, (TILE, TILE), "float32", align=64, offset_factor=TILE, scope="shared")
        with T.sblock("root"):
            T.reads(A[0:TILE, 0:TILE])
            T.writes(C[0:TILE, 0:TILE])
            for i, j in T.grid(TILE, TILE):
                with T.sblock("store"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    C[vi, vj] = A[vi, vj]

    @T.prim_func(s_tir=True)
    def store_done(a: T.handle, c: T.handle) -> None:
        s1 = T.int32()
        s0 = T.int32()
        d1 = T.int32()
        d0 = T.int32()
        A = T.match_buffer(
            a, (TILE, TILE), "float32", align=64, offset_factor=TILE, scope="wmma.accumulator",
            strides=[d1, d0],
        )  # fmt: skip
        C = T.match_buffer(
            c,
            (TILE, TILE),
            "float32",
            align=64,
            offset_factor=TILE,
            scope="shared",
            strides=[s1, s0],
        )
        with T.sblock("root"):
            T.reads(A[0:TILE, 0:TILE])
            T.writes(C[0:TILE, 0:TILE])
            T.evaluate(
                T.tvm_store_matrix_sync(
                    A.data, TILE, TILE, TILE, index(A, d1),
                    C.access_ptr("w", ptr_type="float32"), s1, "row_major", dtype="void",
                )
            )  # fmt: skip

    @T.prim_func(s_tir=True)
    def multiply_wanted(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(
            a, (TILE, TILE), dtype, align=64, offset_factor=TILE, scope="wmma.matrix_a"
        )
        B = T.match_buffer(
            b, (TILE, TILE), dtype, align=64, offset_factor=TILE, scope="wmma.matrix_b"
        )
        C = T.match_buffer(
            c, (TILE, TILE), "float32", align=64, offset_factor=TILE, scope="wmma.accumulator"
        )
        with T.sblock("root"):
            T.reads(C[0:TILE, 0:TILE], A[0:TILE, 0:TILE], B[0:TILE, 0:TILE])
            T.writes(C[0:TILE, 0:TILE])
            for i, j, k in T.grid(TILE, TILE, TILE):
                with T.sblock("multiply"):
                    vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                    C[vi, vj] = C[vi, vj] + T.Cast("float32", A[vi, vk]) * T.Cast(
                        "float32", B[vj, vk]
                    )

    @T.prim_func(s_tir=True)
    def multiply_done(a: T.handle, b: T.handle, c: T.handle) -> None:
        a1 = T.int32()
        a0 = T.int32()
        b1 = T.int32()
        b0 = T.int32()
        c1 = T.int32()
        c0 = T.int32()
        A = T.match_buffer(
            a, (TILE, TILE), dtype, align=64, offset_factor=TILE, scope="wmma.matrix_a",
            strides=[a1, a0],
        )  # fmt: skip
        B = T.match_buffer(
            b, (TILE, TILE), dtype, align=64, offset_factor=TILE, scope="wmma.matrix_b",
            strides=[b1, b0],
        )  # fmt: skip
        C = T.match_buffer(
            c, (TILE, TILE), "float32", align=64, offset_factor=TILE, scope="wmma.accumulator",
            strides=[c1, c0],
        )  # fmt: skip
        with T.sblock("root"):
            T.reads(C[0:TILE, 0:TILE], A[0:TILE, 0:TILE], B[0:TILE, 0:TILE])
            T.writes(C[0:TILE, 0:TILE])
            T.evaluate(
                T.tvm_mma_sync(
                    C.data, index(C, c1), A.data, index(A, a1), B.data, index(B, b1),
                    C.data, index(C, c1), dtype="void",
                )
            )  # fmt: skip

    return {
        "load_a": load("wmma.matrix_a", "row_major"),
        "load_b": load("wmma.matrix_b", "col_major"),
        "fill": (fill_wanted, fill_done),
        "store": (store_wanted, store_done),
        "multiply": (multiply_wanted, multiply_done),
    }
