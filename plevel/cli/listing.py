"""`plevel runs`, `coverage`, `records`, `workers`, `status`, `cancel`: listings, and stopping a run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plevel.cli import location, option

if TYPE_CHECKING:
    from rich.console import Console

    from strategy.record import RunStatus

_STATES = ("live", "running", "confirming", "done", "failed", "cancelled")
_MESSAGE = 300  # characters of an error; `--json` has all
Limit = Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, max=1000, help="Maximum number of rows.")]


def _complete_error(incomplete: str) -> list[str]:
    from strategy.record import ErrorKind

    return [kind for kind in ErrorKind if kind.startswith(incomplete)]


def runs(
    state: Annotated[str | None, option.choice("--state", _STATES, "Only runs of this state, or live ones.")] = None,
    op: option.OfOp = None,
    workload_has: option.WorkloadHas = None,
    limit: Limit = 20,
    url: option.Url = None,
    database: option.Database = None,
    namespace: option.Namespace = None,
    as_json: option.AsJson = False,
) -> None:
    """List the latest runs.

    Example: plevel runs --limit 5
    """
    from plevel.cli.output import make_console, print_json, print_table, show_ago

    place = location.locate(url, database, namespace)
    with place.connect() as records:
        found = records.runs(limit, state=state, op=op, workload_has=workload_has)
    if as_json:
        print_json(found)
        return
    rows = [
        (str(r.id), _state(r), f"{r.trials_done}/{r.trials}", _title(r), r.target.key,
         show_ago(r.created_at), "" if r.interrupted else r.message)
        for r in found
    ]
    columns = ("run", "state", "trials", "workload", "target", "asked", "message")
    console = make_console()
    above, aside = ("target",), ("message",)
    none = "no run matches" if state or op or workload_has else "no runs yet"
    print_table(console, columns, rows, right=("run", "trials"), above=above, aside=aside, none=none)
    _say_what_continues(console, found, place)


def _state(run: RunStatus) -> str:
    return "interrupted" if run.interrupted else str(run.state)


def _title(run: RunStatus) -> str:
    """A run's workload, or the number of them."""
    from strategy.table import show_number

    workloads = {t.workload for t in run.tasks}
    return workloads.pop() if len(workloads) == 1 else show_number(len(workloads), "workload")


def _say_what_continues(
    console: Console, found: Iterable[RunStatus], place: location.Location
) -> None:
    """Print one unwrapped line for each interrupted run, so that the command can be copied."""
    from strategy.installed import OTHER_VERSIONS, can_measure

    for r in found:
        if not r.interrupted:
            continue
        if place.url is None and not can_measure(r):
            told = (
                f"was interrupted, and {OTHER_VERSIONS}: repeat its request with  "
                f"{location.resume_command(r.id, place)}  and end it with  plevel cancel {r.id}{place.address}"
            )
        elif place.url is None:
            told = f"was interrupted; continue it with  {location.resume_command(r.id, place)}"
        else:
            told = "waits for a service that tunes; it goes on by itself"
        console.print(f"run {r.id} {told}", markup=False, soft_wrap=True)


def records(
    op: option.OfOp = None,
    run: option.OfRun = None,
    task: option.OfTask = None,
    workload_has: option.WorkloadHas = None,
    phase: Annotated[
        str | None, option.choice("--phase", ("search", "confirm", "reference"), "Only records of this phase.")
    ] = None,
    error: Annotated[
        str | None,
        typer.Option(
            "--error", metavar="KIND", help="Only failures of this kind.", autocompletion=_complete_error
        ),
    ] = None,
    newest: Annotated[bool, typer.Option("--newest", help="List the newest first.")] = False,
    after: Annotated[
        int,
        typer.Option(
            "--after", metavar="ID", min=0, callback=option.check_number, help="Continue after this record."
        ),
    ] = 0,
    limit: Limit = 20,
    url: option.Url = None,
    database: option.Database = None,
    namespace: option.Namespace = None,
    as_json: option.AsJson = False,
) -> None:
    """List the log of measurements, failures included, the oldest first.

    Example: plevel records --run 12 --error compile
    """
    from plevel.cli.output import make_console, print_json, print_table, show_ago
    from strategy.record import ErrorKind, Estimate, convert
    from strategy.space import Config
    from strategy.table import show_seconds

    if error is not None:
        option.check_choice("--error", error, tuple(ErrorKind))
    with location.locate(url, database, namespace).connect() as source:
        wanted: dict[str, Any] = {
            "op": op, "run_id": run, "task_id": task, "workload_has": workload_has, "phase": phase, "error": error,
            "limit": limit, "newest": newest,
        }
        page = source.records(**wanted, cursor=after)
        while not page["records"] and page["next"] is not None:  # a page may be empty if matches are rare
            page = source.records(**wanted, cursor=page["next"])
    if as_json:
        print_json(page)
        return
    rows = [
        (str(r["id"]), str(r["task_id"]), r["implementation"], r["phase"],
         show_seconds(r["estimate"]["median_s"]) if r["estimate"] else r["error"],
         convert(r["estimate"], Estimate).show_spread() if r["estimate"] else "",
         str(Config(r["config"])), show_ago(r["measured_at"]),
         f"imported, {r['source']}" if r.get("imported") else "",
         " ".join(r["message"].split())[:_MESSAGE])
        for r in page["records"]
    ]
    columns = ("record", "task", "implementation", "phase", "median", "95 %", "config", "measured", "where", "message")
    console = make_console()
    right, aside = ("record", "task", "median", "95 %"), ("config", "measured", "where", "message")
    print_table(console, columns, rows, right=right, aside=aside, none="no record matches")
    if page["next"] is not None:
        console.print(f"for more, repeat it with {'--newest ' if newest else ''}--after {page['next']}")


