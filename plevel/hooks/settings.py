"""Settings of hooks that the environment gives."""

from __future__ import annotations

import os
from urllib.parse import urlsplit


def is_off() -> bool:
    """Return whether `PLEVEL_HOOKS=0` switches all hooks off."""
    return os.environ.get("PLEVEL_HOOKS", "1").lower() in ("0", "off", "false", "no")


def service_url(url: str | None) -> str:
    """Return the service's URL; default: `PLEVEL_URL`.

    Raises:
        ValueError: no service is named, or not by a URL.
    """
    url = url or os.environ.get("PLEVEL_URL")
    if not url:
        raise ValueError("no service is named: set PLEVEL_URL=http://host:port, or give its url")
    if not _is_address(url):
        raise ValueError(f"PLEVEL_URL {url!r:.120} is no address of a service: write http://host:port")
    return url


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
