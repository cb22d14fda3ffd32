"""`plevel select`: the implementation and configuration to use, with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plevel.cli import location, option
from plevel.cli.error import UsageError
from plevel.cli.lock import read_lock
from plevel.cli.processor import check_name

if TYPE_CHECKING:
    from plevel.client import Client
    from plevel.direct import Direct
    from strategy.target import Target
    from strategy.workload import Workload


def select(
    op: option.OpOrWorkload,
    inputs: option.Inputs = None,
    attr: option.Attributes = None,
    target: option.TargetSpec = "cpu",
    threads: option.Threads = None,
    device: option.Device = None,
    policy: Annotated[str, option.choice("--policy", ("plevel", "tvm"), "The rule to select by.")] = "plevel",
    foreign: Annotated[
        bool, typer.Option("--foreign", help="Consider imported implementations of other tools, too.")
    ] = False,
    lock: Annotated[
        Path | None,
        typer.Option("--lock", metavar="FILE", help="Answer from a lock file, without a database."),
    ] = None,
    url: option.Url = None,
    database: option.Database = None,
    namespace: option.Namespace = None,
    as_json: option.AsJson = False,
) -> None:
    """Print the implementation to use, and why.

    Example: plevel select dense -i 'data=float32[128,768]' -i 'weight=float32[3072,768]:const'
    """
    if lock is not None and (
        url or database or namespace or device or foreign or policy != "plevel"
    ):
        raise UsageError("--lock answers from the file alone: leave the other options out")
    # Imported logs may have operators that are not installed here.
    place = None if lock is not None else location.locate(url, database, namespace)
    far = place is None or place.url is not None or foreign or policy == "tvm"
    workload = option.read_workload(op, inputs, attr, far=far)
    where = option.read_target(target, threads)
    check_name(where, far=far)

    from plevel.cli.output import make_console, print_json, print_rivals, selection_lines
    from strategy.select import Reason

    near = ""
    if lock is not None:
        answer = read_lock(lock).select(workload, where).selection(where)
    else:
        assert place is not None
        with place.connect() as records:
            answer = records.select(
                workload, where, device=device, policy="tvm" if policy == "tvm" else "plevel",
                foreign=foreign,
            )
            own = policy == "plevel" and not foreign
            if own and answer.reason == Reason.PLEVEL and not as_json:
                near = _find_measured(records, workload, where)
    if as_json:
        print_json(answer)
        return
    console = make_console()
    console.print(f"{answer.workload}  on {answer.target}", markup=False, soft_wrap=True)
    lines = selection_lines(answer)
    if near:
        lines = [*lines, f"but        {near} is measured: the mark :const makes another workload"]
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)
    # TVM's rule compares mean costs, not the medians of the table; a lock need not have any.
    if policy == "plevel" and answer.rivals:
        print_rivals(console, answer)


def _find_measured(records: Client | Direct, workload: Workload, target: Target) -> str:
    """The text of the same call with other inputs constant, if that is measured; else empty."""
    from strategy.select import Reason
    from strategy.workload import Input, Workload

    for constant in (True, False):
        marked = (Input(i.name, i.type, constant) for i in workload.inputs[1:])
        near = Workload(workload.op, (*workload.inputs[:1], *marked), dict(workload.attrs), workload.epilogue)
        if near != workload and records.select(near, target).reason == Reason.MEASURED:
            return str(near)
    return ""
