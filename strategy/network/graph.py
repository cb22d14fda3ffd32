"""A network: a call graph with named inputs, outputs and values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from strategy.expr import Expr, Tuple, Var
from strategy.network.size import Sizes
from strategy.table import show_number


class NetworkError(ValueError):
    """A model that cannot be imported or compiled; the message says why, and what to do."""


@dataclass(frozen=True)
class Network:
    """A model as a call graph of plevel's operators.

    Args:
        inputs: in the order in which the model takes them.
        outputs: by name, in the order in which the model gives them.
        names: of the model's values, by the nodes that compute their elements.
        sizes: the symbolic sizes, if there are any; the types have their probes for them.
        twin: the same network with other probes, which tells what depends on the sizes.

    A `Var` that is no input stands for a shape: no elements of it are read.
    """

    inputs: tuple[Var, ...]
    outputs: Mapping[str, Expr]
    names: Mapping[Expr, str]
    sizes: Sizes | None = None
    twin: Network | None = None

    @property
    def root(self) -> Tuple:
        return Tuple(list(self.outputs.values()))


def require_known(unknown: Counter[str]) -> None:
    """Raise `NetworkError` for operators that plevel lacks, with the numbers of their nodes, if there are any."""
    if unknown:
        listed = ", ".join(f"{name} ({n})" for name, n in unknown.most_common())
        raise NetworkError(
            f"{show_number(len(unknown), 'operator')} that plevel has no kernel for: {listed}: write the model without "
            "them, or end it before"
        )
