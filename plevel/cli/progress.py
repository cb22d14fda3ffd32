"""Progress of a run, on a terminal or in plain lines, and of the reading of files."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from strategy.table import show_number, show_seconds

if TYPE_CHECKING:
    from rich.console import Console

    from strategy.record import RunStatus
from plevel.cli.output import (
    NARROW,
    fits,
    group_by_workload,
    show_duration,
    task_table,
    workload_table,
)
from plevel.cli.plain_text import plain


class Progress:
    """Display of a run: a live table on a terminal that can redraw it, else a line for each change.

    A context manager; `show` takes each status.
    """

    LINE_EVERY_S = 5.0

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Any = None
        self._start: tuple[float, int] | None = None
        self._said = (-1.0, "")

    def __enter__(self) -> Self:
        if self._console.is_interactive:  # a dumb terminal would show nothing
            from rich.live import Live

            self._live = Live(console=self._console, transient=True, refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, status: RunStatus) -> None:
        line = self._line(status)
        if self._live is not None:
            from rich.console import Group
            from rich.progress_bar import ProgressBar
            from rich.text import Text

            bar = ProgressBar(total=max(1, status.trials), completed=status.trials_done, width=40)
            several = len(group_by_workload(status.tasks)) > 1
            table = workload_table(status.tasks) if several else task_table(status.tasks)
            shown = [table] if fits(self._console, table) or self._console.width >= NARROW else []
            self._live.update(Group(Text(plain(line)), bar, *shown))
            return
        now = time.monotonic()
        said_at, said = self._said
        # A new message, such as why the run waits, may be the last one: print it at once.
        told = status.message if line.endswith(status.message) else ""
        news = not said.endswith(told)
        if line != said and (news or now - said_at >= self.LINE_EVERY_S):
            self._console.print(line, markup=False)
            self._said = (now, line)

    def _line(self, status: RunStatus) -> str:
        words = [f"{status.state} {status.trials_done}/{show_number(status.trials, 'trial')}"]
        found = [t for t in status.tasks if t.best]
        several = group_by_workload(status.tasks)
        fastest = min(found, key=lambda t: t.best.median_s if t.best else 0.0, default=None)
        if len(several) > 1:
            confirming = status.state == "confirming"  # which takes minutes for a model's
            ready = [t for t in found if t.confirmed] if confirming else found
            told = "confirmed" if confirming else "measured"
            words.append(f"{len(group_by_workload(ready))} of {len(several)} workloads {told}")
        elif fastest is not None and fastest.best is not None:
            words.append(f"best {fastest.implementation} {show_seconds(fastest.best.median_s)}")
        left = self._time_left_s(status)
        if left is not None:
            words.append(f"about {show_duration(left)} left")
        if status.workers == 0:
            words.append(status.message or "waiting for a worker")
        elif status.message and (status.state == "running" or status.waiting):
            words.append(status.message)
        return ", ".join(words)

    def _time_left_s(self, status: RunStatus) -> float | None:
        """Estimate it from the pace of the trials seen so far; None until there is one."""
        now = time.monotonic()
        if self._start is None:
            self._start = (now, status.trials_done)
        begun, done = self._start
        if status.state != "running" or not done < status.trials_done < status.trials:
            return None  # how long the confirmation takes, the pace of trials does not say
        pace_s = (now - begun) / (status.trials_done - done)
        return pace_s * max(0, status.trials - status.trials_done)


@contextmanager
def follow_reading(console: Console, what: str, size: int) -> Iterator[Callable[[int], object]]:
    """Show on a terminal how many of `size` bytes are read; return the callback that adds a count."""
    from rich import progress
    from rich.markup import escape

    bar = progress.BarColumn(), progress.DownloadColumn(), progress.TimeRemainingColumn()
    hidden = not console.is_interactive
    with progress.Progress("{task.description}", *bar, console=console, transient=True, disable=hidden) as shown:
        yield partial(shown.advance, shown.add_task(escape(plain(what)), total=size))
