"""The operators: importing this package imports all of its modules, which register them.

Modules are imported in the order of their names, and import the modules that they build on, which determines the
order of implementations.
"""

from importlib import import_module
from pkgutil import walk_packages

import_module("strategy.cuda.schedule")  # the schedules of patterns on GPUs
for _module in walk_packages(__path__, f"{__name__}."):
    import_module(_module.name)
