"""Verification of a library that was just built, by this processor."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from plevel.cli.error import CommandError

if TYPE_CHECKING:
    from strategy.compile.entry import LibraryRow
    from strategy.target import Target
    from strategy.workload import Workload


def verify_library(workload: Workload, target: Target, rows: list[LibraryRow], library: Path) -> int:
    """Verify a library and return the number of sizes that it was run at; remove it if it fails or is interrupted."""
    from strategy.compile.entry import Entry
    from strategy.folder import scratch
    from strategy.target import cpu_target
    from workers.sandbox import ForkServer, SandboxError
    from workers.verification import Parameter, VerificationError, verify

    parameters = [Parameter(p.name, p.argument) for p in Entry("entry", workload, rows).parameters]
    try:
        with scratch() as folder, ForkServer(folder) as server:
            return verify(server, library, workload, parameters)
    except KeyboardInterrupt:
        _remove(library)
        raise
    except VerificationError as error:
        host = cpu_target()
        if target.arch not in ("", host.arch) or target.triple != host.triple:
            raise CommandError(
                f"--verify: {library} is kept: it is for {target}, and failed on {host}: verify it there: {error}"
            ) from error
        _remove(library)
        raise CommandError(f"--verify: {error}; {library} is removed") from error
    except SandboxError as error:
        raise CommandError(f"--verify: {error}; {library} is kept, not verified") from error


def _remove(library: Path) -> None:
    for path in (library, library.with_suffix(".h")):
        path.unlink(missing_ok=True)
