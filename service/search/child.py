"""The model of time and validity, and its child process.

`python -m service.search.child` serves `learn`, `grow` and `propose` over pipes. Values are pickled: both ends
are of one installation, and nothing that came over a network is read in the child.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import threading
from typing import IO, Any, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from service.search import predictor, prior, proposal
from service.search.embedding import Places
from service.search.features import Matrix
from service.search.gaussian_process import Floats
from service.search.prior import Prior
from service.search.proposal import Proposal, Request

ANSWER_TIMEOUT_S = 60.0


class CostModelError(RuntimeError):
    """The model's process died, or its inputs are inconsistent."""


class Records(NamedTuple):
    """Records of one source, for `learn`. See `service.search.prior.learn`."""

    groups: NDArray[np.intp]
    reach: Floats
    places: Places
    log_s: Floats
    seed: int
    most: int


class CostModel(Protocol):
    """The interface of a model that learns from records and chooses candidates. Deterministic."""

    def learn(self, records: Records) -> Prior | None:
        """Learn a prior from other tasks' records; None if they are too few. Raises `CostModelError`."""
        ...

    def grow(self, features: Matrix, values: Matrix) -> NDArray[np.uint8]:
        """The bytes of trees that predict values: see `service.search.predictor`. Raises `CostModelError`."""
        ...

    def propose(self, request: Request) -> Proposal:
        """Candidates to try next. Raises `CostModelError`."""
        ...


class InlineModel:
    """A model in this process, for replays and tests."""

    def learn(self, records: Records) -> Prior | None:
        return prior.learn(*records)

    def grow(self, features: Matrix, values: Matrix) -> NDArray[np.uint8]:
        return np.frombuffer(predictor.grow(features, values), dtype=np.uint8)

    def propose(self, request: Request) -> Proposal:
        columns = len(request.groups)
        if any(x.shape[1] != columns for x in (request.places, request.pending, request.pool)):
            raise CostModelError("trials, pending and pool differ in their columns")
        return proposal.propose(request)


class ChildModel:
    """A model in a long-lived child process with one thread and a low priority.

    Thread-safe. The child ends with its parent; the next call restarts a dead one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None

    def learn(self, records: Records) -> Prior | None:
        learnt: Prior | None = self._call("learn", records)
        return learnt

    def grow(self, features: Matrix, values: Matrix) -> NDArray[np.uint8]:
        trees: NDArray[np.uint8] = self._call("grow", features, values)
        return trees

    def propose(self, request: Request) -> Proposal:
        chosen: Proposal = self._call("propose", request)
        return chosen

    def _call(self, verb: str, *values: Any) -> Any:
        with self._lock:
            child = self._running()
            assert child.stdin is not None
            assert child.stdout is not None
            watchdog = threading.Timer(ANSWER_TIMEOUT_S, child.kill)
            try:
                watchdog.start()
                pickle.dump((verb, values), child.stdin)
                child.stdin.flush()
                status, answer = pickle.load(child.stdout)  # noqa: S301 - of our own child
            except (OSError, EOFError, ValueError, pickle.UnpicklingError) as error:
                self._stop()
                raise CostModelError(f"the cost model's process failed: {error}") from error
            finally:
                watchdog.cancel()
            if status != "ok":
                raise CostModelError(f"the cost model failed: {status}")
            return answer

    def _running(self) -> subprocess.Popen[bytes]:
        if self._child is None or self._child.poll() is not None:
            self._stop()
            self._child = subprocess.Popen(
                [sys.executable, "-P", "-m", "service.search.child"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
                start_new_session=True,  # Ctrl-C goes to the parent, which ends it
            )
        return self._child

    def _stop(self) -> None:
        if self._child is None:
            return
        child, self._child = self._child, None
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        child.kill()
        child.wait()

    def close(self) -> None:
        with self._lock:
            self._stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answer requests until the pipe is closed."""
    model = InlineModel()
    while True:
        try:
            verb, values = pickle.load(requests)  # noqa: S301 - of the process that started this one
        except EOFError:
            return
        try:
            answer = "ok", getattr(model, verb)(*values)
        except Exception as error:
            answer = f"{type(error).__name__}: {error}", None
        pickle.dump(answer, answers)
        answers.flush()


if __name__ == "__main__":
    # Lower than the priority of kernels being timed.
    with contextlib.suppress(OSError):
        os.nice(10)
    serve(sys.stdin.buffer, sys.stdout.buffer)
