"""The hooks of other tuners: what they cost the tool's process, and the import of a Triton cache.

Goals: at most 1 ms per autotuned key on a warm connection, nothing when switched off; 10⁵ of Triton's candidates
imported at 10,000/s; Helion's `get` within 3 ms at the median. A kernel's first key sends a request, which has a row
of its own.

    python benchmarks/hooks.py

It takes half a minute. Needs Triton and Helion, as for what is measured beside.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.fixture import make_parser, median_s, serve
from benchmarks.result import Table
from plevel.client import Client
from plevel.hooks.reporter import Reporter
from strategy.workload import Workload

KEYS = 200
CANDIDATES = 20
LINES = 5_000
MODEL = "NVIDIA H100 80GB HBM3"
Row = tuple[str, float, float | None, float]  # what, its seconds, the goal in milliseconds, and the peer's seconds


def median_of(call: Callable[[int], object]) -> float:
    """The median time of `call(i)`, after ten that do not count."""
    return median_s(call, range(-10, KEYS), warm_up=10)


def triton_rows(url: str, folder: Path) -> Iterator[Row]:
    """Tuning of one key with stand-ins for the GPU and the benchmark: without the hook, with it, and switched off."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.runtime.driver import driver

    import plevel.hooks.triton as hook

    fake = SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", 90, 32), get_current_device=lambda: 0
    )
    type(driver).active = property(lambda self: fake)
    hook._place_of = lambda device: {
        "device_model": MODEL, "target": {"kind": "cuda", "arch": "sm_90", "model": MODEL},
    }

    @triton.jit
    def kernel(x, n, B: triton.language.constexpr):  # noqa: ANN001, ANN202
        pass

    def tuner(make: Any, first: int = 0) -> Callable[[int], object]:
        configs = [triton.Config({"B": b}) for b in range(CANDIDATES)]
        tuned = make(configs, ["n"], do_bench=lambda call, quantiles: [1.0, 1.0, 1.0])(kernel)
        tuned.fn = SimpleNamespace(fn=kernel, run=lambda *a, **k: None)
        return lambda i: tuned.run(
            SimpleNamespace(dtype="fp16"), first + i, grid=(1,), warmup=False
        )

    bare = median_of(tuner(triton.autotune))
    os.environ["PLEVEL_HOOKS"] = "0"
    hook.install(url)
    off = median_of(tuner(hook.autotune))
    del os.environ["PLEVEL_HOOKS"]
    reporter = hook.install(url, folder=folder / "spool")
    assert reporter is not None
    reports = median_of(tuner(triton.autotune))
    reporter.flush(60)
    asks = median_of(tuner(hook.autotune, 10 * KEYS))
    reporter.flush(60)
    hook.uninstall()
    # Another process's, as what a process has reported itself is asked for each time.
    reporter = hook.install(url, folder=folder / "spool")
    assert reporter is not None
    known_of = tuner(hook.autotune)
    known_of(0)
    reporter.flush(60)  # the kernel's other keys are read while the first is tuned, which takes a GPU seconds
    known = median_of(known_of)
    terms = {"device_model": MODEL, "version": hook._source(kernel), "limit": 1000, "failures": True}
    request = median_of(
        lambda i: reporter.best(
            "triton", Workload("triton.kernel", (), {"key": [i, "fp16"]}), **terms
        )
    )
    hook.uninstall()
    name = f"Triton: one key of {CANDIDATES} candidates"
    yield f"{name}, reported", reports - bare, 1.0, bare
    yield f"{name}, unknown: looked up and reported", asks - bare, 1.0, bare
    yield f"{name}, known: looked up, nothing is measured", known - bare, 1.0, bare
    yield "Triton: the request of a kernel's first key", request, 1.0, bare
    yield f"{name}, switched off", off - bare, None, bare


def helion_row(url: str, folder: Path) -> Row:
    """`get` of a hit, beside reading Helion's own file."""
    entry = json.dumps({
        "config": json.dumps({"block_sizes": [64, 32], "num_warps": 4}), "flat_config": "[64, 32, 4]",
        "key": {"type": "LooseAutotuneCacheKey", "fields": {
            "hardware": MODEL, "kernel_source_hash": "ab" * 32, "specialization_key": "((),)",
        }},
    })
    local = folder / "local.best_config"
    local.write_text(entry)
    reporter = Reporter(url, folder=folder / "spool")
    keys = [f"{i:064x}" for i in range(KEYS)]
    import plevel.hooks.helion as hook

    hook._reporters[:] = [reporter]
    backend = hook.Backend()
    for key in keys:
        backend.put(key, entry)
    reporter.flush(60)
    assert backend.get(keys[0]) is not None
    asked = median_of(lambda i: backend.get(keys[i]))
    read = median_of(lambda i: json.loads(local.read_text()))
    reporter.close()
    return "Helion: get of a hit", asked, 3.0, read


def import_row(folder: Path) -> tuple[float, float]:
    """Candidates a second of `plevel import` of a Triton cache, and of parsing its JSON alone."""
    path = folder / "matmul.autotune.json"
    with path.open("w") as file:
        for i in range(LINES):
            timings = [
                [
                    {"kwargs": {"BLOCK_M": 16 << (j % 4), "BLOCK_N": 16 << (j // 4)}, "num_warps": 4,
                     "num_ctas": 1, "num_stages": 3, "maxnreg": None, "pre_hook": None, "ir_override": None},
                    [0.1 + j * 0.01, 0.09 + j * 0.01, 0.11 + j * 0.01],
                ]
                for j in range(CANDIDATES)
            ]
            file.write(json.dumps({"key": [i, "torch.float16"], "configs_timings": timings}) + "\n")
    start = time.perf_counter()
    found = subprocess.run(
        [
            sys.executable, "-m", "plevel", "import", str(path), "--device-model", MODEL,
            "--database", str(folder / "import.db"), "--json",
        ],
        check=True, capture_output=True, text=True,
    )
    took = time.perf_counter() - start
    assert json.loads(found.stdout)["new"] == LINES * CANDIDATES
    start = time.perf_counter()
    with path.open() as file:
        for line in file:
            json.loads(line)
    parsed = time.perf_counter() - start
    return LINES * CANDIDATES / took, LINES * CANDIDATES / parsed


def main() -> None:
    make_parser(__doc__).parse_args()
    for tool in ("triton", "helion"):
        if importlib.util.find_spec(tool) is None:
            sys.exit(f"{tool} is not installed: pip install --no-deps 'triton>=3.8' 'helion>=1.5'")
    table = Table({"": "", "plevel": "", "goal": "", "beside": ""})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with serve(f"sqlite:///{folder / 'plevel.db'}") as (url, _):
            with Client(url) as client:
                client.foreign_best("triton", Workload("triton.kernel", ()))  # compiles the statements
            for what, found_s, goal_ms, beside_s in (*triton_rows(url, folder), helion_row(url, folder)):
                goal = None if goal_ms is None else (goal_ms, "ms")
                table.add(what, (found_s * 1e3, "ms"), goal, (beside_s * 1e3, "ms"))
        rate, parsing = import_row(folder)
    imported = f"`plevel import` of 10⁵ of Triton's candidates, {LINES:,} keys, SQLite"
    table.add(imported, (round(rate), "/s"), (10_000, "/s"), (round(parsing), "/s"))
    table.save(
        peer="the tool's own work for a key, its own file, and parsing the JSON", runs=KEYS,
        note="stand-ins for the GPU and the benchmark; the difference to the tool without the hook; a key "
        "is looked up in the process's memory, into which the kernel's problems were read before",
    )


if __name__ == "__main__":
    main()
