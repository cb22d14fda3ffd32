"""Dispatch tables: selection for symbolic shapes.

A table has a row for each satisfiable combination of the strategy's conditions. Each row chooses among its valid
implementations by the geometric mean of their ratios to the best over the concrete shapes on record in its
range; without shapes on record, by plevel. A table has a JSON form, can be called, and names the shapes it is from.
"""
# Over 300 lines: one table, from its conditions and the choice in each row to what it says of them.

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from strategy.condition import Expr, ExpressionError, SpecializedCondition
from strategy.op_strategy import Candidate, candidates
from strategy.record import Estimate
from strategy.select.combination import satisfiable
from strategy.select.evidence import Database, Level, Measured
from strategy.select.rule import choose
from strategy.select.selection import Reason
from strategy.select.validity import SelectionError, require_some
from strategy.select.validity import holds as is_valid
from strategy.select.weighing import read_measured, weigh, without_failed
from strategy.space import Config
from strategy.table import show_number
from strategy.target import Target
from strategy.workload import Workload

MAX_CONDITIONS = 12
_Instance = tuple[dict[str, int], Sequence[Measured], str]
"""Values of the dimensions, the measurements of that size, and what `select` answers for it."""


class ShapeOnRecord(msgspec.Struct, frozen=True):
    """A concrete shape in a row's range, with the best median of each implementation there, or its stale one."""

    dims: dict[str, int]
    median_s: dict[str, float]
    selected: str  # the answer of `select` for this shape


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One combination of the table's conditions, and the choice made there.

    `reason` is `transferred` if all of `shapes` were measured on other targets only, and `stale` if the implementation
    was measured in another version than is installed at any of them. `ratio` has the
    implementations measured at the largest number of `shapes`, each with the geometric mean of the ratio of its time
    to the best: over the shapes that they have in common, or all of its own if there are none. `timed` says how those
    were timed, where otherwise than the target's code.
    """

    holds: tuple[bool, ...]
    example: dict[str, int]
    valid: tuple[str, ...]
    implementation: str
    version: str
    config: Config
    reason: Reason
    ratio: dict[str, float] = {}
    shapes: tuple[ShapeOnRecord, ...] = ()
    timed: tuple[str, ...] = ()

    @property
    def dissent(self) -> tuple[ShapeOnRecord, ...]:
        """The shapes on record for which `select` answers otherwise than this row."""
        return tuple(s for s in self.shapes if s.selected != self.implementation)


class DispatchTable(msgspec.Struct, frozen=True, kw_only=True):
    """The answer for a workload with symbolic dimensions."""

    workload: Workload
    target: Target
    dims: tuple[str, ...]
    conditions: tuple[SpecializedCondition, ...]
    rows: tuple[Row, ...]
    candidates: tuple[Candidate, ...]  # with conditions over `dims`

    def row(self, **dims: int) -> Row:
        """The row for these values of the symbolic dimensions.

        Raises:
            ExpressionError: a dimension is missing, unknown or not a positive integer.
            SelectionError: the types do not fit, or no implementation is valid there.
        """
        for name in self.dims:
            if not isinstance(dims.get(name), int) or dims[name] < 1:
                raise ExpressionError(f"dimension {name} = {dims.get(name)!r}: give a positive integer")
        unknown = sorted(dims.keys() - set(self.dims))
        if unknown:
            raise ExpressionError(f"unknown dimension {unknown[0]!r}: the table is over {', '.join(self.dims)}")
        if not (assumed := self.workload.assumptions).evaluate(dims):
            raise SelectionError(f"{self.workload}: {assumed} does not hold for {dims}: select for this size alone")
        holds = tuple(bool(c.evaluate(dims)) for c in self.conditions)
        for row in self.rows:
            if row.holds == holds:
                return row
        # A combination that the enumeration missed: decided as one without records.
        return _row(self, holds, dict(dims), ())

    def __call__(self, **dims: int) -> tuple[str, Config]:
        """The implementation and its configuration for these dimensions; raise as `row` does."""
        row = self.row(**dims)
        return row.implementation, row.config

    def pinned(self, holds: Sequence[bool]) -> dict[str, int]:
        """The dimensions that this combination of conditions fixes, by a clause such as m == 1."""
        fixed = {}
        for condition, held in zip(self.conditions, holds, strict=True):
            for clause in condition.clauses if held else ():
                sides = clause.equation
                if sides and sides[0].op == "var" and sides[0].value is None and sides[1].op == "const":
                    fixed[str(sides[0])] = int(sides[1].args[0])
        return fixed

    @property
    def explanation(self) -> str:
        """One line per row: its conditions, its choice, and the evidence."""
        return "\n".join(map(self.explain_row, self.rows))

    def explain_row(self, row: Row) -> str:
        """The row's line of `explanation`."""
        known = f"{show_number(len(row.shapes), 'shape')} on record" if row.shapes else "no shape on record"
        dissent = len(row.dissent)
        other = f", {dissent} of which select would answer otherwise" if dissent else ""
        how = f", timed with {' or with '.join(row.timed)}" if row.timed else ""
        return f"{self._when(row)}: {row.implementation} ({row.reason}; {known}{how}{other})"

    def _when(self, row: Row) -> str:
        pairs = zip(self.conditions, row.holds, strict=True)
        shown = [str(c) if holds else f"not ({c})" for c, holds in pairs]
        if len(shown) > 1:  # `and` binds more loosely than the `|` of a clause
            shown = [f"({text})" if text.startswith("(") else text for text in shown]
        return " and ".join(shown) or "always"


