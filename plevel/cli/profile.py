"""`plevel profile`: the time of each step of a library of `plevel compile`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plevel.cli import option
from plevel.cli.error import CommandError, UsageError

if TYPE_CHECKING:
    from plevel.profile import Profiled, StepTime

_NUMBERS = ("steps", "time", "share", "GFLOP/s")


def profile(
    library: Annotated[
        Path, typer.Argument(metavar="FILE.so", show_default=False, help="A library of plevel compile.")
    ],
    dim: Annotated[
        list[str] | None,
        typer.Option(
            "--dim", metavar="NAME=SIZE", show_default=False, help="The value of a symbolic size; repeatable."
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.1, max=600, metavar="S", help="The time to call the library for.")
    ] = 3.0,
    each: Annotated[
        bool, typer.Option("--steps", help="List each step in its order, not the steps of a workload together.")
    ] = False,
    as_json: option.AsJson = False,
) -> None:
    """Show where the time of a compiled model goes, by the workloads of its kernels.

    The library runs in a process of its own, on random inputs. Calls without the times of steps are timed in turns
    with those that have them.

    Example: plevel profile model.so
    """
    sizes = {}
    for name, size in option.read_dims(dim).items():
        if not isinstance(size, int):
            raise UsageError(f"--dim {name}: give a number, as in --dim {name}=8")
        sizes[name] = size
    from plevel.cli.output import make_console, print_json, print_table
    from plevel.profile import ProfileError, profile_library
    from strategy.table import show_seconds

    try:
        found = profile_library(library, sizes, seconds)
    except ProfileError as error:
        raise CommandError(f"{library}: {error}") from error
    except ValueError as error:
        raise UsageError(f"{library}: {error}") from error
    if as_json:
        print_json(found)
        return
    console = make_console()
    call = found.call
    console.print(
        f"{library}: {show_seconds(call.median_s)} a call {call.show_spread()}".rstrip()
        + f"; {show_seconds(sum(s.median_s for s in found.steps))} in its steps",
        markup=False, soft_wrap=True,
    )
    if each:
        columns = ("value", "time", "share", "GFLOP/s", "reason", "implementation", "workload")
        rows = [(s.value or "", *_cells([s], found)) for s in found.steps]
    else:
        columns = ("steps", "time", "share", "GFLOP/s", "reason", "implementation", "workload")
        rows = [(str(len(of)), *_cells(of, found)) for of in found.together()]
    print_table(console, columns, rows, right=_NUMBERS, above=("workload",))
    untuned = found.unmeasured_share
    if untuned >= 0.01:
        console.print(
            f"{100 * untuned:.0f} % of the time is in kernels that no measurement chose: plevel extract the model, "
            "plevel tune -f its file, and compile again",
            markup=False, soft_wrap=True,
        )


def _cells(of: list[StepTime], found: Profiled) -> tuple[str, ...]:
    from strategy.table import show_seconds

    first, spent_s = of[0], sum(s.median_s for s in of)
    speed = f"{first.flops * len(of) / spent_s / 1e9:.0f}" if first.flops and spent_s else ""
    share = f"{100 * spent_s / found.steps_s:.1f} %"
    named = first.implementation or "copy"
    return show_seconds(spent_s), share, speed, first.reason or "", named, first.workload or ""
