"""The workloads of a model, with how often each occurs and its share of the arithmetic: what extraction gives."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from strategy.network.blocking import choose_blocks
from strategy.network.graph import Network
from strategy.network.group import describe, groups
from strategy.network.integer import multiply_integers
from strategy.network.normal import normalize
from strategy.network.plan import is_view
from strategy.network.separable import join
from strategy.op_strategy import candidates
from strategy.target import cpu_target
from strategy.workload import Workload


class ExtractError(ValueError):
    """A model that cannot be read; the message says why, and what to do."""


@dataclass(frozen=True)
class Extracted:
    """A workload of a model. `flops` are those of one call.

    `parts` are the workloads of the products that it merges, with how many of them all its occurrences
    merge. It is an alternative to them, empty for others.
    """

    workload: Workload
    occurrences: int
    flops: int
    parts: Mapping[Workload, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Missed:
    """An operator of a model that plevel has no kernel for, at the places that `flops` adds up."""

    name: str
    occurrences: int
    flops: int


@dataclass(frozen=True)
class Extraction:
    """The workloads of a model, the largest share of the arithmetic first, and what they leave out."""

    workloads: tuple[Extracted, ...]
    missed: tuple[Missed, ...]

    @property
    def flops(self) -> int:
        """Floating-point operations of all products of one call of the model."""
        products = sum(w.occurrences * w.flops for w in self.workloads if not w.parts)
        return products + sum(m.flops for m in self.missed)

    @property
    def covered(self) -> float:
        """Share of the arithmetic that the workloads have, 1 where there is none."""
        return 1 - sum(m.flops for m in self.missed) / self.flops if self.flops else 1.0

    @property
    def merged(self) -> frozenset[Workload]:
        """The workloads that merge several products, each also there by itself."""
        return frozenset(w.workload for w in self.workloads if w.parts)

    def share(self, found: Extracted) -> float:
        return found.occurrences * found.flops / self.flops if self.flops else 0.0


def library_workloads(network: Network) -> Counter[Workload]:
    """The workloads of a network's library, with their numbers of calls."""
    normal = normalize(multiply_integers(network, cpu_target()))
    return Counter(describe(group, network.sizes)[0] for group in groups(normal) if not is_view(group))


def blocked_workloads(network: Network) -> Counter[Workload]:
    """The workloads that a network's library would have in blocked layouts alone; none where these would not pay.

    Convolutions that can be joined are there in both forms.
    """
    if network.sizes is not None:
        return Counter()
    normal = normalize(multiply_integers(network, cpu_target()))
    chosen = choose_blocks(normal, cpu_target(), lambda workload: math.nan)
    plain = {describe(group, None)[0] for group in groups(normal)}
    apart, joined = (
        Counter(w for g in groups(n) if not is_view(g) and (w := describe(g, None)[0]) not in plain)
        for n in (chosen, join(chosen))
    )
    return apart | joined


def has_choice(workload: Workload) -> bool:
    """Return whether there is something to tune on this host's processor: a space, or several implementations."""
    offered = [
        c
        for c in candidates(workload, cpu_target(), libraries=False)
        if c.condition is None or c.condition.decide() is not False
    ]
    return len(offered) > 1 or any(c.space is not None for c in offered)
