"""Vendor libraries: finding, loading and probing them, and the threads they use.

A library is found without loading it, so that describing this host costs nothing. Compiled functions
call its C symbols, which a loaded library makes visible to the whole process.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import sys
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any


class ExternError(RuntimeError):
    """A library that is not there, cannot be loaded, or gives wrong answers; names the remedy."""


@dataclass(frozen=True)
class Library:
    """A library as found: its role (`cblas`), its file, and what its symbols begin and end with."""

    role: str
    path: str
    prefix: str = ""

    def symbol(self, name: str) -> str:
        """The library's own name of a routine: `cblas_sgemm` → `scipy_cblas_sgemm`."""
        return self.prefix + name


@cache
def find_library(role: str) -> Library | None:
    """The library that plays `role` on this host (`cblas`), None where there is none."""
    if role != "cblas":
        return None
    wheel = find_spec("scipy_openblas32")
    if wheel is not None and wheel.origin is not None:
        suffix = ".dylib" if sys.platform == "darwin" else ".so"
        path = Path(wheel.origin).parent / "lib" / f"libscipy_openblas{suffix}"
        if path.exists():
            return Library(role, str(path), "scipy_")
    system = ctypes.util.find_library("openblas")
    return Library(role, system) if system else None


@dataclass(frozen=True)
class LoadedLibrary:
    """A library in this process."""

    library: Library
    handle: Any

    def function(self, name: str, restype: Any = None) -> Any:
        """A routine by its common name; raises `ExternError` where the library has none."""
        try:
            found = getattr(self.handle, self.library.symbol(name))
        except AttributeError as error:
            raise ExternError(
                f"{self.library.path} has no routine {self.library.symbol(name)}: "
                f"install the extra plevel[worker], which brings OpenBLAS"
            ) from error
        found.restype = restype
        return found

    def set_threads(self, threads: int) -> None:
        """Makes every later call in this process use `threads` threads."""
        self.function("openblas_set_num_threads")(ctypes.c_int(threads))

    @property
    def threads(self) -> int:
        return int(self.function("openblas_get_num_threads", ctypes.c_int)())

    def describe(self) -> dict[str, str]:
        """Its version and the kernels it chose: part of a measurement's environment.

        `OPENBLAS_CORETYPE` overrides the choice, and can halve the library's speed.
        """
        config = self.function("openblas_get_config", ctypes.c_char_p)().decode()
        core = self.function("openblas_get_corename", ctypes.c_char_p)().decode()
        forced = os.environ.get("OPENBLAS_CORETYPE")
        return {"version": config, "kernels": core} | ({"forced": forced} if forced else {})


@cache
def load_library(role: str) -> LoadedLibrary:
    """Loads the library, visible to compiled functions, and checks one small product.

    Raises:
        ExternError: it is not on this host, does not load, or computes wrongly.
    """
    library = find_library(role)
    if library is None:
        raise ExternError(
            f"no library for {role!r:.40} on this host: install scipy-openblas32 (in plevel[worker]) "
            f"or a system OpenBLAS, or leave it out of the target's libs"
        )
    try:
        handle = ctypes.CDLL(library.path, mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise ExternError(f"{library.path} cannot be loaded: {error}") from error
    loaded = LoadedLibrary(library, handle)
    _probe(loaded)
    return loaded


def _probe(loaded: LoadedLibrary) -> None:
    """[1 2] · [3 4]ᵀ with 32-bit dimensions: a 64-bit interface would read them as garbage."""
    x, w, out = ((ctypes.c_float * 2)(*v) for v in ((1, 2), (3, 4), (0, 0)))
    one, two = ctypes.c_int(1), ctypes.c_int(2)
    loaded.function("cblas_sgemm")(
        101, 111, 112, one, one, two, ctypes.c_float(1), x, two, w, two, ctypes.c_float(0), out, one
    )  # fmt: skip
    if out[0] != 11.0:
        raise ExternError(f"{loaded.library.path} computes 1·3 + 2·4 = {out[0]}: not a 32-bit CBLAS")
