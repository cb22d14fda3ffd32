"""Names, types, tensors and conditions in C, for the entry of an exported library."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from itertools import count

from strategy.condition import Expr, ExpressionError, SpecializedCondition
from strategy.types import TensorType

_C_TYPES = {
    "float64": "double", "float32": "float", "float16": "uint16_t", "bfloat16": "uint16_t",
    "bool": "uint8_t",
}
# Names reserved by C and by the entry; names with a leading underscore are the entry's.
_TAKEN = frozenset(
    "auto break case char const continue default do double else enum extern float for goto if inline "
    "int long register restrict return short signed sizeof static struct switch typedef union unsigned "
    "void volatile while alignas alignof bool constexpr false nullptr thread_local true typeof asm "
    "linux unix errno stdin stdout stderr NAN INFINITY NULL INT64_C MIN MAX CPU Any Tensor Body log2 "
    "ceil_div floor_div floor_mod tensor_of any_of Block Function Operand Step Port "
    # Keywords of C++, which may include the header.
    "and and_eq bitand bitor catch class compl concept const_cast decltype delete dynamic_cast explicit "
    "export friend mutable namespace new noexcept not not_eq operator or or_eq private protected public "
    "reinterpret_cast requires static_assert static_cast template this throw try typeid typename using "
    "virtual wchar_t xor xor_eq".split()
)
# Types, and macros of numbers, that headers define.
_DEFINED = re.compile(r"\w*_t|PLEVEL_\w+|[A-Z]\w*_(MIN|MAX|C|WIDTH)", re.ASCII)
_DTYPE_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "bool": 6}
_C_CALLS = {
    "//": "floor_div", "%": "floor_mod", "ceildiv": "ceil_div", "min": "MIN", "max": "MAX",
    "log2": "log2",
}
_C_INFIX = {"and": "&&", "or": "||", "/": "/ (double)"} | {
    op: op for op in ("+", "-", "*", "<", "<=", ">", ">=", "==", "!=")
}


def c_word(text: str) -> str:
    """A text as a part of a C identifier: `data.0` becomes `data_0`."""
    return re.sub(r"\W", "_", text, flags=re.ASCII)


def c_name(name: str) -> str:
    """The C name of an input or a dimension: its own, unless that is reserved."""
    word = c_word(name)
    return word if is_free(word) and not word.startswith("x_") else f"x_{word}"


def c_names(names: Iterable[str], taken: Collection[str] = ()) -> list[str]:
    """The C names of parameters, each another one, and none of those that are taken."""
    found = list(taken)
    for name in map(c_name, names):
        numbered = (f"{name}_{n}" for n in count(2))
        found.append(name if name not in found else next(n for n in numbered if n not in found))
    return found[len(taken) :]


def is_free(name: str) -> bool:
    """Return whether a function or parameter may have this name in C, in C++ and in a library's entry."""
    known = name in _TAKEN or name.startswith("_") or _DEFINED.fullmatch(name)
    return name.isascii() and name.isidentifier() and not known


def c_type(dtype: str) -> str:
    """The C type of a number; for 16-bit floats, which C lacks, that of their bits."""
    return _C_TYPES.get(dtype, f"{dtype}_t")


def dlpack_type(dtype: str) -> tuple[int, int]:
    """DLPack's code of a type, and its bits."""
    letters = dtype.rstrip("0123456789")
    return _DTYPE_CODES[letters], int(dtype[len(letters) :] or 8)


def c_tensor(variable: str, pointer: str, kind: TensorType) -> list[str]:
    """Declarations of a tensor over a pointer."""
    extents = [c_expression(d) for d in kind.shape] or ["1"]
    code, bits = dlpack_type(kind.dtype)
    dtype = f"{{{code}, {bits}, 1}}"
    return [
        f"  int64_t {variable}_shape[] = {{{', '.join(extents)}}};",
        f"  Tensor {variable} = {{(void *){pointer}, {{CPU, 0}}, {kind.ndim}, {dtype}, {variable}_shape, NULL, 0}};",
    ]


def c_expression(expr: Expr) -> str:
    """The expression in C, over 64-bit integers with the `c_name` of dimensions."""
    if expr.op == "const":
        value = expr.args[0]
        return f"INT64_C({int(value)})" if isinstance(value, int) else repr(float(value))
    if expr.op == "var":
        return c_name(expr.args[0]) if expr.value is None else f"INT64_C({expr.value})"
    args = [c_expression(a) for a in expr.args]
    if expr.op in _C_CALLS:
        return f"{_C_CALLS[expr.op]}({', '.join(args)})"
    if expr.op in _C_INFIX:
        return f"({args[0]} {_C_INFIX[expr.op]} {args[1]})"
    if expr.op == "not":
        return f"(!{args[0]})"
    if expr.op == "if":
        return f"({args[0]} ? {args[1]} : {args[2]})"
    raise ExpressionError(
        f"'{expr}' cannot be checked at run time: {expr.op} is not defined for dimensions"
    )


def c_condition(condition: SpecializedCondition) -> str:
    """The condition in C, in parentheses."""
    clauses = [
        "(" + " || ".join(c_expression(a) for a in clause.alternatives) + ")"
        for clause in condition.clauses
    ]
    return f"({' && '.join(clauses) or '1'})"
