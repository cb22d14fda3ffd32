"""The worker's HTTP client, which retries while the service is unreachable."""

from __future__ import annotations

import logging
import random
import re
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import httpx
import msgspec

from strategy.problem import kind_of
from strategy.record import (
    Lease,
    LeaseRequest,
    Leases,
    Registered,
    Renewal,
    Renewed,
    Report,
    ResultsAccepted,
    WireError,
    WorkerInfo,
    decode,
    encode,
)
from workers.connection import certificate_fault, open_http

T = TypeVar("T")
log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 30.0
ANSWER_S = 30.0
_RETRIED = frozenset({408, 425, 429})
_UNAUTHORIZED, _NOT_IMPLEMENTED = 401, 501
# Statuses of a lost lease, an unknown worker or a refused one, and of a proxy that finds no service, asks who it is, or
# finds a body, an address or headers too large.
_OF_PROXIES = frozenset({403, 404, 407, 409, 410, 413, 414, 431})
_OF_LEASES = "/v1/leases/"
_BY_PROXY = "no plevel service says so: check the proxies on the way to it"


class ServiceError(Exception):
    """The service refused a request; the message is the service's."""


class AnswerError(ServiceError):
    """The service sent an answer of fields that this version cannot read."""


class UnreachableError(ServiceError):
    """The service did not answer."""


class FailedRequestError(UnreachableError):
    """A request failed on its way or at the service, maybe for what it holds: others may be accepted."""


class FaultError(FailedRequestError):
    """The service says that it failed by a defect of its own, most likely over what the request holds."""


class UnavailableError(FailedRequestError):
    """The service says that it cannot answer now, as while its database is away: the same request may be accepted."""


class UntrustedError(UnreachableError):
    """The service's certificate is not accepted."""


class UnauthorizedError(ServiceError):
    """The service does not know this worker's token, such as one that has expired."""


class LeaseLostError(ServiceError):
    """The lease has expired or belongs to another worker: its results are not accepted."""


class DeviceBusyError(ServiceError):
    """Another lease of the device is still its timing lease; this one is kept."""


class UnknownWorkerError(ServiceError):
    """The service does not know this worker, which must register again."""


class StoppedError(Exception):
    """The caller asked to stop while waiting for the service."""


