"""Fail where modules of the product import each other in a circle.

Imports inside functions and under TYPE_CHECKING count, and so does a module's dotted name in a string.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp

PACKAGES = ("strategy", "service", "workers", "plevel")
# An expression knows its type, which inference over expressions finds on demand.
ALLOWED = {("strategy.expr", "strategy.inference")}


def named(module: str) -> Iterator[str]:
    """The strings of a module's code that look like the name of a module in a package."""
    path = Path(__file__).parents[1].joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "." in node.value:
            yield node.value


def main() -> int:
    """Print the first circle found; 1 where there is one."""
    graph = grimp.build_graph(*PACKAGES)
    imports = {
        module: {
            found
            for found in graph.find_modules_directly_imported_by(module).union(
                graph.modules.intersection(named(module)) - {module}
            )
            if (module, found) not in ALLOWED
        }
        for module in graph.modules
    }
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        print(f"a circle of imports: {' → '.join(reversed(error.args[1]))}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
