"""Search and change of TVM's code: expressions, statements, and the functions of modules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def find(code: Any, *kinds: type) -> list[Any]:
    """The nodes of some kinds in a piece of code."""
    from tvm_ffi import structural_walk

    found: list[Any] = []
    structural_walk(code, [(kind, found.append) for kind in kinds])
    return found


def has_names(code: Any, variables: Sequence[Any]) -> bool:
    """Return whether a piece of code has one of the variables."""
    from tvm import tirx

    return any(variable.same_as(other) for variable in find(code, tirx.Var) for other in variables)


def reads_along(block: Any, *, reduced: bool) -> bool:
    """Return whether some input of a block is contiguous along its innermost spatial axis, or the `reduced` one."""
    from tvm import tirx

    axis = [v.var for v in block.iter_vars if (v.iter_type != tirx.IterVar.DataPar) == reduced][-1]
    return any(has_names(read.region[-1].min, [axis]) for read in block.reads if len(read.region))


def change_functions(module: Any, change: Callable[[Any], Any]) -> Any:
    """The module with each of its functions changed."""
    import tvm

    functions = {name: change(function) for name, function in module.functions.items()}
    return tvm.IRModule(functions, attrs=module.attrs)


def register_intrinsic(name: str, head: str, meaning: str, code: str, **known: Any) -> str:
    """Register an intrinsic by two functions in TVMScript of one head, what it computes and the code for it; its name.

    Several threads may register one at once.

    Args:
        known: what the script may name beside `T`.
    """
    from tvm import script
    from tvm.s_tir import TensorIntrin
    from tvm.script import tirx

    made = (script.from_source(head + end, {"T": tirx, **known}) for end in (meaning, code))
    TensorIntrin.register(name, *made, override=True)
    return name
