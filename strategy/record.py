"""Types of the wire and the disk (jobs, leases, results, runs), and their codec.

Every type is a frozen value with a JSON form. `decode` validates it and names the field at fault; nothing is ever
evaluated. Times are in seconds, instants are Unix times, ids are integers assigned by the service.
"""
# Over 300 lines: all types of the wire, and their one codec.

from __future__ import annotations

import re
import statistics
from abc import ABC
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from strategy.condition import SpecializedCondition
from strategy.op_strategy import Candidate
from strategy.space import Config, ConfigSpace
from strategy.table import html_table, show_number, time_cells
from strategy.target import Target
from strategy.workload import Workload
from strategy.workload_text import EXAMPLE, parse_workload

T = TypeVar("T")
LONGEST_NAME = 200
Name = Annotated[str, Meta(min_length=1, max_length=LONGEST_NAME)]
Tuner = Literal["model", "random"]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Sample = Annotated[float, Meta(gt=0, le=1e9)]  # seconds of a call; the sum of 10,000 is finite
Instant = Annotated[float, Meta(ge=0, lt=253_402_300_800)]  # seconds since 1970, before the year 10,000
Count = Annotated[int, Meta(ge=0, le=2**53)]
Id = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]  # the id of a row, within the database's integers


class WireError(ValueError):
    """Bytes or JSON are not of the expected type; the message names the field."""


class ErrorKind(StrEnum):
    """The reason why a configuration has no time. A failure has no cost."""

    INVALID = "invalid"  # not in its space, or refused by a check before building
    INSTANTIATION = "instantiation"  # compute or schedule raised
    COMPILE = "compile"
    RUNTIME = "runtime"
    CRASH = "crash"  # the child process died
    OOM = "oom"
    WRONG_ANSWER = "wrong_answer"
    OUT_OF_BOUNDS = "out_of_bounds"  # the code accesses memory outside of its buffers
    IMPLAUSIBLE = "implausible"  # faster than the device's peak, so the clock is broken
    BUILD_TIMEOUT = "build_timeout"
    RUN_TIMEOUT = "run_timeout"
    LOST = "lost"  # its worker never reported
    CANCELLED = "cancelled"


# Failures that also invalidate earlier times of the same configuration.
REFUTING = (ErrorKind.WRONG_ANSWER, ErrorKind.OUT_OF_BOUNDS)
# Failures of a target's code before any device runs it, which hold for all device models of the target. A crash, a
# limit of memory or of time may be one host's.
UNBUILDABLE = (ErrorKind.INVALID, ErrorKind.INSTANTIATION, ErrorKind.COMPILE)
# Failures that are not caused by the configuration.
BY_CHANCE = (ErrorKind.CANCELLED, ErrorKind.IMPLAUSIBLE)


class Phase(StrEnum):
    SEARCH = "search"
    CONFIRM = "confirm"  # finals, interleaved; preferred by selection
    REFERENCE = "reference"


class TimingPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """A timing policy of one configuration.

    A repeat calls the kernel for `min_repeat_s` and gives one sample, the mean of its calls. Repeats end when the 95 %
    interval of their median is within ± `spread` of it (after at least `min_repeats`), after `max_repeats`, or when
    the kernel's own calls have taken `budget_s`. Stalls of the host do not count, up to ten times the budget.

    With `cache_flush`, all buffers of a CPU kernel but its first argument are evicted from the caches before each call.
    GPU kernels always run with cold caches.
    """

    warmup_s: Annotated[float, Meta(ge=0, le=60)] = 0.002
    min_repeat_s: Annotated[float, Meta(gt=0, le=60)] = 0.002
    min_repeats: Annotated[int, Meta(ge=1, le=10_000)] = 6
    max_repeats: Annotated[int, Meta(ge=1, le=10_000)] = 60
    spread: Annotated[float, Meta(gt=0, le=1)] = 0.02
    budget_s: Annotated[float, Meta(gt=0, le=3600)] = 0.06
    # Timing is abandoned early if the first repeats are this many times slower than the best of the task so far;
    # None: never.
    give_up_ratio: Annotated[float, Meta(gt=1)] | None = None
    # Repeats also end once the interval is bounded, and above this multiple of that of the session's fastest kernel.
    beaten_ratio: Annotated[float, Meta(gt=1)] | None = None
    build_timeout_s: Annotated[float, Meta(gt=0, le=3600)] = 30.0
    run_timeout_s: Annotated[float, Meta(gt=0, le=3600)] = 30.0
    cache_flush: bool = False


