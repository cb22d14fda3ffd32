"""A stand-in for a GPU: the generated CUDA source, compiled for this processor and run there."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any

import numpy as np

from strategy.cuda.program import CudaArtefact, Launch, Pointer, Program, evaluate
from tests.once import make_once

HEADER = Path(__file__).with_name("cuda_emulation.h")
WARPGROUP = Path(__file__).with_name("warpgroup.h")
RACES = Path(__file__).with_name("races.h")
VENDOR = Path(__file__).with_name("vendor.cpp")
DRIVER = Path(__file__).with_name("driver.cpp")
_C = {"int32": ctypes.c_int32, "int64": ctypes.c_int64, "float32": ctypes.c_float}
# Each library has functions of its own, also beside one that is loaded for all (RTLD_GLOBAL): they ask which memory is
# their library's. The variables of the emulation stay one for all.
_FLAGS = (
    "-std=c++17", "-O0", "-w", "-fPIC", "-fno-strict-aliasing", "-fsanitize=thread", "-fvisibility-inlines-hidden",
)
# Without the library of -fsanitize=thread, whose hooks `races.h` has.
_LIBRARIES = ("-nodefaultlibs", "-lstdc++", "-lm", "-lc", "-lgcc_s", "-lgcc", "-ldl")
_INCLUDES = (
    "cstdint",
    "type_traits",
    "cuda.h",
    "cuda_fp16.h",
    "cuda_bf16.h",
    "mma.h",
    "math_constants.h",
)
_NARROW = (("f16", "half"), ("bf16", "nv_bfloat16"))


def _names(first: int, count: int) -> str:
    """The names of operands in inline assembly."""
    return ", ".join(f"%{i}" for i in range(first, first + count))


# The instructions that the emulation knows, and what stands for them there: any other does not compile.
_PTX = {
    "cp.async.cg.shared.global [%0], [%1], 16, %2;": "emulation::copy_async",
    "cp.async.commit_group;": "emulation::commit_copies",
    "cp.async.wait_group %0;": "emulation::wait_copies",
    "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];": "emulation::load_matrices",
    "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];": "emulation::load_transposed",
    "ex2.approx.ftz.f32 %0, %1;": "emulation::power_of_two",
    "st.shared.v4.b32 [%0], {%1, %2, %3, %4};": "emulation::store_shared",
    "ld.relaxed.gpu.global.u32 %0, [%1];": "emulation::load_word",
    "st.relaxed.gpu.global.u32 [%0], %1;": "emulation::store_word",
    "fence.proxy.async.shared::cta;": "emulation::fence_proxy",
    "wgmma.fence.sync.aligned;": "emulation::fence_group",
    "wgmma.commit_group.sync.aligned;": "emulation::commit_products",
    "wgmma.wait_group.sync.aligned %0;": "emulation::wait_products",
    "wgmma.wait_group.sync.aligned 0;": "emulation::wait_products_of<0>",
    "wgmma.wait_group.sync.aligned 1;": "emulation::wait_products_of<1>",
} | {
    f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32 "
    "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};": f"emulation::multiply<{number}>"
    for kind, number in _NARROW
} | {
    f"cvt.rn.{kind}x2.f32 %0, %1, %2;": f"emulation::pack<{number}>"
    for kind, number in _NARROW
} | {
    f"wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{kind}.{kind} "
    f"{{{_names(0, n // 2)}}}, %{n // 2}, %{n // 2 + 1}, {adds}, 1, 1, 0, 0;":
    f"emulation::multiply_group<{number}, {adds}>"
    for n in range(8, 257, 8)
    for adds in (0, 1)
    for kind, number in _NARROW
} | {
    f"wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{kind}.{kind} "
    f"{{{_names(0, n // 2)}}}, {{{_names(n // 2, 4)}}}, %{n // 2 + 4}, 1, 1, 1, 1;":
    f"emulation::multiply_held<{number}>"
    for n in range(8, 257, 8)
    for kind, number in _NARROW
}
_ASSEMBLY = re.compile(r'asm volatile\("([^"]+)"([^;]*)\);')
_TOGETHER = 16  # sources in one run of the compiler
_OPERAND = re.compile(r'"[=+]?\w"\(((?:[^()]|\([^()]*\))*)\)')


class TrapError(Exception):
    """A kernel did what would end it on a device, or what the emulation knows to be wrong there."""


def find_cxx() -> str | None:
    """A C++ compiler that knows C++17."""
    return shutil.which("g++") or shutil.which("clang++")


# Libraries by their source, with what stands before the names of its kernels: most of a test's time is theirs.
_compiled: dict[str, tuple[Path, str]] = {}


class Emulation:
    """Some CUDA source, compiled for this processor.

    Args:
        folder: for the library.
    """

    def __init__(self, source: str, programs: Mapping[str, Program], folder: Path) -> None:
        if source not in _compiled:
            library = folder / "kernel.so"
            folder.mkdir(parents=True, exist_ok=True)
            compile_kernels(source, kernels_of(programs), library, headers())
            _compiled[source] = library, ""
        path, self._prefix = _compiled[source]
        self._library = ctypes.CDLL(str(path))
        self._programs = programs

    def run(
        self, name: str, arrays: Mapping[str, Any], symbols: Mapping[str, int] | None = None
    ) -> None:
        """Run a program over arrays, which it writes to; workspaces are poisoned first.

        Raises:
            TrapError: as a device would, or because threads race or leave these arrays (races.h).
        """
        program = self._programs[name]
        memory = dict(arrays)
        for workspace in program.workspaces:
            size = evaluate(workspace.size_bytes, symbols or {})
            memory[workspace.name] = aligned((size,), np.uint8)
            memory[workspace.name][...] = 0xFF
        for step in program.steps:
            assert isinstance(step, Launch), "libraries are called by a driver"
            for number, array in enumerate(memory.values()):
                self._library.set_range(number, ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes))
            self.launch(step.bind(symbols or {}), memory)

    def launch(self, launch: Launch, memory: Mapping[str, Any]) -> None:
        """Run one launch whose sizes are known."""
        values: list[Any] = []
        for argument in launch.arguments:
            if isinstance(argument, Pointer):
                values.append(ctypes.c_void_p(memory[argument.buffer].ctypes.data))
            else:
                values.append(_C[argument.dtype](argument.value))
        launch_kernel(
            self._library, self._prefix + launch.kernel, launch.grid, launch.block, launch.shared_bytes, values
        )


def kernels_of(programs: Mapping[str, Program]) -> list[str]:
    return sorted({launch.kernel for p in programs.values() for launch in p.launches})


def compile_together(sources: Mapping[str, Mapping[str, Program]], folder: Path) -> None:
    """Compile sources for the emulations to come, many at a time, which is several times as quick as one by one."""
    left = [(source, kernels_of(programs)) for source, programs in sources.items() if source not in _compiled]
    for start in range(0, len(left), _TOGETHER):
        parts, library = [], folder / f"together{len(_compiled)}.so"
        for number, (source, names) in enumerate(left[start : start + _TOGETHER]):
            own = _own(source).replace('extern "C"', "")
            macros = re.findall(r"^ *#define (\w+)", own, re.MULTILINE)
            entries = _entries(names, f"k{number}_", f"k{number}::")
            parts += [f"namespace k{number} {{", own, "}", *(f"#undef {m}" for m in macros), *entries]
            _compiled[source] = library, f"k{number}_"
        _compile(parts, library, headers())


def compile_kernels(source: str, names: Sequence[str], library: Path, include: Path) -> None:
    """CUDA source as a library for this processor; `include` is what `headers` gave."""
    _compile([_own(source), *_entries(names)], library, include)


def _own(source: str) -> str:
    """The translated source, whose names no other library of this process has.

    Else a template's shared memory would be the first library's that has one of that name (STB_GNU_UNIQUE).
    """
    return f"namespace {{\n{_translate(source)}\n}}"


def _entries(names: Sequence[str], prefix: str = "", scope: str = "") -> list[str]:
    """The functions of a library that launch its kernels, and that lay out their arguments."""
    return [
        f'extern "C" int run_{prefix}{name}(int given, const unsigned* dims, size_t shared, void** arguments) '
        f"{{ return emulation::launch({scope}{name}, given, dims, shared, arguments); }}\n"
        f'extern "C" size_t lay_{prefix}{name}(size_t* places) {{ return emulation::lay({scope}{name}, places); }}'
        for name in names
    ]


def _compile(parts: Sequence[str], library: Path, include: Path) -> None:
    code = library.with_suffix(".cpp")
    code.write_text("\n".join([f'#include "{HEADER.name}"', *parts]))
    done = subprocess.run(
        [str(find_cxx()), *_FLAGS, "-shared", f"-I{include}", "-o", str(library), str(code), *_LIBRARIES],
        capture_output=True, text=True, check=False,
    )
    assert done.returncode == 0, done.stderr[:4000]


def launch_kernel(
    library: ctypes.CDLL, name: str, grid: Sequence[Any], block: Sequence[int], shared: int, values: Any
) -> None:
    """Run one launch with its arguments as values of ctypes."""
    pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
    dims = (ctypes.c_uint * 6)(*grid, *block)
    taken = library[f"run_{name}"](len(values), dims, ctypes.c_size_t(shared), pointers)
    if taken == -2:
        raise TrapError(name)
    if taken == -3:
        library.seen_fault.restype = ctypes.c_char_p
        raise TrapError(f"{name}: {library.seen_fault().decode()}")
    assert taken == -1, f"{name} takes {taken} arguments, it is given {len(values)}"


def _translate(source: str) -> str:
    """Translate CUDA to C++: shared memory, inline assembly, and headers of the toolkit."""
    source = re.sub(r'"\s*\n\s*"', "", source)  # texts in two parts
    source = _ASSEMBLY.sub(_translate_assembly, source)
    source = re.sub(
        r"#include [<\"]([\w/.]+)[>\"]", lambda m: "" if m[1] in _INCLUDES else m[0], source
    )
    source = re.sub(
        r"extern __shared__ (?:__align__\(\d+\) |alignas\(\d+\) )?([\w ]+) (\w+)\[\];",
        r"\1* \2 = (\1*)emulation::dynamic_shared;",
        source,
    )
    return re.sub(r"__shared__ (alignas\(\d+\) |)", r"\1static ", source)


def _translate_assembly(statement: re.Match[str]) -> str:
    name = _PTX.get(statement[1])
    return statement[0] if name is None else f"{name}({', '.join(_OPERAND.findall(statement[2]))});"


def compile_vendor(library: Path) -> None:
    """The stand-in for cuBLAS and cuDNN, as a shared library."""
    library.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        [str(find_cxx()), *_FLAGS, "-shared", f"-I{headers()}", "-o", str(library), str(VENDOR), *_LIBRARIES],
        check=True,
    )


def missing_for_driver() -> str:
    """The requirements of `compile_driver` that this host lacks; empty if none."""
    needs = {
        "C++ compiler": find_cxx(), "pycuda (docs/gpu.md)": find_file("pycuda", "_driver."),
        "cuda.h (nvidia-cuda-runtime)": find_file("nvidia-cuda-runtime", "cuda.h"),
    }
    return ", ".join(f"no {name}" for name, found in needs.items() if found is None)


def compile_driver(folder: Path) -> None:
    """The stand-in for NVIDIA's driver, as libcuda.so.1 and as the library of NVML.

    What pycuda asks for besides is there, and does nothing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pycuda, header = find_file("pycuda", "_driver."), find_file("nvidia-cuda-runtime", "cuda.h")
    assert pycuda is not None and header is not None, missing_for_driver()
    names = sorted(set(re.findall(rb"(?<=\0)cu[A-Z]\w+(?=\0)", pycuda.read_bytes())))
    rest = folder / "rest.c"
    # 801 is CUDA_ERROR_NOT_SUPPORTED.
    rest.write_text("".join(f"__attribute__((weak)) int {n.decode()}() {{ return 801; }}\n" for n in names))
    flags = ["-std=c++17", "-O1", "-w", "-fPIC", "-shared", f"-I{header.parent}", "-Wl,-soname,libcuda.so.1"]
    subprocess.run(
        [str(find_cxx()), *flags, "-o", str(folder / "libcuda.so.1"), str(DRIVER), "-x", "c", str(rest), "-ldl"],
        check=True,
    )
    (folder / "libnvidia-ml.so.1").symlink_to("libcuda.so.1")


