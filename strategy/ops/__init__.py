"""The operators: importing this package imports all of its modules, and each registers what is in it.

Modules are imported in the order of their names. Those of one operator build on each other by importing
each other, so that the order in which implementations are offered rests on nothing else.
"""

from importlib import import_module
from pkgutil import walk_packages

import_module("strategy.cuda.schedule")  # the schedules of patterns on GPUs
for _module in walk_packages(__path__, f"{__name__}."):
    import_module(_module.name)