SEARCH_POLICY = TimingPolicy(give_up_ratio=2.0)
CONFIRM_POLICY = TimingPolicy(min_repeats=20, max_repeats=200, spread=0.01, budget_s=0.6, beaten_ratio=1.1)


# Fewer samples have no interval of the median at 95 %.
LEAST_SAMPLES = 6
# An interval within this share of the median on both sides is bounded; a wider one is noise.
BOUND = 0.015


class Estimate(msgspec.Struct, frozen=True):
    """A robust cost: the median of pooled samples and its 95 % interval, in seconds.

    Fewer than six samples have no such interval: `low_s` and `high_s` are then their range.
    """

    median_s: float
    low_s: float
    high_s: float
    samples: int

    @property
    def spread(self) -> float | None:
        """Half the interval as a share of the median; None if there are too few samples."""
        if self.samples < LEAST_SAMPLES:
            return None
        return (self.high_s - self.low_s) / 2 / self.median_s

    @property
    def is_bounded(self) -> bool:
        """True if there is an interval, within `BOUND` of the median at both ends."""
        widest = max(self.high_s - self.median_s, self.median_s - self.low_s)
        return self.samples >= LEAST_SAMPLES and widest <= BOUND * self.median_s

    @property
    def judged(self) -> Estimate:
        """The estimate for comparisons: itself if it is bounded, else its upper end.

        So noise never favours an implementation.
        """
        if self.is_bounded:
            return self
        return Estimate(self.high_s, self.high_s, self.high_s, self.samples)

    def show_spread(self) -> str:
        """`±1.2%`, or the number of samples if they are too few for an interval.

        `up to 4.1×` if the interval ends that far above the median: a time is above 0, so that none is ±150 %.
        """
        if self.spread is None:
            return show_number(self.samples, "sample")
        if self.high_s > 2 * self.median_s:
            return f"up to {self.high_s / self.median_s:.3g}×"
        return f"±{self.spread:.1%}"