class Client:
    """A client of the service. Thread-safe.

    Calls that may wait are retried with back-off until the service answers or `stop` is set.

    Args:
        url: the service, without `/v1`.
        stop: ends the retries.
        token: reads the token, at first and wherever the service refuses it, as it may be replaced; None if the service
            requires none. An `OSError` of a later reading means that there is no other one yet.
        rng: for jitter of the back-off.
        transport: a replacement of the network, for tests.

    Raises:
        ConnectionSettingError: the URL, or a proxy or certificates that the environment names, cannot be used.
    """

    def __init__(
        self,
        url: str,
        stop: threading.Event,
        token: Callable[[], str | None] | None = None,
        *,
        rng: random.Random | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self.shown = re.sub(r"(?<=://)[^/@]*@", "", self.url)  # without a password, for messages
        self._stop = stop
        self._rng = rng or random.Random()
        self._token = token or (lambda: None)
        headers = {"accept": "application/json", **_authorization(self._token())}
        self._http = open_http(self.url, transport, headers=headers)

    def register(self, info: WorkerInfo, patience_s: float | None = None) -> Registered:
        """Register; raise `UnreachableError` after `patience_s`, never if None."""
        return self._keep_trying(
            lambda: self._ask("/v1/workers", info, Registered), patience_s
        )

    def heartbeat(self, worker_id: int, timeout_s: float = ANSWER_S) -> None:
        """Send one heartbeat; raise `UnknownWorkerError` if the service does not know this worker."""
        self._send("POST", f"/v1/workers/{worker_id}/heartbeat", {}, timeout_s)

    def deregister(self, worker_id: int) -> None:
        """Unregister, in one attempt; the service releases the worker's leases."""
        self._send("DELETE", f"/v1/workers/{worker_id}")

    def lease(self, request: LeaseRequest) -> tuple[Lease, ...]:
        """Wait up to `request.wait_s` for a job, and indefinitely for the service."""
        answer = self._keep_trying(
            lambda: self._ask("/v1/leases", request, Leases, request.wait_s + ANSWER_S)
        )
        return answer.leases

    def renew(self, lease: Lease, timing: bool = False, timeout_s: float = ANSWER_S) -> Renewed:
        """Renew a lease, in one attempt; raise `LeaseLostError`, or `DeviceBusyError` if `timing` must wait."""
        renewal = Renewal(token=lease.token, timing=timing)
        return self._ask(f"/v1/leases/{lease.id}/renew", renewal, Renewed, timeout_s)

    def release(self, lease: Lease) -> None:
        """Release a job, in one attempt."""
        self._send("POST", f"/v1/leases/{lease.id}/release", Renewal(token=lease.token))

    def report(self, report: Report) -> ResultsAccepted:
        """Report results, in one attempt; raise `LeaseLostError`."""
        return self._ask(f"/v1/leases/{report.lease_id}/results", report.results, ResultsAccepted)

    def close(self) -> None:
        self._http.close()

    def _keep_trying(self, call: Callable[[], T], patience_s: float | None = None) -> T:
        began = time.monotonic()
        pause, said = FIRST_PAUSE_S, False
        while True:
            try:
                return call()
            except UnreachableError as error:
                if patience_s is not None and time.monotonic() - began > patience_s:
                    raise
                if self._stop.is_set():  # the client may have been closed
                    raise StoppedError from error
                if not said:
                    log.warning("%s; retrying with back-off", error)
                    said = True
            if self._stop.wait(pause * self._rng.uniform(0.5, 1.0)):
                raise StoppedError
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def _ask(self, path: str, body: Any, kind: type[T], timeout_s: float = ANSWER_S) -> T:
        """The service's answer to what is posted."""
        answer = self._send("POST", path, body, timeout_s)
        try:
            return decode(answer.content, kind)
        except WireError as error:
            said = f"{self.shown}{path} sent an answer that is no {kind.__name__} ({error})"
            if not isinstance(error.__cause__, msgspec.ValidationError):  # but a page, as of a login
                raise FailedRequestError(f"{said}; {_BY_PROXY}") from error
            raise AnswerError(f"{said}: check that it is a plevel service of the same version") from error

    def _send(self, method: str, path: str, body: Any = None, timeout_s: float = ANSWER_S) -> httpx.Response:
        """Send a request, once more by a new token where the service refuses the old one.

        Raises:
            ServiceError: its subclass for the status of the answer.
        """
        content = None if body is None else encode(body)
        sent = self._http.headers.get("authorization")
        answer = self._send_once(method, path, content, timeout_s)
        if answer.status_code == _UNAUTHORIZED and self._renew_token(sent):
            answer = self._send_once(method, path, content, timeout_s)
        if answer.status_code >= 300:
            raise _refusal(self.shown, path, answer)
        return answer

    def _send_once(self, method: str, path: str, content: bytes | None, timeout_s: float) -> httpx.Response:
        headers = {"content-type": "application/json"} if content is not None else None
        timeout = httpx.Timeout(timeout_s, connect=min(timeout_s, 5.0))
        try:
            return self._http.request(method, path, content=content, headers=headers, timeout=timeout)
        except httpx.RequestError as error:
            reason = str(error) or type(error).__name__
            if (fault := certificate_fault(self.shown, reason)) is not None:
                raise UntrustedError(fault) from error
            is_away = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
            kind = UnreachableError if is_away else FailedRequestError  # as by a firewall that cuts the connection
            raise kind(f"the service at {self.shown} is not reachable: {reason}") from error

    def _renew_token(self, sent: str | None) -> bool:
        """Read the token again, and use it from now on; return True if it is another one than was sent."""
        try:
            renewed = _authorization(self._token())
        except OSError:
            return False
        for name, value in renewed.items():  # `update` would remove the old one first, which other threads use
            self._http.headers[name] = value
        return bool(self._http.headers.get("authorization") != sent)


def _authorization(token: str | None) -> dict[str, str]:
    return {} if token is None else {"authorization": f"Bearer {token}"}


def _refusal(url: str, path: str, answer: httpx.Response) -> ServiceError:
    try:
        problem = msgspec.json.decode(answer.content)
        detail = str(problem.get("detail") or problem.get("title") or "")
        kind = kind_of(problem)
    except (msgspec.MsgspecError, AttributeError):
        detail, kind = answer.text.strip().partition("\n")[0][:200], ""
    if (elsewhere := answer.headers.get("location")) is not None:
        detail = f"it redirects to {elsewhere[:200]}"
    message = f"{url}{path} answered {answer.status_code}: {detail}"
    is_fault = answer.status_code >= 500 and answer.status_code != _NOT_IMPLEMENTED  # by a program that takes no POST
    if answer.status_code in _RETRIED:
        return UnreachableError(message)
    if is_fault and kind:
        return (FaultError if kind == "internal" else UnavailableError)(message)
    if is_fault:
        return FailedRequestError(message)
    if answer.status_code == _UNAUTHORIZED:
        return UnauthorizedError(message)
    # Of a lease any: another program in the place of one of several services must cost no results.
    is_by_proxy = answer.status_code < 400 or answer.status_code in _OF_PROXIES or path.startswith(_OF_LEASES)
    if is_by_proxy and not kind:
        return FailedRequestError(f"{message}; {_BY_PROXY}")
    if kind == "device-busy":
        return DeviceBusyError(message)
    if answer.status_code == 409 or (
        answer.status_code in (404, 410) and path.startswith(_OF_LEASES)
    ):
        return LeaseLostError(message)
    if answer.status_code == 404:
        return UnknownWorkerError(message)
    return ServiceError(message)
