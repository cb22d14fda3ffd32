"""What could run, and which to choose: operators, implementations, spaces, selection.

Importing this package, evaluating a strategy and enumerating a space never import TVM.
"""
