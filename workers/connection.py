"""HTTP connections to a service, by the proxies and certificates of the environment."""

from __future__ import annotations

import os
import re
import ssl
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

import httpx


class ConnectionSettingError(ValueError):
    """An address, or a variable of the environment, with which no connection can be made; the message names it."""


def open_http(url: str, transport: httpx.BaseTransport | None = None, **options: Any) -> httpx.Client:
    """An HTTP client of the service at `url`. This host is reached without a proxy, whatever the environment names.

    Raises:
        ConnectionSettingError: the URL, a proxy or the certificates cannot be used.
    """
    parts = _split(url)
    secure = parts.scheme == "https" and transport is None
    trusted = trusted_certificates() if secure else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        return httpx.Client(
            base_url=url, transport=transport, verify=trusted, trust_env=not _is_this_host(parts.hostname or ""),
            **options,
        )  # fmt: skip
    except httpx.InvalidURL as error:
        raise ConnectionSettingError(f"url {_shown(url)}: {error}: write http://host:port") from error
    except (ImportError, ValueError) as error:  # a proxy by SOCKS, whose package is missing, or of an unknown scheme
        why = str(error).partition(". ")[0].rstrip(".")
        raise ConnectionSettingError(
            f"a proxy of the environment cannot be used ({why}): correct HTTP_PROXY, HTTPS_PROXY or ALL_PROXY, or "
            f"name {parts.hostname} in NO_PROXY"
        ) from error


def trusted_certificates() -> ssl.SSLContext:
    """Trust the file of SSL_CERT_FILE or the folder of SSL_CERT_DIR, else the system's certificates and certifi's.

    Raises:
        ConnectionSettingError: SSL_CERT_FILE cannot be read.
    """
    try:
        context = httpx.create_ssl_context()
    except OSError as error:  # ssl.SSLError is one
        raise ConnectionSettingError(
            f"SSL_CERT_FILE {os.environ.get('SSL_CERT_FILE')}: no certificates ({error.strerror or error}): name a "
            "PEM file that this user may read"
        ) from error
    if not (os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR")):
        context.load_default_certs()
    return context


def _split(url: str) -> Any:
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises where it is no number
    except ValueError as error:
        raise ConnectionSettingError(f"url {_shown(url)}: {error}: write http://host:port") from error
    if not parts.hostname:
        raise ConnectionSettingError(f"url {_shown(url)}: no host: write http://host:port")
    return parts


def _shown(url: str) -> str:
    """The URL without its password."""
    return repr(re.sub(r"(?<=://)[^/@]*@", "", url)[:120])


def _is_this_host(name: str) -> bool:
    if name == "localhost":
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False
