"""The runtime in C (`runtime.c`): compiled once for this Python, and loaded."""

from __future__ import annotations

import platform
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from functools import cache
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

from plevel.torch.store import digest_of, folder, is_library, touch
from strategy.compile.export import compiler_command
from strategy.compile.openmp import LAUNCHER
from strategy.fault import CompileError

_NAME = "plevel_torch_runtime"
_HEADERS = (LAUNCHER, LAUNCHER.with_name("workspace.h"))


class NativeError(RuntimeError):
    """The runtime cannot be compiled here; the message says what is missing."""


@cache
def native() -> Any:
    """The module: `load`, `prepare` and `run`, on tensors of PyTorch.

    Raises:
        NativeError: no C compiler, or it failed.
    """
    import torch

    source = Path(__file__).with_name("runtime.c")
    include = sysconfig.get_paths()["include"]
    text = source.read_text() + "".join(header.read_text() for header in _HEADERS)
    path = folder() / f"runtime-{digest_of(text, sys.version, include, platform.machine())}.so"
    touch(path)
    if not is_library(path):
        _compile(source, include, path)
    loader = ExtensionFileLoader(_NAME, str(path))
    spec = spec_from_loader(_NAME, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    # The function by which Inductor's own kernels get at the data of a tensor.
    module.bind(torch._C._dynamo.guards._torchinductor_pyobject_tensor_data_ptr)
    return module


def _compile(source: Path, include: str, path: Path) -> None:
    try:
        compiler = compiler_command()
    except CompileError as error:
        raise NativeError(str(error)) from error
    with tempfile.TemporaryDirectory(dir=path.parent) as made:
        partial = Path(made) / path.name
        command = [
            *compiler, "-O2", "-fPIC", "-shared", "-fopenmp", f"-I{include}", f"-I{LAUNCHER.parent}",
            str(source), "-o", str(partial),
        ]  # fmt: skip
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            named = shlex.join(compiler)
            raise NativeError(f"{named} cannot be run (CC names another compiler): {error.strerror}") from error
        if done.returncode:
            raise NativeError(
                f"{' '.join(command)} failed (CC names another compiler): {done.stderr.strip()[-2000:]}"
            )
        partial.replace(path)
