"""Errors of the service: each carries its HTTP status, and one handler renders them all."""

from __future__ import annotations

STOPPING = "the service is stopping: send the request again once it is back"
LOGGED = "the service's log has the details"
CUT_OFF = "the service stopped before it had answered, and may have done what was asked: look before you ask again"


class ServiceError(Exception):
    """An error with a message of one line that names the remedy; the others are for programs.

    Attributes:
        status: of HTTP.
        kind: names it in a problem document.
        retry_s: the time after which the same request may succeed (Retry-After), in seconds; None if it will not.
    """

    status = 500
    kind = "internal"
    title = "The service failed"
    retry_s: int | None = None


class InvalidError(ServiceError):
    status = 422
    kind = "invalid"
    title = "The request is not valid"


class NoSelectionError(InvalidError):
    """No implementation is valid for the workload: `strategy.select.SelectionError` over HTTP."""

    kind = "no-selection"
    title = "Nothing can be selected"


class MalformedError(ServiceError):
    status = 400
    kind = "malformed"
    title = "The body is not JSON"


class TooLargeError(ServiceError):
    status = 413
    kind = "too-large"
    title = "The body is too large"


class MalformedRequestError(ServiceError):
    status = 400
    kind = "malformed-request"
    title = "The request is not HTTP"


class UrlTooLongError(ServiceError):
    status = 414
    kind = "url-too-long"
    title = "The URL is too long"


class HeadTooLargeError(ServiceError):
    status = 431
    kind = "head-too-large"
    title = "The headers are too large"


class TooSlowError(ServiceError):
    status = 408
    kind = "too-slow"
    title = "The request came too slowly"


class BusyError(ServiceError):
    status = 503
    kind = "busy"
    retry_s = 1
    title = "The service has no connection left"


class UnauthorizedError(ServiceError):
    status = 401
    kind = "unauthorized"
    title = "A token is needed"


class ForbiddenError(ServiceError):
    status = 403
    kind = "forbidden"
    title = "This is not allowed"


class TooManyError(ServiceError):
    status = 429
    kind = "too-many"
    retry_s = 1
    title = "Too many requests"


class NotFoundError(ServiceError):
    status = 404
    kind = "not-found"
    title = "Not found"


class LeaseLostError(ServiceError):
    """The caller no longer holds the lease: wrong token, expired, released or ended."""

    status = 409
    kind = "lease-lost"
    title = "The lease is lost"


class DeviceBusyError(ServiceError):
    """Another timing lease of the device is live."""

    status = 409
    kind = "device-busy"
    title = "The device is timing under another lease"


class DatabaseError(ServiceError):
    """The database cannot be opened or written, or has another schema.

    Args:
        message: for the log, and for whoever has opened the database; it may name its file or server.
        told: the message for a service's clients, from whom these are kept; default: the same.
    """

    status = 503
    kind = "database"
    title = "The database is not available"

    def __init__(self, message: str, told: str | None = None) -> None:
        super().__init__(message)
        self.told = message if told is None else told


class UnansweredError(DatabaseError):
    """The database server cannot be reached, or does not answer."""

    retry_s = 1


class OverloadedError(UnansweredError):
    """The database server takes no connection at this moment, and will soon."""


class StoppedError(ServiceError):
    """The service is stopping and ends its work."""

    status = 503
    kind = "stopping"
    retry_s = 1
    title = "The service is stopping"


class CutOffError(ServiceError):
    """The service stopped before it had answered a change, which it may have made."""

    kind = "cut-off"
    title = "The service stopped before it had answered"


class SchemaError(DatabaseError):
    """The database's schema is newer than this installation's, or older and not upgraded."""

    kind = "schema"
    title = "The database has another schema"


class StartError(ServiceError):
    """The service cannot start, for instance because its port is in use."""
