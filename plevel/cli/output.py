"""Output of commands: tables and JSON, on a terminal or in plain lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

from plevel.cli.narrow import print_lines, set_widths
from plevel.cli.plain_text import PlainStream, console_class, plain
from strategy.record import encode
from strategy.table import show_number, show_seconds

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from strategy.record import Estimate, TaskStatus
    from strategy.select import Selection

NOISY = 0.05  # from here on the dashboard calls a device noisy
_TASK_NUMBERS = ("plevel", "median", "95 %", "GFLOP/s", "trials", "failed")
NARROW = 60  # width below which a row that does not fit has a line for each cell


def make_console(*, stderr: bool = False) -> Console:
    """A console that respects NO_COLOR, and writes plain text unless it is a terminal."""
    stream = sys.stderr if stderr else sys.stdout
    # A program may read the lines: do not fold them, nor redraw any, whatever FORCE_COLOR asks for.
    width, interactive = (None, None) if stream.isatty() else (10_000, False)
    file = stream.stream if isinstance(stream, PlainStream) else None  # None: the stream of the moment
    chosen = {"file": file, "stderr": stderr, "width": width, "force_interactive": interactive}
    return cast("Console", console_class()(highlight=False, soft_wrap=False, **chosen))


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    import msgspec

    sys.stdout.write(msgspec.json.format(encode(value), indent=2).decode() + "\n")


def tell(text: str, value: Any, *, as_json: bool) -> None:
    """Print the result of a command as JSON, or as one line."""
    if as_json:
        print_json(value)
    else:
        print(text)


def make_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = ()) -> Table:
    """A table with the named columns; those in `right` hold numbers."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for column in columns:
        number = column in right
        # A name that does not fit is folded, never cut.
        table.add_column(
            column, justify="right" if number else "left", no_wrap=number,
            overflow="ellipsis" if number else "fold",
        )
    for row in rows:
        table.add_row(*(Text(plain(cell)) for cell in row))
    return table


def show_table(console: Console, table: Table) -> None:
    """Print a table without the spaces that fill its lines, which a file would keep."""
    with console.capture() as drawn:
        console.print(table)
    console.file.write("\n".join([line.rstrip(" ") for line in drawn.get().split("\n")]))


def fits(console: Console, table: Table) -> bool:
    """Return whether a table has room on a console without folding its cells."""
    unbounded = console.options.update(max_width=10_000)
    return not console.is_terminal or console.measure(table, options=unbounded).maximum <= console.width


def print_table(
    console: Console, columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = (),
    aside: Sequence[str] = (), above: Sequence[str] = (), none: str = "",
) -> None:
    """Print a table; on a terminal that is too narrow without its empty columns, or a line for each cell.

    Args:
        aside: columns that are left out, and named, where that does not suffice.
        above: columns whose cells stand above a table of the rows that have them in common there.
        none: printed if there are no rows.
    """
    if none and not rows:
        console.print(none)
        return
    table = make_table(columns, rows, right=right)
    if fits(console, table):
        show_table(console, table)
        return
    groups: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in (dict(zip(columns, cells, strict=True)) for cells in rows):
        groups.setdefault(tuple(row[name] for name in above if row[name]), []).append(row)
    missing: dict[str, None] = {}
    for common, of in groups.items():
        if common:
            console.print(", ".join(common), markup=False, soft_wrap=True)
        filled = [name for name in columns if name not in above and any(row[name] for row in of)]
        table = make_table(filled, [[row[name] for name in filled] for row in of], right=right)
        if not fits(console, table) and console.width < NARROW:
            for row in of:
                print_lines(console, [(name.strip(), row[name].strip()) for name in filled if row[name]])
        else:
            kept = filled if fits(console, table) else [name for name in filled if name not in aside]
            missing |= dict.fromkeys(name for name in filled if name not in kept)
            cells = [[row[name] for name in kept] for row in of]
            table = make_table(kept, cells, right=right)
            set_widths(console, table, [kept, *cells], right)
            console.print(table)
    if missing:
        console.print(f"without {', '.join(missing)}: widen the terminal, or use --json", markup=False, soft_wrap=True)


def print_rows(
    value: Any, columns: Sequence[str], rows: Iterable[Sequence[str]], *, as_json: bool, **layout: Any
) -> None:
    """Print what a command lists: as JSON, or as a table of the layout that `print_table` takes."""
    if as_json:
        print_json(value)
    else:
        print_table(make_console(), columns, list(rows), **layout)


def show_ago(instant: float) -> str:
    """The age of an instant; `unknown` of 0, that of imported records without a date."""
    if instant == 0:
        return "unknown"
    seconds = max(0.0, time.time() - instant)
    for length, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def show_duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02d} h"


def by_speed(tasks: Iterable[TaskStatus]) -> list[TaskStatus]:
    """The confirmed first, each group by speed."""
    return sorted(
        tasks,
        key=lambda t: (not t.confirmed, t.best.median_s if t.best else float("inf"), -t.plevel),
    )


