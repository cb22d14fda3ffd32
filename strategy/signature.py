"""The signature of a compiled function: its parameters in order."""

from __future__ import annotations

import ast
import operator
from enum import StrEnum
from typing import Any

import msgspec

from strategy.condition import Expr
from strategy.types import Dim, TensorType, TypeSyntaxError

_OPERATORS: dict[type[ast.operator], Any] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
}
PREPARE = "prepare_"  # name prefix of functions that pack a constant


class Role(StrEnum):
    """The role of a parameter of a lowered function."""

    INPUT = "input"
    CONSTANT = "constant"  # never changes between calls
    PREPARED = "prepared"  # a constant input, packed once by its own function
    OUTPUT = "output"


class Argument(msgspec.Struct, frozen=True):
    """One parameter of a lowered function; `type` is that of the packed form if it is prepared."""

    name: str
    role: Role
    type: str

    @property
    def tensor(self) -> TensorType:
        dtype, _, shape = self.type.removesuffix("]").partition("[")
        return TensorType([_dimension(extent) for extent in shape.split(",") if extent], dtype)

    @property
    def preparation(self) -> str | None:
        """The name of the artefact's function that packs this argument from the input of its name."""
        return PREPARE + self.name if self.role is Role.PREPARED else None


def _dimension(text: str) -> int | str | Expr:
    """An extent: a number, a name, or arithmetic on them, as an output may have it."""
    if text.isdecimal():
        return int(text)
    if text.isidentifier():
        return text
    try:
        return _arithmetic(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, KeyError) as error:
        raise TypeSyntaxError(f"{text!r:.80} is no extent: a number, a name, or arithmetic on them") from error


def _arithmetic(node: ast.expr) -> Expr:
    if isinstance(node, ast.BinOp):
        found: Expr = _OPERATORS[type(node.op)](_arithmetic(node.left), _arithmetic(node.right))
        return found
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return 0 - _arithmetic(node.operand)
    if isinstance(node, ast.Name):
        return Dim(node.id)
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return Dim(node.value)
    raise KeyError(type(node))


class Signature(msgspec.Struct, frozen=True):
    """The interface of an artefact: its parameters, and the library that it calls."""

    arguments: tuple[Argument, ...]
    threads: int
    library: str | None = None
