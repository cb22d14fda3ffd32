"""The result of a benchmark as JSON in `results/`: when, where and how it was taken, and rows of figures.

`figures.py` makes the tables of the documentation from these files. A benchmark adds rows to a `Table`, which prints
them, and saves it at its end; what measures for long does so in a `with table.saved(…)`, which keeps the rows of a run
that is interrupted, too.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from platform import python_version
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

FOLDER = Path(__file__).parent / "results"
PACKAGES = {
    "apache-tvm", "numpy", "sqlalchemy", "psycopg", "xgboost", "xgboost-cpu", "torch", "torchvision", "transformers",
    "onnxruntime", "openvino", "scipy-openblas32", "optuna", "distributed",
}
# A text, a number in its column's unit, or a number with a unit of its own. None where there is none.
Cell = str | int | float | tuple[int | float, str] | None
NOISY = 0.03  # of a core, used by other programs: figures taken beside more are said to be


class Machine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The machine of some figures. `llvm` is LLVM's name of the processor."""

    processor: str
    llvm: str
    cores: int


class Result(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One run of a benchmark. Fields that were not noted when it was taken are None.

    Attributes:
        peer: what plevel's figures stand beside.
        runs: the number of samples of which each figure is the median.
        note: what else a reader must know of how they were taken.
        columns: the unit of each by its name. Seconds are in `s`, shares in `%` (0.05 is 5 %), ratios in `×`.
    """

    script: str
    variant: str
    date: str
    machine: Machine
    versions: dict[str, str]
    commit: str | None
    command: str | None
    peer: str | None
    runs: int | None
    note: str | None
    columns: dict[str, str]
    rows: tuple[tuple[Cell, ...], ...]

    @property
    def name(self) -> str:
        return f"{self.script}-{self.variant}" if self.variant else self.script


def save(
    columns: Mapping[str, str],
    rows: Sequence[Sequence[Cell]],
    *,
    variant: str = "",
    peer: str | None = None,
    runs: int | None = None,
    note: str | None = None,
    device: str | None = None,
    merge: bool = False,
) -> None:
    """Write the result of the program that runs.

    The note says if other programs, or other guests of the host, used the cores meanwhile.

    Args:
        device: the GPU that the figures are of, if any.
        merge: keep the other rows, by their first cells, that an earlier run left in the file.
    """
    from strategy.target import Target
    from workers.cpu import assign, describe_device, parse_cores

    script = Path(sys.argv[0]).stem
    given = ["URL" if "://" in word else word for word in sys.argv[1:]]  # they may hold passwords
    host = describe_device(assign(parse_cores("cpu"), 1), 1)
    packages = {d.name: d.version for d in distributions() if d.name.lower() in PACKAGES}
    if (taken := _Cores.now().less(_BEGAN)).others > NOISY:
        noise = f"others used {taken.others:.2f} cores meanwhile"
        print(f"{script}: {noise}: quiet figures need the machine to themselves", file=sys.stderr)
        note = f"{note}; {noise}" if note else noise
    result = Result(
        script=script, variant=variant, date=time.strftime("%Y-%m-%d"),
        machine=Machine(device or host.model, Target.parse("cpu").arch, int(host.fingerprint["cores"])),
        versions={"python": python_version(), **dict(sorted(packages.items()))}, commit=_commit(),
        command=shlex.join(["python", f"benchmarks/{script}.py", *given]),
        peer=peer, runs=runs, note=note, columns=dict(columns), rows=tuple(map(tuple, rows)),
    )
    write(_merge(result, _read_earlier(result.name)) if merge else result)


class Table:
    """Rows of a result, each printed as soon as it is there."""

    def __init__(self, columns: Mapping[str, str]) -> None:
        self.columns = dict(columns)
        self.rows: list[Sequence[Cell]] = []
        self._print(list(columns))

    def add(self, *row: Cell) -> None:
        self.rows.append(row)
        self._print([show(cell, unit) for cell, unit in zip(row, self.columns.values(), strict=True)])

    def _print(self, cells: Sequence[str]) -> None:
        first, *others = cells
        shown = [f"{cell:>{max(len(name), 9)}}" for cell, name in zip(others, [*self.columns][1:], strict=True)]
        print(f"{first:52}", *shown, sep="  ", flush=True)

    def save(self, **about: Any) -> None:
        """As the function `save` does, which names what there is to say about the rows."""
        save(self.columns, self.rows, **about)

    @contextmanager
    def saved(self, *, keep: bool = True, **about: Any) -> Iterator[None]:
        """Save the rows at the end of the block, or, beside an earlier run's others, those that it came to.

        Args:
            keep: False saves nothing.
        """
        early = True
        try:
            yield
            early = False
        finally:
            if early:
                about |= {"note": "; ".join(filter(None, (about.get("note"), "ended early"))), "merge": True}
            if keep and self.rows:
                self.save(**about)


def show(cell: Cell, unit: str) -> str:
    """A cell as text, in its own unit or its column's."""
    if isinstance(cell, tuple):
        return show(*cell)
    if cell is None or isinstance(cell, str):
        return cell or ""
    if unit == "s":
        steps = ((1, "s"), (1e3, "ms"), (1e6, "µs"))
        factor, unit = next(((f, u) for f, u in steps if cell * f >= 1), (1e9, "ns"))
        return f"{_digits(cell * factor)} {unit}"
    if unit == "%":
        return f"{_digits(100 * cell)} %"
    return f"{cell:.2f}×" if unit == "×" else f"{_digits(cell)} {unit}".rstrip()


def _digits(value: float) -> str:
    """Three significant digits; integers and what has more before the point in full."""
    return f"{value:,.0f}" if isinstance(value, int) or abs(value) >= 100 else f"{value:.3g}"


def write(result: Result) -> None:
    """One line for each row, so that changes are read by row."""
    fields = msgspec.to_builtins(result)
    rows = ",\n".join(f"    {json.dumps(row, ensure_ascii=False)}" for row in fields.pop("rows"))
    head = json.dumps(fields, indent=2, ensure_ascii=False).removesuffix("\n}")
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{result.name}.json").write_text(f'{head},\n  "rows": [\n{rows}\n  ]\n}}\n')


def read(name: str, folder: Path = FOLDER) -> Result:
    """A result by the name of its file. Raises FileNotFoundError, or ValidationError."""
    return msgspec.json.decode((folder / f"{name}.json").read_bytes(), type=Result)


@cache
def _read_earlier(name: str) -> Result | None:
    """The result that was there before this program wrote one."""
    try:
        return read(name, FOLDER)
    except FileNotFoundError:
        return None


def _merge(result: Result, earlier: Result | None) -> Result:
    """A result with those rows of an earlier one that it has not, if both can stand in one table."""
    taken = {row[0] for row in result.rows}
    kept = tuple(row for row in earlier.rows if row[0] not in taken) if earlier else ()
    if earlier is None or not kept:
        return result
    names = ", ".join(str(row[0]) for row in kept)
    shared = sorted(earlier.versions.keys() & result.versions.keys())  # others need not have been there
    differing = [n for n in ("machine", "columns") if getattr(earlier, n) != getattr(result, n)]
    differing += [n for n in shared if earlier.versions[n] != result.versions[n]]
    if differing:
        print(f"{result.name}: {names} are replaced: of other {' and '.join(differing)}", file=sys.stderr)
        return result
    commit = earlier.commit and f"commit {earlier.commit}"
    about = ", ".join(filter(None, (earlier.command and f"`{earlier.command}`", earlier.date, commit, earlier.note)))
    note = "; ".join(filter(None, (result.note, f"{names}: {about}")))
    return replace(result, rows=kept + result.rows, note=note)


class _Cores(NamedTuple):
    """Seconds since the machine and this program began, of all cores together."""

    wall: float
    busy: float  # time that other guests of the host took included; NaN where the system does not tell
    own: float  # by this process and by those of its children that have ended

    @classmethod
    def now(cls) -> _Cores:
        try:
            with Path("/proc/stat").open(encoding="ascii") as file:
                user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, file.readline().split()[1:9])
            busy = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
        except OSError:  # there is none on macOS
            busy = math.nan
        return cls(time.monotonic(), busy, sum(os.times()[:4]))

    def less(self, other: _Cores) -> _Cores:
        return _Cores(*(a - b for a, b in zip(self, other, strict=True)))

    @property
    def others(self) -> float:
        """The cores that all others used, on average; none where that is not known."""
        return max(0.0, self.busy - self.own) / max(self.wall, 1e-9)


_BEGAN = _Cores.now()


def _commit() -> str | None:
    """The commit of this checkout, with a plus sign if files differ from it; None outside of one."""
    command = ["git", "-C", str(FOLDER.parent), "describe", "--always", "--abbrev=10", "--dirty=+"]
    return subprocess.run(command, check=False, capture_output=True, text=True).stdout.strip() or None
