"""Resource usage of the kernels in a cubin: registers, stack, shared memory, parameters.

A cubin is an ELF file. `.nv.info` has attributes of all kernels, `.nv.info.KERNEL` those of one, with the numbers
that `cuobjdump -elf` prints. No tool of the toolkit is needed.
"""

from __future__ import annotations

import struct
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from strategy.cuda.program import Usage

_REGISTERS, _FRAME, _PARAMETER = 0x2F, 0x11, 0x17
_WITH_PAYLOAD = 4
_SYMBOLS = 2  # the type of a section that is a symbol table


class CubinError(ValueError):
    """The bytes are no cubin."""


@dataclass(frozen=True)
class _Section:
    name: str
    kind: int
    size: int
    body: bytes
    link: int


def read_usage(cubin: bytes) -> dict[str, Usage]:
    """The resource usage of each kernel of a cubin, by its name.

    `.nv.shared.KERNEL` includes memory reserved by the system (1 KB from sm_90 on).

    Raises:
        CubinError: the bytes are no ELF file of 64 bits.
    """
    try:
        sections = _sections(cubin)
        names = _symbols(sections)
        sizes: dict[int, dict[int, int]] = defaultdict(dict)
        parameters: Counter[str] = Counter()
        shared = {}
        for section in sections:
            if section.name == ".nv.info":
                for attribute, payload in _attributes(section.body):
                    if attribute in (_REGISTERS, _FRAME):
                        index, value = struct.unpack_from("<II", payload)
                        sizes[attribute][index] = value
            elif section.name.startswith(".nv.info."):
                found = [a for a, _ in _attributes(section.body)]
                parameters[section.name.removeprefix(".nv.info.")] = found.count(_PARAMETER)
            elif section.name.startswith(".nv.shared."):
                shared[section.name.removeprefix(".nv.shared.")] = section.size
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise CubinError(f"not a cubin: {error}") from error
    return {
        names[index]: Usage(
            registers=count, shared_bytes=shared.get(names[index], 0),
            stack_bytes=sizes[_FRAME].get(index, 0), parameters=parameters[names[index]],
        )
        for index, count in sizes[_REGISTERS].items()
    }


def _sections(cubin: bytes) -> list[_Section]:
    if cubin[:5] != b"\x7fELF\x02":
        raise CubinError("not a cubin: it is no 64-bit ELF file")
    offset = struct.unpack_from("<Q", cubin, 0x28)[0]
    size, count, of_names = struct.unpack_from("<HHH", cubin, 0x3A)
    heads = [struct.unpack_from("<IIQQQQIIQQ", cubin, offset + size * i) for i in range(count)]
    start = heads[of_names][4]
    return [
        _Section(
            _text(cubin, start + head[0]),
            head[1],
            head[5],
            cubin[head[4] : head[4] + head[5]],
            head[6],
        )
        for head in heads
    ]


def _symbols(sections: list[_Section]) -> dict[int, str]:
    table = next(s for s in sections if s.kind == _SYMBOLS)
    names = sections[table.link].body
    return {
        i: _text(names, struct.unpack_from("<I", table.body, 24 * i)[0])
        for i in range(len(table.body) // 24)
    }


def _attributes(body: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 4 <= len(body):
        form, attribute, size = struct.unpack_from("<BBH", body, at)
        length = size if form == _WITH_PAYLOAD else 0
        yield attribute, body[at + 4 : at + 4 + length]
        at += 4 + length


def _text(data: bytes, start: int) -> str:
    return data[start : data.index(b"\0", start)].decode()
