"""The faster one of a network's two libraries: of images in blocked layouts, or of NCHW alone."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from plevel.deployment import Deployed, draft
from plevel.kernel_selection import Choose
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

    Both run in a child, in turns, on random inputs. Blocked layouts stay where NCHW cannot be built or timed.

    Raises:
        NetworkError, CompileError, SandboxError: as `draft` and `Draft.write`, of the first library.
    """
    found = draft(network, target, choose)
    made = found.write(path, name=name, about=about)
    if not found.has_measured_blocks:  # else they are as fast as was measured of other networks
        return Faster(made)
    with tempfile.TemporaryDirectory(prefix="plevel-") as folder:
        try:
            plain = draft(network, target, choose, blocks=False).write(Path(folder) / path.name, name=name, about=about)
            ratio = _time(plain, made)
        except (NetworkError, CompileError, SandboxError, Died, Late) as error:  # what is at `path` is complete
            return Faster(made, is_blocked=True, failure=str(error))
        if ratio.high_s < 1:
            return Faster(made, ratio, is_blocked=True)
        for new, old in (
            (plain.library, made.library), (plain.header, made.header), (plain.manifest, made.manifest)
        ):  # fmt: skip
            shutil.move(new, old)
    kept = replace(plain, library=made.library, header=made.header, manifest=made.manifest)
    return Faster(kept, ratio)


def _time(plain: Deployed, blocked: Deployed) -> Estimate:
    """The ratio of the times of a call; raise `Died` or `Late` where the child does not answer."""
    request = TimeNetworks(
        libraries=(str(plain.library.resolve()), str(blocked.library.resolve())), function=plain.description.function,
        inputs=_arrays(plain.plan.inputs), outputs=_arrays(plain.plan.outputs),
    )  # fmt: skip
    (answer,) = ask_all([(Limits(module="workers.network_timer"), request)], TIME_TIMEOUT_S)
    if isinstance(answer, Exception):
        raise answer
    return estimate([new / old for old, new in answer])


def _arrays(ports: Sequence[Port]) -> tuple[Array, ...]:
    return tuple(Array("", p.type.dtype, p.type.concrete_shape) for p in ports)
