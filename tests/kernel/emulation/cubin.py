"""A stand-in for nvcc: files that read as cubins, with the kernels compiled for this processor inside.

`plevel`'s builder finds it as `nvcc` on PATH, and the stand-in for pycuda (`host/pycuda`) takes the
library out again: so a worker's whole way, processes and all, is gone without a GPU.
"""

from __future__ import annotations

import ctypes
import re
import struct
import sys
from pathlib import Path

from tests.kernel.emulation.device import compile_kernels

_KERNEL = re.compile(r"__global__ void (?:__launch_bounds__\([^)]*\) )?(\w+)\([^)]*\)\s*\{")
_LIBRARY = b"\0emulated library\0"
_REGISTERS = 32
_STRINGS, _SYMBOLS, _OTHER = 3, 2, 1  # types of ELF sections


def make_cubin(kernels: dict[str, int], library: bytes) -> bytes:
    """An ELF file with what `strategy.cuda.cubin` reads of a cubin, and the library after it."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name in kernels)
    symbols, registers = bytes(24), b""
    sections = [(b"", 0, b"", 0)]
    for index, (name, parameters) in enumerate(kernels.items(), 1):
        symbols += struct.pack("<IBBHQQ", names.index(name.encode() + b"\0"), 0, 0, 0, 0, 0)
        registers += struct.pack("<BBHII", 4, 0x2F, 8, index, _REGISTERS)
        one = struct.pack("<BBH", 4, 0x17, 12) + bytes(12)
        sections.append((b".nv.info." + name.encode(), _OTHER, one * parameters, 0))
    sections += [
        (b".nv.info", _OTHER, registers, 0),
        (b".strtab", _STRINGS, names, 0),
        (b".symtab", _SYMBOLS, symbols, len(sections) + 1),
    ]
    titles = b"".join(title + b"\0" for title, *_ in sections) + b".shstrtab\0"
    sections.append((b".shstrtab", _STRINGS, titles, 0))
    body, heads, place = b"", b"", 64
    for title, kind, content, link in sections:
        at = titles.index(title + b"\0")
        heads += struct.pack("<IIQQQQIIQQ", at, kind, 0, 0, place, len(content), link, 0, 1, 0)
        body += content
        place += len(content)
    head = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    head += struct.pack("<HHIQQQIHHHHHH", 2, 190, 1, 0, 0, place, 0, 64, 0, 0, 64, len(sections), len(sections) - 1)
    return head + body + heads + _LIBRARY + library


def library_of(cubin: bytes) -> bytes:
    """The library in a file that `make_cubin` made."""
    return cubin.partition(_LIBRARY)[2]


def install_nvcc(folder: Path, headers: Path) -> Path:
    """Write `nvcc`, which runs this file, into a folder to be put on PATH."""
    folder.mkdir()
    path = folder / "nvcc"
    path.write_text(
        f"#!{sys.executable}\nfrom tests.kernel.emulation.cubin import main\nmain({str(headers)!r})\n"
    )
    path.chmod(0o755)
    return path


def main(headers: str) -> None:
    """The part of nvcc's command line that `strategy.cuda.compiler` uses."""
    if "--version" in sys.argv:
        print("Emulated CUDA compilation tools, V0.0.0")
        return
    source, cubin = Path(sys.argv[-1]), Path(sys.argv[sys.argv.index("-o") + 1])
    text = source.read_text()
    names = _KERNEL.findall(text)
    library = cubin.with_suffix(".so")
    compile_kernels(text, names, library, Path(headers))
    loaded = ctypes.CDLL(str(library))
    # Given another number of arguments than it takes, a kernel says how many that is.
    kernels = {name: int(loaded[f"run_{name}"](-1, None, ctypes.c_size_t(0), None)) for name in names}
    cubin.write_bytes(make_cubin(kernels, library.read_bytes()))
