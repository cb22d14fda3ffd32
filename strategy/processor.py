"""Vector widths, multiply-add units and dot-product instructions of CPUs by LLVM name."""

from __future__ import annotations

_AVX512 = frozenset(
    "skylake-avx512 cascadelake cooperlake cannonlake icelake-client icelake-server tigerlake "
    "rocketlake sapphirerapids emeraldrapids graniterapids graniterapids-d knl knm znver4 znver5 "
    "x86-64-v4".split()
)
_AVX2 = frozenset(
    "haswell broadwell skylake core-avx2 znver1 znver2 znver3 bdver4 alderlake raptorlake meteorlake "
    "arrowlake lunarlake pantherlake sierraforest grandridge gracemont x86-64-v3".split()
)
_FIRST_AVX512 = frozenset("knl knm".split())  # without instructions for bytes, and for shorter vectors
# Vectors of 512 bits are two halves here, or take both units.
_ONE_MULTIPLY_ADD = frozenset("znver4 cannonlake icelake-client tigerlake rocketlake".split())
_BF16 = frozenset("cooperlake sapphirerapids emeraldrapids graniterapids graniterapids-d znver4 znver5".split())
# A dot product of bfloat16 there takes as long as four multiply-adds of float32, for twice the work of one: measured on
# emeraldrapids, the others have the same cores or their successors.
SLOW_BF16 = frozenset("sapphirerapids emeraldrapids graniterapids graniterapids-d".split())
# Eight cores share a last level that is near: what is prefetched from it comes in time, and to write parts of lines
# there takes no longer. Measured on znver5; znver4 has the same caches.
NEAR_LAST_LEVEL = frozenset("znver4 znver5".split())
# A multiply-add that loads a number for itself alone takes a tenth longer: measured on znver5, not on emeraldrapids.
WAITS_FOR_LOADS = frozenset({"znver5"})
_AMX = frozenset("sapphirerapids emeraldrapids graniterapids graniterapids-d".split())
# Processors with instructions for bytes and products of 52 bits, which LLVM puts into loops of integers by itself.
_BYTES = frozenset(
    "cannonlake icelake-client icelake-server tigerlake rocketlake sapphirerapids emeraldrapids graniterapids "
    "graniterapids-d znver4 znver5".split()
)
_MATRICES = frozenset("neoverse-v1 neoverse-n2 neoverse-v2".split())
# By LLVM's name of the feature.
_INSTRUCTIONS = {
    "avx2": _AVX2 | _AVX512,
    "fma": _AVX2 | _AVX512,
    "avx512f": _AVX512,
    "avx512bw": _AVX512 - _FIRST_AVX512,
    "avx512dq": _AVX512 - _FIRST_AVX512,
    "avx512vl": _AVX512 - _FIRST_AVX512,
    "avx512bf16": _BF16,
    "avx512vnni": _BF16 | frozenset("cascadelake icelake-client icelake-server tigerlake rocketlake".split()),
    "avx512vbmi": _BYTES,
    "avx512ifma": _BYTES,
    "avx512fp16": _AMX,
    "bf16": _MATRICES,
    "i8mm": _MATRICES,
    "amx-tile": _AMX,
    "amx-bf16": _AMX,
    "amx-int8": _AMX,
    "dotprod": frozenset("neoverse-n1 neoverse-v1 neoverse-n2 neoverse-v2 cortex-a76 cortex-a78".split()),
}
# Those of the tables above, and the levels that hosts of other processors are given.
LISTED = frozenset("generic x86-64 x86-64-v2".split()).union(_AVX2, *_INSTRUCTIONS.values())


def has_instructions(arch: str, feature: str) -> bool:
    """Return whether processors of `arch` have the instructions of a feature; false if unknown."""
    return arch in _INSTRUCTIONS.get(feature, ())


def vector_features() -> tuple[str, ...]:
    """The features of x86-64 processors that code may use, and that C asks for by `__builtin_cpu_supports`.

    Kernels with AMX ask Linux for it themselves.
    """
    return tuple(name for name in _INSTRUCTIONS if name.startswith(("avx", "fma")))


def required(feature: str) -> tuple[str, ...]:
    """A feature and those that LLVM turns it off with."""
    levels = ("avx", "avx2", "avx512f")
    if feature.startswith("amx-"):
        return ("amx-tile", feature)
    if feature.startswith("avx512"):
        return (*levels, feature)
    return levels[: levels.index(feature) + 1] if feature in levels else (feature,)


def multiply_adds(arch: str) -> int:
    """Return how many of its widest vectors a processor multiplies and adds in a cycle; 2 if unknown."""
    return 1 if arch in _ONE_MULTIPLY_ADD else 2


def vector_bytes(arch: str) -> int:
    """Bytes of the widest vector register that code for `arch` should use; 16 if unknown."""
    if arch in _AVX512:
        return 64
    return 32 if arch in _AVX2 else 16
