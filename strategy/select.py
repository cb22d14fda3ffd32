"""The selection rule: which implementation, with which configuration, and why.

Measurements decide first, at the finest level that says most; then a cost model that is known to
rank well; then the static priority level (plevel). `choose` is a pure function of candidates and
measurements, so that a service, a client with a lock file and a test give the same answer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Literal, Protocol

import msgspec

from strategy.op import find_op
from strategy.op_strategy import Candidate, built_kinds, candidates
from strategy.record import BOUND, Estimate
from strategy.space import Config
from strategy.table import html_table, show_seconds, time_cells
from strategy.target import Target
from strategy.workload import Workload

Policy = Literal["plevel", "tvm"]


class SelectionError(ValueError):
    """Nothing can be selected: no implementation is valid for the workload on the target."""


class Level(StrEnum):
    """Levels of match between measurements and what was asked, finest first."""

    DEVICE = "device"
    MODEL = "model"
    TARGET = "target"
    TRANSFERRED = "transferred"


class Reason(StrEnum):
    MEASURED = "measured"
    TRANSFERRED = "transferred"
    PREDICTED = "predicted"
    PLEVEL = "plevel"


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """The best configuration of an implementation at one level, from current or older records."""

    implementation: str
    version: str
    config: Config
    level: Level
    estimate: Estimate
    device: str = ""
    target: str = ""
    model: str = ""  # of the devices, empty where it is not known


class History(msgspec.Struct, frozen=True, kw_only=True):
    """A record as TVM's own rule looks at it: the mean cost, under a model and target keys."""

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
    """Records as the selection rule needs them."""

    def measured(
        self, workload: Workload, target: Target, device: str | None
    ) -> Sequence[Measured]:
        """The best of each implementation, version and level, and where that is wider, device model.

        Of `target` there is one for each other model, of `transferred` for each target and model.
        `device` is the identity asked for, None where any will do: then no level `device`.
        """
        ...

    def instances(
        self, workload: Workload, target: Target, device: str | None
    ) -> Sequence[tuple[Workload, Sequence[Measured]]]:
        """The concrete workloads on record that a symbolic one covers, each as `measured` has it."""
        ...

    def history(self, workload: Workload) -> Sequence[History]:
        """All that `policy="tvm"` may match for a workload: the best per model and per key."""
        ...


class NoRecords:
    """A database in which nothing is: selection goes by plevel."""

    revision = 0  # it never changes (`strategy.selector.RevisedDatabase`)

    def measured(self, workload: Workload, target: Target, device: str | None) -> Sequence[Measured]:
        return ()

    def instances(
        self, workload: Workload, target: Target, device: str | None
    ) -> Sequence[tuple[Workload, Sequence[Measured]]]:
        return ()

    def history(self, workload: Workload) -> Sequence[History]:
        return ()


NO_RECORDS = NoRecords()


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """A concrete workload that a symbolic one covers, and what is measured of it."""

    workload: Workload
    measured: tuple[Measured, ...]


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """Knowledge of a `Database` about one workload, as a value."""

    measured: tuple[Measured, ...] = ()
    history: tuple[History, ...] = ()
    instances: tuple[Instance, ...] = ()  # of a symbolic workload, the others then being empty

    @classmethod
    def read(
        cls, database: Database, workload: Workload, target: Target, device: str | None
    ) -> Evidence:
        """Return the evidence of `database` for a workload on a target."""
        if workload.is_constant:
            return cls(
                measured=tuple(database.measured(workload, target, device)),
                history=tuple(database.history(workload)),
            )
        found = database.instances(workload, target, device)
        return cls(instances=tuple(Instance(workload=w, measured=tuple(m)) for w, m in found))


class Ranker(Protocol):
    """A cost model that answers only where its held-out ranking is good enough."""

    def rank(
        self, workload: Workload, target: Target, valid: Sequence[Candidate]
    ) -> Sequence[Prediction]:
        """Predictions, the fastest first; empty where the model does not cover the candidates."""
        ...


