"""Compilation of CUDA source to cubins, by nvcc if present, else NVRTC's wheel. Neither needs a GPU.

Compilers, their versions and flags allocate registers differently, so the compiler is part of a cubin's identity.
Division, square roots and exponentials keep their precision: no `--use_fast_math`, which TVM would set.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import re
import shutil
import subprocess
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from strategy.cuda.cubin import read_usage
from strategy.cuda.program import Usage
from strategy.fault import CompileError, ToolError
from strategy.folder import scratch

# 177: unused variables, which generated code has.
_NVCC_FLAGS = ("-O3", "-std=c++17", "-diag-suppress", "177", "-Xptxas", "-v")
_NVRTC_FLAGS = ("--std=c++17", "-default-device", "--diag-suppress=177")


class Compiled(msgspec.Struct, frozen=True):
    """A cubin, and the resource usage of its kernels."""

    cubin: bytes
    usage: dict[str, Usage]


_compiled = msgspec.msgpack.Decoder(Compiled)


class Compiler(ABC):
    """A compiler of CUDA C; one value per process and configuration. Thread-safe."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """Its name, version and flags."""

    @abstractmethod
    def compile(self, code: str, arch: str) -> Compiled:
        """The cubin of some source for one architecture (`sm_90`).

        Raises:
            CompileError: the compiler's message.
            ToolError: it cannot be run.
        """


@dataclass(frozen=True)
class Nvcc(Compiler):
    path: str

    @cached_property
    def identity(self) -> str:
        done = self._run("--version", timeout=60)
        version = re.search(r"V(\d+\.\d+\.\d+)", done.stdout)
        return f"nvcc {version[1] if version else 'unknown'} {' '.join(_NVCC_FLAGS)}"

    def compile(self, code: str, arch: str) -> Compiled:
        # A builder is killed at a timeout or Ctrl-C: the next compilation deletes what it left.
        with scratch("nvcc") as folder:
            source, cubin = folder / "kernel.cu", folder / "kernel.cubin"
            source.write_text(code)
            options = ("-cubin", f"-arch={arch}", *_NVCC_FLAGS, "-o", str(cubin), str(source))
            done = self._run(*options, env=os.environ | {"TMPDIR": str(folder)})
            if done.returncode:
                raise CompileError(f"nvcc failed for {arch}: {done.stderr.strip()}")
            made = cubin.read_bytes()
        spills = _spills(done.stderr)
        usage = {
            name: msgspec.structs.replace(found, spill_bytes=spills.get(name))
            for name, found in read_usage(made).items()
        }
        return Compiled(made, usage)

    def _run(self, *options: str, **limits: Any) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                [self.path, *options], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, **limits
            )
        except OSError as error:
            raise ToolError(f"{self.path} cannot be run: {error.strerror}: put nvcc on PATH") from error


def _spills(log: str) -> dict[str, int]:
    """Bytes of spill stores and loads of each kernel, from the output of `ptxas -v`."""
    found = {}
    kernel = ""
    for line in log.splitlines():
        started = re.search(r"Compiling entry function '(\w+)'", line)
        if started:
            kernel = started[1]
        spilled = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line)
        if spilled and kernel:
            found[kernel] = int(spilled[1]) + int(spilled[2])
    return found


@dataclass(frozen=True)
class Nvrtc(Compiler):
    """NVIDIA's compiler as a library, which does not report spills."""

    library: Path
    builtins: Path
    include: Path

    @cached_property
    def _handle(self) -> Any:
        try:
            ctypes.CDLL(str(self.builtins), mode=ctypes.RTLD_GLOBAL)
            return ctypes.CDLL(str(self.library))
        except OSError as error:
            raise ToolError(
                f"NVRTC cannot be loaded ({error}): reinstall plevel[cuda]"
            ) from error

    @cached_property
    def identity(self) -> str:
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._handle.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        return f"nvrtc {major.value}.{minor.value} {' '.join(_NVRTC_FLAGS)}"

    def compile(self, code: str, arch: str) -> Compiled:
        nvrtc, program = self._handle, ctypes.c_void_p()
        self._check(
            nvrtc.nvrtcCreateProgram(
                ctypes.byref(program), code.encode(), b"kernel.cu", 0, None, None
            )
        )
        try:
            flags = [
                f"--gpu-architecture={arch}",
                f"-I{self.include}",
                f"-I{self.include}/cccl",
                *_NVRTC_FLAGS,
            ]
            encoded = (ctypes.c_char_p * len(flags))(*(flag.encode() for flag in flags))
            if nvrtc.nvrtcCompileProgram(program, len(flags), encoded):
                log = self._read(program, "ProgramLog").decode(errors="replace").rstrip("\0\n")
                raise CompileError(f"NVRTC failed for {arch}: {log}")
            made = self._read(program, "CUBIN")
        finally:
            nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
        return Compiled(made, read_usage(made))

    def _read(self, program: Any, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._check(self._handle[f"nvrtcGet{what}Size"](program, ctypes.byref(size)))
        buffer = ctypes.create_string_buffer(size.value)
        self._check(self._handle[f"nvrtcGet{what}"](program, buffer))
        return buffer.raw

    def _check(self, status: int) -> None:
        if status:
            say = self._handle.nvrtcGetErrorString
            say.restype = ctypes.c_char_p
            raise CompileError(f"NVRTC failed: {say(status).decode()}")


def find_nvcc() -> Nvcc | None:
    """The nvcc on PATH, or of CUDA_HOME."""
    home = os.environ.get("CUDA_HOME") or "/usr/local/cuda"
    found = shutil.which("nvcc") or shutil.which(str(Path(home, "bin", "nvcc")))
    return Nvcc(found) if found else None


def find_nvrtc() -> Nvrtc | None:
    """NVRTC of the wheels `nvidia-cuda-nvrtc`, `-runtime`, `-cccl` and `-crt`."""
    spec = find_spec("nvidia")
    for root in (spec.submodule_search_locations or ()) if spec is not None else ():
        for folder in sorted(Path(root).glob("cu[0-9]*"), reverse=True):
            libraries = sorted(folder.glob("lib/libnvrtc.so.*"))
            builtins = sorted(folder.glob("lib/libnvrtc-builtins.so.*"))
            include = folder / "include"
            if libraries and builtins and (include / "cuda_fp16.h").exists():
                return Nvrtc(libraries[-1], builtins[-1], include)
    return None


@cache
def find_compiler() -> Compiler:
    """The compiler of CUDA C on this host: nvcc, else NVRTC; raise `ToolError` if there is neither."""
    found = find_nvcc() or find_nvrtc()
    if found is None:
        raise ToolError(
            "this host has no CUDA compiler: pip install 'plevel[cuda]' for NVRTC, or put nvcc on PATH"
        )
    return found


def compile_cached(
    code: str, arch: str, compiler: Compiler, folder: Path | None = None
) -> Compiled:
    """The result of `compiler.compile`, cached on disk by the digest of source, architecture and compiler.

    Args:
        folder: the cache; default: in the user's cache directory.
    """
    what = msgspec.json.encode((code, arch, compiler.identity))
    folder = _cache_folder() if folder is None else folder
    path = folder / f"{hashlib.sha256(what).hexdigest()}.msgpack"
    try:
        return _compiled.decode(path.read_bytes())
    except (OSError, msgspec.MsgspecError):  # missing, or truncated by a crash of the host
        compiled = compiler.compile(code, arch)
    part = path.with_suffix(f".{os.getpid()}.part")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        part.write_bytes(msgspec.msgpack.encode(compiled))
        part.replace(path)
    except OSError:  # the cache is optional
        with contextlib.suppress(OSError):  # of a file system that is read-only, also for a file that is not there
            part.unlink()
    return compiled


def _cache_folder() -> Path:
    from platformdirs import user_cache_path

    return user_cache_path("plevel", appauthor=False) / "cubin"
