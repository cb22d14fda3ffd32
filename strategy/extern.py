"""Vendor libraries: finding, loading and probing them, and setting their threads.

A library is found without loading it, so that describing this host is cheap. Compiled functions call its C
symbols, which loading makes visible to the whole process.
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

NVIDIA = ("cublas", "cudnn")  # libraries whose routines run on NVIDIA's GPUs
_REMEDIES = {
    "cblas": "install scipy-openblas32 (in plevel[worker]) or a system OpenBLAS",
    "cublas": "install the CUDA toolkit or a wheel (nvidia-cublas-cu12, nvidia-cublas)",
    "cudnn": "install cuDNN or a wheel (nvidia-cudnn-cu12, nvidia-cudnn-cu13)",
}
_UNKNOWN = "known are " + ", ".join(_REMEDIES)


class ExternError(RuntimeError):
    """A library is missing, cannot be loaded, or computes wrongly; the message has the remedy."""


@dataclass(frozen=True)
class Library:
    """A found library: its role (`cblas`, …), its file, and the prefix of its symbols."""

    role: str
    path: str
    prefix: str = ""

    @property
    def file(self) -> Path:
        """Its file; a system library, which is found by name, is loaded to find its path.

        Raises:
            ExternError: it cannot be loaded.
        """
        if os.sep in self.path:
            return Path(self.path)
        open_library(self.role)
        mapped = {Path(word) for word in Path("/proc/self/maps").read_text().split() if word.startswith("/")}
        for file in mapped:
            named = file.with_name(self.path)  # its name is a link to the file that is mapped
            if ".so" in file.name and named.exists() and named.samefile(file):
                return named
        raise ExternError(f"the file of {self.path} is not known: {_REMEDIES[self.role]}")

    def symbol(self, name: str) -> str:
        """The library's own name of a routine: `cblas_sgemm` → `scipy_cblas_sgemm`."""
        return self.prefix + name


@cache
def find_library(role: str) -> Library | None:
    """This host's library of a role (`cblas`, `cublas`, `cudnn`), None if there is none."""
    if role in NVIDIA:
        return _find_nvidia(role)
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


def _find_nvidia(role: str) -> Library | None:
    """The newest library of NVIDIA's wheels, else of the toolkit or the system."""
    wheels = find_spec("nvidia")
    roots = list(wheels.submodule_search_locations or ()) if wheels is not None else []
    # cu13/lib in wheels for CUDA 13, cublas/lib and cudnn/lib in older ones.
    found = [p for root in roots for p in Path(root).glob(f"*/lib/lib{role}.so.*")]
    if not found:
        home = os.environ.get("CUDA_HOME") or "/usr/local/cuda"
        found = [*Path(home).glob(f"lib64/lib{role}.so.*")]
    if found:
        return Library(role, str(max(found, key=_version)))
    system = ctypes.util.find_library(role)
    return Library(role, system) if system else None


def _version(path: Path) -> list[int]:
    """[13, 1] for `libcublas.so.13.1`."""
    return [int(part) for part in path.name.partition(".so.")[2].split(".") if part.isdecimal()]


@dataclass(frozen=True)
class LoadedLibrary:
    """A library loaded in this process."""

    library: Library
    handle: Any

    def function(self, name: str, restype: Any = None) -> Any:
        """A routine by its common name; raise `ExternError` if the library lacks it."""
        try:
            found = getattr(self.handle, self.library.symbol(name))
        except AttributeError as error:
            raise ExternError(
                f"{self.library.path} has no routine {self.library.symbol(name)}: "
                + _REMEDIES[self.library.role]
            ) from error
        found.restype = restype
        return found

    def set_threads(self, threads: int) -> None:
        """Make every later call in this process use `threads` threads."""
        self.function("openblas_set_num_threads")(ctypes.c_int(threads))

    @property
    def threads(self) -> int:
        return int(self.function("openblas_get_num_threads", ctypes.c_int)())

    def describe(self) -> dict[str, str]:
        """Its version and the kernels it chose, for the environment of measurements.

        `OPENBLAS_CORETYPE` overrides the choice, and can halve the library's speed.
        """
        config = self.function("openblas_get_config", ctypes.c_char_p)().decode()
        core = self.function("openblas_get_corename", ctypes.c_char_p)().decode()
        forced = os.environ.get("OPENBLAS_CORETYPE")
        return {"version": config, "kernels": core} | ({"forced": forced} if forced else {})


@cache
def open_library(role: str) -> LoadedLibrary:
    """Load the library, visible to compiled functions and to other libraries.

    Raises:
        ExternError: it is missing on this host, or cannot be loaded.
    """
    library = find_library(role)
    if library is None:
        raise ExternError(
            f"this host has no library for {role!r:.40}: {_REMEDIES.get(role, _UNKNOWN)}, or leave it "
            f"out of the target's libs"
        )
    try:
        handle = ctypes.CDLL(library.path, mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise ExternError(f"{library.path} cannot be loaded: {error}") from error
    return LoadedLibrary(library, handle)


@cache
def load_library(role: str) -> LoadedLibrary:
    """`open_library` for a CBLAS, with a check of one small product.

    Raises:
        ExternError: it is missing on this host, cannot be loaded, or computes wrongly.
    """
    loaded = open_library(role)
    _probe(loaded)
    return loaded


def _probe(loaded: LoadedLibrary) -> None:
    """Compute [1 2] · [3 4]ᵀ with 32-bit dimensions, which a 64-bit interface would misread."""
    x, w, out = ((ctypes.c_float * 2)(*v) for v in ((1, 2), (3, 4), (0, 0)))
    one, two = ctypes.c_int(1), ctypes.c_int(2)
    loaded.function("cblas_sgemm")(
        101, 111, 112, one, one, two, ctypes.c_float(1), x, two, w, two, ctypes.c_float(0), out, one
    )
    if out[0] != 11.0:
        raise ExternError(
            f"{loaded.library.path} computes 1·3 + 2·4 = {out[0]}, so it is no 32-bit CBLAS: install another"
        )
