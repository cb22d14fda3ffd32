"""A client of a plevel service: runs, selection, records and workers over HTTP."""
# Over 300 lines: a method for each endpoint.

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Self, TypeVar

import httpx
import msgspec

from strategy.confirmation import Confirmation
from strategy.op import find_op
from strategy.op_strategy import Candidate
from strategy.problem import kind_of
from strategy.record import RunRequest, RunState, RunStatus, TaskStatus, WireError, decode, to_json
from strategy.select import Evidence, Policy, Selection, SelectionError
from strategy.select.dispatch import DispatchTable
from strategy.select.lock import Lock
from strategy.target import Target
from strategy.workload import Workload
from strategy.workload_text import parse_workload
from workers.connection import ConnectionSettingError, certificate_fault, find_proxy, open_http

T = TypeVar("T")
_QUEUED = re.compile(r'^plevel_jobs_queued\{target="(.*)"\} (\S+)$', re.MULTILINE)
_Lists = dict[str, list[dict[str, Any]]]
_RECONNECT_S = 0.2
# Temporary: the service, its database or a proxy is expected to answer later.
BUSY = (429, 502, 503, 504)
_INVALID, _UNKNOWN = 422, re.compile(r"\bunknown (?:field|parameter)\b")
FINISHED = frozenset({RunState.DONE, RunState.FAILED, RunState.CANCELLED})


class UnreachableError(ConnectionError):
    """No service answers at the address."""


class ServiceError(RuntimeError):
    """The service refused a request: its problem document (RFC 9457).

    `status` is the HTTP status; `kind` the service's word for the error, empty where another program has answered;
    `errors` names the fields at fault where the service does.
    """

    def __init__(
        self, status: int, title: str, detail: str = "", errors: Sequence[Mapping[str, Any]] = (), kind: str = ""
    ) -> None:
        super().__init__(detail or title)
        self.status = status
        self.kind = kind
        self.title = title
        self.errors = tuple(errors)


class NoWorkerError(RuntimeError):
    """No live worker of the service serves the target; the message says which are alive, and what to do."""


class NoSelectionError(ServiceError, SelectionError):
    """No implementation is valid; also a `SelectionError`, which a local selection raises."""


class _Runs(msgspec.Struct):
    runs: tuple[RunStatus, ...]


class _Curve(msgspec.Struct):
    points: list[dict[str, Any]]


class _Page(msgspec.Struct):
    records: list[dict[str, Any]]
    next: int | None = None


class _Answer(msgspec.Struct):
    selection: Selection | None = None
    problem: dict[str, Any] | None = None


class _Answers(msgspec.Struct):
    answers: list[_Answer]