def dispatch(
    workload: Workload,
    target: Target,
    database: Database,
    *,
    device: str | None = None,
    offered: Sequence[Candidate] | None = None,
    libraries: bool = True,
) -> DispatchTable:
    """The dispatch table of a workload with symbolic dimensions; with vendor libraries if `libraries`.

    Raises:
        SelectionError: some shapes have no valid implementation, or there are too many conditions.
    """
    known = candidates(workload, target, libraries=libraries) if offered is None else offered
    require_some(workload, target, known)
    bound = [_bind(c, workload) for c in known if c.symbolic]
    usable = tuple(c for c in bound if c.condition is None or c.condition.decide() is not False)
    conditions = tuple(dict.fromkeys(c.condition for c in usable if c.condition is not None))
    if len(conditions) > MAX_CONDITIONS:
        raise SelectionError(
            f"{workload.op}: the strategy has {len(conditions)} conditions, a dispatch table takes at most "
            f"{MAX_CONDITIONS}: select for concrete shapes"
        )
    symbolic = [d for d in workload.dims.values() if isinstance(d, Expr)]
    symbols = tuple(dict.fromkeys(v for d in symbolic for v in sorted(d.variables())))
    table = DispatchTable(
        workload=workload, target=target, dims=symbols, conditions=conditions, rows=(), candidates=usable
    )
    by_combination: dict[tuple[bool, ...], list[_Instance]] = {}
    assumed = workload.assumptions
    for shape, found in database.instances(workload, target, device):
        binding = workload.match(shape)
        own = known if offered is not None else candidates(shape, target, libraries=libraries)
        if binding is not None and assumed.evaluate(binding) and any(is_valid(c, shape) for c in own):
            standing = without_failed(own, found, database, shape, target, device)
            measured = standing if offered is not None else _of_all(usable, own, standing)
            selected = choose(shape, target, own, standing).implementation
            holds = tuple(bool(c.evaluate(binding)) for c in conditions)
            by_combination.setdefault(holds, []).append((binding, measured, selected))
    assuming = {holds[:-1]: e for holds, e in satisfiable((*conditions, assumed), symbols) if holds[-1]}
    # The search may miss what is assumed, and is then over all sizes.
    examples = assuming or dict(satisfiable(conditions, symbols))
    for holds, instances in by_combination.items():
        examples.setdefault(holds, instances[0][0])
    rows = []
    for holds, example in sorted(examples.items(), reverse=True):
        pinned = table.pinned(holds)
        if set(pinned) == set(symbols) and offered is None:
            # A row of a single shape is an ordinary selection.
            rows.append(_concrete_row(table, holds, pinned, database, device, libraries))
        else:
            rows.append(_row(table, holds, example, by_combination.get(holds, ())))
    return msgspec.structs.replace(table, rows=tuple(rows))


def _of_all(
    usable: Sequence[Candidate], concrete: Sequence[Candidate], measured: Sequence[Measured]
) -> list[Measured]:
    """The measurements of one size under the versions of the symbolic candidates.

    A version contains its space's digest, and the spaces of one size and of symbols differ.
    """
    own = {c.implementation: c.version for c in concrete}
    versions = {(c.implementation, own.get(c.implementation)): c.version for c in usable}
    return [
        msgspec.structs.replace(m, version=versions.get((m.implementation, m.version), m.version))
        for m in measured
    ]


def _bind(candidate: Candidate, workload: Workload) -> Candidate:
    """The candidate with its condition over the workload's symbols, known dimensions substituted."""
    if candidate.condition is None:
        return candidate
    places = {p: d if isinstance(d, Expr) else Expr.const(d) for p, d in workload.dims.items()}
    condition = candidate.condition.substitute(places)
    return msgspec.structs.replace(candidate, condition=None if condition.decide() else condition)


