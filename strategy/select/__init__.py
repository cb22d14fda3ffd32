"""Selection: which implementation, with which configuration, and why.

`rule` selects from `evidence`, of which `weighing` finds what counts; `selector` caches answers, `lock` writes them to
a file, and `dispatch` selects for symbolic shapes.
"""

from strategy.select.evidence import (
    NO_RECORDS,
    Advised,
    Database,
    Evidence,
    Failed,
    History,
    Instance,
    Level,
    Measured,
    NoRecords,
    Prediction,
    Ranker,
    doubtful,
    find_close,
    unsettled,
)
from strategy.select.rule import Policy, choose, choose_as_tvm, select
from strategy.select.selection import Reason, Rival, Selection
from strategy.select.selector import RevisedDatabase, Selector
from strategy.select.validity import SelectionError, holds, require_some
from strategy.select.weighing import current

__all__ = [
    "NO_RECORDS", "Advised", "Database", "Evidence", "Failed", "History", "Instance", "Level", "Measured", "NoRecords",
    "Policy", "Prediction", "Ranker", "Reason", "RevisedDatabase", "Rival", "Selection",
    "SelectionError", "Selector",
    "choose", "choose_as_tvm", "current", "doubtful", "find_close", "holds", "require_some", "select", "unsettled",
]
