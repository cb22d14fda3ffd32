"""A client whose GETs take a tenth of a millisecond of the tool's process, where httpx takes half of one."""

from __future__ import annotations

import http.client
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx

from plevel.client import Client, problem_of
from workers.connection import trusted_certificates


class LeanClient(Client):
    """A client whose GETs go over one connection of `http.client`, which is kept open.

    Other requests, and all through a proxy or with a password in the URL, are the client's own.
    """

    def __init__(
        self, url: str, *, timeout_s: float, token: str | None = None, namespace: str | None = None
    ) -> None:
        super().__init__(url, timeout_s=timeout_s, patience_s=0.0, token=token, namespace=namespace)
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._path = urlsplit(self.url).path
        self._asked = httpx.Request("GET", self.url)  # as errors name it
        self._connection = _connect(self.url, timeout_s) if _is_plain(self.url) else None

    def close(self) -> None:
        super().close()
        if self._connection is not None:
            self._connection.close()

    def _send(self, method: str, path: str, *, again: bool = True, **options: Any) -> httpx.Response:
        if method != "GET" or self._connection is None:
            return super()._send(method, path, again=again, **options)
        url = f"{self._path}{path}?{self._http.params.merge(options.get('params'))}"
        response = self._get(self._connection, url)
        if not response.is_success:
            raise problem_of(response)
        return response

    def _get(self, connection: http.client.HTTPConnection, url: str) -> httpx.Response:
        while True:
            reused = connection.sock is not None
            try:
                connection.request("GET", url, headers=self._headers)
                answer = connection.getresponse()
                return httpx.Response(answer.status, content=answer.read(), request=self._asked)
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                # The service closes connections that were idle for some seconds, and when it starts again.
                if not (reused and isinstance(error, ConnectionError)):
                    raise self._unreachable(error) from error


def _connect(url: str, timeout_s: float) -> http.client.HTTPConnection:
    """A connection, which begins with its first request."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme == "http":
        return http.client.HTTPConnection(host, parts.port, timeout=timeout_s)
    return http.client.HTTPSConnection(
        host, parts.port, timeout=timeout_s, context=trusted_certificates()
    )


def _is_plain(url: str) -> bool:
    """Return whether requests go to the host itself, and need no password of the URL."""
    parts = urlsplit(url)
    proxies = getproxies()
    proxied = parts.scheme in proxies or "all" in proxies
    return parts.username is None and not (proxied and not proxy_bypass(parts.hostname or ""))