def _row(
    table: DispatchTable,
    holds: tuple[bool, ...],
    example: dict[str, int],
    found: Sequence[_Instance],
) -> Row:
    true = {c for c, held in zip(table.conditions, holds, strict=True) if held}
    valid = [c for c in table.candidates if c.condition is None or c.condition in true]
    if not valid:
        raise SelectionError(
            f"no implementation of {table.workload.op} with symbolic dimensions is valid "
            f"for {example} on {table.target}"
        )
    shapes, medians, levels = [], [], set()
    stale: set[str] = set()
    for binding, measured, selected in sorted(found, key=lambda f: sorted(f[0].items())):
        level, best, old = weigh(valid, measured)
        if known := {**best, **old}:
            medians.append(known)
            levels.add(level)
            stale |= old.keys()
            times = {name: m.estimate.median_s for name, m in known.items()}
            shapes.append(ShapeOnRecord(binding, times, selected))
    names = tuple(c.implementation for c in valid)
    if not medians:
        winner = max(valid, key=lambda c: c.plevel)
        return Row(
            holds=holds, example=example, valid=names, implementation=winner.implementation,
            version=winner.version, config=winner.fallback, reason=Reason.PLEVEL,
        )
    counts = Counter(name for best in medians for name in best)
    most = max(counts.values())
    compared = [c for c in valid if counts[c.implementation] == most]
    # Means over different shapes do not compare, where one may have met a fast rival and another none.
    shared = [best for best in medians if all(c.implementation in best for c in compared)] or medians
    spans = {c.implementation: _ratio(c.implementation, shared) for c in compared}
    lowest = min(spans.values(), key=lambda e: e.median_s)
    # As for one shape: of those that overlap the best, current ones, and of these the highest plevel.
    close = [c for c in compared if spans[c.implementation].low_s <= lowest.high_s]
    winner = max(close, key=lambda c: (c.implementation not in stale, c.plevel))
    reason = Reason.TRANSFERRED if levels == {Level.TRANSFERRED} else Reason.MEASURED
    return Row(
        holds=holds, example=example, valid=names, implementation=winner.implementation,
        version=winner.version, config=_common_config(winner, medians),
        reason=Reason.STALE if winner.implementation in stale else reason,
        ratio={name: span.median_s for name, span in spans.items()}, shapes=tuple(shapes),
        timed=_timed(medians),
    )


def _timed(found: Sequence[Mapping[str, Measured]]) -> tuple[str, ...]:
    return tuple(sorted({m.timed for best in found for m in best.values() if m.timed}))


def _concrete_row(
    table: DispatchTable,
    holds: tuple[bool, ...],
    dims: dict[str, int],
    database: Database,
    device: str | None,
    libraries: bool,
) -> Row:
    shape = table.workload.bind(dims)
    own = candidates(shape, table.target, libraries=libraries)
    measured = read_measured(shape, table.target, database, device, own)
    shorter = ((w, read_measured(w, table.target, database, device, own)) for w in shape.shorter)
    answer = choose(shape, table.target, own, measured, shorter=shorter)
    shapes: tuple[ShapeOnRecord, ...] = ()
    ratio, best_of = {}, []
    _, best, old = weigh([c for c in own if is_valid(c, shape)], measured)
    if known := {**best, **old}:
        best_of.append(known)
        medians = {name: m.estimate.median_s for name, m in known.items()}
        shapes = (ShapeOnRecord(dims, medians, answer.implementation),)
        ratio = {name: s / min(medians.values()) for name, s in medians.items()}
    return Row(
        holds=holds, example=dims,
        valid=tuple(c.implementation for c in own if is_valid(c, shape)),
        implementation=answer.implementation, version=answer.version, config=answer.config,
        reason=answer.reason, ratio=ratio, shapes=shapes, timed=_timed(best_of),
    )


def _ratio(name: str, medians: Sequence[Mapping[str, Measured]]) -> Estimate:
    """The geometric mean over shapes of the ratio to the best time, also of the interval's ends."""
    logs = []
    for best in medians:
        if name in best:
            fastest = min(m.estimate.judged.median_s for m in best.values())
            e = best[name].estimate.judged
            logs.append([math.log(x / fastest) for x in (e.median_s, e.low_s, e.high_s)])
    mean, low, high = (math.exp(sum(column) / len(logs)) for column in zip(*logs, strict=True))
    return Estimate(mean, low, high, len(logs))


def _common_config(winner: Candidate, medians: Sequence[Mapping[str, Measured]]) -> Config:
    """The configuration that is the best at most shapes; on a tie, that of the slowest shape."""
    own = [best[winner.implementation] for best in medians if winner.implementation in best]
    usable = [m for m in own if winner.space is None or winner.space.contains(m.config)]
    if not usable:
        return winner.fallback
    times = Counter(m.config for m in usable)
    return max(usable, key=lambda m: (times[m.config], m.estimate.median_s)).config
