"""Files of exported programs are data: what PyTorch would unpickle, evaluate or load as code is refused."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pickle import UnpicklingError
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch._export.serde import serialize
from torch.export.pt2_archive import _package

from strategy.network.graph import NetworkError

_LOCK = threading.Lock()
# Parts of a size's expression: names without an attribute of one, numbers, and operators. SymPy evaluates it.
_EXPRESSION = re.compile(r"(?:(?<![\w.])[A-Za-z]\w*+|\d++(?:\.\d*+)?(?:e[+-]?\d++)?|[\s+\-*/%(),<>=&|~!^])*+", re.ASCII)
# As SymPy writes symbols and floats.
_QUOTED = re.compile(
    r"Symbol\('([A-Za-z]\w*)'(?:, [a-z_]+=(?:True|False))*\)|Float\('(-?[\d.e+-]+)', precision=\d+\)", re.ASCII
)
_FUNCTIONS = frozenset(
    "Abs And Eq Equality Float Ge GreaterThan Gt Integer Le LessThan Lt Max Min Mul Add Ne Not Or Piecewise Pow "
    "Rational StrictGreaterThan StrictLessThan Unequality ceiling false floor int_oo oo sqrt true False True".split()
)


@contextmanager
def inert() -> Iterator[None]:
    """Have PyTorch take tensors and text alone of a file that it reads meanwhile; one thread at a time does.

    Example inputs of other types are left out, as if a program had none.
    """
    parse, artifact = serialize.GraphModuleDeserializer._parse_sym_expr, serialize.deserialize_torch_artifact

    def parse_sizes(self: Any, expression: Any, *rest: Any) -> Any:
        if isinstance(expression, str):
            _require_plain(expression, {*self.sympy_functions, *self.symbol_name_to_symbol})
        return parse(self, expression, *rest)

    def read(given: Any) -> Any:
        try:
            return artifact(given)
        except UnpicklingError:
            return None

    with _LOCK, ExitStack() as stack:
        stack.enter_context(patch.dict(os.environ, {"TORCH_FORCE_WEIGHTS_ONLY_LOAD": "1"}))
        os.environ.pop("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", None)
        for owner, name, function in (
            (serialize.GraphModuleDeserializer, "_parse_sym_expr", parse_sizes),
            (serialize, "deserialize_torch_artifact", read),
            (_package, "pickle", SimpleNamespace(loads=_refuse)),
            (_package, "_load_aoti", _refuse),
            (torch._C, "_pickle_load_obj", _refuse),
        ):
            stack.enter_context(patch.object(owner, name, function))
        yield


def _require_plain(expression: str, known: set[str]) -> None:
    plain = _QUOTED.sub(lambda found: found[1] or found[2], expression)
    named = set(re.findall(r"[A-Za-z_]\w*", plain))
    symbols = {name for name in named if re.fullmatch(r"[a-z]+_?\d+", name)}
    if not _EXPRESSION.fullmatch(plain) or named - symbols - known - _FUNCTIONS:
        raise NetworkError(f"a size is {expression!r:.80}, which is no expression of sizes")


def _refuse(*_: Any, **__: Any) -> Any:
    raise NetworkError("it holds code or Python objects, not tensors alone")
