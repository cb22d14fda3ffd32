"""The runtime in C (`runtime.c`): compiled once for this Python, and loaded."""

from __future__ import annotations

import platform
import sys
import sysconfig
from functools import cache
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

from plevel.torch.store import digest_of, folder, is_loadable, move, temporary, touch
from strategy.compile.export import link
from strategy.compile.openmp import LAUNCHER

_NAME = "plevel_torch_runtime"
_HEADERS = (LAUNCHER, LAUNCHER.with_name("workspace.h"))


@cache
def native() -> Any:
    """The module: `load`, `prepare` and `run`, on tensors of PyTorch.

    Raises:
        CompileError: no C compiler, or it failed.
        FolderError: it cannot be kept.
    """
    import torch

    source = Path(__file__).with_name("runtime.c")
    include = sysconfig.get_paths()["include"]
    text = source.read_text() + "".join(header.read_text() for header in _HEADERS)
    path = folder() / f"runtime-{digest_of(text, sys.version, include, platform.machine())}.so"
    touch(path)
    if not is_loadable(path):
        options = ["-fopenmp", f"-I{include}", f"-I{LAUNCHER.parent}"]
        with temporary() as made:
            move(link([*options, str(source)], made.absolute()), path)
    loader = ExtensionFileLoader(_NAME, str(path))
    spec = spec_from_loader(_NAME, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    # The function by which Inductor's own kernels get at the data of a tensor.
    module.bind(torch._C._dynamo.guards._torchinductor_pyobject_tensor_data_ptr)
    return module
