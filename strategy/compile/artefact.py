"""Compiled code with its signature: callable in this process, or a file."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from strategy.extern import load_library
from strategy.fault import CompileError
from strategy.signature import Argument, Signature

ALIGNMENT = 64  # bytes that all buffers of a function must be aligned to, as TVM's own are
MAIN = "main"
_signatures = msgspec.json.Decoder(Signature)


@dataclass(frozen=True)
class Artefact:
    """Compiled code with its signature."""

    executable: Any
    signature: Signature

    @property
    def arguments(self) -> tuple[Argument, ...]:
        return self.signature.arguments

    @cached_property
    def main(self) -> Any:
        """The function itself: takes one tensor per argument, the outputs last."""
        if self.signature.library is not None:
            load_library(self.signature.library)
        return self.executable[MAIN]

    def prepare(self, argument: Argument, source: Any) -> Any:
        """The packed form of a constant input, an argument of `main`."""
        import tvm

        if argument.preparation is None:
            return source
        packed = tvm.runtime.empty(argument.tensor.concrete_shape, argument.tensor.dtype, source.device)
        self.executable[argument.preparation](source, packed)
        return packed

    def write_object(self, path: Path) -> None:
        """Write the machine code as an object file, to be linked into a library.

        Raises:
            CompileError: LLVM cannot write it.
        """
        try:
            self.executable.mod.write_to_file(str(path))
        except (OSError, RuntimeError) as error:
            raise CompileError(f"{path} cannot be written: {error}") from error


def load(path: Path) -> Artefact:
    """A shared library, with its signature beside it as `path` + `.json` (`workers.builder.link`).

    The file is code: load only what this host built or trusts.
    """
    import tvm

    signature = _signatures.decode(path.with_name(path.name + ".json").read_bytes())
    if signature.library is not None:
        load_library(signature.library)
    return Artefact(tvm.runtime.load_module(str(path)), signature)
