"""`plevel ops`: the installed operators, and the implementations of one."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plevel.cli import option
from plevel.cli.error import UsageError
from plevel.cli.processor import check_name

if TYPE_CHECKING:
    from strategy.op import Op
    from strategy.target import Target
    from strategy.workload import Workload

_TARGETS = ("cpu", "cuda -arch=sm_90")
_WIDEST = 200  # columns: people read descriptions, in a pager, too


def ops(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="An operator; default: all.", show_default=False,
            autocompletion=option.complete_op,
        ),
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(
            "--target", "-t", metavar="TARGET", show_default=False,
            autocompletion=option.complete_target,
            help="List implementations for this target; repeatable. Default: this host and cuda.",
        ),
    ] = None,
    as_json: option.AsJson = False,
) -> None:
    """List operators; for one, its inputs, attributes, implementations, and a command to copy.

    Example: plevel ops conv2d
    """
    from plevel.cli.output import print_json
    from strategy.op import OpError, all_ops, get_op

    if name is None:
        if target:
            raise UsageError("--target: lists the implementations of one operator: name it too")
        if as_json:
            print_json([_described(op) for op in all_ops().values()])
        else:
            _print_all(list(all_ops().values()))
        return
    targets = [option.read_target(spec, None) for spec in target or _TARGETS]
    for one in targets:
        check_name(one, far=True)
    try:
        op = get_op(name)
    except OpError as error:
        raise UsageError(str(error)) from error
    found = _described(op) | {"examples": _examples(op, targets)}
    if as_json:
        print_json(found)
    else:
        _print(found)


def _described(op: Op) -> dict[str, Any]:
    from strategy.attrs import REQUIRED

    fields = op.attrs_type.fields().values()
    return {
        "name": op.name,
        "signature": _signature(op),
        "description": op.description,
        "inputs": [{"name": a.name, "kind": a.kind, "description": a.description} for a in op.arguments],
        "attributes": [
            {"name": f.name, "type": f.type_name, "required": f.default is REQUIRED,
             "default": None if f.default is REQUIRED else f.default, "bounds": f.bounds,
             "description": f.description}
            for f in fields
        ],
    }


def _signature(op: Op) -> str:
    """`conv2d(data, weight, strides=(1, 1), …)`: inputs, then attributes with their defaults."""
    from strategy.attrs import REQUIRED

    attributes = [
        f.name if f.default is REQUIRED else f"{f.name}={f.default!r}"
        for f in op.attrs_type.fields().values()
    ]
    return f"{op.name}({', '.join([*(a.name for a in op.arguments), *attributes])})"


def _examples(op: Op, targets: list[Target]) -> list[dict[str, Any]]:
    from strategy.example import examples

    return [
        {
            "workload": workload.key,
            "command": option.workload_command("tune", workload),
            "implementations": {str(t): _implementations(workload, t) for t in targets},
        }
        for workload in examples(op)
    ]


def _implementations(workload: Workload, target: Target) -> list[dict[str, Any]]:
    from strategy.op_strategy import candidates

    return [
        {"name": c.implementation, "plevel": c.plevel, "version": c.version, "library": c.library,
         "condition": None if c.condition is None else str(c.condition),
         "knobs": [] if c.space is None else [knob.name for knob in c.space.knobs]}
        for c in candidates(workload, target)
    ]


def _print_all(found: list[Op]) -> None:
    from plevel.cli.output import make_console, print_table

    rows = [(_signature(op), op.description) for op in found]
    console = make_console()
    console.width = min(console.width, _WIDEST)
    print_table(console, ("operator", ""), rows)
    console.print("details of one, with a command to copy: plevel ops conv2d", markup=False)


def _print(found: dict[str, Any]) -> None:
    from plevel.cli.output import make_console, print_table

    console = make_console()
    console.width = min(console.width, _WIDEST)
    say = partial(console.print, markup=False, soft_wrap=True)
    say(f"{found['signature']}\n{found['description']}")
    inputs = [(a["name"], a["kind"], a["description"]) for a in found["inputs"]]
    print_table(console, ("input", "kind", ""), inputs)
    attributes = [
        (f["name"], f["type"], "required" if f["required"] else repr(f["default"]), f["bounds"], f["description"])
        for f in found["attributes"]
    ]
    if attributes:
        print_table(console, ("attribute", "type", "default", "bounds", ""), attributes)
    for example in found["examples"]:
        say(f"{example['command']}\n")
        rows = [
            (target, c["name"], str(c["plevel"]), ", ".join(c["knobs"]) or c["library"] or "",
             c["condition"] or "")
            for target, offered in example["implementations"].items() for c in offered
        ]
        columns = ("target", "implementation", "plevel", "knobs, or library", "valid where")
        print_table(console, columns, rows, right=("plevel",), above=("target",))
