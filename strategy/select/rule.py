"""The selection rule: which implementation, with which configuration, and why.

Measurements decide first, at one level of match, those of other versions than the installed ones where they are clearly
lower; then those of the same call with a shorter epilogue; then another tool's winner without a time, if its
implementation is a candidate; then a cost model with sufficient accuracy; then the static priority level (plevel).
`choose` is a pure function of candidates and evidence, so that a service, a client with a lock file and a test give the
same answer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from strategy.op_strategy import Candidate, candidates
from strategy.record import BOUND, Estimate
from strategy.select.evidence import (
    Advised,
    Database,
    History,
    Level,
    Measured,
    Ranker,
    doubtful,
    find_close,
)
from strategy.select.lock import LockDatabase
from strategy.select.selection import Reason, Selection, rank_rivals
from strategy.select.validity import valid_candidates
from strategy.select.weighing import advice_of, config_of_stale, read_measured, weigh
from strategy.space import Config
from strategy.table import show_seconds
from strategy.target import Target
from strategy.workload import Workload

Policy = Literal["plevel", "tvm"]


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
    """Select among `offered`, by default the installed implementations.

    Raises:
        SelectionError: no implementation is valid for this workload and target.
    """
    known = candidates(workload, target) if offered is None else list(offered)
    if policy == "tvm":
        return choose_as_tvm(workload, target, known, database.history(workload))
    shorter = ((w, read_measured(w, target, database, device, known)) for w in workload.shorter)
    tools = any(c.foreign for c in known)
    advised = database.advised(workload, target, device) if tools else ()
    found = choose(
        workload, target, known, read_measured(workload, target, database, device, known), ranker, shorter, advised
    )
    if isinstance(database, LockDatabase):
        return database.settle(found, valid_candidates(workload, target, known))
    return found


class _Found(NamedTuple):
    """The answer by measurements; `best` and `stale` are those that were compared."""

    winner: Candidate
    config: Config
    reason: Reason
    why: str
    level: Level
    best: Mapping[str, Measured]
    stale: Mapping[str, Measured]


def choose(
    workload: Workload,
    target: Target,
    known: Sequence[Candidate],
    measured: Sequence[Measured],
    ranker: Ranker | None = None,
    shorter: Iterable[tuple[Workload, Sequence[Measured]]] = (),
    advised: Sequence[Advised] = (),
) -> Selection:
    """The rule of `docs/architecture.md`, "Selection, constant shapes".

    Args:
        shorter: measurements of the same call with shorter epilogues, the longest first; read only where
            the workload itself has none.

    Raises:
        SelectionError: no candidate is valid, or two have one name.
    """
    valid = valid_candidates(workload, target, known)

    def answer(
        taken: Candidate | Advised, config: Config, reason: Reason, why: str, level: Level | None = None,
        predicted: Mapping[str, float] = {},
    ) -> Selection:
        return Selection(
            workload=workload, target=target, implementation=taken.implementation, version=taken.version,
            config=config, reason=reason, level=level, explanation=why,
            rivals=rank_rivals(known, valid, {}, predicted),
        )

    if (found := _by_measurements(valid, measured)) is not None:
        unmeasured = tuple(c.implementation for c in valid if c.implementation not in found.best)
        return Selection(
            workload=workload, target=target, implementation=found.winner.implementation,
            version=found.winner.version, config=found.config, reason=found.reason, level=found.level,
            explanation=found.why + _explain_rest(found, unmeasured), partial=bool(unmeasured),
            unmeasured=unmeasured, stale={name: m.version for name, m in found.stale.items()},
            rivals=rank_rivals(
                known, valid, found.best, {name: m.estimate.median_s for name, m in found.stale.items()}
            ),
        )
    nothing = "nothing is measured for this workload"
    for anchor, evidence in shorter:
        if (found := _by_measurements(valid, evidence)) is not None:
            why = f"{nothing}; of {anchor}, the same call with a shorter epilogue, {found.why}"
            return answer(found.winner, found.config, Reason.ANCHOR, why)
    advice = advice_of(valid, advised)
    if advice is not None:
        why = (
            f"{nothing}; {advice.implementation} has advice, a winner without a time of {advice.source}'s, "
            f"{_place(advice)}"
        )
        return answer(advice, advice.config, Reason.ADVISED, why, advice.level)
    predictions = () if ranker is None else ranker.rank(workload, target, valid)
    if predictions and not isinstance(predictions, str):
        first = predictions[0]
        winner = next(c for c in valid if c.implementation == first.implementation)
        predicted = {p.implementation: p.median_s for p in predictions}
        why = (
            f"{nothing}; the cost model ranks {winner.implementation} first, at about {show_seconds(first.median_s)}"
        )
        return answer(winner, first.config, Reason.PREDICTED, why, predicted=predicted)
    winner = max(valid, key=lambda c: c.plevel)
    refused = f"{predictions}; " if isinstance(predictions, str) else ""
    why = (
        f"{nothing} on {target}; {refused}{winner.implementation} has the highest plevel "
        f"({winner.plevel}) of {len(valid)} valid, with its fallback configuration"
    )
    return answer(winner, winner.fallback, Reason.PLEVEL, why)


def _by_measurements(valid: Sequence[Candidate], measured: Sequence[Measured]) -> _Found | None:
    """The answer by the records of one level, None where no level has any.

    A stale record decides only if its interval is below those of all current ones: its time is of other code.
    """
    level, best, stale = weigh(valid, measured)
    least_s = min((m.estimate.judged.low_s for m in best.values()), default=math.inf)
    ahead = {name: m for name, m in stale.items() if m.estimate.judged.high_s < least_s}
    deciding = ahead or best
    if not deciding:
        return None
    winner, lowest, close = _fastest(valid, deciding)
    own = deciding[winner.implementation]
    why = _explain_measured(winner, deciding, lowest, close)
    if not ahead:
        reason = Reason.TRANSFERRED if level is Level.TRANSFERRED else Reason.MEASURED
        return _Found(winner, own.config, reason, why, level, best, stale)
    config = config_of_stale(winner, own)
    why += f"; that is of version {own.version}, and version {winner.version} is installed: tune again"
    if config != own.config:
        why += "; the configuration of then is not in the installed space, and the fallback is taken"
    if best:
        first = min(best.values(), key=lambda m: m.estimate.judged.median_s)
        why += f"; of the installed versions {first.implementation} takes the least, "
        why += show_seconds(first.estimate.median_s)
    return _Found(winner, config, Reason.STALE, why, level, best, stale)


def _fastest(
    valid: Sequence[Candidate], best: Mapping[str, Measured]
) -> tuple[Candidate, Measured, int]:
    """The selected implementation, the lowest median, and how many have intervals that overlap its."""
    lowest, close = find_close({name: m.estimate for name, m in best.items()})
    winner = max((c for c in valid if c.implementation in close), key=lambda c: c.plevel)
    return winner, best[lowest], len(close)


def choose_as_tvm(
    workload: Workload, target: Target, known: Sequence[Candidate], history: Sequence[History]
) -> Selection:
    """TVM's own rule, as Relay's compile engine and AutoTVM's ApplyHistoryBest had it.

    Each tunable implementation takes the lowest mean cost at its own first hit (the target's device model, then its
    keys in order); the cheapest wins whatever its plevel. Without a hit, and for symbolic shapes, the highest
    plevel wins, the first added on a tie.

    Raises:
        SelectionError: as `choose`.
    """
    valid = valid_candidates(workload, target, known)
    hits: dict[str, History] = {}
    for c in valid if workload.is_constant else ():
        if not (c.tunable or c.foreign):  # imported implementations have no space, but were tuned
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
        why = f"policy tvm: no matching record; {winner.implementation} has the highest plevel ({winner.plevel})"
    return Selection(
        workload=workload, target=target, implementation=winner.implementation, version=winner.version,
        config=config, reason=reason, level=None, explanation=why,
        rivals=rank_rivals(known, valid, {}),
    )


def _explain_measured(winner: Candidate, best: Mapping[str, Measured], lowest: Measured, close: int) -> str:
    own = best[winner.implementation].estimate
    where = _place(lowest)
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
            f"; not known within ±{BOUND:.1%}, and so compared by the upper ends of their intervals: "
            f"{', '.join(doubt)}"
        )
    return text


def _explain_rest(found: _Found, unmeasured: Sequence[str]) -> str:
    """The implementations of which there is no current record, the selected one left out."""
    text = ""
    never = [name for name in unmeasured if name not in found.stale]
    if never:
        text += f"; not measured: {', '.join(never)}"
    others = [m for name, m in found.stale.items() if name != found.winner.implementation]
    if others:
        listed = ", ".join(
            f"{m.implementation} {show_seconds(m.estimate.median_s)} (version {m.version})" for m in others
        )
        text += f"; measured in another version than is installed: {listed}"
    return text


def _place(found: Measured | Advised) -> str:
    """The devices of an evidence's level, and how it was timed if otherwise than the target's code."""
    timed = f", timed with {found.timed}" if isinstance(found, Measured) and found.timed else ""
    return _devices(found) + timed


def _devices(found: Measured | Advised) -> str:
    return {
        Level.DEVICE: "on this device",
        Level.MODEL: "on devices of this model",
        Level.TARGET: f"on devices of another model ({found.model})" if found.model else "on this target",
        Level.TRANSFERRED: f"on another target ({', '.join(filter(None, (found.target, found.model)))})",
    }[found.level]


def _show_estimate(found: Estimate) -> str:
    if found.samples == 1:
        return f"{show_seconds(found.median_s)} (1 sample)"
    what = "95 %" if found.spread is not None else f"{found.samples} samples"
    return (
        f"{show_seconds(found.median_s)} "
        f"({what}: {show_seconds(found.low_s)} to {show_seconds(found.high_s)})"
    )