class Client:
    """A client of the service at `url`; a context manager that closes its connections.

    Idempotent calls are retried with back-off if the connection fails or the service is busy; others only if
    the request was certainly not received. For use by one thread; a forked process has connections of its own.

    Args:
        url: `http://host:port`.
        timeout_s: the time limit of one answer.
        patience_s: the time for which calls are retried while nothing answers.
        token: the token, if the service requires one.
        namespace: the namespace of all requests; default: the token's, else `default`.
        lock: the lock that answers `select` while the service is away or busy.
        transport: an HTTP transport instead of the network.

    Raises:
        UnreachableError: the URL, or a proxy or certificates that the environment names, cannot be used.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 30.0,
        patience_s: float = 3.0,
        token: str | None = None,
        namespace: str | None = None,
        lock: Lock | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise UnreachableError(f"url = {url!r:.120}: expected http://host:port")
        self.url = url.rstrip("/")
        self._patience_s = patience_s
        self._lock = lock
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self._open = partial(
            open_http, self.url, transport, timeout=timeout_s, headers=headers,
            params={} if namespace is None else {"namespace": namespace},
        )
        self._process = os.getpid()
        try:
            self._opened = self._open()
        except ConnectionSettingError as error:
            raise UnreachableError(str(error)) from error
        self._jitter = random.Random()

    @property
    def _http(self) -> httpx.Client:
        # Two processes that ask over one connection would get each other's answers.
        if self._process != os.getpid():
            self._opened, self._process = self._open(), os.getpid()
        return self._opened

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def is_ready(self) -> bool:
        """Return True if the service answers and can use its database; never raises or retries."""
        try:
            return self._http.get("/readyz").is_success
        except httpx.HTTPError:
            return False

    def create_run(self, request: RunRequest) -> RunStatus:
        """Request a run; if its workloads are tuned enough, it is done without new trials.

        Raises:
            ServiceError: the service refuses the request; the message names the field.
        """
        return self._ask("POST", "/v1/runs", RunStatus, json=to_json(request), again=False)

    def run(self, run_id: int) -> RunStatus:
        return self._ask("GET", f"/v1/runs/{run_id}", RunStatus)

    def runs(self, limit: int = 20, **wanted: Any) -> tuple[RunStatus, ...]:
        """The latest runs, the newest first.

        `wanted` names filters of `GET /v1/runs`: `state` (`live` for running and confirming), `op`, `implementation`,
        `target`, `workload` as text, `workload_has`; with `cursor`, the runs before that one.
        """
        return self._ask("GET", "/v1/runs", _Runs, params={"limit": limit, **_given(wanted)}).runs

    def cancel(self, run_id: int) -> RunStatus:
        """Stop a run; its measurements are kept."""
        return self._ask("POST", f"/v1/runs/{run_id}/cancel", RunStatus)

    def follow(self, run_id: int) -> Iterator[RunStatus]:
        """Yield the run's status at each change, last when it has ended.

        Reconnects if the stream breaks.

        Raises:
            UnreachableError: the service has been away for longer than this client's patience.
        """
        while True:
            status = self.run(run_id)
            yield status
            if status.state in FINISHED:
                return
            try:
                for status in self._events(run_id):
                    yield status
                    if status.state in FINISHED:
                        return
            except httpx.RequestError:
                pass
            time.sleep(_RECONNECT_S)

    def _events(self, run_id: int) -> Iterator[RunStatus]:
        timeout = httpx.Timeout(30.0, read=60.0)
        with self._http.stream("GET", f"/v1/runs/{run_id}/events", timeout=timeout) as response:
            if response.status_code in BUSY:
                return
            if not response.is_success:
                response.read()
                raise problem_of(response)
            data: list[str] = []
            for line in response.iter_lines():
                if line.startswith("data:"):
                    data.append(line[5:].removeprefix(" "))
                elif not line and data:
                    yield self._read("\n".join(data), RunStatus, response)
                    data.clear()

    def select(
        self,
        workload: Workload | str,
        target: Target | str,
        *,
        device: str | None = None,
        candidates: Sequence[Candidate] | None = None,
        policy: Policy = "plevel",
        foreign: bool = False,
    ) -> Selection:
        """Select an implementation and a configuration, with the reason.

        A workload may be its text, a target one of TVM's. `foreign` adds imported implementations of
        other tools (`autotvm:…`); the policy `tvm` always does. If the service is away, or busy for longer than this
        client's patience, the client's lock answers, by plevel's rule, and the explanation names its entry.

        Raises:
            ServiceError: no implementation is valid for the workload on the target, or the request is malformed.
        """
        body = _given({
            "workload": workload, "target": target, "policy": policy, "device": device, "foreign": foreign or None,
            "candidates": candidates and list(candidates),
        })
        try:
            return self._ask("POST", "/v1/select", Selection, json=to_json(body))
        except (UnreachableError, ServiceError) as error:
            status = error.status if isinstance(error, ServiceError) else None
            if self._lock is None or policy != "plevel" or status not in (None, *BUSY):
                raise
            try:
                asked = Target.parse(target) if isinstance(target, str) else target
                return self._lock.select(_read_workload(workload), asked).selection(asked)
            except SelectionError as missing:
                away = f"no service answers at {self.url}" if status is None else f"{self.url} answers {status}"
                raise UnreachableError(f"{away}, and {missing}") from missing

    def evidence(
        self, workload: Workload | str, target: Target | str, device: str | None = None
    ) -> Evidence:
        """Return the measurements behind a selection, for clients that apply the rule themselves."""
        body = {"workload": workload, "target": target, "device": device}
        return self._ask("POST", "/v1/evidence", Evidence, json=to_json(body))

    def dispatch(
        self, workload: Workload | str, target: Target | str, *, device: str | None = None
    ) -> DispatchTable:
        """The dispatch table of a workload with symbolic dimensions; raises as `select` does."""
        body = _given({"workload": workload, "target": target, "device": device})
        return self._ask("POST", "/v1/dispatch", DispatchTable, json=to_json(body))

    def records(
        self,
        *,
        op: str | None = None,
        implementation: str | None = None,
        source: str | None = None,
        run_id: int | None = None,
        task_id: int | None = None,
        workload_has: str | None = None,
        phase: str | None = None,
        error: str | None = None,
        limit: int = 100,
        cursor: int = 0,
        newest: bool = False,
    ) -> dict[str, Any]:
        """One page of the log: `records`, and `next`, the cursor of the following page, if there is one.

        The oldest records come first, or the `newest`. If matches are rare, a page may be empty and have a
        `next`.
        """
        params = _given({
            "op": op, "implementation": implementation, "source": source, "run_id": run_id,
            "task_id": task_id, "workload_has": workload_has, "phase": phase, "error": error, "limit": limit,
            "cursor": cursor, "newest": newest or None,
        })
        page = self._ask("GET", "/v1/records", _Page, params=params)
        return {"records": page.records, "next": page.next}

    def select_many(
        self,
        questions: Iterable[tuple[Workload | str, Target | str]],
        *,
        device: str | None = None,
        policy: Policy = "plevel",
        foreign: bool = False,
    ) -> list[Selection | ServiceError]:
        """Select for many workloads, from the records of one moment, in their order.

        A workload without a selection has its error in its place. At most 10,000 per call.
        """
        asked = [
            {"workload": w, "target": t, "device": device, "policy": policy, "foreign": foreign}
            for w, t in questions
        ]
        body = to_json({"requests": asked})
        found = self._ask("POST", "/v1/select:batch", _Answers, json=body)
        return [a.selection or _refusal(a.problem or {}) for a in found.answers]

    def foreign_best(
        self,
        tool: str,
        workload: Workload | str,
        *,
        device_model: str = "",
        architecture: str = "",
        version: str | None = None,
        limit: int = 5,
        failures: bool = False,
    ) -> dict[str, Any]:
        """At most `limit` best known configurations of another tool's kernel, and as many `failed` if asked for.

        A device of the same model comes first, then of the same architecture, then others; of one model the fastest,
        then winners without a time. `version`, a digest of the kernel's source, excludes other sources.
        """
        params = _given({
            "workload": str(workload), "device_model": device_model or None, "architecture": architecture or None,
            "version": version or None, "limit": limit, "failures": failures,
        })
        return self._ask("GET", f"/v1/foreign/{tool}/best", dict[str, Any], params=params)

    def foreign_best_many(
        self, tool: str, questions: Iterable[Mapping[str, Any]]
    ) -> list[dict[str, Any]]:
        """As `foreign_best`, for many: each question is a mapping of its arguments.

        The limits of all questions sum up to at most 1000.
        """
        body = to_json({"requests": list(questions)})
        path = f"/v1/foreign/{tool}/best:batch"
        return self._ask("POST", path, _Lists, json=body)["answers"]

    def iter_foreign_problems(
        self, tool: str, kernel: str, **asked: Any
    ) -> Iterator[dict[str, Any]]:
        """Yield the answer for each problem of a kernel, the newest first: as `foreign_best`, and its `workload`.

        `asked` are arguments of `foreign_best`. The answers are those of the likest device that has any.
        """
        wanted = {"kernel": kernel, "limit": 5, **asked}
        return self._pages(f"/v1/foreign/{tool}/problems", "problems", wanted, first=None)

    def iter_foreign(self, tool: str, **wanted: Any) -> Iterator[dict[str, Any]]:
        """Yield the kernels of a tool, the newest first, each with its best and its candidates' spread.

        `wanted` names filters: `kernel`, `device_model`; and `limit`, the kernels of one page.
        """
        return self._pages(f"/v1/foreign/{tool}/list", "kernels", wanted, first=None)

    def iter_records(self, **wanted: Any) -> Iterator[dict[str, Any]]:
        """Yield the matching records in the order of arrival, page by page.

        `wanted` names filters of `GET /v1/records`: `op`, `implementation`, `target`, `workload` as text,
        `workload_has`, `device`, `worker`, `source`, `run_id`, `task_id`, `phase`, `error`, `since`, `until`;
        `newest=True` yields the newest first.
        """
        return self._pages("/v1/records", "records", wanted)

    def iter_best(self, **wanted: Any) -> Iterator[dict[str, Any]]:
        """Yield the best of each task that matches, by `scope`: device, model, and target.

        `wanted` names filters of `GET /v1/records/best`: `op`, `implementation`, `target`, `workload` as text,
        `workload_has`, `scope`.
        """
        return self._pages("/v1/records/best", "best", wanted)

    def iter_coverage(self, **wanted: Any) -> Iterator[dict[str, Any]]:
        """Yield the tuning state of each task that matches: trials, budget, best, stale or not.

        `wanted` names filters of `GET /v1/coverage`: `op`, `implementation`, `target`, `workload` as text,
        `workload_has`.
        """
        return self._pages("/v1/coverage", "tasks", wanted)

    def _pages(
        self, path: str, of: str, wanted: Mapping[str, Any], first: int | None = 0
    ) -> Iterator[dict[str, Any]]:
        params = {"limit": 500, **_given({**wanted, "cursor": first})}
        while True:
            page = self._ask("GET", path, dict[str, Any], params=params)
            yield from page[of]
            if page["next"] is None:
                return
            params["cursor"] = page["next"]

    def curve(self, task_id: int, device_model: str | None = None) -> list[dict[str, Any]]:
        """The trials of a task's search that improved on all previous ones of one device model.

        By default the one by which the task is ranked. Each has `trial`, `median_s`, `recorded_at`, `device_model`.
        """
        params = _given({"device_model": device_model})
        return self._ask("GET", f"/v1/tasks/{task_id}/curve", _Curve, params=params).points

    def import_records(
        self,
        parts: Iterable[bytes],
        *,
        name: str = "",
        target: str | None = None,
        device_model: str = "",
        put_aside: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> dict[str, Any]:
        """Stream a tuning log to the service; return the summary of its import.

        Args:
            parts: the content of the file, in pieces.
            name: the file's name, which helps to detect the format.
            target: the target of a file that names only a device, or none.
            device_model: the device model of a file that names none, as Triton's.
            put_aside: called with each of the first 10,000 rejected entries: `line`, `reason`,
                `detail`, `text`.

        Raises:
            ServiceError: the format is not known.
            UnreachableError: nobody answers, or the service has ended meanwhile, which may have stored a part.
        """
        rejects = 0 if put_aside is None else 10_000
        given = {"name": name, "rejects": rejects, "target": target, "device_model": device_model or None}
        timeout = httpx.Timeout(30.0, read=None)
        try:
            summary = self._ask(
                "POST", "/v1/records:import", dict[str, Any], again=False, content=parts, params=_given(given),
                timeout=timeout,
            )
        except UnreachableError as error:
            if isinstance(error.__cause__, httpx.ConnectError | httpx.ConnectTimeout):  # nothing was sent
                raise
            raise UnreachableError(f"{error}; what was stored stays, and the same import adds the rest") from error
        for found in summary.pop("rejects", ()):
            if put_aside is not None:
                put_aside(found)
        return summary

    def export_records(self, form: str, **wanted: Any) -> Iterator[bytes]:
        """Yield the matching records in one of the formats, in pieces; `wanted` names filters."""
        params = {"format": form, **_given(wanted)}
        try:
            with self._http.stream(
                "GET", "/v1/records:export", params=params, timeout=httpx.Timeout(30.0, read=None)
            ) as response:
                if not response.is_success:
                    response.read()
                    raise problem_of(response)
                yield from response.iter_bytes()
        except httpx.ConnectError as error:
            raise self._unreachable(error) from error
        except httpx.RequestError as error:
            raise UnreachableError(
                f"{self.url} stopped answering ({str(error) or type(error).__name__}): the export "
                "is incomplete, repeat it"
            ) from error

    def task(self, task_id: int) -> TaskStatus:
        """A task over all runs."""
        return self._ask("GET", f"/v1/tasks/{task_id}", TaskStatus)

    def workers(self) -> list[dict[str, Any]]:
        """The registered workers, with their devices and the times of their last heartbeats."""
        return self._list("/v1/workers")

    def backlog(self) -> dict[str, int]:
        """The number of queued jobs by the key of their target, where there are any."""
        text = self._send("GET", "/metrics").text
        counts = {key: int(float(count)) for key, count in _QUEUED.findall(text)}
        return {key: count for key, count in counts.items() if count}

    def record_network(self, confirmation: Confirmation) -> int:
        """Record the verdict on a network's kernels, in place of an earlier one of its key; return its id."""
        body = to_json(confirmation)
        return int(self._ask("POST", "/v1/networks", dict[str, int], json=body)["id"])

    def networks(self, limit: int = 20, **wanted: Any) -> list[dict[str, Any]]:
        """The newest confirmations of networks; `wanted` names a `graph` or a `device_model`."""
        params = {"limit": limit, **_given(wanted)}
        found: list[dict[str, Any]] = self._ask("GET", "/v1/networks", dict[str, Any], params=params)["networks"]
        return found

    def network(self, network_id: int) -> dict[str, Any]:
        """One confirmation of a network."""
        return self._ask("GET", f"/v1/networks/{network_id}", dict[str, Any])

    def models(self) -> list[dict[str, Any]]:
        """The cost models with their accuracy, the newest first."""
        return self._list("/v1/models")

    def model(self, model_id: int) -> dict[str, Any]:
        """Return a cost model's training data and accuracy."""
        return self._ask("GET", f"/v1/models/{model_id}", dict[str, Any])

    def train_model(self, op: str, target: Target) -> dict[str, Any]:
        """Request training of a cost model once no run is live; return its `records` and `workloads`.

        Raises:
            ServiceError: there are too few records of the operator on the target.
        """
        body = to_json({"op": op, "target": target})
        return self._ask("POST", "/v1/models", dict[str, Any], json=body)

    def why(self, job_id: int) -> dict[str, Any]:
        """Explain a job's place in the queue: its `state`, and the `reasons`."""
        return self._ask("GET", f"/v1/jobs/{job_id}/why", dict[str, Any])

    def pauses(self) -> list[dict[str, Any]]:
        """Current and future pauses."""
        return self._list("/v1/pauses")

    def pause(self, reason: str, **place: Any) -> dict[str, Any]:
        """Pause a `device` or a `target` from `starts_at` to `ends_at`; running jobs finish."""
        return self._ask(
            "POST", "/v1/pauses", dict[str, Any], json={"reason": reason, **place}, again=False
        )

    def resume(self, pause_id: int) -> None:
        """End a pause."""
        self._send("DELETE", f"/v1/pauses/{pause_id}")

    def rename_device(self, old: str, new: str) -> None:
        """Transfer a device's history to another identity."""
        self._send("POST", "/v1/devices:rename", json={"old": old, "new": new}, again=False)

    def move_device(self, device: str, token: str) -> None:
        """Transfer a device to the tokens of a name."""
        self._send("POST", "/v1/devices:move", json={"device": device, "token": token})

    def create_token(
        self,
        name: str,
        scopes: Sequence[str],
        expires_in_s: float | None = None,
        namespace: str | None = None,
    ) -> dict[str, Any]:
        """Create a token for one namespace or for all; return its `id` and `secret`, which is not shown again."""
        body = {
            "name": name, "scopes": scopes, "expires_in_s": expires_in_s, "namespace": namespace,
        }
        return self._ask("POST", "/v1/tokens", dict[str, Any], json=body, again=False)

    def tokens(self) -> list[dict[str, Any]]:
        """The tokens without their secrets, the newest first."""
        return self._list("/v1/tokens")

    def revoke_token(self, token_id: int) -> None:
        """Revoke a token."""
        self._send("DELETE", f"/v1/tokens/{token_id}")

    def audit(self, limit: int = 100) -> list[dict[str, Any]]:
        """The audit log of changes, the newest first: `at`, `actor`, `action`, `detail`."""
        return self._ask("GET", "/v1/audit", _Lists, params={"limit": limit})["entries"]

    def _list(self, path: str) -> list[dict[str, Any]]:
        return self._ask("GET", path, _Lists)[path.rpartition("/")[2]]

    def _ask(self, method: str, path: str, kind: type[T], **options: Any) -> T:
        response = self._send(method, path, **options)
        return self._read(response.content, kind, response)

    def _read(self, data: bytes | str, kind: type[T], response: httpx.Response) -> T:
        try:
            return decode(data, kind)
        except WireError as error:
            raise ServiceError(
                response.status_code,
                "unexpected answer",
                f"{response.request.url} sent an unexpected answer ({error}): check that it is a plevel "
                "service of this version",
            ) from error

    def _send(
        self, method: str, path: str, *, again: bool = True, **options: Any
    ) -> httpx.Response:
        give_up = time.monotonic() + self._patience_s
        pause_s = 0.05
        while True:
            try:
                response = self._http.request(method, path, **options)
            except httpx.RequestError as error:
                # Without a connection nothing was sent: any call may be retried.
                lost = not again and not isinstance(error, httpx.ConnectError)
                if lost or time.monotonic() + pause_s > give_up:
                    raise self._unreachable(error) from error
            else:
                if response.status_code not in BUSY or not again:
                    break
                if time.monotonic() + pause_s > give_up:
                    break
            time.sleep(pause_s * (0.5 + self._jitter.random()))
            pause_s = min(1.0, 2 * pause_s)
        if not response.is_success:
            raise problem_of(response)
        return response

    def _unreachable(self, error: Exception) -> UnreachableError:
        said = str(error) or type(error).__name__
        if (fault := certificate_fault(self.url, said)) is not None:
            return UnreachableError(fault)
        if "WRONG_VERSION_NUMBER" in said or "record layer failure" in said:  # as OpenSSL calls plain text
            return UnreachableError(f"{self.url} answers without TLS ({said}): write http:// in its URL")
        if isinstance(error, httpx.RemoteProtocolError) and self.url.startswith("http://"):
            said += "; if it has a certificate, write https:// in its URL"
        if proxy := find_proxy(self.url):
            said += f"; it was asked by the proxy {proxy}, which NO_PROXY may except it from"
        return UnreachableError(
            f"no service answers at {self.url} ({said}): start one with 'plevel serve', or correct its URL"
        )


