"""Fail where modules of the product import each other in a circle.

Imports inside functions and under TYPE_CHECKING count.
"""

from __future__ import annotations

import sys
from graphlib import CycleError, TopologicalSorter

import grimp

PACKAGES = ("strategy", "service", "workers", "plevel")
# An expression knows its type, which inference over expressions finds on demand.
ALLOWED = {("strategy.expr", "strategy.inference")}


def main() -> int:
    """Print the first circle found; 1 where there is one."""
    graph = grimp.build_graph(*PACKAGES)
    imports = {
        module: {
            found
            for found in graph.find_modules_directly_imported_by(module)
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
