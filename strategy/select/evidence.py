"""The evidence of selections: measurements, TVM's history and predictions, and interfaces to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Protocol, TypeVar

import msgspec

from strategy.op_strategy import Candidate
from strategy.record import Estimate
from strategy.space import Config
from strategy.target import Target
from strategy.workload import Workload

K = TypeVar("K")


class Level(StrEnum):
    """Levels of match between measurements and the request, the finest first."""

    DEVICE = "device"
    MODEL = "model"
    TARGET = "target"
    TRANSFERRED = "transferred"


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """The best configuration of an implementation at one level; may be stale."""

    implementation: str
    version: str
    config: Config
    level: Level
    estimate: Estimate
    device: str = ""
    target: str = ""
    model: str = ""  # the device model, empty if unknown
    timed: str = ""  # how, where otherwise than the asked target's: `thread-pool=tvm, constants=warm`


class Advised(msgspec.Struct, frozen=True, kw_only=True):
    """Another tool's winner without a time, at one level of match."""

    implementation: str
    version: str
    config: Config
    level: Level
    source: str  # the format of its first import
    target: str = ""
    model: str = ""  # the device model, empty if unknown


class Failed(msgspec.Struct, frozen=True, kw_only=True):
    """A version of an implementation that was tried on the target, and of which nothing has succeeded."""

    implementation: str
    version: str


class History(msgspec.Struct, frozen=True, kw_only=True):
    """A record for TVM's own rule: the mean cost, under a device model and target keys."""

    implementation: str
    config: Config
    mean_s: float
    model: str
    keys: tuple[str, ...]


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """A cost model's best configuration of an implementation."""

    implementation: str
    config: Config
    median_s: float
    sigma_log: float  # standard deviation of the logarithm


class Database(Protocol):
    """The interface of the selection rule to records. Methods that are not overridden find none."""

    def measured(
        self, workload: Workload, target: Target, device: str | None
    ) -> Sequence[Measured]:
        """The best of each implementation, version and level.

        Level `target` has one for each other device model, `transferred` for each other target and device model.
        `device` is the identity of a device; None: any, without the level `device`.
        """
        return ()

    def failed(self, workload: Workload, target: Target, device: str | None) -> Sequence[Failed]:
        """The versions that only failed on the target, whichever device tried them."""
        return ()

    def advised(self, workload: Workload, target: Target, device: str | None) -> Sequence[Advised]:
        """Winners without a time of other tools' implementations, the newest first."""
        return ()

    def instances(
        self, workload: Workload, target: Target, device: str | None
    ) -> Sequence[tuple[Workload, Sequence[Measured]]]:
        """The concrete workloads on record that a symbolic one covers, with their measurements."""
        return ()

    def history(self, workload: Workload) -> Sequence[History]:
        """The input of `policy="tvm"` for a workload: the best per device model and key."""
        return ()


class NoRecords(Database):
    """An empty database: selection is by plevel."""

    revision = 0  # it never changes (`RevisedDatabase`)


NO_RECORDS = NoRecords()


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """A concrete workload that a symbolic one covers, with its measurements, and what only failed.

    An older service does not tell what failed: None.
    """

    workload: Workload
    measured: tuple[Measured, ...]
    failed: tuple[Failed, ...] | None = None


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """Knowledge of a `Database` about one workload, as a value."""

    measured: tuple[Measured, ...] = ()
    failed: tuple[Failed, ...] = ()
    history: tuple[History, ...] = ()
    advised: tuple[Advised, ...] = ()
    instances: tuple[Instance, ...] = ()  # only of a symbolic workload, whose other fields are empty

    @classmethod
    def read(
        cls, database: Database, workload: Workload, target: Target, device: str | None
    ) -> Evidence:
        """Return the evidence of `database` for a workload on a target."""
        if workload.is_constant:
            return cls(
                measured=tuple(database.measured(workload, target, device)),
                failed=tuple(database.failed(workload, target, device)),
                history=tuple(database.history(workload)),
                advised=tuple(database.advised(workload, target, device)),
            )
        found = database.instances(workload, target, device)
        return cls(
            instances=tuple(
                Instance(
                    workload=w, measured=tuple(measured), failed=tuple(database.failed(w, target, device)),
                )
                for w, measured in found
            )
        )


class Ranker(Protocol):
    """A cost model that predicts only if its held-out accuracy suffices."""

    def rank(
        self, workload: Workload, target: Target, valid: Sequence[Candidate]
    ) -> Sequence[Prediction] | str:
        """Predictions, the fastest first, empty without a model; or the reason why the model gives none."""
        ...


def find_close(estimates: Mapping[K, Estimate]) -> tuple[K, list[K]]:
    """The key of the lowest median, as estimates are judged, and those whose intervals overlap its."""
    judged = {key: e.judged for key, e in estimates.items()}
    lowest = min(judged, key=lambda key: judged[key].median_s)
    return lowest, [key for key, e in judged.items() if e.low_s <= judged[lowest].high_s]


def doubtful(estimates: Mapping[str, Estimate]) -> list[str]:
    """The implementations that may be the fastest and whose estimates are not bounded."""
    open_ones = {name: e for name, e in estimates.items() if not e.is_bounded}
    if not open_ones:
        return []
    lowest = min((e.judged for e in estimates.values()), key=lambda e: e.median_s)
    return [name for name, e in open_ones.items() if e.low_s <= lowest.high_s]


def unsettled(estimates: Mapping[str, Estimate]) -> set[str]:
    """The implementations to measure again before `choose` answers by these estimates.

    The doubtful ones, and the one that they have to beat.
    """
    names = doubtful(estimates)
    if not names:
        return set()
    return {*names, min(estimates, key=lambda name: estimates[name].judged.median_s)}
