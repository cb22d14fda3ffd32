"""Vector widths of CPUs by LLVM name."""

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


def vector_bytes(arch: str) -> int:
    """Bytes of the widest vector register that code for `arch` should use; 16 if unknown."""
    if arch in _AVX512:
        return 64
    return 32 if arch in _AVX2 else 16
