"""Records as evidence for a candidate: which are current, which are stale, and at which level they match."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from strategy.op_strategy import Candidate
from strategy.select.evidence import Advised, Database, Failed, Level, Measured
from strategy.space import Config
from strategy.target import Target
from strategy.workload import Workload


def read_measured(
    workload: Workload, target: Target, database: Database, device: str | None, known: Sequence[Candidate]
) -> Sequence[Measured]:
    """The measurements on record for `choose`."""
    measured = database.measured(workload, target, device)
    return without_failed(known, measured, database, workload, target, device)


def current(
    valid: Sequence[Candidate], measured: Sequence[Measured]
) -> dict[Level, dict[str, Measured]]:
    """The best per level and implementation, of records that are not stale.

    Times of different device models, or targets, do not compare: of the other device models, the one with the most
    implementations counts, the first by name on a tie. Nor do those of different thread pools, or of warm and
    cold constants: others than the target's count only where it has none, and of those again one kind.

    The order of `measured`, which differs between databases with the same records, has no effect: implementations are
    in the order of `valid`.
    """
    by_name = {c.implementation: c for c in valid}
    fitting = [
        m for m in measured
        if (c := by_name.get(m.implementation)) is not None and _is_current(c, m)
    ]
    ways: dict[str, set[str]] = {}
    for m in fitting:
        if m.level is not Level.TRANSFERRED:
            ways.setdefault(m.timed, set()).add(m.implementation)
    way = "" if "" in ways else min(ways, key=lambda w: (-len(ways[w]), w), default="")
    best: dict[Level, dict[str, Measured]] = {level: {} for level in Level}
    others: dict[Level, dict[tuple[str, str], dict[str, Measured]]] = {
        Level.TARGET: {}, Level.TRANSFERRED: {}
    }
    for m in fitting:
        if m.level is not Level.TRANSFERRED and m.timed != way:
            continue
        of_level = others.get(m.level)
        group = best[m.level] if of_level is None else of_level.setdefault((m.target, m.model), {})
        rival = group.get(m.implementation)
        if rival is None or (m.estimate.median_s, m.version) < (rival.estimate.median_s, rival.version):
            group[m.implementation] = m
    for level, groups in others.items():
        best[level] = groups[min(groups, key=lambda g: (-len(groups[g]), g))] if groups else {}
    return {level: {name: group[name] for name in by_name if name in group} for level, group in best.items()}


def _is_current(candidate: Candidate, m: Measured | Advised) -> bool:
    if m.level is not Level.TRANSFERRED:
        return m.version == candidate.version
    # Another target's space may differ, but the code must be the same and the configuration valid here.
    same_code = m.version.partition(".")[0] == candidate.version.partition(".")[0]
    return same_code and (candidate.space is None or candidate.space.contains(m.config))


def weigh(
    valid: Sequence[Candidate], measured: Sequence[Measured]
) -> tuple[Level, dict[str, Measured], dict[str, Measured]]:
    """The level that decides, and the best of each implementation there: current records, and stale ones.

    Stale records are of the highest other version of an implementation without a current one. They have to compare with
    the current ones: of the same devices, timed in the same way. Where nothing is current on this target, stale ones
    decide, before current ones of another target. Both are empty where no level has any.
    """
    here = [m for m in measured if m.level is not Level.TRANSFERRED]
    level, best = _of_one_level(valid, here)
    if len(best) == len(valid):
        return level, best, {}
    if best:
        places = {_place(m) for m in best.values()}
        here = [m for m in here if m.implementation not in best and _place(m) in places]
    versions = {c.implementation: c.version for c in valid}
    newest: dict[tuple[str, ...], Measured] = {}
    for m in sorted(here, key=lambda m: (-_code(m), m.estimate.median_s, m.version)):
        if m.implementation in versions:
            newest.setdefault((m.implementation, *_place(m)), m)
    renewed = [msgspec.structs.replace(m, version=versions[m.implementation]) for m in newest.values()]
    old_level, found = _of_one_level(valid, renewed)
    stale = {name: newest[name, *_place(m)] for name, m in found.items()}
    if best or stale:
        return level if best else old_level, best, stale
    return Level.TRANSFERRED, current(valid, measured)[Level.TRANSFERRED], {}


def _of_one_level(
    valid: Sequence[Candidate], here: Sequence[Measured]
) -> tuple[Level, dict[str, Measured]]:
    """The level of this target that decides, and the best of each implementation there."""
    by_level = current(valid, here)
    # Measurements on the device model itself are preferred to those of others, however few; max() keeps
    # the first of equals, so that the device's own records win a tie.
    own = max((Level.DEVICE, Level.MODEL), key=lambda x: len(by_level[x]))
    level = own if by_level[own] else Level.TARGET
    return level, by_level[level]


def _place(m: Measured) -> tuple[str, ...]:
    return m.level, m.target, m.model, m.timed


def _code(m: Measured) -> int:
    code = m.version.partition(".")[0]
    return int(code) if code.isdecimal() else -1


def config_of_stale(candidate: Candidate, m: Measured) -> Config:
    """The configuration of a stale record, or the fallback if it is not of the installed space."""
    fits = candidate.foreign if candidate.space is None else candidate.space.contains(m.config)
    return m.config if fits else candidate.fallback


def without_failed(
    known: Sequence[Candidate], measured: Sequence[Measured],
    database: Database, workload: Workload, target: Target, device: str | None,
) -> Sequence[Measured]:
    """The measurements of a workload without stale ones on this target of what only fails in its version in `known`."""
    versions = {c.implementation: c.version for c in known}
    here = [m for m in measured if m.level is not Level.TRANSFERRED]
    alone = {m.implementation for m in here} - {m.implementation for m in here if _is_installed(versions, m)}
    if not alone & versions.keys():
        return measured
    failed = database.failed(workload, target, device)
    wrong = alone & {f.implementation for f in failed if _is_installed(versions, f)}
    return [m for m in measured if m.level is Level.TRANSFERRED or m.implementation not in wrong]


def _is_installed(versions: Mapping[str, str], of: Measured | Failed) -> bool:
    return versions.get(of.implementation) == of.version


def advice_of(valid: Sequence[Candidate], advised: Sequence[Advised]) -> Advised | None:
    """The newest advice of the finest level, of a valid candidate's current version."""
    by_name = {c.implementation: c for c in valid}
    fitting = [
        a for a in advised
        if (c := by_name.get(a.implementation)) is not None and _is_current(c, a)
    ]
    return min(fitting, key=lambda a: list(Level).index(a.level), default=None)
