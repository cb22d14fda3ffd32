"""The function that a command compiles: as a lock file has it, as named, or as selected."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from plevel.cli import location, option
from plevel.cli.error import CommandError, UsageError

if TYPE_CHECKING:
    from strategy.compile.lower import Lowered
    from strategy.select.lock import Locked
    from strategy.space import Config
    from strategy.target import Target
    from strategy.workload import Workload

Implementation = Annotated[
    str | None,
    typer.Option(
        "--implementation", "-I", metavar="NAME",
        help="Build this one, with --config or its fallback; default: the selected one.",
        autocompletion=option.complete_implementation,
    ),
]
Knobs = Annotated[
    list[str] | None,
    typer.Option("--config", "-c", metavar="KNOB=VALUE", help="A knob's value, in JSON; repeatable."),
]


class Chosen(NamedTuple):
    """One function to compile; `because` is None if it was named, not selected."""

    lowered: Lowered
    implementation: str
    config: Config
    because: str | None

    def say_why(self) -> None:
        if self.because is not None:
            print(f"# {self.implementation}: {self.because}")


def described(chosen: Chosen) -> dict[str, Any]:
    return {
        "implementation": chosen.implementation, "config": chosen.config, "because": chosen.because,
    }


def tell_outdated(reasons: Iterable[str | None]) -> str:
    """Tell how many selections are by measurements of other versions than are installed; empty if none is."""
    from strategy.select import Reason

    outdated = sum(reason == Reason.STALE for reason in reasons)
    return f" ({outdated} more in other versions than are installed: tune again)" if outdated else ""


def lower_chosen(
    workload: Workload,
    target: Target,
    implementation: str | None,
    config: list[str] | None,
    place: location.Location,
    locked: Locked | None = None,
) -> Chosen:
    """Return the function to compile: of the lock, of --implementation, or selected."""
    from strategy.compile.lower import lower
    from strategy.op_strategy import candidates

    because: str | None
    if locked is not None:
        require_version(locked)
        name, values, because = locked.implementation, locked.config, locked.explanation
    elif implementation is not None:
        name, values, because = implementation, read_config(workload, target, implementation, config), None
    else:
        if config:
            raise UsageError("--config: name the implementation too, with --implementation")
        with place.connect() as records:
            # Those that are built here: a service may have other versions.
            answer = records.select(workload, target, candidates=candidates(workload, target))
        name, values, because = answer.implementation, answer.config, answer.explanation
    return Chosen(lower(workload, target, name, values), name, values, because)


def require_version(locked: Locked) -> None:
    """Raise `CommandError` if the lock has another version than would be built."""
    from strategy.op_strategy import candidates

    offered = {c.implementation: c.version for c in candidates(locked.workload, locked.target)}
    version = offered.get(locked.implementation)
    if version != locked.version:
        has = "is not installed here" if version is None else f"has version {version} here"
        raise CommandError(
            f"--lock: {locked.implementation} of {locked.workload} {has}, the lock has {locked.version}: "
            "write the lock again with 'plevel lock', with --url by a service of the same plevel"
        )


def read_config(
    workload: Workload, target: Target, implementation: str, knobs: list[str] | None
) -> Config:
    """The implementation's configuration: its fallback, with the given knobs replaced.

    Raises:
        UsageError: an unknown implementation or knob, or an invalid value or combination.
    """
    from strategy.op import OpError
    from strategy.op_strategy import candidates, find_implementation
    from strategy.space import Config, ConfigError, SpaceError

    try:
        find_implementation(workload, target, implementation)
    except OpError as error:
        raise UsageError(f"--implementation: {error}") from error
    offered = {c.implementation: c for c in candidates(workload, target)}
    candidate = offered.get(implementation)
    if candidate is None:
        raise UsageError(
            f"--implementation: {implementation} needs constant shapes, and {workload} has "
            "symbolic dimensions: give numbers"
        )
    given = option.read_attributes(knobs, "--config")
    if candidate.space is None:
        if given:
            raise UsageError(f"--config: {implementation} has no knobs: leave it out")
        return Config()
    try:
        return candidate.space.check({**candidate.fallback, **given})
    except (ConfigError, SpaceError) as error:
        raise UsageError(f"--config: {error}") from error
