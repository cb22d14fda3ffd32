"""Dot-product instructions: each lane adds the products of two or four neighbouring narrow numbers to its sum.

A weight is packed so that a vector holds, for each lane, its neighbours along k; those of the data are broadcast to
all lanes. An instruction that takes unsigned data gets signed data with 128 added, and the other way round: both are
one operation on the broadcast word.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

from strategy.attrs import Attrs
from strategy.processor import SLOW_BF16
from strategy.target import Target
from strategy.tir import register_intrinsic


@dataclass(frozen=True)
class Dot:
    """An instruction of a processor's `feature`, by LLVM's name, and its dtypes.

    Attributes:
        lanes: sums of an instruction.
        offset: what is taken from each number of a weight when it is packed: an instruction takes weights with a sign.
        rows: of the data that it multiplies; 2 of a matrix instruction.
    """

    feature: str
    intrinsic: str
    lanes: int
    data: str
    weight: str
    sums: str
    offset: int = 0
    rows: int = 1

    @property
    def group(self) -> int:
        """Neighbours along k that one lane takes at a time."""
        return (4 if self.sums == "int32" else 2) * self.rows

    @property
    def columns(self) -> int:
        """Rows of a weight that an instruction multiplies."""
        return self.lanes // self.rows

    def is_of(self, target: Target) -> bool:
        """Return whether code for a target may use the instruction, whatever features it names of other processors."""
        return target.has(self.feature) and target.is_arm == self.intrinsic.startswith("llvm.aarch64")

    def shift(self, dtype: str) -> int:
        """The number that is added to data of `dtype` before it is multiplied."""
        return {("int8", "uint8"): 128, ("uint8", "int8"): -128}.get((dtype, self.data), 0)

    def zero_points(self, attrs: Attrs, dtype: str) -> tuple[int, int]:
        """The numbers of the data, of `dtype`, and of the packed weight that stand for zero."""
        of_data, of_weight = (getattr(attrs, f"{name}_zero_point", 0) for name in ("input", "kernel"))
        return of_data + self.shift(dtype), of_weight - self.offset

    def pack(self, number: Any) -> Any:
        """A number of a weight as it is packed."""
        from tvm import tirx

        if self.offset:
            return (number.astype("int32") - self.offset).astype("int8")
        return number if self.packed == self.weight else tirx.reinterpret(self.packed, number)

    @property
    def packed(self) -> str:
        """The dtype of a packed weight: the bits of bfloat16, as TVM widens what a function keeps of it."""
        return self.weight if self.sums == "int32" else "uint16"

    @property
    def kept(self) -> str:
        """The dtype of a copy of the data."""
        return self.data if self.sums == "int32" else self.packed

    def keep(self, number: Any) -> Any:
        """A number of the data, of its dtype for the instruction, as a copy has it."""
        from tvm import tirx

        return number if self.kept == self.data else tirx.reinterpret(self.kept, number)

    def number(self, packed: Any) -> Any:
        """A number of a packed weight, or of a copy of the data, in the dtype of the sums."""
        from tvm import tirx

        if self.packed != self.weight:
            packed = tirx.reinterpret(self.weight, packed)
        return packed.astype(self.sums)

    def numbers(self, word: Any, dtype: str) -> list[Any]:
        """The neighbours in a word, an int32, that are of `dtype`, in the dtype of the sums."""
        from tvm import tirx

        def number(place: int) -> Any:
            high = 32 - 32 // self.group * (place + 1)  # bits above it
            up = word << high if high else word
            if self.sums == "float32":
                return tirx.reinterpret("float32", word & -(1 << 16) if place else up)
            return up >> 24 if dtype == "int8" else word >> (24 - high) & 255

        return [number(place) for place in range(self.group)]

    def product(self, data: Any, weight: Any) -> Any:
        """The sum of the products of the neighbours in two words, in the dtype of the sums."""
        numbers = zip(self.numbers(data, self.data), self.numbers(weight, self.weight), strict=True)
        first, *more = [x * y for x, y in numbers]
        return sum(more, first)

    @property
    def source(self) -> str:
        """LLVM code of the instruction as `symbol`, on vectors of words: TVM has no vectors of bfloat16."""
        sums = f"<{self.lanes} x {'i32' if self.sums == 'int32' else 'float'}>"
        words = f"<{self.lanes} x i32>"
        narrow = f"<{self.columns * self.group} x {'i8' if self.sums == 'int32' else 'bfloat'}>"
        return f"""
declare {sums} @{self.intrinsic}({sums}, {narrow}, {narrow})
define linkonce_odr hidden {sums} @{self.symbol}({sums} %s, {words} %a, {words} %b) alwaysinline nounwind {{
  %x = bitcast {words} %a to {narrow}
  %y = bitcast {words} %b to {narrow}
  %r = call {sums} @{self.intrinsic}({sums} %s, {narrow} %x, {narrow} %y)
  ret {sums} %r
}}
"""

    @property
    def symbol(self) -> str:
        return f"plevel_{self.intrinsic.split('.')[3]}"


_DOTS = (
    Dot("avx512bf16", "llvm.x86.avx512bf16.dpbf16ps.512", 16, "bfloat16", "bfloat16", "float32"),
    Dot("avx512vnni", "llvm.x86.avx512.vpdpbusd.512", 16, "uint8", "int8", "int32"),
    Dot("bf16", "llvm.aarch64.neon.bfdot.v4f32.v8bf16", 4, "bfloat16", "bfloat16", "float32"),
    Dot("dotprod", "llvm.aarch64.neon.sdot.v4i32.v16i8", 4, "int8", "int8", "int32"),
)


_SLOWER = 9


def find_dot(target: Target, weight: str) -> Dot | None:
    """The target's instruction for weights of a dtype, None without one."""
    signed = "int8" if weight == "uint8" else weight
    found = next((d for d in _DOTS if d.weight == signed and d.is_of(target)), None)
    return replace(found, offset=128) if found is not None and signed != weight else found


