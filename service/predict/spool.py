"""Trials on disk, in parts, between the database and training: memory does not grow with their number.

The records are read once, into parts: files of encoded trials. Training wants features, of which pages are made in
one go, once the layout of the columns is known; on a cluster each worker makes those of its parts.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import numpy as np

from service.search.booster import Page
from service.search.description import Layout, Survey
from service.search.features import Matrix
from service.search.predictor import Trials, describe
from strategy.record import decode, encode
from strategy.space import ConfigSpace
from strategy.workload import Workload

PART_ROWS = 50_000
PAGE_ROWS = 200_000  # XGBoost goes through all pages at each level of a tree: fewer are faster


class _Block(msgspec.Struct, frozen=True):
    workload: bytes  # JSON
    implementation: str
    space: int | None  # its place among the part's
    digits: bytes
    log_s: bytes


class _Part(msgspec.Struct):
    spaces: list[bytes]  # JSON
    blocks: list[_Block]


_parts = msgspec.msgpack.Decoder(_Part)


def split(workload: Workload) -> float:
    """The place of a workload in [0, 1), by which it is held out or not: the same in each training.

    And the same for all its epilogues: a model that knows one of them knows the others' order, too.
    """
    return int.from_bytes(hashlib.sha256(workload.anchor.key.encode()).digest()[:6], "big") / 2**48


class Spool:
    """Write trials to a folder. Raises OSError, such as of a full disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._survey = Survey()
        self._spaces: dict[ConfigSpace, int] = {}
        self._blocks: list[_Block] = []
        self._pending = 0
        self._task_id: int | None = None
        self.parts: list[Path] = []
        self.rows = 0
        self.places: set[float] = set()  # of workloads without their epilogues, by `split`

    @property
    def layout(self) -> Layout:
        return self._survey.layout()

    def add(self, task_id: int, trials: Trials) -> None:
        """Write a page of a task's trials; its pages come one after the other."""
        if task_id != self._task_id:
            self._task_id = task_id
            self._survey.add(trials.workload, trials.implementation, trials.space)
            self.places.add(split(trials.workload))
        rows = len(trials.log_s)
        self.rows += rows
        space = trials.space
        self._blocks.append(
            _Block(
                encode(trials.workload), trials.implementation,
                None if space is None else self._spaces.setdefault(space, len(self._spaces)),
                trials.digits.tobytes(), trials.log_s.tobytes(),
            )
        )
        self._pending += rows
        if self._pending >= PART_ROWS:
            self.flush()

    def flush(self) -> None:
        """Write what is pending."""
        if self._blocks:
            path = self._folder / f"{len(self.parts)}.part"
            path.write_bytes(msgspec.msgpack.encode(_Part(list(map(encode, self._spaces)), self._blocks)))
            self.parts.append(path)
            self._spaces, self._blocks, self._pending = {}, [], 0


def read_part(data: bytes) -> Iterator[Trials]:
    """The trials of a part, from its file's bytes. Nothing in them is executed."""
    part = _parts.decode(data)
    spaces = [decode(text, ConfigSpace) for text in part.spaces]
    for block in part.blocks:
        log_s = np.frombuffer(block.log_s)
        digits = np.frombuffer(block.digits, dtype=np.int32).reshape(len(log_s), -1)
        space = None if block.space is None else spaces[block.space]
        yield Trials(decode(block.workload, Workload), block.implementation, space, digits, log_s)


class Pages:
    """Pages of features in a folder, those of held-out workloads apart.

    Args:
        folder: where they are, or will be written.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written = 0

    def write(self, part: Iterable[Trials], layout: Layout, held_below: float) -> None:
        """Make the pages of trials; workloads whose `split` is below `held_below` are held out. Raises OSError."""
        pending: dict[bool, list[tuple[Matrix, Matrix]]] = {True: [], False: []}
        rows = {True: 0, False: 0}
        for trials in part:
            held = split(trials.workload) < held_below
            pending[held].append(describe(trials, layout))
            rows[held] += len(trials.log_s)
            if rows[held] >= PAGE_ROWS:
                self._store(held, pending[held])
                rows[held] = 0
        for held, found in pending.items():
            self._store(held, found)

    def find(self, *, everything: bool) -> tuple[list[Page], int]:
        """The pages, with or without those that are held out, and the number of their rows. Raises OSError."""
        names = ("learned", "held") if everything else ("learned",)
        # Not by `Path.glob`, which leaves out what it cannot list.
        found = sorted(Path(at, name) for at, _, files in os.walk(self._folder, onerror=_fail) for name in files)
        paths = [p for name in names for p in found if p.match(f"{name}-*.npy")]
        return [_loader(p) for p in paths], sum(len(np.load(p, mmap_mode="r")) for p in paths)

    def _store(self, held: bool, found: list[tuple[Matrix, Matrix]]) -> None:
        if not found:
            return
        x, y = (np.concatenate(both) for both in zip(*found, strict=True))
        found.clear()
        path = self._folder / f"{'held' if held else 'learned'}-{self._written:06}.npy"
        self._written += 1
        np.save(path, np.concatenate([x, y[:, None]], axis=1))


def _fail(error: OSError) -> None:
    raise error


def _loader(path: Path) -> Page:
    def load() -> tuple[Matrix, Matrix]:
        both = np.load(path)
        return np.ascontiguousarray(both[:, :-1]), np.ascontiguousarray(both[:, -1])

    return load