class Rival(msgspec.Struct, frozen=True, kw_only=True):
    """Evidence about one implementation, the selected one included."""

    implementation: str
    version: str
    plevel: int
    valid: bool
    condition: str | None = None
    tunable: bool = False
    library: str | None = None
    config: Config | None = None
    estimate: Estimate | None = None
    level: Level | None = None
    predicted_s: float | None = None


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """The answer, why, and the rivals."""

    workload: Workload
    target: Target
    implementation: str
    version: str
    config: Config
    reason: Reason
    level: Level | None
    explanation: str
    partial: bool = False
    unmeasured: tuple[str, ...] = ()
    rivals: tuple[Rival, ...] = ()

    def _repr_html_(self) -> str:
        rows = []
        for rival in self.rivals:
            known = "" if rival.valid else f"not valid: needs {rival.condition}"
            last = known or str(rival.level or "")
            row = (rival.implementation, str(rival.plevel), *time_cells(rival.estimate), last)
            rows.append((row, rival.implementation == self.implementation))
        head = f"{self.workload} on {self.target}: {self.explanation}"
        return html_table(head, ("implementation", "plevel", "median", "95 %", "level"), rows)


def select(
    workload: Workload,
    target: Target,
    database: Database,
    *,
    device: str | None = None,
    ranker: Ranker | None = None,
    policy: Policy = "plevel",
    offered: Sequence[Candidate] | None = None,
) -> Selection:
    """Selects among `offered`, or else the implementations that this installation has.

    Raises:
        SelectionError: none is valid for this workload and target.
    """
    known = candidates(workload, target) if offered is None else list(offered)
    if policy == "tvm":
        return choose_as_tvm(workload, target, known, database.history(workload))
    return choose(workload, target, known, database.measured(workload, target, device), ranker)


def holds(candidate: Candidate, workload: Workload) -> bool:
    """Return whether the candidate's condition certainly holds; an undecidable one does not.

    Raises:
        SelectionError: the condition is over something that is no dimension of the workload.
    """
    if candidate.condition is None:
        return True
    decided = candidate.condition.decide()
    if decided is None:
        bound = candidate.condition.substitute(workload.dims)
        decided = bound.decide()
        strange = sorted(bound.variables() - workload.symbols) if decided is None else ()
        if strange:
            raise SelectionError(
                f"{candidate.implementation}: its condition '{candidate.condition}' is over "
                f"{strange[0]!r:.80}, which is no dimension of {workload}"
            )
    return decided is True


def choose(
    workload: Workload,
    target: Target,
    known: Sequence[Candidate],
    measured: Sequence[Measured],
    ranker: Ranker | None = None,
) -> Selection:
    """The rule of `docs/architecture.md`, "Selection, constant shapes"."""
    valid = _valid(workload, target, known)
    by_level = current(valid, measured)
    # What was measured on the device model itself, however little, goes before what others measured;
    # max() keeps the first of equals: the device's own records win a tie.
    own = max((Level.DEVICE, Level.MODEL), key=lambda x: len(by_level[x]))
    level = next((x for x in (own, Level.TARGET, Level.TRANSFERRED) if by_level[x]), own)
    best = by_level[level]
    if best:
        lowest = min(best.values(), key=lambda m: m.estimate.judged.median_s)
        close = [c for c in valid if c.implementation in best
                 and best[c.implementation].estimate.judged.low_s <= lowest.estimate.judged.high_s]  # fmt: skip
        winner = max(close, key=lambda c: c.plevel)
        unmeasured = tuple(c.implementation for c in valid if c.implementation not in best)
        return Selection(
            workload=workload, target=target, implementation=winner.implementation,
            version=winner.version, config=best[winner.implementation].config,
            reason=Reason.TRANSFERRED if level is Level.TRANSFERRED else Reason.MEASURED, level=level,
            explanation=_explain_measured(winner, best, lowest, len(close), level, unmeasured),
            partial=bool(unmeasured), unmeasured=unmeasured,
            rivals=_rivals(known, valid, best),
        )  # fmt: skip
    predictions = [] if ranker is None else list(ranker.rank(workload, target, valid))
    if predictions:
        first = predictions[0]
        winner = next(c for c in valid if c.implementation == first.implementation)
        predicted = {p.implementation: p.median_s for p in predictions}
        return Selection(
            workload=workload, target=target, implementation=winner.implementation,
            version=winner.version, config=first.config, reason=Reason.PREDICTED, level=None,
            explanation=f"nothing is measured for this workload; the cost model ranks "
            f"{winner.implementation} first, at about {show_seconds(first.median_s)}",
            rivals=_rivals(known, valid, {}, predicted),
        )  # fmt: skip
    winner = max(valid, key=lambda c: c.plevel)
    return Selection(
        workload=workload, target=target, implementation=winner.implementation,
        version=winner.version, config=winner.fallback, reason=Reason.PLEVEL, level=None,
        explanation=f"nothing is measured for this workload on {target}; {winner.implementation} has "
        f"the highest plevel ({winner.plevel}) of {len(valid)} valid, with its fallback configuration",
        rivals=_rivals(known, valid, {}),
    )  # fmt: skip