def plevel_of(target: Target, data: str, plevel: int) -> int:
    """The plevel of an instruction for data of a dtype, below others' if it is slower than float32's multiply-adds."""
    return _SLOWER if data == "bfloat16" and target.arch in SLOW_BF16 else plevel


def use_dot(sch: Any, dot: Dot, dtype: str, task: Any, lane: Any) -> None:
    """Replace the loop over lanes, with that over neighbours in it, by the instruction, for data of `dtype`."""
    sch.annotate(task, "pragma_import_llvm", dot.source)
    sch.tensorize(lane, _intrinsic(replace(dot, offset=0), dtype))


def use_dot_of_words(sch: Any, dot: Dot, task: Any, lane: Any, *, broadcast: Literal["data", "weight"]) -> None:
    """Replace the loop over lanes by the instruction, for a word of one operand and a vector of the other's."""
    sch.annotate(task, "pragma_import_llvm", dot.source)
    sch.tensorize(lane, _intrinsic_of_words(replace(dot, offset=0), broadcast))


@cache
def _intrinsic_of_words(dot: Dot, broadcast: str) -> str:
    """The registered name of the instruction on words whose sum of products is `Dot.product`."""
    lanes = dot.lanes
    extents, places, vectors = [lanes, lanes], ["vi", "vi"], [f"{name}.vload([0], 'int32x{lanes}')" for name in "AB"]
    one = ("data", "weight").index(broadcast)
    extents[one], places[one], vectors[one] = 1, "0", f"T.broadcast({'AB'[one]}[0], {lanes})"
    head = f"""
@T.prim_func(s_tir=True)
def main(
    A: T.Buffer(({extents[0]},), "int32", offset_factor=1),
    B: T.Buffer(({extents[1]},), "int32", offset_factor=1),
    C: T.Buffer(({lanes},), "{dot.sums}", offset_factor=1, scope="local"),
) -> None:
    with T.sblock("root"):
        T.reads(C[0:{lanes}], A[0:{extents[0]}], B[0:{extents[1]}])
        T.writes(C[0:{lanes}])
"""
    code = f"""
        C[T.ramp(T.int32(0), 1, {lanes})] = T.call_pure_extern(
            "{dot.sums}x{lanes}", "{dot.symbol}", C.vload([0], "{dot.sums}x{lanes}"),
            {vectors[0]}, {vectors[1]},
        )
"""
    meaning = f"""
        for i in T.serial(0, {lanes}):
            with T.sblock("update"):
                vi = T.axis.remap("S", [i])
                C[vi] = C[vi] + product(A[{places[0]}], B[{places[1]}])
"""
    return register_intrinsic(f"{dot.symbol}_words_{broadcast}", head, meaning, code, product=dot.product)


@cache
def _intrinsic(dot: Dot, dtype: str) -> str:
    """The registered name of the instruction and what it computes, for data of `dtype`."""
    lanes, group, shift = dot.lanes, dot.group, dot.shift(dtype)
    kept = f"T.reinterpret(A[vk], dtype='{dot.data}')" if dtype == "uint16" else "A[vk]"
    number = f"T.cast({kept}, '{dot.sums}')" + (f" + {shift}" if shift else "")
    word = f"T.reinterpret(A.vload([0], '{dtype}x{group}'), dtype='int32')"
    if shift:
        word = f"T.bitwise_xor({word}, T.int32({0x80808080 - 2**32}))"
    head = f"""
@T.prim_func(s_tir=True)
def main(
    A: T.Buffer(({group},), "{dtype}", offset_factor=1),
    B: T.Buffer(({lanes}, {group}), "{dot.packed}", offset_factor=1),
    C: T.Buffer(({lanes},), "{dot.sums}", offset_factor=1, scope="local"),
) -> None:
    with T.sblock("root"):
        T.reads(C[0:{lanes}], A[0:{group}], B[0:{lanes}, 0:{group}])
        T.writes(C[0:{lanes}])
"""
    weight = "B[vi, vk]" if dot.packed == dot.weight else f"T.reinterpret(B[vi, vk], dtype='{dot.weight}')"
    meaning = f"""
        for i in T.serial(0, {lanes}):
            for k in T.serial(0, {group}):
                with T.sblock("update"):
                    vi, vk = T.axis.remap("SR", [i, k])
                    C[vi] = C[vi] + ({number}) * T.cast({weight}, "{dot.sums}")
"""
    code = f"""
        C[T.ramp(T.int32(0), 1, {lanes})] = T.call_pure_extern(
            "{dot.sums}x{lanes}", "{dot.symbol}", C.vload([0], "{dot.sums}x{lanes}"),
            T.broadcast({word}, {lanes}),
            T.reinterpret(B.vload([0, 0], "{dot.packed}x{lanes * group}"), dtype="int32x{lanes}"),
        )
"""
    return register_intrinsic(f"{dot.symbol}_{dtype}", head, meaning, code)
