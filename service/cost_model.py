"""The model of time and validity, and the process of its own in which it is fitted.

The model of log-time is the mean of two: an ensemble of gradient-boosted trees, each member fitted
to another resample of the trials, whose disagreement is the uncertainty; and a Gaussian process,
which sees gradients where trees see steps. On recorded spaces the two together find more than
either alone. Validity has a classifier beside them. `python -m service.cost_model` serves it over
pipes: a JSON header and raw arrays each way.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from service.features import Matrix

Floats = NDArray[np.float64]

ANSWER_TIMEOUT_S = 60.0
MEMBERS = 6
ROUNDS = 24
_TREES = {
    "max_depth": 6,
    "eta": 0.3,
    "min_child_weight": 1.0,
    "reg_lambda": 0.5,
    "colsample_bynode": 0.7,
    "tree_method": "hist",
    "max_bin": 64,
    "nthread": 1,
    "verbosity": 0,
}


class CostModelError(RuntimeError):
    """The model's process has died, or what it was given does not fit together."""


class Scores(NamedTuple):
    """Per candidate: mean and deviation of log-seconds, and the probability that it runs."""

    mean: Floats
    sigma: Floats
    valid: Floats


class CostModel(Protocol):
    """Fits trials and scores candidates."""

    def score(self, trials: Matrix, log_s: Floats, pool: Matrix, seed: int) -> Scores:
        """Fits rows of features with their log-seconds, NaN for a failure, and scores `pool`.

        Deterministic: the same arguments give the same scores.
        """
        ...


class InlineModel:
    """Fits in this process: for replays and tests."""

    def score(self, trials: Matrix, log_s: Floats, pool: Matrix, seed: int) -> Scores:
        import xgboost

        if trials.shape[1:] != pool.shape[1:] or len(trials) != len(log_s):
            raise CostModelError(
                f"trials {trials.shape}, times {log_s.shape} and pool {pool.shape} do not fit together"
            )
        from service import gaussian_process

        worked = np.isfinite(log_s)
        valid = np.ones(len(pool))
        scored = xgboost.DMatrix(pool, nthread=1)
        if not worked.all():
            valid = _validity(xgboost, trials, worked, scored, seed)
        if worked.sum() < 2:
            return Scores(np.zeros(len(pool)), np.ones(len(pool)), valid)
        features, times = trials[worked], log_s[worked]
        trees, trees_sigma = _boosted(xgboost, features, times, scored, seed)
        smooth, smooth_sigma = gaussian_process.fit_and_predict(features, times, pool)
        # The moments of an even mixture: where the two disagree, neither knows.
        mean = (trees + smooth) / 2
        variance = (trees_sigma**2 + smooth_sigma**2) / 2 + ((trees - smooth) / 2) ** 2
        return Scores(mean, np.sqrt(variance), valid)


def _boosted(
    xgboost: Any, features: Matrix, times: Floats, pool: Any, seed: int
) -> tuple[Floats, Floats]:
    centre, scale = float(np.median(times)), float(times.std()) or 1.0
    target = (times - centre) / scale
    rng = np.random.default_rng(seed)
    predictions = np.empty((MEMBERS, pool.num_row()))
    for member in range(MEMBERS):
        # Bayesian bootstrap: every trial keeps some weight, rare good ones too.
        weights = rng.exponential(size=len(target))
        data = xgboost.DMatrix(features, label=target, weight=weights, nthread=1)
        booster = xgboost.train(_TREES | {"seed": seed * MEMBERS + member}, data, ROUNDS)
        predictions[member] = booster.predict(pool)
    # The members share their trials and agree too much far from them: hence the floor.
    sigma = np.maximum(predictions.std(axis=0, ddof=1), 0.02)
    return predictions.mean(axis=0) * scale + centre, sigma * scale


