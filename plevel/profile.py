"""The profile of a library of `plevel compile`: the time of each of its steps, on this processor."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path

import msgspec

from strategy.network.library import Kernel, Manifest, Range, Tensor
from strategy.record import Estimate, WireError, convert, decode, estimate
from strategy.select import Reason
from strategy.signature import Argument, Role
from strategy.types import TensorType
from strategy.workload_text import parse_workload
from workers.fork import Limits
from workers.network_profiler import Profile, ProfileNetwork
from workers.network_runner import Array
from workers.pool import ask_all

CHILD_S = 120.0  # beside the calls that are timed: to load a library, and for the least number of calls
_PROFILER = "workers.network_profiler"
_CODES = {
    -1: "there is too little memory for its buffers",
    -2: "it does not take inputs of these sizes",
    -3: "this processor lacks instructions that it was compiled for",
}


class ProfileError(RuntimeError):
    """The library fails or crashes; the message has the reason."""


class StepTime(msgspec.Struct, frozen=True):
    """A step of the manifest with its median; without a workload it is a copy.

    Attributes:
        flops: of a workload whose operator defines them, and which has no symbolic dimensions.
    """

    value: str | None
    workload: str | None
    implementation: str | None
    reason: str | None
    median_s: float
    flops: int | None

    @property
    def is_measured(self) -> bool:
        return self.workload is None or self.reason in (Reason.MEASURED, Reason.TRANSFERRED)


class Profiled(msgspec.Struct, frozen=True):
    """The time of a call without times of its steps, and the steps in their order."""

    function: str
    call: Estimate
    steps: tuple[StepTime, ...]

    @property
    def steps_s(self) -> float:
        return sum(step.median_s for step in self.steps)

    @property
    def unmeasured_share(self) -> float:
        """The share of the steps' time that is in kernels which no measurement chose."""
        return sum(step.median_s for step in self.steps if not step.is_measured) / self.steps_s

    def together(self) -> list[list[StepTime]]:
        """The steps of each workload, those first that take the most time."""
        found: dict[str | None, list[StepTime]] = {}
        for step in self.steps:
            found.setdefault(step.workload, []).append(step)
        return sorted(found.values(), key=lambda of: -sum(step.median_s for step in of))


def profile_library(path: Path, sizes: Mapping[str, int], limit_s: float) -> Profiled:
    """Call a library in a child for `limit_s`, at symbolic sizes if it takes any.

    Raises:
        ValueError: there is no manifest beside it, or sizes are missing or out of range.
        OSError: a file cannot be read.
        ProfileError: the library fails.
        SandboxError: no child can be started.
    """
    about = _read_manifest(path)
    _check_sizes(about.sizes, sizes)

    def arrays(tensors: tuple[Tensor, ...]) -> tuple[Array, ...]:
        return tuple(Array("", t.dtype, _shape(t, sizes)) for t in tensors)

    request = ProfileNetwork(
        library=str(path.resolve()), function=about.function, inputs=arrays(about.inputs),
        outputs=arrays(about.outputs), steps=len(about.steps), sizes=tuple(sizes[name] for name in about.sizes),
        limit_s=limit_s,
    )
    (answer,) = ask_all([(Limits(module=_PROFILER), request)], CHILD_S + limit_s, (_PROFILER,))
    if isinstance(answer, Exception):
        hint = f": it is not the library of {_manifest_of(path).name}" if "undefined symbol" in str(answer) else ""
        raise ProfileError(f"{answer}{hint}")
    found = convert(answer, Profile)
    if found.code:
        step = f"its step {found.code} fails"
        raise ProfileError(_CODES.get(found.code, step))
    steps = tuple(_step(kernel, times) for kernel, times in zip(about.steps, found.steps_s, strict=True))
    return Profiled(about.function, estimate(found.calls_s), steps)


def _manifest_of(path: Path) -> Path:
    return path.with_suffix(".json")


def _read_manifest(path: Path) -> Manifest:
    if not path.exists():
        raise ValueError("there is no such file: name a library of plevel compile")
    manifest = _manifest_of(path)
    if path.suffix != ".so" or not manifest.exists():
        raise ValueError(f"it has no manifest {manifest.name} beside it: name a library of plevel compile")
    try:
        return decode(manifest.read_bytes(), Manifest)
    except WireError as error:
        raise ValueError(f"{manifest.name} beside it is no manifest of plevel compile: {error}") from error


def _check_sizes(known: Mapping[str, Range], sizes: Mapping[str, int]) -> None:
    for name, given in sizes.items():
        if name not in known:
            has = f"its symbolic sizes are {', '.join(known)}" if known else "it has no symbolic sizes"
            raise ValueError(f"--dim {name}: {has}")
        if not known[name].low <= given <= known[name].high:
            raise ValueError(f"--dim {name}={given}: give a size from {known[name].low} to {known[name].high}")
    if missing := [f"--dim {n}=… from {r.low} to {r.high}" for n, r in known.items() if n not in sizes]:
        raise ValueError(f"it takes symbolic sizes: give {', '.join(missing)}")


def _shape(tensor: Tensor, sizes: Mapping[str, int]) -> tuple[int, ...]:
    kind = Argument(tensor.name, Role.INPUT, f"{tensor.dtype}[{','.join(map(str, tensor.shape))}]").tensor
    return TensorType([extent.substitute(sizes) for extent in kind.shape], kind.dtype).concrete_shape


def _step(kernel: Kernel, times_s: list[float]) -> StepTime:
    return StepTime(
        kernel.value, kernel.workload, kernel.implementation, kernel.reason, statistics.median(times_s),
        _flops(kernel.workload),
    )


def _flops(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        workload = parse_workload(text)
        return workload.flops if workload.is_constant else None
    except ValueError:  # of an operator that is not installed here
        return None
