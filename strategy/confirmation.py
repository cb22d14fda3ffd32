"""The verdict on a network's kernels, timed in its whole graph: what a framework's backend reports."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from strategy.record import AskedWorkload, Estimate
from strategy.space import Config
from strategy.target import Target

_Digest = Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
_Seconds = Annotated[float, Meta(gt=0)]
_Text = Annotated[str, Meta(max_length=4000)]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison of two forms of a graph in turns: what was exchanged, and the times of a call.

    `ratio` is of the graph's times, new to old. `whole`: the new form is one library of these workloads, for all of
    the graph.
    """

    workloads: tuple[str, ...]
    added: bool
    ratio: Estimate
    before_s: _Seconds
    after_s: _Seconds
    kept: bool
    whole: bool = False


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A workload of a network, with its share of the arithmetic.

    `implementation` is empty, and `config` null, where the framework's own kernel stays; `reason` says why.
    A dispatch table has no single configuration.
    """

    workload: AskedWorkload
    occurrences: Annotated[int, Meta(ge=1)]
    share: Annotated[float, Meta(ge=0)]
    implementation: Annotated[str, Meta(max_length=200)] = ""
    config: Config | None = None
    reason: _Text = ""


class Confirmation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The verdict on one graph, its kernels, and the machine that timed it.

    Args:
        key: digest of the graph, the kernels, the machine, its threads and the framework's version.
        graph: digest of the graph alone.
        framework: with its version, `torch 2.13.0`.
        target: the machine's, with the device model, the threads, their pool, and where constants are.
        parts: the largest share first.
        missed: shares of the arithmetic without a kernel, by operator.
        steps: the comparisons that decided, in order.
        refused: the reason why nothing was timed or kept, empty if there is none.
        before_s: of one call with the framework's kernels alone; None where nothing was timed.
        after_s: of one call with the kernels that stay, timed in turns with the former.
    """

    key: _Digest
    graph: _Digest
    framework: Annotated[str, Meta(min_length=1, max_length=100)]
    target: Target
    parts: Annotated[tuple[Part, ...], Meta(max_length=10_000)]
    missed: dict[str, float] = {}
    steps: Annotated[tuple[Comparison, ...], Meta(max_length=1000)] = ()
    refused: _Text = ""
    before_s: _Seconds | None = None
    after_s: _Seconds | None = None

    @property
    def replaced(self) -> int:
        """Number of workloads with a kernel in place."""
        return sum(bool(p.implementation) for p in self.parts)