def coverage(
    op: option.OfOp = None,
    implementation: option.OfImplementation = None,
    workload_has: option.WorkloadHas = None,
    target: Annotated[
        str | None, typer.Option("--target", metavar="TARGET", help="Only this target: its key, cpu or 'llvm -mcpu=…'.")
    ] = None,
    url: option.Url = None,
    database: option.Database = None,
    namespace: option.Namespace = None,
    as_json: option.AsJson = False,
) -> None:
    """List the tuning state of each task: trials, budget, best, and whether it is stale.

    Example: plevel coverage --op dense
    """
    from plevel.cli.output import make_console, print_json, print_table, show_ago
    from strategy.record import Estimate, convert
    from strategy.table import show_seconds

    key = option.read_key(target)
    with location.locate(url, database, namespace).connect() as source:
        found = list(source.iter_coverage(
            op=op, implementation=implementation, workload_has=workload_has, target=key
        ))
    if as_json:
        print_json(found)
        return
    rows = []
    for t in found:
        if t["budget"] is None and not t["trials"]:  # the calibration kernel
            continue
        for of in t.get("models") or [t]:  # times of different device models are listed apart
            best = None if of["best"] is None else convert(of["best"], Estimate)
            rows.append((
                str(t["task_id"]), t["workload"], t["target"], t["implementation"],
                str(t["trials"]), str(t.get("imported") or ""), str(t["failed"] or ""),
                of.get("device_model", ""),
                show_seconds(best.median_s) if best else "—", best.show_spread() if best else "",
                "stale" if t["stale"] else "confirmed" if of["confirmed"] else "",
                "" if t["measured_at"] is None else show_ago(t["measured_at"]),
            ))
    columns = (
        "task", "workload", "target", "implementation", "trials", "imported", "failed", "device model",
        "best", "95 %", "state", "measured",
    )
    right = ("task", "trials", "imported", "failed", "best", "95 %")
    above, aside = ("workload", "target", "device model"), ("imported", "measured")
    print_table(make_console(), columns, rows, right=right, above=above, aside=aside, none="no task matches")


def workers(
    url: option.Url = None, database: option.Database = None, as_json: option.AsJson = False
) -> None:
    """List the workers and their devices.

    Example: plevel workers --url http://farm:8765
    """
    from plevel.cli.output import print_rows, show_ago

    with location.locate(url, database).connect() as source:
        found = source.workers()
    rows = (
        (str(w["id"]), w["name"], "alive" if w["alive"] else "gone", w["version"], d["slot"], d["model"],
         d["target"], show_ago(w["seen_at"]))
        for w in found for d in w["devices"]
    )
    columns = ("worker", "name", "state", "version", "device", "model", "target", "seen")
    print_rows(found, columns, rows, as_json=as_json, right=("worker",), none="no workers yet")


def status(
    url: option.Url = None, database: option.Database = None, as_json: option.AsJson = False
) -> None:
    """Print the database in use, the live runs and the workers.

    Example: plevel status
    """
    from plevel.cli.output import make_console, print_json
    from strategy.table import show_number

    place = location.locate(url, database)
    with place.connect() as source:
        # Live ones may be older than all of the latest.
        latest, going, known = source.runs(20), source.runs(1000, state="live"), source.workers()
    alive = [w for w in known if w["alive"]]
    if as_json:
        print_json({
            "url": place.url and place.shown, "database": place.database and place.shown,
            "running": [r.id for r in going], "runs": [r.id for r in latest], "workers_alive": len(alive),
        })
        return
    console = make_console()
    console.print(f"records    {place.shown}", markup=False, soft_wrap=True)
    console.print(f"workers    {len(alive)} alive of {len(known)} known")
    console.print(f"runs       {len(going)} live")
    for r in going:
        console.print(
            f"  run {r.id} of {_title(r)}: {_state(r)}, {r.trials_done}/{show_number(r.trials, 'trial')}"
            + ("" if r.interrupted or not r.message else f"; {r.message}"),
            markup=False, soft_wrap=True,
        )
    _say_what_continues(console, going, place)


def cancel(
    run: Annotated[int, option.number("RUN", "The run's number.")],
    url: option.Url = None,
    database: option.Database = None,
    as_json: option.AsJson = False,
) -> None:
    """Stop a run; what it measured is kept.

    Example: plevel cancel 12
    """
    from plevel.cli.output import tell
    from strategy.table import show_number

    with location.locate(url, database).connect() as source:
        stopped = source.cancel(run)
    kept = show_number(stopped.trials_done, "trial")
    tell(f"run {stopped.id} is {stopped.state}; its measurements are kept: {kept}", stopped, as_json=as_json)
