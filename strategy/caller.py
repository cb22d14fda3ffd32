"""Functions that call operators, made of what these are registered with."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any

from strategy.attrs import REQUIRED
from strategy.expr import Expr, call
from strategy.op import get_registered_op

Caller = Callable[..., Expr]


def caller(name: str) -> Caller:
    """Return the function that calls a registered operator with its inputs, then its attributes, by place or by name.

    Its signature and docstring are those of the operator's arguments and attributes. An attribute without a default
    behind one that has one, and what follows, go by name only.
    """
    op = get_registered_op(name)
    fields = op.attrs_type.fields().values()
    parameters = [Parameter(a.name, Parameter.POSITIONAL_OR_KEYWORD, annotation=Expr) for a in op.arguments]
    has_default = by_name = False
    for f in fields:
        by_name |= has_default and f.default is REQUIRED
        has_default |= f.default is not REQUIRED
        kind = Parameter.KEYWORD_ONLY if by_name else Parameter.POSITIONAL_OR_KEYWORD
        default = Parameter.empty if f.default is REQUIRED else f.default
        parameters.append(Parameter(f.name, kind, default=default, annotation=f.type))
    signature = Signature(parameters, return_annotation=Expr)
    described = {a.name: a.description.rstrip(".") for a in op.arguments}
    described |= {f.name: f"{f.description}; {f.bounds}" if f.choices else f.description for f in fields}
    listed = "".join(f"    {argument}: {text[:1].lower()}{text[1:]}.\n" for argument, text in described.items())

    def function(*given: Any, **named: Any) -> Expr:
        try:
            values = signature.bind(*given, **named).arguments
        except TypeError as error:
            raise TypeError(f"{name}: {error}") from None
        inputs = [values.pop(a.name) for a in op.arguments]
        return call(name, *inputs, **values)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{op.description}\n\nArgs:\n{listed}"
    function.__signature__ = signature  # type: ignore[attr-defined]  # which `inspect` and `help` read
    return function
