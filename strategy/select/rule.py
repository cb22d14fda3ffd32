"""The selection rule: which implementation, with which configuration, and why.

Measurements decide first, at one level of match; then those of the same call with a shorter epilogue; then another
tool's winner without a time, if its implementation is a candidate; then a cost model with sufficient accuracy; then
the static priority level (plevel). `choose` is a pure function of candidates and evidence, so that a service, a client
with a lock file and a test give the same answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from strategy.op_strategy import Candidate, candidates
from strategy.record import BOUND, Estimate
from strategy.select.evidence import (
    Advised,
    Database,
    History,
    Level,
    Measured,
    Ranker,
    advice_of,
    current,
    doubtful,
    find_close,
)
from strategy.select.lock import LockDatabase
from strategy.select.selection import Reason, Selection, rank_rivals
from strategy.select.validity import valid_candidates
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
    shorter = ((w, database.measured(w, target, device)) for w in workload.shorter)
    tools = any(c.foreign for c in known)
    advised = database.advised(workload, target, device) if tools else ()
    found = choose(
        workload, target, known, database.measured(workload, target, device), ranker, shorter, advised
    )
    if isinstance(database, LockDatabase):
        return database.settle(found, valid_candidates(workload, target, known))
    return found


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
        best: Mapping[str, Measured] = {}, predicted: Mapping[str, float] = {}, unmeasured: tuple[str, ...] = (),
    ) -> Selection:
        versions = {name: m.version for name, m in stale.items()}
        return Selection(
            workload=workload, target=target, implementation=taken.implementation, version=taken.version,
            config=config, reason=reason, level=level, explanation=why, partial=bool(unmeasured),
            unmeasured=unmeasured, stale=versions, rivals=rank_rivals(known, valid, best, predicted),
        )

    level, best = _of_one_level(valid, measured)
    stale = {} if len(best) == len(valid) else _stale(valid, measured)
    if best:
        winner, lowest, close = _fastest(valid, best)
        unmeasured = tuple(c.implementation for c in valid if c.implementation not in best)
        reason = Reason.TRANSFERRED if level is Level.TRANSFERRED else Reason.MEASURED
        why = _explain_measured(winner, best, lowest, close, unmeasured, stale)
        config = best[winner.implementation].config
        return answer(winner, config, reason, why, level, best, unmeasured=unmeasured)
    nothing = "nothing is measured for this workload"
    in_others = f" in the installed versions, only in others: {_show_stale(stale.values())}" if stale else ""
    unknown = nothing + in_others
    for anchor, found in shorter:
        _, best = _of_one_level(valid, found)
        if best:
            winner, lowest, close = _fastest(valid, best)
            why = _explain_measured(winner, best, lowest, close, (), {})
            why = f"{unknown}; of {anchor}, the same call with a shorter epilogue, {why}"
            return answer(winner, best[winner.implementation].config, Reason.ANCHOR, why)
    advice = advice_of(valid, advised)
    if advice is not None:
        why = (
            f"{unknown}; {advice.implementation} has advice, a winner without a time of {advice.source}'s, "
            f"{_place(advice)}"
        )
        return answer(advice, advice.config, Reason.ADVISED, why, advice.level)
    predictions = () if ranker is None else ranker.rank(workload, target, valid)
    if predictions and not isinstance(predictions, str):
        first = predictions[0]
        winner = next(c for c in valid if c.implementation == first.implementation)
        predicted = {p.implementation: p.median_s for p in predictions}
        why = (
            f"{unknown}; the cost model ranks {winner.implementation} first, at about {show_seconds(first.median_s)}"
        )
        return answer(winner, first.config, Reason.PREDICTED, why, predicted=predicted)
    winner = max(valid, key=lambda c: c.plevel)
    refused = f"{predictions}; " if isinstance(predictions, str) else ""
    why = (
        f"{nothing} on {target}{in_others}; {refused}{winner.implementation} has the highest plevel "
        f"({winner.plevel}) of {len(valid)} valid, with its fallback configuration"
    )
    return answer(winner, winner.fallback, Reason.PLEVEL, why)


def _of_one_level(
    valid: Sequence[Candidate], measured: Sequence[Measured]
) -> tuple[Level, dict[str, Measured]]:
    """The level that decides, and the best of each implementation there; none where no level has any."""
    by_level = current(valid, measured)
    # Measurements on the device model itself are preferred to those of others, however few; max() keeps
    # the first of equals, so that the device's own records win a tie.
    own = max((Level.DEVICE, Level.MODEL), key=lambda x: len(by_level[x]))
    level = next((x for x in (own, Level.TARGET, Level.TRANSFERRED) if by_level[x]), own)
    return level, by_level[level]


def _stale(valid: Sequence[Candidate], measured: Sequence[Measured]) -> dict[str, Measured]:
    """The lowest time of each implementation with measurements on this target, none of them current.

    They are in the order of `valid`, whatever that of `measured` is.
    """
    here = [m for m in measured if m.level is not Level.TRANSFERRED]
    known = {(m.implementation, m.version) for m in here}
    lowest: dict[str, Measured] = {}
    for m in sorted(here, key=lambda m: (m.estimate.median_s, m.version)):
        lowest.setdefault(m.implementation, m)
    return {
        name: lowest[name] for name, version in ((c.implementation, c.version) for c in valid)
        if name in lowest and (name, version) not in known
    }


def _show_stale(stale: Iterable[Measured]) -> str:
    return ", ".join(f"{m.implementation} {show_seconds(m.estimate.median_s)} (version {m.version})" for m in stale)


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


def _explain_measured(
    winner: Candidate,
    best: dict[str, Measured],
    lowest: Measured,
    close: int,
    unmeasured: Sequence[str],
    stale: Mapping[str, Measured],
) -> str:
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
    never = [name for name in unmeasured if name not in stale]
    if never:
        text += f"; not measured: {', '.join(never)}"
    old = [stale[name] for name in unmeasured if name in stale]
    if old:
        text += f"; measured in another version than is installed, and not compared: {_show_stale(old)}"
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
