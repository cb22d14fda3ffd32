"""Trees grown on this host from spooled trials. Features and their binned form are on disk."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import xgboost

from service.errors import InvalidError
from service.predict.spool import Pages, read_part
from service.predict.training import Progress
from service.search import booster
from service.search.booster import Page
from service.search.description import Layout
from service.search.predictor import safe

IN_MEMORY = 512 * 2**20  # bytes of the binned form that are held in memory: from a disk, training takes twice as long
MOVE = "free some, or set XDG_CACHE_HOME to a folder that has more"


class LocalForest:
    """Trees that this process grows from the trials of one training.

    Args:
        folder: for temporary files.
        parts: of trials.
        layout: of the columns.
        held_below: see `Pages`.
        progress: called with a line at each step.

    Attributes:
        held_share: the share of the trials that are held out.
    """

    def __init__(
        self, folder: Path, parts: Sequence[Path], layout: Layout, held_below: float, progress: Progress
    ) -> None:
        self._folder = folder
        self._names = safe(layout.columns)
        self._progress = progress
        self._pages = Pages(folder)
        trials = chain.from_iterable(read_part(part.read_bytes()) for part in parts)
        self._pages.write(trials, layout, held_below)
        learned, every = (self._pages.find(everything=e)[1] for e in (False, True))
        self.held_share = 1 - learned / every

    def grow(self, name: str, *, everything: bool, start: bytes | None, rounds: int) -> bytes:
        """Trees in XGBoost's own format, with or without the held-out workloads."""
        pages, rows = self._pages.find(everything=everything)

        def after_round(done: int, _: xgboost.Booster) -> None:
            self._progress(f"{name}: {done} of {rounds} trees, on {rows:,} records")

        return grow_trees(
            self._folder, pages, rows, self._names, start=start, rounds=rounds, after_round=after_round
        )


def grow_trees(
    folder: Path, pages: Sequence[Page], rows: int, names: Sequence[str], *, start: bytes | None,
    **options: Any,
) -> bytes:
    """As `booster.grow`, from and to XGBoost's own format, with the binned form of many rows in a folder.

    Raises:
        InvalidError: the disk has too little room.
    """
    needed = 4 * rows * len(names)
    with tempfile.TemporaryDirectory(dir=folder) as cache:
        if needed > IN_MEMORY:
            _check_room(folder, needed, rows)
        grown = booster.grow(
            pages, rows, names, cache=Path(cache) if needed > IN_MEMORY else None,
            start=None if start is None else load(start), **options,
        )
        trees = bytes(grown.save_raw("ubj"))
        del grown  # and with it XGBoost's files
    return trees


def _check_room(folder: Path, needed: int, rows: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise InvalidError(
            f"training on {rows:,} records needs up to {needed / 2**30:.1f} GiB more in {folder}, which has "
            f"{free / 2**30:.1f}: {MOVE}"
        )


def load(trees: bytes) -> xgboost.Booster:
    """Trees from XGBoost's own format."""
    found = xgboost.Booster()
    found.load_model(bytearray(trees))
    return found
