"""`plevel plot`: a tuning curve or a heat map, in the terminal or as an image."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plevel.cli import location, option
from plevel.cli.error import CommandError, UsageError
from plevel.cli.file import whole

if TYPE_CHECKING:
    from plevel.client import Client
    from plevel.direct import Direct
    from strategy.record import TaskStatus

SUFFIXES = (".svg", ".png", ".pdf")
WIDTH = 60  # columns of a sparkline
_MOST_PIXELS = 1 << 16  # along a side, of matplotlib
_DPI = 100
_BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Curve:
    """The tuning curve of a task on one device model: each improvement's trial, from 1, and its median in seconds.

    `device_model` is empty if the devices are not known.
    """

    task: TaskStatus
    points: tuple[tuple[int, float], ...]
    device_model: str = ""

    @property
    def trials(self) -> int:
        """The trials of the curve; up to the last improvement where the task's are of several device models."""
        last = self.points[-1][0]
        return last if len(self.task.models) > 1 else max(self.task.trials, last)

    @property
    def title(self) -> str:
        title = f"task {self.task.task_id}: {self.task.implementation} of {self.task.workload}"
        return f"{title}, {self.device_model}" if self.device_model else title


@dataclass(frozen=True)
class HeatMap:
    """Best medians in seconds on one device model, by shape and implementation; None if not measured.

    `model` is empty if the devices are not known.
    """

    op: str
    target: str
    model: str
    shapes: tuple[str, ...]
    implementations: tuple[str, ...]
    seconds: tuple[tuple[float | None, ...], ...]

    @property
    def title(self) -> str:
        return f"{self.op} on {self.target}" + (f", {self.model}" if self.model else "")


def plot(
    what: Annotated[
        str,
        typer.Argument(
            metavar="TASK|OP", show_default=False, autocompletion=option.complete_op,
            help="A task's number for its tuning curve, or an operator for its heat map.",
        ),
    ],
    out: Annotated[
        Path | None, option.out("An image to write: .svg, .png or .pdf; default: draw in the terminal.")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option("--target", metavar="TARGET", help="The target of a heat map, if it is measured on several."),
    ] = None,
    device_model: Annotated[
        str | None,
        typer.Option("--device-model", metavar="NAME", help="The device model, if there are several."),
    ] = None,
    url: option.Url = None,
    database: option.Database = None,
    namespace: option.Namespace = None,
    as_json: option.AsJson = False,
) -> None:
    """Draw a task's tuning curve, or the fastest implementation at each shape.

    Example: plevel plot 12 -o curve.svg
    """
    if out is not None and out.suffix not in SUFFIXES:
        raise UsageError(f"--out {out}: unknown kind of image: name it {', '.join('…' + s for s in SUFFIXES)}")
    number = int(what) if what.isdecimal() and len(what) < 19 else None
    if number is not None and target is not None:
        raise UsageError("--target: of an operator's heat map only: leave it out for a task")
    place = location.locate(url, database, namespace)
    from plevel.cli.output import print_json

    with place.connect() as records:
        if number is not None:
            task = _find(records, number)
            curve = records.curve(number, device_model)
            if not curve:
                where = "" if device_model is None else f" on {device_model!r:.120}"
                raise CommandError(f"task {what}: no trial has a time{where}: see 'plevel records --task {what}'")
            points = tuple((p["trial"], p["median_s"]) for p in curve)
            found: Curve | HeatMap = Curve(task, points, curve[0].get("device_model", ""))
        else:
            found = arrange(what, records.iter_best(op=what), option.read_key(target), device_model)
    if as_json:
        print_json(found)
    elif out is None:
        _print(found)
    if out is not None:
        _draw(found, out)
        print(f"wrote {out}", file=sys.stderr if as_json else sys.stdout)


def _find(records: Client | Direct, task_id: int) -> TaskStatus:
    from plevel.client import ServiceError

    try:
        return records.task(task_id)
    except ServiceError as error:
        if error.status != 404:
            raise
        raise CommandError(f"task {task_id} does not exist: 'plevel coverage' lists the tasks") from error


def arrange(
    op: str, rows: Iterable[Mapping[str, Any]], target: str | None, device_model: str | None = None
) -> HeatMap:
    """The heat map of an operator's best times on one target; the newest task where versions differ.

    They are those of one device model, by default the one with the most of them: times of several do not compare.

    Raises:
        CommandError: it is not measured, or measured on several targets and none is chosen.
    """
    best: dict[tuple[str, str], dict[tuple[str, str], float]] = {}
    for r in sorted(rows, key=lambda r: r["task_id"]):
        if r["scope"] != "device":
            of_model = best.setdefault((r["target"], r["where"]), {})
            of_model[r["workload"], r["implementation"]] = r["estimate"]["median_s"]
    targets = sorted({t for t, _ in best})
    if not best:
        raise CommandError(f"{op}: no measurements of this operator: tune it with 'plevel tune'")
    if target is None and len(targets) > 1:
        raise CommandError(f"--target: {op} is measured on {', '.join(targets)}: choose one")
    chosen = target or targets[0]
    if chosen not in targets:
        raise CommandError(f"--target {chosen!r:.120}: {op} is measured on {', '.join(targets)}")
    # The empty name stands for all devices together, and is used only where no model is known.
    models = [model for t, model in best if t == chosen]
    model = min(models, key=lambda m: (m == "", -len(best[chosen, m]), m)) if device_model is None else device_model
    if model not in models:
        named = ", ".join(sorted(filter(None, models))) or "devices of no known model"
        raise CommandError(f"--device-model {model!r:.120}: {op} is measured on {named}")
    of_target = best[chosen, model]
    shapes = sorted({w for w, _ in of_target}, key=_numbers)
    names = sorted({i for _, i in of_target})
    return HeatMap(
        op, chosen, model, tuple(s.removeprefix(op) for s in shapes), tuple(names),
        tuple(tuple(of_target.get((s, n)) for n in names) for s in shapes),
    )