def find_file(package: str, name: str) -> Path | None:
    """The file of an installed package whose own name begins so."""
    try:
        found = [f for f in files(package) or () if f.name.startswith(name)]
    except PackageNotFoundError:
        return None
    return Path(str(found[0].locate())) if found else None


def headers() -> Path:
    """A folder with the header, compiled once for all processes: it is most of the work of a kernel."""
    return make_once("emulation", _compile_headers)


def _compile_headers(folder: Path) -> None:
    folder.mkdir()
    shutil.copy(HEADER, folder)
    shutil.copy(WARPGROUP, folder)
    shutil.copy(RACES, folder)
    copied = str(folder / HEADER.name)
    subprocess.run(
        [str(find_cxx()), *_FLAGS, "-x", "c++-header", "-o", f"{copied}.gch", copied], check=True
    )


def aligned(shape: tuple[int, ...], dtype: Any) -> Any:
    """An array at a multiple of 256 bytes, as a driver's allocations are."""
    kind = np.dtype(dtype)
    size = int(np.prod(shape)) * kind.itemsize
    memory = np.empty(size + 256, np.uint8)
    start = -memory.ctypes.data % 256
    return memory[start : start + size].view(kind).reshape(shape)


class EmulatedDriver:
    """A `workers.cuda.driver.PycudaDriver` without a device: kernels run where they are launched.

    Args:
        folder: for the libraries.
        room_bytes: of memory, after which there is none.
    """

    def __init__(self, folder: Path, l2_bytes: int = 0, room_bytes: int = 1 << 30) -> None:
        self.l2_bytes = l2_bytes
        self.memory_bytes = room_bytes
        self.stream = 0x5157  # libraries must be told of it; it leads nowhere
        self._folder = folder
        self._room = room_bytes
        self._loaded = 0
        self.launched = 0

    def load(self, artefact: CudaArtefact) -> Emulation:
        self._loaded += 1
        return Emulation(artefact.source, artefact.programs, self._folder / str(self._loaded))

    def allocate(self, size_bytes: int) -> Any:
        if size_bytes > self._room:
            raise MemoryError(f"no {size_bytes} bytes left")
        self._room -= size_bytes
        return aligned((size_bytes,), np.uint8)

    def free(self, buffer: Any) -> None:
        self._room += buffer.size

    def address(self, buffer: Any) -> int:
        return int(buffer.ctypes.data)

    def upload(self, buffer: Any, array: Any) -> None:
        buffer[...] = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)

    def copy(self, buffer: Any, source: Any, size_bytes: int) -> None:
        buffer[:size_bytes] = source[:size_bytes]

    def download(self, buffer: Any, array: Any) -> None:
        array.reshape(-1).view(np.uint8)[...] = buffer

    def prepare(
        self, module: Emulation, launch: Launch, buffers: Mapping[str, Any]
    ) -> Callable[[], None]:
        def run() -> None:
            self.launched += 1
            module.launch(launch, buffers)

        return run

    def capture(self, queue: Callable[[], None]) -> Callable[[], None]:
        return queue

    def synchronize(self) -> None:
        pass

    def time(self, queue: Callable[[], None]) -> float:
        began = time.perf_counter()
        queue()
        return time.perf_counter() - began

    def describe(self) -> dict[str, Any]:
        return {"driver": "emulation"}
