"""The signature of a compiled function: its parameters in order."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from strategy.types import TensorType

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
        return TensorType.parse(self.type)

    @property
    def preparation(self) -> str | None:
        """The name of the artefact's function that packs this argument from the input of its name."""
        return PREPARE + self.name if self.role is Role.PREPARED else None


class Signature(msgspec.Struct, frozen=True):
    """The interface of an artefact: its parameters, and the library that it calls."""

    arguments: tuple[Argument, ...]
    threads: int
    library: str | None = None
