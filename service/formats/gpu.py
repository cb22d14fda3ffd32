"""Targets of GPUs by their product names, for files that name only a device."""

from __future__ import annotations

import re

from service.formats.kernel_tuner import target_of
from strategy.target import Target

# Architectures by product name: NVIDIA's compute capabilities, and the targets of AMD's ROCm documentation.
_ARCHITECTURES = tuple(
    (re.compile(pattern, re.IGNORECASE), arch)
    for pattern, arch in (
        (r"\bG?H(100|200|800)\b|\bH20\b", "sm_90"),
        (r"\bG?B(100|200)\b", "sm_100"),
        (r"\bG?B300\b", "sm_103"),
        (r"RTX PRO .*Blackwell|\bGeForce RTX 50\d0\b", "sm_120"),
        (r"\bL(4|20|40S?)\b|\bGeForce RTX 40\d0\b|\bRTX .*Ada\b", "sm_89"),
        (r"\bA(2|10G?|16|40)\b|\bRTX A\d000\b|\bGeForce RTX 30\d0\b", "sm_86"),
        (r"\bA(30|100|800)\b", "sm_80"),
        (r"\bT4\b|\bGeForce RTX 20\d0\b|\bQuadro RTX \d000\b", "sm_75"),
        (r"\bV100\b", "sm_70"),
        (r"\bMI3(00|08|25)[AX]?\b", "gfx942"),
        (r"\bMI35[05][PX]?\b", "gfx950"),
        (r"\bMI2[0-9]0X?\b", "gfx90a"),
        (r"\bMI100\b", "gfx908"),
        (r"\bR9700\b|\bRX 9070\b", "gfx1201"),
    )
)


def target_of_model(model: str) -> Target:
    """The target of a device model, with its architecture if the name tells it."""
    target = target_of(model)
    arch = arch_of_model(model)
    return target if not arch else Target.parse({**target.to_json(), "arch": arch})


def arch_of_model(model: str) -> str:
    """The architecture of a device model (`sm_90`, `gfx942`), empty if its name is not known."""
    return next((arch for pattern, arch in _ARCHITECTURES if pattern.search(model)), "")
