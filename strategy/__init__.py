"""Operators, implementations, spaces and selection: the candidates, and the choice among them.

Importing this package, evaluating a strategy and enumerating a space never import TVM.
"""

from strategy.op import register_module

# By name, and here: every module of this package runs after this file, and operators build on most of them.
register_module("strategy.ops")
