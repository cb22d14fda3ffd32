"""`plevel measure`: build, check and time one configuration as a worker does."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from plevel.cli import option
from plevel.cli.chosen import Knobs, read_config
from plevel.cli.error import CommandError

if TYPE_CHECKING:
    from strategy.record import Job, JobEntry, Result
    from strategy.target import Target
    from strategy.workload import Workload


def measure(
    op: option.OpOrWorkload,
    implementation: Annotated[
        str,
        typer.Option(
            "--implementation", "-I", metavar="NAME", help="The implementation to measure.",
            autocompletion=option.complete_implementation,
        ),
    ],
    inputs: option.Inputs = None,
    attr: option.Attributes = None,
    config: Knobs = None,
    threads: option.Threads = None,
    device: Annotated[
        str, typer.Option("--device", metavar="SLOT", help="cpu, or a CUDA device such as cuda:0.")
    ] = "cpu",
    seed: option.Seed = 0,
    cache_flush: option.CacheFlush = False,
    as_json: option.AsJson = False,
) -> None:
    """Build, check and time one configuration on a device of this host; nothing is stored.

    Example: plevel measure dense -i 'data=float32[128,768]' -i 'weight=float32[3072,768]:const'
    -I dense_pack.cpu -c rows=8
    """
    workload = option.read_workload(op, inputs, attr)
    option.require_constant(workload)
    target = option.read_target("cpu", threads) if device == "cpu" else option.read_gpu(device, threads, "--device")
    values = read_config(workload, target, implementation, config)

    import msgspec

    from plevel.cli.output import print_json
    from plevel.extra import require_room, require_worker

    require_worker()
    require_room()
    from strategy.op_strategy import candidates
    from strategy.record import CONFIRM_POLICY, Job, JobEntry, Phase

    candidate = next(c for c in candidates(workload, target) if c.implementation == implementation)
    entry = JobEntry(
        index=0, task_id=0, implementation=implementation, version=candidate.version, config=values
    )
    result = _measure(
        Job(
            id=0, run_id=0, workload=workload, target=target, phase=Phase.CONFIRM, entries=(entry,),
            policy=msgspec.structs.replace(CONFIRM_POLICY, cache_flush=cache_flush), seed=seed,
        ),
        device,
    )
    if as_json:
        print_json(result)
    if result.error is not None:
        raise CommandError(f"{implementation}: {result.error}: {result.message}", answered=True)
    if not as_json:
        _print(workload, target, entry, result)


def _print(workload: Workload, target: Target, entry: JobEntry, result: Result) -> None:
    from plevel.cli.output import make_console
    from strategy.record import estimate
    from strategy.table import show_number, show_seconds

    found = estimate(result.samples_s)
    speed = f"median  {show_seconds(found.median_s)}  {found.show_spread()}"
    if found.spread is not None:
        ends = f"{show_seconds(found.low_s)} to {show_seconds(found.high_s)}"
        speed += f"  (95 %: {ends}, {show_number(found.samples, 'sample')})"
    lines = [f"{entry.implementation}  {entry.config}", speed]
    if workload.flops is not None:
        lines.append(f"speed   {workload.flops / found.median_s / 1e9:.1f} GFLOP/s on {target}")
    if result.prepare_s is not None:
        lines.append(f"prepare {show_seconds(result.prepare_s)}, once for the constant inputs")
    lines.append(
        f"build   {show_seconds(result.build_s)}, checked against NumPy in {show_seconds(result.check_s)}"
    )
    make_console().print("\n".join(lines), markup=False, soft_wrap=True)


def _measure(job: Job, device: str) -> Result:
    """The result of a job of one entry."""
    from strategy.folder import scratch
    from workers.builder_pool import BuilderPool
    from workers.cpu import assign, parse_cores, timing_lock
    from workers.cuda.runner import runner_on
    from workers.sandbox import ForkServer

    results: list[Result] = []
    cores = assign(parse_cores("cpu"), job.target.threads)
    with (
        scratch() as folder,
        ForkServer(folder) as server,
        closing(BuilderPool(server, cores.building[:1], folder, forks=job.target.kind == "cuda")) as pool,
        closing(runner_on(server, cores.timing, device)) as runner,
    ):
        (built,) = pool.build(job, threading.Event())
        if built.error is not None:
            return built.failure()
        with timing_lock():
            runner.run(job, [built], threading.Event(), results.append)
    return results[0]