def doubtful(estimates: Mapping[str, Estimate]) -> list[str]:
    """The implementations that may be the fastest, and whose estimates are not bounded."""
    lowest = min((e.judged for e in estimates.values()), key=lambda e: e.median_s, default=None)
    return [
        name for name, e in estimates.items()
        if lowest is not None and not e.is_bounded and e.low_s <= lowest.high_s
    ]  # fmt: skip


def unsettled(estimates: Mapping[str, Estimate]) -> set[str]:
    """The implementations to measure again before `choose` answers by these estimates.

    Those that are doubtful, and beside them the one that they have to beat.
    """
    names = doubtful(estimates)
    if not names:
        return set()
    return {*names, min(estimates, key=lambda name: estimates[name].judged.median_s)}


def choose_as_tvm(
    workload: Workload, target: Target, known: Sequence[Candidate], history: Sequence[History]
) -> Selection:
    """TVM's own rule, as Relay's compile engine and AutoTVM's ApplyHistoryBest had it.

    Each tunable implementation takes the lowest mean cost at its own first hit (the target's
    model, then its keys in order); the cheapest wins whatever its plevel. Where nothing is found,
    and for symbolic shapes, the highest plevel wins, the first added on a tie.
    """
    valid = _valid(workload, target, known)
    hits: dict[str, History] = {}
    for c in valid if workload.is_constant else ():
        if not (c.tunable or c.foreign):  # a log knows what was tuned, without its space
            continue
        own = [h for h in history if h.implementation == c.implementation]
        for at_key in (
            [h for h in own if target.model and h.model == target.model],
            *([h for h in own if key in h.keys] for key in target.keys),
        ):
            if at_key:
                hits[c.implementation] = min(at_key, key=lambda h: h.mean_s)
                break
    if hits:
        best = min(hits.values(), key=lambda h: h.mean_s)
        winner = next(c for c in valid if c.implementation == best.implementation)
        config, reason = best.config, Reason.MEASURED
        why = f"policy tvm: the lowest mean cost on record, {show_seconds(best.mean_s)}"
    else:
        winner = max(valid, key=lambda c: c.plevel)
        config, reason = winner.fallback, Reason.PLEVEL
        why = f"policy tvm: no record decides; the highest plevel is {winner.plevel}"
    return Selection(
        workload=workload, target=target, implementation=winner.implementation, version=winner.version,
        config=config, reason=reason, level=None, explanation=why,
        rivals=_rivals(known, valid, {}),
    )  # fmt: skip


def _valid(workload: Workload, target: Target, known: Sequence[Candidate]) -> list[Candidate]:
    if len({c.implementation for c in known}) != len(known):
        raise SelectionError(f"{workload.op}: two candidates have the same implementation")
    require_some(workload, target, known)
    valid = [c for c in known if holds(c, workload)]
    if not valid:
        raise SelectionError(
            f"no implementation of {workload.op} is valid for {workload} on {target}"
            f"; {len(known)} exist whose conditions do not hold"
        )
    return valid


def require_some(workload: Workload, target: Target, known: Sequence[Candidate]) -> None:
    """Raises `SelectionError` that says what there is where the target has no implementation at all."""
    if known:
        return
    kinds = built_kinds(workload) if find_op(workload.op) is not None else []
    remedy = (
        f"it has implementations for targets of kind {' and '.join(kinds)}"
        if kinds
        else "none is installed here"
    )
    raise SelectionError(f"no implementation of {workload.op} can be built for {target}; {remedy}")


