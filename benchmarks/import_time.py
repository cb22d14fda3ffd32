"""Start-up: `import strategy` beside NumPy's import, `plevel --help`, and the children of `plevel tune`.

Medians of fresh processes. Goals: `import strategy` with selection and wire types under 0.15 s, `plevel --help` under
0.3 s. "a worker, once the service answers" is `plevel tune` without a worker that is loaded while the service starts.

    python benchmarks/import_time.py

It takes a minute.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.fixture import make_parser
from benchmarks.result import Table
from plevel.embedded import Embedded

PROCESSES = 15
SERVICES = 5
HELP = [str(Path(sys.executable).with_name("plevel")), "--help"]
COMMANDS: dict[str, tuple[list[str], float | None]] = {
    "python -c pass": ([sys.executable, "-c", "pass"], None),
    "import numpy": ([sys.executable, "-c", "import numpy"], None),
    "import strategy": (
        [sys.executable, "-c", "import strategy, strategy.select, strategy.record"], 0.15
    ),
    "import strategy, all operators": (
        [sys.executable, "-c", "from strategy.op import all_ops; all_ops()"], None
    ),
    "plevel --help": (HELP, 0.3),
}


def main() -> None:
    make_parser(__doc__).parse_args()
    if shutil.which(HELP[0]) is None:
        sys.exit(f"{HELP[0]} is not there: install the package into this environment")
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(PROCESSES):  # interleaved, so that a disturbance hits all alike
        for name, (command, _) in COMMANDS.items():
            start = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            times[name].append(time.perf_counter() - start)
    for _ in range(SERVICES):
        for name, early in (("a worker beside it", True), ("a worker, once the service answers", False)):
            service_s, worker_s = start_embedded(early)
            times.setdefault("the service of plevel tune", []).append(service_s)
            times.setdefault(name, []).append(worker_s)
    medians = {name: statistics.median(t) for name, t in times.items()}
    table = Table({"": "", "median": "s", "goal": "s", "over NumPy": "×"})
    for name, median in medians.items():
        _, goal = COMMANDS.get(name, ([], None))
        table.add(name, median, goal, median / medians["import numpy"])
    table.save(peer="`import numpy`", runs=PROCESSES)


def start_embedded(early: bool) -> tuple[float, float]:
    """Seconds until the service of an embedded mode answers, and until its worker has registered."""
    with tempfile.TemporaryDirectory(prefix="plevel-") as folder:
        began = time.perf_counter()
        with Embedded(f"sqlite:///{folder}/plevel.db", early=early, logs=Path(folder) / "log") as embedded:
            answered = time.perf_counter()
            embedded.start_worker()
            return answered - began, time.perf_counter() - began


if __name__ == "__main__":
    main()