def _validity(
    xgboost: Any, trials: Matrix, worked: NDArray[np.bool_], pool: Any, seed: int
) -> Floats:
    if not worked.any():
        return np.ones(pool.num_row())
    data = xgboost.DMatrix(trials, label=worked.astype(np.float32), nthread=1)
    options = _TREES | {"objective": "binary:logistic", "max_depth": 4, "seed": seed}
    booster = xgboost.train(options, data, ROUNDS)
    return np.asarray(booster.predict(pool), dtype=np.float64)


class ChildModel:
    """Fits in a long-lived child process with one thread and a low priority.

    Safe to share between threads. The child ends with its parent. One that died is started
    again by the next call.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None

    def score(self, trials: Matrix, log_s: Floats, pool: Matrix, seed: int) -> Scores:
        """As `CostModel.score`; raises `CostModelError` where the child fails."""
        with self._lock:
            child = self._running()
            assert child.stdin is not None
            assert child.stdout is not None
            watchdog = threading.Timer(ANSWER_TIMEOUT_S, child.kill)
            try:
                header = {"trials": trials.shape, "pool": pool.shape, "seed": seed}
                watchdog.start()
                _write(child.stdin, header, (
                    trials.astype(np.float32), log_s.astype(np.float64), pool.astype(np.float32),
                ))  # fmt: skip
                answer, arrays = _read(child.stdout, lambda _: [(np.float64, (3, len(pool)))])
            except (OSError, EOFError, ValueError) as error:
                self._stop()
                raise CostModelError(f"the cost model's process failed: {error}") from error
            finally:
                watchdog.cancel()
            if "error" in answer:
                raise CostModelError(f"the cost model failed: {answer['error']}")
            return Scores(*arrays[0])

    def _running(self) -> subprocess.Popen[bytes]:
        if self._child is None or self._child.poll() is not None:
            self._stop()
            root = str(Path(__file__).resolve().parent.parent)
            path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
            self._child = subprocess.Popen(
                [sys.executable, "-m", "service.cost_model"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
                     "PYTHONPATH": path},
                start_new_session=True,  # Ctrl-C is for the parent, which then ends it
            )  # fmt: skip
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


def _write(stream: IO[bytes], header: dict[str, Any], arrays: tuple[NDArray[Any], ...]) -> None:
    text = json.dumps(header).encode()
    stream.write(struct.pack("<I", len(text)))
    stream.write(text)
    for array in arrays:
        stream.write(np.ascontiguousarray(array).tobytes())
    stream.flush()


def _read(stream: IO[bytes], layout: Any) -> tuple[dict[str, Any], list[NDArray[Any]]]:
    """A header, and the arrays that `layout(header)` says follow it."""
    (length,) = struct.unpack("<I", _exactly(stream, 4))
    header: dict[str, Any] = json.loads(_exactly(stream, length))
    arrays = []
    if "error" not in header:
        for dtype, shape in layout(header):
            data = _exactly(stream, int(np.prod(shape)) * np.dtype(dtype).itemsize)
            arrays.append(np.frombuffer(data, dtype=dtype).reshape(shape))
    return header, arrays


def _exactly(stream: IO[bytes], length: int) -> bytes:
    data = stream.read(length)
    if len(data) != length:
        raise EOFError("the pipe was closed")
    return data


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answers requests until the pipe is closed."""
    model = InlineModel()

    def layout(header: dict[str, Any]) -> list[tuple[Any, Any]]:
        rows = header["trials"][0]
        return [(np.float32, header["trials"]), (np.float64, (rows,)), (np.float32, header["pool"])]

    while True:
        try:
            header, (trials, log_s, pool) = _read(requests, layout)
        except EOFError:
            return
        try:
            scores = model.score(trials, log_s, pool, header["seed"])
        except Exception as error:
            _write(answers, {"error": f"{type(error).__name__}: {error}"}, ())
        else:
            _write(answers, {}, (np.array(scores, dtype=np.float64),))


if __name__ == "__main__":
    # Below the kernels that are being timed beside it.
    with contextlib.suppress(OSError):
        os.nice(10)
    serve(sys.stdin.buffer, sys.stdout.buffer)
