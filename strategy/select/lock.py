"""Lock files: selections of a list of workloads, which can be repeated without a database.

JSON with sorted names, one entry per workload and target in the order of keys, and a digest over all of it, so
that locks of equal selections are equal texts. An entry has the evidence of its selection, so that the
selection rule can be applied (`LockDatabase`).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import msgspec

from strategy.op_strategy import Candidate
from strategy.record import Estimate, WireError, convert, to_json
from strategy.select.evidence import Level, Measured, NoRecords
from strategy.select.selection import Reason, Rival, Selection
from strategy.select.validity import SelectionError
from strategy.space import Config
from strategy.target import Target
from strategy.workload import Workload

VERSION = 1


class LockError(ValueError):
    """A file is no lock, or was changed by hand; the message has the remedy."""


class Locked(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One selection. `rivals` are the measured implementations, and the selected one if it is measured or stale.

    `measured_version` is that of the records by which a stale one was selected.
    """

    workload: Workload
    target: Target
    device: str | None = None
    implementation: str
    version: str
    measured_version: str | None = None
    library: str | None = None
    config: Config
    reason: Reason
    level: Level | None = None
    explanation: str = ""
    unmeasured: tuple[str, ...] = ()
    rivals: tuple[Rival, ...] = ()

    @property
    def estimate(self) -> Estimate | None:
        """The cost of the selected implementation, None if not measured."""
        own = (r.estimate for r in self.rivals if r.implementation == self.implementation)
        return next(own, None)

    def measured(self, target: Target, device: str | None) -> list[Measured]:
        """Evidence of the selection for a like target: the best of each implementation at its level.

        For another device than the lock's, its records count at level target.
        """
        same = device == self.device
        return [
            Measured(
                implementation=r.implementation, version=r.version, config=r.config,
                level=r.level if same or r.level is not Level.DEVICE else Level.TARGET,
                target=r.target, model=r.model, estimate=r.estimate,
                timed="" if r.level is Level.TRANSFERRED else target.otherwise(r.target or self.target.key),
            )
            for r in self.rivals
            if r.config is not None and r.level is not None and r.estimate is not None
        ]

    def selection(self, target: Target | None = None) -> Selection:
        """The selection when the lock was written, without unmeasured rivals.

        For a like target that was asked for: that target's, and the explanation names this entry.
        """
        explanation = self.explanation if target is None else f"{self.explanation}; {self._named_for(target)}"
        return Selection(
            workload=self.workload, target=target or self.target, implementation=self.implementation,
            version=self.version, config=self.config, reason=self.reason, level=self.level,
            explanation=explanation, partial=bool(self.unmeasured), unmeasured=self.unmeasured, rivals=self.rivals,
            stale={} if self.measured_version is None else {self.implementation: self.measured_version},
        )

    def _named_for(self, target: Target) -> str:
        """Name this entry in the answer for a target: its target, device, and how its time was taken if otherwise."""
        libs = f" with {', '.join(self.target.libs) or 'no libraries'}" if self.target.libs != target.libs else ""
        device = "" if self.device is None else f", device {self.device}"
        own = next((r for r in self.rivals if r.implementation == self.implementation), None)
        timed = ""
        if own is not None and own.level is not Level.TRANSFERRED:
            timed = target.otherwise(own.target or self.target.key)
        return f"from the lock's entry for {self.target}{libs}{device}" + (f", timed with {timed}" if timed else "")