def task_cells(
    tasks: Iterable[TaskStatus], *, winner: str | None = None, ended: bool = True
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The columns, and a row of each implementation with its best time, by speed, for each device model.

    Once a run has ended, unconfirmed times are marked.
    """
    rows = []
    on_models = by_model(tasks)
    for task in (t for of in on_models for t in by_speed(of)):
        best = task.best
        note = " (not confirmed)" if ended and not task.confirmed else ""
        failures = ", ".join(f"{n} {kind}" for kind, n in sorted(task.failures.items()))
        rows.append((
            ("→ " if task.implementation == winner else "  ") + task.implementation,
            *([task.device_model] if len(on_models) > 1 else []),
            str(task.plevel),
            show_seconds(best.median_s) + note if best else "—",
            best.show_spread() if best else "",
            f"{task.gflops:.1f}" if task.gflops is not None else "",
            str(task.trials),
            failures or (str(task.failed) if task.failed else ""),
        ))
    named = ("device model",) if len(on_models) > 1 else ()
    return ("  implementation", *named, *_TASK_NUMBERS), rows


def task_table(tasks: Iterable[TaskStatus]) -> Table:
    """A table of the implementations of a live run."""
    return make_table(*task_cells(tasks, ended=False), right=_TASK_NUMBERS)


def print_tasks(console: Console, tasks: Iterable[TaskStatus], winner: str | None) -> None:
    """Print a table of the implementations of a run that has ended."""
    print_table(console, *task_cells(tasks, winner=winner), right=_TASK_NUMBERS)


def by_model(tasks: Iterable[TaskStatus]) -> list[list[TaskStatus]]:
    """The tasks by the device models that measured them; those without measurements last."""
    import msgspec

    tasks = list(tasks)
    models = dict.fromkeys(m.device_model for t in tasks for m in t.models)
    if len(models) < 2:
        return [tasks]
    found = [
        [
            msgspec.structs.replace(
                t, device_model=model, best=m.best, best_config=m.best_config, confirmed=m.confirmed,
                gflops=t.gflops and t.best and t.gflops * t.best.median_s / m.best.median_s,
            )
            for t in tasks for m in t.models if m.device_model == model
        ]
        for model in models
    ]
    return [*found, [t for t in tasks if not t.models]]


def workload_table(tasks: Sequence[TaskStatus]) -> Table:
    """The best so far of each workload of a run."""
    rows = []
    for key, of in group_by_workload(tasks).items():
        best = of[0].best
        rows.append((
            key,
            of[0].implementation if best else "",
            show_seconds(best.median_s) if best else "—",
            best.show_spread() if best else "",
            str(sum(t.trials for t in of)),
            str(sum(t.failed for t in of) or ""),
        ))
    columns = ("workload", "best so far", "median", "95 %", "trials", "failed")
    return make_table(columns, rows, right=columns[2:])


def group_by_workload(tasks: Iterable[TaskStatus]) -> dict[str, list[TaskStatus]]:
    """The tasks of each workload, in the order of the workloads; the fastest first."""
    found: dict[str, list[TaskStatus]] = {}
    for task in tasks:
        found.setdefault(task.workload, []).append(task)
    return {key: by_speed(of) for key, of in found.items()}


def show_noise(estimates: Iterable[Estimate | None]) -> list[str]:
    """A warning with its remedy if times are too uncertain to choose by."""
    known = [e for e in estimates if e is not None and e.spread is not None]
    worst = max(known, key=lambda e: e.spread or 0.0, default=None)
    if worst is None or worst.spread is None or worst.spread <= NOISY:
        return []
    remedy = "check the host with 'plevel doctor', measure again with 'plevel tune … --force'"
    return [f"noisy      the 95 % interval of the median is {worst.show_spread()}: {remedy}"]


def selection_lines(selection: Selection) -> list[str]:
    """The answer: implementation, configuration, level and reason, and a warning if it is uncertain."""
    level = f", level {selection.level}" if selection.level else ""
    return [
        f"selected   {selection.implementation}  (version {selection.version})",
        f"config     {selection.config or '(no knobs)'!s}",
        f"reason     {selection.reason}{level}{', partial' if selection.partial else ''}",
        f"because    {selection.explanation}",
        *show_noise([find_estimate(selection)]),
    ]


def find_estimate(selection: Selection) -> Estimate | None:
    """The time of the selected implementation, None if it is not measured."""
    return next((r.estimate for r in selection.rivals if r.implementation == selection.implementation), None)


def print_rivals(console: Console, selection: Selection) -> None:
    """Print a table of the compared implementations."""
    rows = []
    for rival in selection.rivals:
        mark = "→ " if rival.implementation == selection.implementation else "  "
        if not rival.valid:
            state = f"not valid: needs {rival.condition}" if rival.condition else "not valid"
        elif rival.estimate is not None:
            n = rival.estimate.samples
            state = f"{show_number(n, 'sample')}, level {rival.level}"
            if n > 1 and not rival.estimate.is_bounded:
                state += ", compared by its upper end"
        elif rival.implementation in selection.stale:
            state = f"measured in version {selection.stale[rival.implementation]} only"
        elif rival.predicted_s is not None:
            state = "predicted"
        else:
            state = "not measured"
        rows.append((
            mark + rival.implementation,
            str(rival.plevel),
            show_seconds(rival.estimate.median_s) if rival.estimate
            else f"~{show_seconds(rival.predicted_s)}" if rival.predicted_s is not None else "",
            rival.estimate.show_spread() if rival.estimate else "",
            state,
        ))
    columns = ("  implementation", "plevel", "median", "95 %", "state")
    print_table(console, columns, rows, right=("plevel", "median", "95 %"))
