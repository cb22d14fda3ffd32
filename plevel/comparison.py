"""Comparison of a deployed library with the framework that its model is of, value by value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from plevel.deployment import Deployed
from strategy.network.graph import NetworkError
from strategy.network.plan import Buffer, Port
from strategy.network.size import extents_at
from workers.array_file import read_array, write_array
from workers.fork import Limits
from workers.network_runner import Array, RunNetwork, draw
from workers.pool import ask_all
from workers.reference import epsilon, numpy_dtype
from workers.scratch import temporary_folder

RUN_TIMEOUT_S = 300.0
_RUNNER = "workers.network_runner"
TOLERANCE = 1e-3  # of the largest difference, over the largest value of the reference; more for narrower dtypes
MOST = 3e-2  # that may be allowed of outputs that jump, such as by numbers that are rounded
PART = 0.01  # of the tolerance, which the framework's numbers are moved by
ROUNDING = 4  # times the change of the framework's outputs by that may be the library's


class ComparisonError(RuntimeError):
    """The library fails, or gives other values; the message names the worst one."""


class DisputedError(ComparisonError):
    """The library gives other values than a reference that is itself wrong for some operators."""


class UnfitError(NetworkError):
    """The framework refuses the example inputs at some symbolic sizes, such as indices beyond an axis."""


@dataclass(frozen=True)
class Reference:
    """Inputs of a model, and what its own framework gives: its outputs, and values by their names.

    `decides` is False where other values may be the right ones. `moved` gives the outputs where inputs and weights are
    off by a part of them.
    """

    inputs: Sequence[Any]
    outputs: Sequence[Any]
    values: Mapping[str, Any]
    decides: bool = True
    moved: Callable[[float], Sequence[Any]] | None = None


@dataclass(frozen=True)
class Comparison:
    """Relative errors: of the outputs, and of the value with the largest among `values`."""

    error: float
    worst: str
    worst_error: float
    values: int


def compare(deployed: Deployed, reference: Reference, sizes: Sequence[int] = ()) -> Comparison:
    """Run the library in a child, and compare what it and its steps give, at symbolic sizes if it takes any.

    Raises:
        ComparisonError: it fails or crashes, or an output has another shape or differs by more than `TOLERANCE`, and
            than the framework's own may where its numbers are off by some roundings.
        DisputedError: the same of an output, where the reference does not decide.
    """
    plan, other = deployed.plan, ComparisonError if reference.decides else DisputedError

    def shape(of: Port | Buffer) -> tuple[int, ...]:
        return extents_at(plan.encoded(of.type), sizes)

    wanted = {
        i: (step.names[0], step.buffers[-step.outputs])
        for i, step in enumerate(plan.steps)
        if step.names[0] in reference.values
    }
    for port, expected in zip(plan.outputs, reference.outputs, strict=True):
        if shape(port) != np.shape(expected):
            raise other(f"{port.name} has the shape {shape(port)}, and the framework's {np.shape(expected)}")
    with temporary_folder() as made:

        def file(name: str, of: Port | Buffer) -> Array:
            return Array(str(made / f"{name}.npy"), of.type.dtype, shape(of))

        inputs = [file(f"input{i}", port) for i, port in enumerate(plan.inputs)]
        for array, value in zip(inputs, reference.inputs, strict=True):
            write_array(array.path, np.asarray(value, numpy_dtype(array.dtype), order="C"))
        outputs = [file(f"output{i}", port) for i, port in enumerate(plan.outputs)]
        steps = {i: file(f"step{i}", buffer) for i, (_, buffer) in wanted.items()}
        request = RunNetwork(
            library=str(deployed.library.resolve()), function=deployed.description.function,
            inputs=tuple(inputs), outputs=tuple(outputs),
            steps=tuple(steps.get(i) for i in range(len(plan.steps))), sizes=tuple(sizes),
        )
        (answer,) = ask_all([(Limits(module=_RUNNER), request)], RUN_TIMEOUT_S, (_RUNNER,))
        if answer != 0:
            raise ComparisonError(f"the library fails: {answer}")
        errors = {
            name: error_of(read_array(steps[i].path, steps[i].dtype), reference.values[name])
            for i, (name, _) in wanted.items()
            if name is not None
        }
        at_end = [
            error_of(read_array(a.path, a.dtype), r) for a, r in zip(outputs, reference.outputs, strict=True)
        ]
    names = {p.name: e for p, e in zip(plan.outputs, at_end, strict=True)}
    worst = max(errors or names, key=(errors or names).__getitem__)
    found = Comparison(max(at_end), worst, (errors or names)[worst], len(errors))
    kinds = (buffer.type.dtype for step in plan.steps for buffer in step.buffers)
    tolerance = max(TOLERANCE, 4 * max(map(epsilon, kinds), default=0.0))
    if not found.error <= tolerance and not _is_jump(at_end, reference, tolerance):
        raise other(
            f"an output differs by {found.error:.1e} of its largest value, and at most {tolerance:.0e} may be; "
            f"the worst value is {found.worst} ({found.worst_error:.1e})"
        )
    return found


def _is_jump(errors: Sequence[float], reference: Reference, tolerance: float) -> bool:
    """Return whether the framework's own outputs change as much where its numbers are off by a little.

    So do those of 8-bit integers that numbers are rounded to, of which each half is a jump.
    """
    if reference.moved is None or not max(errors) <= MOST:
        return False
    try:
        still, *moved = (reference.moved(off) for off in (0, tolerance * PART, -tolerance * PART))
    except Exception:  # of the framework, in the operators of the network
        return False
    changes = map(max, *(map(error_of, found, still) for found in moved))
    return all(e <= max(tolerance, ROUNDING * change) for e, change in zip(errors, changes, strict=True))


def error_of(found: Any, reference: Any) -> float:
    """The largest difference over the reference's largest value; infinite where one is NaN and the other is not."""
    a, b = (np.asarray(v, np.float64).reshape(-1) for v in (found, reference))
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if same.all():
        return 0.0
    with np.errstate(invalid="ignore"):  # infinities of one sign are the same
        difference = np.abs(a - b)[~same].max()
    finite = np.abs(b[np.isfinite(b)])
    scale = finite.max() if finite.size else 0.0
    return float("inf") if not np.isfinite(difference) else float(difference / (scale or 1.0))


def make_inputs(ports: Sequence[Port]) -> list[Any]:
    """Random arrays for inputs."""
    random = np.random.default_rng(0)
    return [draw(random, p.type.dtype, p.type.concrete_shape) for p in ports]