class Lock(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The selections of a lock file, in the order of their keys."""

    selections: tuple[Locked, ...]

    @classmethod
    def make(cls, selections: Iterable[Selection], device: str | None = None) -> Lock:
        """Make a lock of selections by plevel's rule, all for the same device if one is named."""
        found = {_key(s.workload, s.target): _locked(s, device) for s in selections}
        return cls(selections=tuple(found[key] for key in sorted(found)))

    def find(self, workload: Workload, target: Target) -> Locked | None:
        """The entry of a workload on a target, else on the same processor, timed otherwise or of any device model."""
        found = self._by_key.get(_key(workload, target))
        if found is None and target.kind == "llvm":
            near = (self._by_processor.get((workload.key, place)) for place in _places(target))
            found = next((entry for entry in near if entry is not None), None)
        return found

    def select(self, workload: Workload, target: Target) -> Locked:
        """As `find`, of a selection that the target can run.

        Raises:
            SelectionError: it is not in the lock, or calls a library that the target is without.
        """
        found = self.find(workload, target)
        if found is None:
            others = {e.target for e in self.selections if e.workload == workload}
            if others:
                raise SelectionError(
                    f"{workload} on {target} ({target.model or 'no model'}) is not in the lock, which has it for "
                    f"{_listed(others)}: select for that target, or write a lock for this one"
                )
            raise SelectionError(
                f"{workload} on {target} is not in the lock: add it to the model file, and write the lock again"
            )
        if found.library is not None and found.library not in target.libs:
            raise SelectionError(
                f"{workload} on {target} is not in the lock, whose {found.implementation} for {found.target} calls "
                f"{found.library}: add this target to it"
            )
        return found

    def is_for(self, target: Target) -> bool:
        """Return whether an entry is for a processor, however it is timed."""
        places = _places(target)
        return any(own in places for _, own in self._by_processor)

    def require(self, target: Target) -> None:
        """Raise `SelectionError` if no entry is for a processor, however it is timed."""
        if not self.is_for(target):
            others = _listed({e.target for e in self.selections})
            raise SelectionError(
                f"the lock has nothing for {target} ({target.model or 'no model'}), but for {others or 'no target'}: "
                "write one for this processor with 'plevel lock'"
            )

    @cached_property
    def _by_key(self) -> dict[tuple[str, str], Locked]:
        return {_key(entry.workload, entry.target): entry for entry in self.selections}

    @cached_property
    def _by_processor(self) -> dict[tuple[str, str], Locked]:
        on_cpu = [e for e in self.selections if e.target.kind == "llvm"]
        return {_key(e.workload, e.target.in_network()): e for e in on_cpu}

    def write(self) -> str:
        """The file's text."""
        body = {"selections": to_json(self.selections), "version": VERSION}
        return json.dumps({"digest": _digest(body), **body}, indent=2, sort_keys=True) + "\n"

    @classmethod
    def read(cls, text: str | bytes) -> Lock:
        """Parse the text of a lock file.

        Raises:
            LockError: it is no lock, of a later version, or was changed.
        """
        try:
            body = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise LockError(f"not a lock file ({error}): write one with `plevel lock MODEL -o FILE`") from error
        if not isinstance(body, dict) or not body.keys() >= {"digest", "selections", "version"}:
            raise LockError("not a lock file: write one with `plevel lock MODEL -o FILE`")
        version = body["version"]
        if version != VERSION:
            newer = isinstance(version, int) and version > VERSION
            remedy = f"is newer than {VERSION}: update plevel" if newer else "does not exist: write the lock again"
            raise LockError(f"version {version!r:.20} of lock files {remedy}")
        if body.pop("digest") != _digest(body):
            raise LockError("the lock was changed after it was written (its digest differs): write it again")
        try:
            found = convert({"selections": body["selections"]}, cls)
        except WireError as error:
            raise LockError(f"not a lock file ({error}): write one with `plevel lock MODEL -o FILE`") from error
        times = [r.estimate.median_s for s in found.selections for r in s.rivals if r.estimate is not None]
        if not all(0 < median_s < math.inf for median_s in times):
            raise LockError("not a lock file (a time is not positive): write one with `plevel lock MODEL -o FILE`")
        return found


class LockDatabase(NoRecords):
    """`strategy.select.Database` of the evidence of a lock's selections.

    It has no advice, as it has the selections themselves, and nothing for TVM's rule.
    """

    def __init__(self, lock: Lock) -> None:
        self._lock = lock

    def measured(
        self, workload: Workload, target: Target, device: str | None
    ) -> Sequence[Measured]:
        found = self._lock.find(workload, target)
        return () if found is None else found.measured(target, device)

    def settle(self, found: Selection, valid: Sequence[Candidate]) -> Selection:
        """The answer by the lock's entry, if it has one, and by what the rule found with this evidence.

        Of what was not measured for the workload itself, a lock has no evidence but the selection. An entry whose
        implementation or version is not a candidate does not answer, and the explanation says so.
        """
        entry = self._lock.find(found.workload, found.target)
        if entry is None:
            return found
        version = next((c.version for c in valid if c.implementation == entry.implementation), None)
        if version == entry.version:
            told = entry.reason is not Reason.STALE and found.reason in (Reason.MEASURED, Reason.TRANSFERRED)
            return found if told else entry.selection(found.target)
        if version is None and entry.library is not None and entry.library not in found.target.libs:
            why = f"calls {entry.library}, which {found.target} is without: add this target to the lock"
        else:
            has = "is not offered here" if version is None else f"has version {version} here"
            why = f"{has}, the lock has {entry.version}: write it again"
        said = f"{entry.implementation} {why}; "
        if found.explanation.startswith(said):  # `select` has settled it by the same lock
            return found
        return msgspec.structs.replace(found, explanation=said + found.explanation)

    def instances(
        self, workload: Workload, target: Target, device: str | None
    ) -> Sequence[tuple[Workload, Sequence[Measured]]]:
        return [
            (entry.workload, measured)
            for entry in self._lock.selections
            if workload.match(entry.workload) is not None
            and entry is self._lock.find(entry.workload, target)
            and (measured := entry.measured(target, device))
        ]


def _locked(selection: Selection, device: str | None) -> Locked:
    return Locked(
        workload=selection.workload, target=selection.target, device=device,
        implementation=selection.implementation, version=selection.version,
        measured_version=selection.stale.get(selection.implementation),
        library=next((r.library for r in selection.rivals if r.implementation == selection.implementation), None),
        config=selection.config, reason=selection.reason, level=selection.level,
        explanation=selection.explanation, unmeasured=selection.unmeasured,
        rivals=tuple(
            r for r in selection.rivals
            if r.estimate is not None
            or (selection.reason is Reason.STALE and r.implementation == selection.implementation)
        ),
    )


def _key(workload: Workload, target: Target) -> tuple[str, str]:
    return workload.key, _place(target)


def _place(target: Target) -> str:
    return json.dumps(target.to_json(), sort_keys=True)


def _places(target: Target) -> tuple[str, str]:
    """The processor of a target, however it is timed: with its device model, and as a person names it, by its key."""
    inside = target.in_network()
    named = {k: v for k, v in inside.to_json().items() if k not in ("model", *inside.capability)}
    return _place(inside), _place(Target.parse(named))


def _listed(targets: Iterable[Target]) -> str:
    return "; ".join(sorted(f"{t} ({t.model})" if t.model else str(t) for t in targets))


def _digest(body: dict[str, Any]) -> str:
    text = json.dumps(body, separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
