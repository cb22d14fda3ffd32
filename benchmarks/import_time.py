"""Start-up: `import strategy` beside NumPy's import, and `plevel --help`; medians of fresh processes.

Goals: `import strategy` with selection and wire types under 0.15 s, `plevel --help` under 0.3 s.

    python benchmarks/import_time.py

It takes a quarter of a minute.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.fixture import make_parser
from benchmarks.result import Table

PROCESSES = 15
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
    medians = {name: statistics.median(t) for name, t in times.items()}
    table = Table({"": "", "median": "s", "goal": "s", "over NumPy": "×"})
    for name, (_, goal) in COMMANDS.items():
        table.add(name, medians[name], goal, medians[name] / medians["import numpy"])
    table.save(peer="`import numpy`", runs=PROCESSES)


if __name__ == "__main__":
    main()
