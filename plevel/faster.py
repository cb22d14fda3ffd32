"""The fastest of a network's libraries: with what records chose, or of NCHW alone, or without joined convolutions."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from plevel.deployment import Deployed, Draft, draft
from plevel.kernel_selection import Choose
from strategy.draft import drafted
from strategy.fault import CompileError
from strategy.network.graph import Network, NetworkError
from strategy.network.plan import Port
from strategy.record import Estimate, estimate
from strategy.target import Target
from workers.fork import Limits
from workers.network_runner import Array
from workers.network_timer import TimeNetworks
from workers.pool import ask_all
from workers.sandbox import Died, Late, SandboxError

TIME_TIMEOUT_S = 300.0
_TIMER = "workers.network_timer"
_FAILURES = (NetworkError, CompileError, SandboxError, Died, Late)


class Faster(NamedTuple):
    """A network's library.

    Args:
        ratio: the time of blocked layouts over that of NCHW, if both were timed.
        is_blocked: whether it has blocked layouts that records chose.
        failure: the reason why the two could not be timed.
    """

    deployed: Deployed
    ratio: Estimate | None = None
    is_blocked: bool = False
    failure: str = ""


def deploy_faster(network: Network, target: Target, choose: Choose, path: Path, *, name: str, about: str) -> Faster:
    """Write a network's library as `deploy` does, of NCHW where blocked layouts that records chose are no faster.

    Both run in a child, in turns, on random inputs. Blocked layouts stay where NCHW cannot be built or timed. So it is
    with depthwise convolutions that are joined with pointwise ones.

    Raises:
        NetworkError, CompileError, SandboxError: as `draft` and `Draft.write`, of the first library.
    """
    found = draft(network, target, choose)
    made = found.write(path, name=name, about=about)
    try:
        # Choices without records rest on measurements of other networks: nothing to compare.
        if found.has_measured_pairs:
            with suppress(*_FAILURES):  # what is at `path` is complete
                made, _ = _faster(made, lambda: draft(network, target, choose, pairs=False), name, about)
        if not found.has_measured_blocks:
            return Faster(made)
        try:
            kept, ratio = _faster(made, lambda: draft(network, target, choose, blocks=False), name, about)
        except _FAILURES as error:
            return Faster(made, is_blocked=True, failure=str(error))
        return Faster(kept, ratio, is_blocked=kept is made)
    except BaseException:  # Ctrl-C, above all: a library whose rival was not timed is not kept
        for file in (made.library, made.header, made.manifest):
            file.unlink(missing_ok=True)
        raise


def _faster(made: Deployed, other: Callable[[], Draft], name: str, about: str) -> tuple[Deployed, Estimate]:
    """The library, or another one in its place that is not slower, and the ratio of the library's time to its time.

    Raises one of `_FAILURES` where the other one cannot be built or timed.
    """
    with tempfile.TemporaryDirectory(prefix="plevel-") as folder:
        plain = other().write(Path(folder) / made.library.name, name=name, about=about)
        ratio = _time(plain, made)
        if ratio.high_s < 1:
            return made, ratio
        with drafted(made.library, (".h", ".json", made.library.suffix)) as taken:
            for file in (plain.library, plain.header, plain.manifest):
                shutil.copy(file, taken.with_suffix(file.suffix))
    return replace(plain, library=made.library, header=made.header, manifest=made.manifest), ratio


def _time(plain: Deployed, chosen: Deployed) -> Estimate:
    """The ratio of the times of a call; raise `Died` or `Late` where the child does not answer."""
    request = TimeNetworks(
        libraries=(str(plain.library.resolve()), str(chosen.library.resolve())), function=plain.description.function,
        inputs=_arrays(plain.plan.inputs), outputs=_arrays(plain.plan.outputs),
    )
    (answer,) = ask_all([(Limits(module=_TIMER), request)], TIME_TIMEOUT_S, (_TIMER,))
    if isinstance(answer, Exception):
        raise answer
    return estimate([new / old for old, new in answer])


def _arrays(ports: Sequence[Port]) -> tuple[Array, ...]:
    return tuple(Array("", p.type.dtype, p.type.concrete_shape) for p in ports)
