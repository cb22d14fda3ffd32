"""A network: a call graph with named inputs, outputs and values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from strategy.expr import Expr, Tuple, Var
from strategy.network.size import Size


class NetworkError(ValueError):
    """A model that cannot be imported or compiled; the message says why, and what to do."""


@dataclass(frozen=True)
class Network:
    """A model as a call graph of plevel's operators.

    Args:
        inputs: in the order in which the model takes them.
        outputs: by name, in the order in which the model gives them.
        names: of the model's values, by the nodes that compute their elements.
        size: the symbolic size, if there is one; the types have its probe for it.
        twin: the same network with another probe, which tells what depends on the size.
    """

    inputs: tuple[Var, ...]
    outputs: Mapping[str, Expr]
    names: Mapping[Expr, str]
    size: Size | None = None
    twin: Network | None = None

    @property
    def root(self) -> Tuple:
        return Tuple(list(self.outputs.values()))
