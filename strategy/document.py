"""Documentation of operators: docstrings of functions that call them, and the reference as Markdown.

`make operators` writes the reference, of inputs, attributes and registered parts, to docs/operator-reference.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from strategy.attrs import REQUIRED, Attrs
from strategy.op import Op, TOpPattern, all_ops

_PARTS = (("FPrimalGradient", "gradient"), ("FShapeFunc", "shape function"), ("FFlops", "FLOP count"))
F = TypeVar("F", bound=Callable[..., Any])


def documented(
    function: F, name: str, description: str, arguments: Mapping[str, str], attrs: type[Attrs] = Attrs
) -> F:
    """A function that calls an operator, under its name, with a docstring of its arguments, then of the attributes."""
    fields = {f.name: f"{f.description[:1].lower()}{f.description[1:]}" for f in attrs.fields().values()}
    listed = "".join(f"    {argument}: {text}.\n" for argument, text in {**arguments, **fields}.items())
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{description}\n\nArgs:\n{listed}"
    return function


def reference() -> str:
    """The whole reference, operators in alphabetical order."""
    head = (
        "# Operators\n\nWritten from the registry by `make operators`; do not edit.\n"
        "[operators.md](operators.md) explains how to add an operator.\n"
    )
    return "\n".join([head, *(section(op) for op in all_ops().values())])


def section(op: Op) -> str:
    """One operator: description, inputs, attributes with type, default and bounds."""
    lines = [f"## {op.name}", "", op.description, "", "| input | | |", "| --- | --- | --- |"]
    lines += [f"| `{a.name}` | {a.kind} | {_cell(a.description)} |" for a in op.arguments]
    fields = op.attrs_type.fields().values()
    if fields:
        lines += ["", "| attribute | type | default | bounds | |", "| --- | --- | --- | --- | --- |"]
        lines += [
            f"| `{f.name}` | {_cell(f'`{f.type_name}`')} | "
            f"{'required' if f.default is REQUIRED else f'`{f.default!r}`'} | {_cell(f.bounds)} | "
            f"{_cell(f.description)} |"
            for f in fields
        ]
    pattern = TOpPattern(op.get_attr("TOpPattern", TOpPattern.kOpaque)).name
    parts = [text for key, text in _PARTS if op.get_attr(key) is not None]
    lines += ["", f"Support level {op.support_level}, pattern `{pattern}`; has: {', '.join(parts) or 'no more'}.", ""]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
