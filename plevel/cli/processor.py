"""Processors of targets, checked by the names that LLVM has for them."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

from plevel.cli.error import UsageError

if TYPE_CHECKING:
    from strategy.target import Target


def is_own(target: Target) -> bool:
    """Return whether this host runs code for a target."""
    from strategy.target import cpu_target

    return target.is_like(cpu_target().with_threads(target.threads).key)


def require_known(target: Target) -> None:
    """Raise `UsageError` for a processor that LLVM cannot build for."""
    from strategy.compile.processor import unknown_processor
    from workers.fork import without_torch

    with without_torch():
        unknown = unknown_processor(target)
    if unknown:
        raise UsageError(f"--target: {unknown}")


def check_name(target: Target, *, far: bool) -> None:
    """Check the processor of a target that records are asked for, by LLVM if plevel does not know it.

    It is only warned of without TVM, which has LLVM. If `far`, so is one that LLVM does not know: a service, or another
    tool's records, may have a newer one.

    Raises:
        UsageError: LLVM knows it for no host.
    """
    from strategy import host, processor
    from strategy.suggestion import suggest

    known = host.PROCESSORS | processor.LISTED
    # TVM takes a second to load.
    if target.kind != "llvm" or (not target.triple and (not target.arch or target.arch in known)):
        return
    if find_spec("tvm") is None:
        if target.arch and target.arch not in known:
            _warn(
                f"-mcpu={target.arch:.40}: a processor that plevel does not know{suggest(target.arch, known)}: "
                f"vectors of {target.vector_bytes} bytes are assumed, unless -mattr names wider ones"
            )
        return
    from strategy.compile.processor import misnamed_processor
    from workers.fork import without_torch

    with without_torch():
        unknown = misnamed_processor(target)
    if unknown and not far:
        raise UsageError(f"--target: {unknown}")
    if unknown:
        _warn(f"{unknown}; it is asked for all the same, as other versions may know it")


def _warn(text: str) -> None:
    print(f"plevel: --target: {text}", file=sys.stderr)
