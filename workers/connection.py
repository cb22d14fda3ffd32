"""HTTP connections to a service, by the proxies and certificates of the environment."""

from __future__ import annotations

import os
import re
import ssl
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx

from strategy.host import is_loopback


class ConnectionSettingError(ValueError):
    """An address, or a variable of the environment, with which no connection can be made; the message names it."""


def open_http(url: str, transport: httpx.BaseTransport | None = None, **options: Any) -> httpx.Client:
    """An HTTP client of the service at `url`. This host is reached without a proxy, whatever the environment names.

    Raises:
        ConnectionSettingError: the URL, a proxy or the certificates cannot be used.
    """
    address = _parse(url)
    secure = address.scheme == "https" and transport is None
    trusted = trusted_certificates() if secure else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    headers = httpx.Headers(options.pop("headers", None))  # raises for a token that is not ASCII
    try:
        return httpx.Client(
            base_url=address, transport=transport, verify=trusted, trust_env=not is_loopback(address.host),
            headers=headers, **options,
        )
    # Of the environment: a proxy by SOCKS, whose package is missing, or of an unknown scheme, or no address.
    except (ImportError, ValueError, httpx.InvalidURL) as error:
        why = str(error).partition(". ")[0].rstrip(".")
        raise ConnectionSettingError(
            f"a proxy of the environment cannot be used ({why}): correct HTTP_PROXY, HTTPS_PROXY, ALL_PROXY or "
            f"NO_PROXY, in which {address.host} may be named"
        ) from error


def find_proxy(url: str) -> str:
    """The proxy of the environment by which `open_http` reaches a service, without a password; empty without one."""
    address, known = httpx.URL(url), getproxies()
    proxy = known.get(address.scheme) or known.get("all") or ""
    return "" if is_loopback(address.host) or proxy_bypass(address.host) else re.sub(r"(?<=://).*@", "", proxy)


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


def certificate_fault(url: str, said: str) -> str | None:
    """The fault of a service's certificate in the words of an error, with its remedy; None if they name none."""
    if "CERTIFICATE_VERIFY_FAILED" not in said:
        return None
    if "has expired" in said or "not yet valid" in said:
        return (
            f"the certificate of {url} is not valid now ({said}): have it renewed where the service runs, or set this "
            "host's clock"
        )
    if "mismatch" in said:
        return f"the certificate of {url} is another host's ({said}): write the host in the URL as the certificate does"
    return (
        f"the certificate of {url} is not trusted ({said}): name the file of its authority in SSL_CERT_FILE, or have "
        "it signed by one that this host trusts"
    )


def _parse(url: str) -> httpx.URL:
    shown = repr(re.sub(r"(?<=://).*@", "", url)[:120])  # without a password, which may have any character
    try:
        _ = urlsplit(url).port  # raises where it is no number, or too large
        address = httpx.URL(url)
        host = address.host
        address.raw_host.decode().encode("idna")  # as it is looked up: raises for an empty or a long part
    except (httpx.InvalidURL, ValueError) as error:  # whose text may have a part of the password
        why = "no port" if "port" in str(error).lower() else "no address"
        raise ConnectionSettingError(f"url {shown}: {why}: write http://host:port") from error
    if not host:
        raise ConnectionSettingError(f"url {shown}: no host: write http://host:port")
    return address
