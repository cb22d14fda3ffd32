"""Verification of a built library by a child that runs it in guarded memory and compares it with NumPy.

Symbolic dimensions take several sizes each, and so reach several rows of a dispatch table.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from strategy.record import convert, to_json
from strategy.select.combination import satisfiable
from strategy.signature import Argument, Role
from strategy.workload import Workload
from workers.data import Data
from workers.fork import Channel, Limits
from workers.guard import Buffer, OutOfBoundsError, Placement, allocate, explain
from workers.reference import WrongAnswerError, compare, poison
from workers.sandbox import Died, ForkServer, Late
from workers.workspace import build_allocator, guarded_workspaces

SIZES = (1, 2, 3, 7, 16, 17, 33, 64, 65, 128)
_LATE_S = 60.0


class VerificationError(Exception):
    """A library is wrong; the message has the sizes and the cause."""


class Parameter(msgspec.Struct, frozen=True):
    """A parameter of the library, with its C name."""

    name: str
    argument: Argument


class Request(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    allocator: str  # of `workers.workspace`
    workload: Workload
    parameters: tuple[Parameter, ...]
    sizes: tuple[dict[str, int], ...]  # values of the symbolic dimensions, one mapping per case


def verify(
    server: ForkServer, path: Path, workload: Workload, parameters: Sequence[Parameter]
) -> int:
    """Run the library at all sizes, and return their number.

    Raises:
        VerificationError: it is wrong, accesses memory out of bounds, crashes or exceeds a time limit.
        CompileError: there is no C compiler, or it failed.
    """
    sizes = _sizes(workload)
    with TemporaryDirectory(prefix="plevel-") as folder:
        request = Request(
            path=str(path.resolve()), allocator=str(build_allocator(Path(folder))), workload=workload,
            parameters=tuple(parameters), sizes=sizes,
        )
        child = server.spawn(Limits(module="workers.verification"))
        try:
            child.send(to_json(request))
            failed = child.receive(_LATE_S)["failed"]
        except (Died, Late) as error:
            explained = explain(error.note, error.fault) if isinstance(error, Died) else None
            case = "" if child.stage >= len(sizes) else _case(sizes[max(0, child.stage)])
            failed = f"{case}{explained[1] if explained else error}"
        finally:
            child.kill()
    if failed:
        raise VerificationError(failed)
    return len(sizes)


def _sizes(workload: Workload) -> tuple[dict[str, int], ...]:
    """Values of the symbolic dimensions that the library takes, one mapping per case."""
    if workload.is_constant:
        return ({},)
    names, assumed = sorted(workload.symbols), workload.assumptions
    alike = [dict.fromkeys(names, size) for size in SIZES]
    found = tuple(sizes for sizes in alike if assumed.evaluate(sizes))
    found = found or tuple(example for (held,), example in satisfiable([assumed], names) if held)
    if not found:
        raise VerificationError(f"no sizes were found for which {assumed} holds: verify it at sizes of your own")
    return found


def serve(channel: Channel) -> None:
    """The child's loop: send `{"failed": …}`, None if all is right."""
    import tvm

    channel.store_faults()
    asked = convert(channel.receive(), Request)
    module = tvm.runtime.load_module(asked.path)
    for number, sizes in enumerate(asked.sizes):
        channel.mark(number)
        try:
            _run(module, asked, sizes, channel)
        except (WrongAnswerError, OutOfBoundsError) as error:
            channel.send({"failed": f"{_case(sizes)}{error}"})
            return
    channel.send({"failed": None})


def _run(module: Any, asked: Request, sizes: Mapping[str, int], channel: Channel) -> None:
    workload = asked.workload.bind(sizes) if sizes else asked.workload
    data = Data.draw(workload, 0)
    answers = data.reference
    found: list[Buffer] = []
    for placement in Placement:
        given: dict[str, Buffer] = {}
        for i in workload.all_inputs:
            array, dtype = data.inputs[i.name], i.tensor.dtype
            given[i.name] = allocate(f"input {i.name}", array.shape, dtype, placement)
            given[i.name].array[...] = array
            given[i.name].region.protect()
        taken: list[Buffer] = []
        outputs: list[Buffer] = []
        for p in asked.parameters:
            if p.argument.role in (Role.INPUT, Role.CONSTANT):
                taken.append(given[p.argument.name])
                continue
            kind = p.argument.tensor
            shape = [int(d.evaluate(sizes)) for d in kind.shape]
            taken.append(allocate(p.name, shape, kind.dtype, placement))
            ctypes.memset(taken[-1].pointer, 0xFF, taken[-1].array.nbytes)  # a caller's memory holds anything
            if p.argument.role is Role.OUTPUT:
                taken[-1].array[...] = poison(answers[len(outputs)], kind.dtype)
                outputs.append(taken[-1])
        used = {b.name: b for b in (*given.values(), *taken)}.values()
        spans = [b.span for b in used]
        channel.leave(spans)
        with guarded_workspaces(
            Path(asked.path), Path(asked.allocator), placement,
            lambda more: channel.leave([*spans, *more]),  # noqa: B023
        ):
            for p, buffer in zip(asked.parameters, taken, strict=True):
                if p.argument.role is Role.PREPARED:
                    module[f"prepare_{p.name}"](given[p.argument.name].tensor, buffer.tensor)
            module["main"](*(b.tensor for b in taken))
        for buffer in used:
            buffer.verify()
        found += outputs
    for buffer, right, bound in zip(found, answers * 2, data.tolerance * 2, strict=True):
        compare(buffer.array, right, bound)


def _case(sizes: Mapping[str, int]) -> str:
    return "".join(f"{name}={size}: " for name, size in sizes.items())
