"""Verdicts of confirmation, kept on disk by their graph, kernels, machine, threads, and code of PyTorch and plevel."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from plevel.kernel_selection import Choose
from plevel.torch.kernel import kernel_digest
from plevel.torch.plan import Plan
from plevel.torch.store import folder, keeping, move, temporary, touch
from strategy.confirmation import Comparison
from strategy.workload_text import parse_workload


class Verdict(msgspec.Struct, frozen=True):
    """The workloads whose kernels stay in a graph, by key, and the comparisons that said so.

    `key` and `graph` are those of its plan, and `flops` the graph's arithmetic. `before_s` and `after_s` are the times
    of a call by Inductor alone and with all that stay, in turns; `pool` names the threads that ran all of them.
    `whole`: the graph is one library of plevel's, `apart` says why it is not. `library` has the digests of the kernels
    of the library that was timed, by workload. `ended` is the reason why not all was compared that could be, and
    `errors` are the reasons of workloads whose kernels could not be built, or with whose kernels the graph fails, by
    key. With the kernels of the workloads `differing` the graph's outputs were others than Inductor's. A verdict that
    another machine recorded has its reasons why workloads have no kernel in `told`, by key, in place of these two.
    `short` is a failure of a form or a kernel for which this machine had no memory left: other programs may have it.
    """

    key: str
    graph: str
    flops: int
    kept: tuple[str, ...] = ()
    steps: tuple[Comparison, ...] = ()
    refused: str = ""
    pool: str = ""
    before_s: float | None = None
    after_s: float | None = None
    whole: bool = False
    apart: str = ""
    library: dict[str, str] = {}
    ended: str = ""
    errors: dict[str, str] = {}
    differing: tuple[str, ...] = ()
    told: dict[str, str] = {}
    short: str = ""

    @property
    def is_final(self) -> bool:
        """False if nothing was compared for lack of time, or not all for lack of memory: a later process times it."""
        return not self.short and bool(self.steps or self.differing or not self.ended)


def read_verdict(plan: Plan, choose: Choose) -> Verdict | None:
    """The verdict on the same graph and kernels, by the same machine, threads and code; None where there is none.

    Args:
        choose: selects a workload's kernel; where another is selected now than was timed in the graph's library,
            the verdict is void.
    """
    with suppress(OSError, msgspec.MsgspecError, ValueError):
        touch(_path(plan.key))
        verdict = msgspec.json.decode(_path(plan.key).read_bytes(), type=Verdict)
        if is_current(verdict.library, choose):
            return verdict
    return None


def write_verdict(verdict: Verdict) -> None:
    with keeping("a verdict"), temporary() as made:
        partial = made / "verdict"
        partial.write_bytes(msgspec.json.encode(verdict))
        move(partial, _path(verdict.key))


def is_current(kernels: Mapping[str, str], choose: Choose) -> bool:
    """Return whether the kernels of a library, of which there are digests by workload, would be chosen now."""
    return all(kernel_digest(choose(parse_workload(key))) == digest for key, digest in kernels.items())


def _path(key: str) -> Path:
    return folder() / f"verdict-{key}.json"