def _check_integers(field: str, value: Any) -> None:
    """Raise `ValueError` for an integer that neither JSON's readers nor a database take."""
    if isinstance(value, dict):
        for inner in value.values():
            _check_integers(field, inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            _check_integers(field, inner)
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError(f"{field}: {str(value)[:40]} is beyond 64 bits")


def estimate(samples_s: Sequence[float]) -> Estimate:
    """The median of samples with its distribution-free 95 % interval (order statistics).

    Fewer than six samples have none but their range, which encloses the median in 50 % of cases for two of them,
    75 % for three, 88 % for four and 94 % for five.
    """
    ordered = sorted(samples_s)
    n = len(ordered)
    if n == 0:
        raise ValueError("an estimate needs at least one sample")
    rank = _interval_rank(n)
    return Estimate(statistics.median(ordered), ordered[rank], ordered[n - 1 - rank], n)


@cache
def _interval_rank(n: int) -> int:
    """The greatest rank, from 0, such that it and its mirror image enclose the median at 95 %."""
    if n > 2000:
        return int(n / 2 - 0.98 * n**0.5) - 1
    # The samples below the median are Binomial(n, ½): each tail is at most 2.5 % of 2**n.
    rank, tail, term = -1, 0, 1
    while 40 * (tail + term) <= 2**n:
        rank, tail, term = rank + 1, tail + term, term * (n - rank - 1) // (rank + 2)
    return max(rank, 0)


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """A device of a worker. `identity` (machine and slot) stays the same across restarts."""

    identity: Name  # 3f2a…/cpu:0-1
    slot: Name  # cpu:0-1, cuda:0
    model: Annotated[str, Meta(max_length=500)]  # AMD EPYC 9B45, NVIDIA H200
    target: Target
    fingerprint: dict[str, Any] = {}  # cores, caches, features …

    def __post_init__(self) -> None:
        _check_integers("fingerprint", self.fingerprint)


ALL = "*"


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's description of itself when it registers."""

    name: Name
    host: str
    pid: int
    devices: Annotated[tuple[Device, ...], Meta(min_length=1, max_length=64)]
    # Operator → implementation → version that it can build. The implementation `ALL` stands for those of the operator
    # that are not listed, in any version; no operators at all: everything.
    operators: dict[str, dict[str, Id]] = {}
    version: str = ""


class Registered(msgspec.Struct, frozen=True, kw_only=True):
    """The service's answer to a registration."""

    worker_id: int
    heartbeat_s: float
    lease_s: float


class JobEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One configuration to build and time. `index` identifies it within the job."""

    index: Count
    task_id: int
    implementation: Name
    version: Name
    config: Config
    best_s: float | None = None  # the best median of its task so far, for `give_up_ratio`


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """Configurations of one workload on one target, built and timed in one session on one device."""

    id: int
    run_id: int
    workload: Workload
    target: Target
    phase: Phase
    entries: tuple[JobEntry, ...]
    policy: TimingPolicy
    seed: int  # the seed of the random inputs
    attempt: int = 1


class LeaseRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for jobs for one device, for which the service waits up to `wait_s`."""

    worker_id: Id
    device: Name
    wait_s: Annotated[float, Meta(ge=0, le=60)] = 0.0
    jobs: Annotated[int, Meta(ge=1, le=64)] = 1  # maximum number of prefetched jobs, including those being built


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """The right to a job until it expires. Every later call for it must carry the `token`."""

    id: int
    token: int
    expires_in_s: float
    job: Job


class Leases(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a `LeaseRequest`, empty if no job became available in time."""

    leases: tuple[Lease, ...] = ()


class Renewal(msgspec.Struct, frozen=True, kw_only=True):
    """A renewal of a lease. `timing` requests that it becomes the device's timing lease.

    A worker builds under one lease while it times under another; a device has at most one timing lease.
    """

    token: Id
    timing: bool = False


class Renewed(msgspec.Struct, frozen=True, kw_only=True):
    expires_in_s: float
    cancelled: bool = False  # the run was cancelled: stop, and report finished results


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one entry of a job. Either `error` is set or there are samples."""

    entry: Count
    error: ErrorKind | None = None
    message: Annotated[str, Meta(max_length=20_000)] = ""
    samples_s: Annotated[tuple[Sample, ...], Meta(max_length=10_000)] = ()
    prepare_s: Seconds | None = None  # packing the constant inputs, once
    build_s: Seconds = 0.0
    check_s: Seconds = 0.0
    run_s: Seconds = 0.0  # time that the device spent on this entry
    code_digest: str = ""
    measured_at: Instant = 0.0
    # Drift of the host over the batch, if above the limit in both attempts: the time is noisy.
    drift: Seconds | None = None

    def __post_init__(self) -> None:
        if (self.error is None) == (not self.samples_s):
            raise ValueError("samples_s, error: a result has exactly one of them")


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """Times of the calibration kernel before or after a batch, and the state of the host then."""

    samples_s: Annotated[tuple[Sample, ...], Meta(min_length=1, max_length=1000)]
    measured_at: Instant
    state: dict[str, Any] = {}  # load, frequency, temperature, stolen time

    def __post_init__(self) -> None:
        _check_integers("state", self.state)


MOST_REFERENCES = 100


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """Results of a lease, in any number of parts; `done` with the last. Repetition changes nothing."""

    token: Id
    session: Name
    results: tuple[Result, ...]
    environment: dict[str, Any] = {}  # toolchain, driver, governor
    references: Annotated[tuple[Reference, ...], Meta(max_length=MOST_REFERENCES)] = ()
    done: bool = False

    def __post_init__(self) -> None:
        _check_integers("environment", self.environment)


class ResultsAccepted(msgspec.Struct, frozen=True, kw_only=True):
    accepted: int
    known: int
    cancelled: bool = False
    refused: int = 0  # implausible times among the accepted, stored as failures
    repeated: tuple[int, ...] = ()  # entries of the known, if others were accepted


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Results of one lease, as spooled by the worker and stored by the service."""

    lease_id: Id
    results: Results


class Reports(msgspec.Struct, frozen=True, kw_only=True):
    """Results of several leases in one request."""

    reports: Annotated[tuple[Report, ...], Meta(min_length=1, max_length=64)]


class Reported(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to the results of one lease; `problem` is the reason of a refusal."""

    lease_id: int
    accepted: ResultsAccepted | None = None
    problem: str = ""


class ReportsAnswered(msgspec.Struct, frozen=True, kw_only=True):
    """The answers to `Reports`, in order."""

    answers: tuple[Reported, ...]


if TYPE_CHECKING:
    AskedWorkload = Workload
else:

    class AskedWorkload(ABC):  # noqa: B024 - msgspec takes a Struct from an object only
        """A workload in a request: its object, or its text for `parse_workload`."""

    AskedWorkload.register(Workload)


class RunWorkload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A workload to tune, with its candidates if the service lacks the operator."""

    workload: AskedWorkload
    weight: Annotated[float, Meta(gt=0)] = 1.0
    candidates: tuple[Candidate, ...] | None = None


class RunRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request to tune, with its budget."""

    workloads: Annotated[tuple[RunWorkload, ...], Meta(min_length=1, max_length=1000)]
    target: Target
    trials: Annotated[int, Meta(ge=1, le=10_000_000)] = 128
    timeout_s: Annotated[float, Meta(gt=0)] | None = None
    # Stop when the expected gain of a trial is at most this share of the best time.
    until_gain: Annotated[float, Meta(gt=0, lt=1)] | None = None
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    tuner: Tuner = "model"
    implementations: tuple[str, ...] | None = None  # only these
    search_policy: TimingPolicy = SEARCH_POLICY
    confirm_policy: TimingPolicy = CONFIRM_POLICY
    force: bool = False  # tune even what is tuned enough
    priority: Annotated[int, Meta(ge=-10, le=10)] = 0  # the highest goes first; equals take turns
    max_jobs: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None  # maximum of concurrently leased jobs
    # The URL to which the final RunStatus is POSTed, if the service permits its host.
    webhook: Annotated[str, Meta(max_length=1000)] | None = None


class StoredWorkload(RunWorkload, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """A workload of a `StoredRequest`."""


class StoredRequest(RunRequest, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """A request on record. Fields of a newer plevel, which has stored it, are left out."""

    workloads: Annotated[tuple[StoredWorkload, ...], Meta(min_length=1, max_length=1000)]


class RunState(StrEnum):
    RUNNING = "running"
    CONFIRMING = "confirming"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


_TASK_COLUMNS = (
    "workload", "device model", "implementation", "plevel", "median", "95 %", "trials", "failed",
)


class ModelBest(msgspec.Struct, frozen=True, kw_only=True):
    """The best of a task on one device model, which is empty if unknown."""

    device_model: str
    best: Estimate
    best_config: Config
    confirmed: bool


class TaskStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of one task of a run. `best` is from its confirm samples, if any.

    It is on one device model, the same for all tasks of a workload; `models` has the best on each.
    """

    task_id: int
    workload: str
    implementation: str
    version: str
    plevel: int
    tunable: bool
    space_size: int | None = None
    trials: int = 0
    failed: int = 0
    best: Estimate | None = None
    best_config: Config | None = None
    confirmed: bool = False
    gflops: float | None = None
    failures: dict[str, int] = {}
    device_model: str = ""
    models: tuple[ModelBest, ...] = ()

    def _repr_html_(self) -> str:
        return html_table(f"task {self.task_id}", _TASK_COLUMNS, [(self._cells(), False)])

    def _cells(self) -> tuple[str, ...]:
        return (
            self.workload, self.device_model, self.implementation, str(self.plevel),
            *time_cells(self.best), str(self.trials), str(self.failed),
        )


class RunStatus(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    state: RunState
    target: Target
    trials: int
    trials_done: int
    created_at: float
    finished_at: float | None = None
    timing_s: float = 0.0  # part of the wall time that devices spent timing
    idle_s: float = 0.0  # part of it in interruptions: a minute or more in which no worker had a job of it
    workers: int = 0  # live workers for this target
    interrupted: bool = False  # its service has ended before it
    waiting: bool = False  # no live worker takes its jobs, for the reason in `message`
    message: str = ""  # the reason of its end, or what it is waiting for
    tasks: tuple[TaskStatus, ...] = ()

    def _repr_html_(self) -> str:
        said = f": {self.message}" if self.message else ""
        trials = f"{self.trials_done} of {show_number(self.trials, 'trial')}"
        head = f"run {self.id} is {self.state}, {trials}, on {self.target}{said}"
        fastest_first = sorted(
            self.tasks, key=lambda t: (t.workload, t.best.median_s if t.best else float("inf"))
        )
        return html_table(head, _TASK_COLUMNS, [(t._cells(), False) for t in fastest_first])


def _enc_hook(value: Any) -> Any:
    if isinstance(value, Target | Config | ConfigSpace | SpecializedCondition):
        return value.to_json()
    raise NotImplementedError(f"{type(value).__name__} has no JSON form")


_PARSERS: dict[Any, Callable[[Any], Any]] = {
    AskedWorkload: lambda data: (
        parse_workload(data) if isinstance(data, str) else convert(data, Workload)
    ),
    Target: Target.parse,
    Config: lambda data: (
        Config(data) if isinstance(data, dict) else _refuse("an object of knobs", data)
    ),
    ConfigSpace: ConfigSpace.from_json,
    SpecializedCondition: SpecializedCondition.from_json,
}


def _refuse(expected: str, data: Any) -> Any:
    raise ValueError(f"expected {expected}, got {data!r:.80}")


_NESTED = re.compile(r" - at `\$([^`]*)` - at `\$([^`]*)`\Z")


def _wire_error(error: Exception) -> WireError:
    """The error with a single path to the field, also if a part has a path of its own."""
    return WireError(_NESTED.sub(r" - at `$\2\1`", str(error)))


def _dec_hook(kind: type, data: Any) -> Any:
    parser = _PARSERS.get(kind)
    if parser is None:
        raise NotImplementedError(f"{kind} cannot be read from JSON")
    return parser(data)


_encoder = msgspec.json.Encoder(enc_hook=_enc_hook)


def encode(value: Any) -> bytes:
    """The JSON of a wire type."""
    return _encoder.encode(value)


def to_json(value: Any) -> Any:
    """As `encode`, in plain dicts, lists, numbers and strings."""
    return msgspec.to_builtins(value, enc_hook=_enc_hook)


_analysed: set[Any] = set()
_analysis = Lock()


def analyse(*kinds: Any) -> None:
    """Have msgspec look at types' fields in one thread: two at once, at their first use, crash the process.

    `decode` and `convert` do so; a module that calls msgspec itself, and may run in threads, calls this once it has
    defined its types.
    """
    for kind in kinds:
        if kind not in _analysed:
            with _analysis:
                msgspec.json.Decoder(kind, dec_hook=_dec_hook)
                _analysed.add(kind)


def decode(data: bytes | str, kind: type[T]) -> T:
    """Decode a wire type from JSON text; raise `WireError` with the field at fault."""
    analyse(kind)
    try:
        return msgspec.json.decode(data, type=kind, dec_hook=_dec_hook)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _wire_error(error) from error


def convert(data: Any, kind: type[T]) -> T:
    """Convert plain dicts and lists to a wire type; raise `WireError` as `decode` does.

    It serves for parts of a value, too: msgspec adds their path to errors that are not its own.
    """
    analyse(kind)
    try:
        return msgspec.convert(data, type=kind, dec_hook=_dec_hook)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _wire_error(error) from error


_COMPONENTS = "#/components/schemas/"


def json_schema(kinds: Sequence[Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """JSON schemas of wire types and their components, for OpenAPI."""
    shapes: dict[type, dict[str, Any]] = {
        AskedWorkload: {
            "description": "an object, or its text as plevel prints it",
            "oneOf": [{"$ref": f"{_COMPONENTS}Workload"}, {"type": "string", "examples": [EXAMPLE]}],
        },
        Target: {
            "description": "TVM's dict, or its text such as cpu",
            "oneOf": [
                {"type": "object"}, {"type": "string", "examples": ["llvm -mcpu=znver4 -num-cores=8"]}
            ],
        },
        Config: {"description": "knob names and their values", "type": "object"},
        ConfigSpace: {
            "description": "knobs, constraints, derived features, fallback",
            "type": "object",
        },
        SpecializedCondition: {
            "description": 'clauses: ["and", [">", "data.shape[0]", 16]]',
            "type": "array",
        },
    }
    schemas, components = msgspec.json.schema_components(
        [*kinds, Workload], schema_hook=lambda kind: shapes[kind], ref_template=f"{_COMPONENTS}{{name}}"
    )
    return list(schemas[:-1]), components
