"""The mappings of this process, as Linux describes them."""

from __future__ import annotations

from pathlib import Path


def asks_for_huge_pages(address: int) -> bool:
    """Return whether the memory at an address was advised so (MADV_HUGEPAGE)."""
    here = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split()
        if not first.endswith(":"):
            begin, _, end = first.partition("-")
            here = int(begin, 16) <= address < int(end, 16)
        elif here and first == "VmFlags:":
            return "hg" in rest
    raise LookupError(f"nothing is mapped at {address:x}")
