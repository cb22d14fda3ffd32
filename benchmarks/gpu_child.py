"""A process that measures cases on a GPU, as a configuration may lose its context or hang."""

from __future__ import annotations

import multiprocessing
import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from benchmarks.gpu_peer import FINAL, WITHOUT_PEER, against_peer, copy_bandwidth
from strategy.record import SEARCH_POLICY, TimingPolicy, decode, encode, estimate
from strategy.types import TupleType
from workers.builder import Built
from workers.cuda.kernel import CudaKernel
from workers.data import Data
from workers.reference import numpy_dtype, random_inputs, reference, tolerances
from workers.runner import Session
from workers.timing import time_kernels


class ChildError(Exception):
    """A process with the device that failed, or said nothing any more."""


class Child:
    """A process with the device's context; another where that is lost, or hangs."""

    START_S, SILENT_S = 90.0, 40.0  # to load everything; to try one configuration, or make a reference

    def __init__(self, *, peer: bool) -> None:
        self._peer = peer
        self._process: Any = None
        self.copy_bytes_per_s: float | None = None

    def ask(self, session: Session, seconds: float) -> dict[str, Any]:
        """The row of a case; a configuration that ends the process is left out, and the rest is tried again."""
        until = time.monotonic() + seconds
        lost: list[str] = []
        while True:
            trying = -1
            try:
                if self._process is None:
                    self._start()
                left = max(0.1, until - time.monotonic())
                self._pipe.send_bytes(b"%f " % left + encode(session))
                while "trying" in (answer := self._answer(self.SILENT_S)):
                    trying = answer["trying"]
                return answer | ({"lost": lost} if lost else {})
            except (EOFError, OSError, ChildError) as error:
                self.close()
                said = str(error) or "its process died"
            entry = next((e for e in session.job.entries if e.index == trying), None)
            if entry is None or len(lost) == 3:
                return {"error": said, "lost": lost}
            lost.append(f"{entry.implementation} {entry.config.to_json()}: {said}")
            built = tuple(b for b in session.built if b.entry != trying)
            session = msgspec.structs.replace(session, built=built)

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self._peer))
        self._process.start()
        theirs.close()
        self.copy_bytes_per_s = self._answer(self.START_S)["copy_bytes_per_s"]

    def _answer(self, limit_s: float) -> dict[str, Any]:
        if not self._pipe.poll(limit_s):
            raise ChildError(f"nothing after {limit_s:.0f} s")
        answer: dict[str, Any] = self._pipe.recv()
        if "error" in answer:
            raise ChildError(answer["error"])
        return answer

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None


def _serve(pipe: Any, peer: bool) -> None:
    """The child's loop: a device, and cases until one fails, after which the context may be lost."""
    from workers.cuda.driver import open_driver

    def tell(entry: int) -> None:
        pipe.send({"trying": entry})

    try:
        driver = open_driver(0)
        pipe.send({"copy_bytes_per_s": copy_bandwidth(driver)})
        while True:
            seconds, session = pipe.recv_bytes().split(b" ", 1)
            case = decode(session, Session)
            pipe.send(_measure(case, driver, float(seconds), tell, peer=peer))
    except EOFError:
        return
    except Exception as error:
        pipe.send({"error": f"{type(error).__name__}: {error}"})


def _measure(
    session: Session, driver: Any, seconds: float, tell: Callable[[int], None], *, peer: bool
) -> dict[str, Any]:
    """One case, in this process: shares of valid and correct, the best, selection, and the peer.

    Args:
        tell: called with each entry before it is tried, and with -1 after the last.
    """
    until = time.monotonic() + seconds
    job = session.job
    workload = job.workload
    inputs = random_inputs(workload, job.seed)
    expected = tuple(reference(workload, inputs))
    data = Data(inputs, {}, expected, tolerances(workload, inputs, expected))
    entries = {entry.index: entry for entry in job.entries}
    fallbacks = len({entry.task_id for entry in job.entries})
    shares: dict[str, dict[str, int]] = {}
    failures: list[str] = []
    best: dict[str, tuple[float, Built]] = {}
    overheads: list[float] = []
    tried = 0
    for built in session.built:
        if time.monotonic() > until and tried >= fallbacks:
            break
        tried += 1
        entry = entries[built.entry]
        name = entry.implementation
        share = shares.setdefault(name, dict.fromkeys(("tried", "built", "correct"), 0))
        share["tried"] += 1
        if built.error is not None:
            failures.append(f"{name} {entry.config.to_json()}: {built.error.value}: {built.message}")
            continue
        share["built"] += 1
        tell(built.entry)
        kernel = CudaKernel(built, data, driver)
        try:
            began = time.perf_counter() - driver.waking_s
            kernel.load()
            kernel.check()
            share["correct"] += 1
            ((median, timed_s),) = _timed([kernel], SEARCH_POLICY)
            spent = time.perf_counter() - driver.waking_s - began
            overheads.append(spent - kernel.check_s - timed_s)
        except Exception as error:
            driver.synchronize()  # raises where the context is lost, and ends this process
            failures.append(f"{name} {entry.config.to_json()}: {type(error).__name__}: {error}")
            continue
        finally:
            kernel.release()
        if name not in best or median < best[name][0]:
            best[name] = (median, built)
    tell(-1)
    result: dict[str, Any] = {
        **{what: sum(s[what] for s in shares.values()) for what in ("tried", "built", "correct")},
        "shares": shares, "failures": failures,
        "overhead_s": statistics.median(overheads) if overheads else None,
        "state": driver.describe(),
    }
    if best:
        result |= _finals({n: CudaKernel(b, data, driver) for n, (_, b) in best.items()})
        for name, (_, built) in best.items():
            result["best"][name]["config"] = entries[built.entry].config.to_json()
        if workload.flops is not None:
            result["tflops"] = workload.flops / result["best_s"] / 1e12
        out = workload.out_type
        kinds = out.fields if isinstance(out, TupleType) else (out,)
        written = sum(k.size * numpy_dtype(k.dtype).itemsize for k in kinds)
        moved = written + sum(a.nbytes for a in inputs.values())
        result["bytes_per_s"] = moved / result["best_s"]
        if peer and workload.op not in WITHOUT_PEER:
            result |= against_peer(workload, inputs, driver.l2_bytes, result["best_s"])
    return result


def _finals(kernels: dict[str, CudaKernel]) -> dict[str, Any]:
    """The best of each implementation, three times more; which of them selection takes, and its speed."""
    for kernel in kernels.values():
        kernel.load()
        kernel.check()
    rounds = [[m for m, _ in _timed(list(kernels.values()), FINAL)] for _ in range(3)]
    found = {}
    for name, medians in zip(kernels, zip(*rounds, strict=True), strict=True):
        middle = statistics.median(medians)
        found[name] = {
            "median_s": statistics.fmean(medians[1:]), "first_s": medians[0],
            "spread": (max(medians) - min(medians)) / middle,
        }
    for kernel in kernels.values():
        kernel.release()
    selected = min(found, key=lambda n: found[n]["first_s"])
    return {"best": found, "selected": selected, "best_s": found[selected]["median_s"]}


def _timed(kernels: Sequence[CudaKernel], policy: TimingPolicy) -> list[tuple[float, float]]:
    """Of each kernel the median, and the seconds that its calls took; they take turns."""
    found = time_kernels([k.measure for k in kernels], policy, rng=random.Random(0))
    for one in found:
        if one.error is not None:
            raise one.error
    return [(estimate(one.samples_s).median_s, one.run_s) for one in found]