def problem_of(response: httpx.Response) -> ServiceError:
    try:
        body = msgspec.json.decode(response.content)
    except msgspec.DecodeError:
        body = None
    if not isinstance(body, dict) or "title" not in body:
        text = response.text.strip().partition("\n")[0]
        detail = (
            f"{response.request.url} is no plevel service, check the URL: it answered {response.status_code}: "
            f"{text:.200}"
        )
        return ServiceError(response.status_code, response.reason_phrase, detail)
    if response.status_code == _INVALID and _UNKNOWN.search(detail := str(body.get("detail", ""))):
        body["detail"] = f"{detail}; if it is spelt right, the service is of an older plevel than this one: upgrade it"
    return _refusal({**body, "status": response.status_code})


def _given(asked: Mapping[str, Any]) -> dict[str, Any]:
    """A request's parameters or fields that have a value."""
    return {name: value for name, value in asked.items() if value is not None}


def _read_workload(asked: Workload | str) -> Workload:
    """The workload in normal form, as a service reads it."""
    found = parse_workload(asked) if isinstance(asked, str) else asked
    return found if find_op(found.op) is None else found.checked()


def _refusal(problem: Mapping[str, Any]) -> ServiceError:
    errors = problem.get("errors")
    kind = kind_of(problem)
    return (NoSelectionError if kind == "no-selection" else ServiceError)(
        int(problem.get("status", 0)),
        str(problem.get("title", "")),
        str(problem.get("detail", "")),
        [e for e in errors if isinstance(e, dict)] if isinstance(errors, list) else (),
        kind,
    )