def _numbers(text: str) -> tuple[Any, ...]:
    """Sort key of shapes: their extents as numbers."""
    return tuple(int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", text))


def sparkline(points: Sequence[tuple[int, float]], trials: int, width: int = WIDTH) -> str:
    """The best so far over `trials` trials, in `width` columns, on a logarithmic scale; spaces before the first."""
    width = min(width, trials)
    low, high = (math.log(f(s for _, s in points)) for f in (min, max))
    cells = []
    for column in range(width):
        reached = (column + 1) * trials // width
        so_far = [s for trial, s in points if trial <= reached]
        if not so_far:
            cells.append(" ")
            continue
        height = (math.log(min(so_far)) - low) / (high - low) if high > low else 0.0
        cells.append(_BARS[round(height * (len(_BARS) - 1))])
    return "".join(cells)


def _print(found: Curve | HeatMap) -> None:
    from plevel.cli.output import make_console, make_table, show_table
    from strategy.table import show_seconds

    console = make_console()
    say = partial(console.print, markup=False, soft_wrap=True)
    if isinstance(found, Curve):
        first, last = found.points[0], found.points[-1]
        trials = found.trials
        say(found.title)
        say(sparkline(found.points, trials, min(WIDTH, console.width)))
        if first == last:
            say(f"{show_seconds(last[1])} at trial {last[0]} of {trials}, the only improvement")
            return
        say(
            f"{show_seconds(first[1])} at trial {first[0]}, {show_seconds(last[1])} at trial {last[0]} "
            f"of {trials}: {first[1] / last[1]:.2f}× faster"
        )
        return
    rows = []
    for shape, row in zip(found.shapes, found.seconds, strict=True):
        lowest = min(s for s in row if s is not None)
        rows.append((
            shape,
            *("" if s is None else f"→ {show_seconds(s)}" if s == lowest else f"{s / lowest:.2f}×" for s in row),
        ))
    say(f"{found.title}: the lowest median, and the others relative to it")
    names = found.implementations
    table = make_table(("shape", *names), rows, right=names)
    if console.measure(table, options=console.options.update(max_width=10_000)).maximum > console.width:
        short = [str(number) for number, _ in enumerate(names, 1)]
        for number, name in zip(short, names, strict=True):
            say(f"{number}  {name}")
        table = make_table(("shape", *short), rows, right=short)
    show_table(console, table)


def _draw(found: Curve | HeatMap, out: Path) -> None:
    if out.suffix == ".png" and max(_size(found)) * _DPI >= _MOST_PIXELS:
        raise CommandError(f"--out {out}: too many shapes for the pixels of an image: name it .svg or .pdf")
    figure = picture(found)
    with whole(out) as file:
        figure.savefig(
            file, format=out.suffix[1:], metadata={"Date": None} if out.suffix == ".svg" else None
        )


def picture(found: Curve | HeatMap) -> Any:
    """The figure; raises `CommandError` where matplotlib is not installed."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise CommandError("--out: images need matplotlib: pip install 'plevel[plot]'") from error
    figure = Figure(figsize=_size(found), dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    (_draw_curve if isinstance(found, Curve) else _draw_heat)(figure, axes, found)
    return figure


def _size(found: Curve | HeatMap) -> tuple[float, float]:
    """The width and the height of a figure in inches."""
    if isinstance(found, Curve):
        return 8.0, 4.5
    return 4.0 + 1.4 * len(found.implementations), 3.0 + 0.32 * len(found.shapes)


def _draw_curve(figure: Any, axes: Any, curve: Any) -> None:
    from strategy.table import show_seconds

    trials = curve.trials
    at, seconds = zip(*curve.points, (trials, curve.points[-1][1]), strict=True)
    axes.step(at, seconds, where="post")
    axes.plot(at[:-1], seconds[:-1], "o", markersize=3, color="C0")
    axes.set(yscale="log", xlabel="trials", ylabel="best median so far", xlim=(0, trials))
    for ticks in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        ticks(lambda seconds, _: show_seconds(seconds))
    axes.set_title(curve.title, fontsize=9, parse_math=False)
    axes.grid(visible=True, which="both", alpha=0.25)


def _draw_heat(figure: Any, axes: Any, heat: Any) -> None:
    from strategy.table import show_seconds

    ratios = [
        [math.nan if s is None else s / min(x for x in row if x is not None) for s in row]
        for row in heat.seconds
    ]
    image = axes.imshow(ratios, aspect="auto", cmap="RdYlGn_r", alpha=0.6, vmin=1, vmax=3)
    for y, row in enumerate(heat.seconds):
        for x, s in enumerate(row):
            axes.text(x, y, "" if s is None else show_seconds(s), ha="center", va="center", fontsize=7,
                      fontweight="bold" if ratios[y][x] == 1 else "normal")
    axes.set_xticks(
        range(len(heat.implementations)), heat.implementations, fontsize=8, parse_math=False,
        rotation=30, ha="right", rotation_mode="anchor",
    )
    axes.set_yticks(range(len(heat.shapes)), heat.shapes, fontsize=7, parse_math=False)
    axes.set_title(heat.title, fontsize=9, parse_math=False)
    figure.colorbar(image, label="time, relative to the fastest")
