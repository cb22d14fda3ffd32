"""Compilation: a call graph becomes functions, each with the implementation selected for it.

    function = compile(relu(dense(x, w) + bias), target, database)
    y = function(x_value)
    function.explain()

`fusion` groups calls, `lower` makes a scheduled module of each group, `engine` joins them to a `function`;
`export` writes a library with an `entry` for C, and `cuda` cubins. The logger `plevel.compile` logs the selected
implementation of each call with the reason at level INFO.
"""

from strategy.compile.engine import CompileEngine, compile, default_engine, structure  # noqa: A004
from strategy.fault import CompileError

__all__ = ["CompileEngine", "CompileError", "compile", "default_engine", "structure"]