def current(
    valid: Sequence[Candidate], measured: Sequence[Measured]
) -> dict[Level, dict[str, Measured]]:
    """The best per level and implementation, of records that are not stale.

    Times of different device models do not compare, nor those of different targets: what was not
    measured on the model asked for comes from one of the others, the one that says most, the first in
    `measured` on a tie.
    """
    best: dict[Level, dict[str, Measured]] = {level: {} for level in Level}
    others: dict[Level, dict[tuple[str, str], dict[str, Measured]]] = {
        Level.TARGET: {}, Level.TRANSFERRED: {}
    }  # fmt: skip
    by_name = {c.implementation: c for c in valid}
    for m in measured:
        c = by_name.get(m.implementation)
        if c is None or not _is_current(c, m):
            continue
        of_level = others.get(m.level)
        group = best[m.level] if of_level is None else of_level.setdefault((m.target, m.model), {})
        rival = group.get(m.implementation)
        if rival is None or m.estimate.median_s < rival.estimate.median_s:
            group[m.implementation] = m
    for level, groups in others.items():
        best[level] = max(groups.values(), key=len, default={})
    return best


def _is_current(candidate: Candidate, m: Measured) -> bool:
    if m.level is not Level.TRANSFERRED:
        return m.version == candidate.version
    # Another target's space may differ; what counts is that the code is the same and that the
    # configuration exists here.
    same_code = m.version.partition(".")[0] == candidate.version.partition(".")[0]
    return same_code and (candidate.space is None or candidate.space.contains(m.config))


def _rivals(
    known: Sequence[Candidate],
    valid: Sequence[Candidate],
    best: dict[str, Measured],
    predicted: dict[str, float] | None = None,
) -> tuple[Rival, ...]:
    names = {c.implementation for c in valid}
    rivals = []
    for c in known:
        m = best.get(c.implementation)
        rivals.append(
            Rival(
                implementation=c.implementation, version=c.version, plevel=c.plevel,
                valid=c.implementation in names,
                condition=None if c.condition is None else str(c.condition),
                tunable=c.tunable, library=c.library,
                config=m.config if m else None, estimate=m.estimate if m else None,
                level=m.level if m else None,
                predicted_s=(predicted or {}).get(c.implementation),
            )
        )  # fmt: skip
    # The fastest first, then by plevel; sorted() keeps the order of registration on a tie.
    return tuple(
        sorted(
            rivals,
            key=lambda r: (not r.valid, r.estimate is None,
                           r.estimate.median_s if r.estimate else r.predicted_s or math.inf, -r.plevel),
        )
    )  # fmt: skip


def _explain_measured(
    winner: Candidate,
    best: dict[str, Measured],
    lowest: Measured,
    close: int,
    level: Level,
    unmeasured: Sequence[str],
) -> str:
    own = best[winner.implementation].estimate
    where = {
        Level.DEVICE: "on this device",
        Level.MODEL: "on devices of this model",
        Level.TARGET: f"on devices of another model ({lowest.model})" if lowest.model else "on this target",
        Level.TRANSFERRED: f"on another target ({', '.join(filter(None, (lowest.target, lowest.model)))})",
    }[level]
    if close == 1:
        lead = "median" if own.is_bounded else "time"
        text = f"{winner.implementation} has the lowest {lead} measured {where}: {_show_estimate(own)}"
        others = [m for n, m in best.items() if n != winner.implementation]
        if others:
            second = min(others, key=lambda m: m.estimate.judged.median_s)
            ratio = second.estimate.judged.median_s / own.judged.median_s
            text += f"; {second.implementation}, the next, takes {ratio:.2f}× as long"
    else:
        text = (
            f"{winner.implementation} has the highest plevel ({winner.plevel}) of the {close} whose "
            f"interval overlaps the lowest median's ({lowest.implementation}, "
            f"{show_seconds(lowest.estimate.median_s)}), measured {where}: {_show_estimate(own)}"
        )
    doubt = [
        f"{name} ({show_seconds(best[name].estimate.median_s)}, {best[name].estimate.show_spread()})"
        for name in doubtful({n: m.estimate for n, m in best.items()})
    ]
    if doubt and len(best) > 1:
        text += (
            f"; not sure within ±{BOUND:.1%}, and so compared by the longest time that they may take: "
            f"{', '.join(doubt)}"
        )
    if unmeasured:
        text += f"; not measured: {', '.join(unmeasured)}"
    return text


def _show_estimate(found: Estimate) -> str:
    if found.samples == 1:
        return f"{show_seconds(found.median_s)} (1 sample)"
    what = "95 %" if found.spread is not None else f"{found.samples} samples"
    return (
        f"{show_seconds(found.median_s)} "
        f"({what}: {show_seconds(found.low_s)} to {show_seconds(found.high_s)})"
    )
