"""The service's settings: from arguments, else `PLEVEL_…` in the environment, else the defaults.

Built once, in `create_app()` or `main()`, and passed down.
"""

from __future__ import annotations

import base64
import ipaddress
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from service.address import default_url

WHSEC = "whsec_"
LONGEST_S = 1e9  # of 30 years: waits of the operating system have an end
Mode = Literal["auto", "open", "token"]


class Settings(BaseSettings):
    """Settings of the service. Times are in seconds, sizes in bytes."""

    model_config = SettingsConfigDict(
        env_prefix="PLEVEL_", frozen=True, extra="ignore", use_attribute_docstrings=True
    )

    database: str = Field(default_factory=default_url)
    host: str = "127.0.0.1"
    port: int = Field(default=8765, ge=0, le=65535)
    auth: Mode = "auto"
    """`auto`: a token is required once there has been one; `token`: always; `open`: never, on loopback only."""
    rate: float = Field(default=500.0, gt=0, le=1e9)
    """Requests per second of one token in one process."""
    tls_cert: Path | None = None
    """PEM, with its chain."""
    tls_key: Path | None = None
    lease_s: float = Field(default=12.0, gt=0, le=LONGEST_S)
    """A worker that renews no lease for this long, and a third of it, loses its jobs; one that misses three heartbeats
    does not count as live."""
    heartbeat_s: float = Field(default=4.0, gt=0, le=LONGEST_S)
    poll_s: float = Field(default=1.0, gt=0, le=LONGEST_S)
    """Interval at which long polls query again, as another process may have written."""
    webhook_hosts: str = ""
    """Permitted hosts of webhooks: `ci.lan, *.example.org`; default: none."""
    webhook_secret: SecretStr | None = None
    """Signs webhooks: whsec_ and base64."""
    webhook_retry_s: float = Field(default=10.0, gt=0, le=LONGEST_S)
    """Time from the first attempt of a webhook to the second; doubles each time."""
    max_request_bytes: int = Field(default=16 * 1024 * 1024, ge=1024)
    """Bodies of requests; imports are streams and have no limit."""
    max_url_bytes: int = Field(default=16 * 1024, ge=128)
    max_head_bytes: int = Field(default=64 * 1024, ge=256)
    """URL, headers and trailers of a request."""
    max_headers: int = Field(default=100, ge=1)
    max_connections: int = Field(default=4096, ge=1)
    """Connections of one process, at most half of the files that it may open. More get 503."""
    max_connections_per_address: int = Field(default=256, ge=0)
    """Connections of one IPv4 address or 64-bit IPv6 network; 0: no limit. Proxies have none."""
    proxies: str = "127.0.0.1, ::1"
    """Comma-separated addresses and networks whose `X-Forwarded-For` is trusted."""
    head_s: float = Field(default=10.0, gt=0, le=LONGEST_S)
    """Time limit of a TLS handshake, and of the URL and headers of a request."""
    body_s: float = Field(default=60.0, gt=0, le=LONGEST_S)
    """Time limit of the body of a request; a large import may be waited for a second longer for each 8 KiB of it, and
    for any time while no other waits."""
    idle_s: float = Field(default=30.0, gt=0, le=LONGEST_S)
    """Time limit without progress while a client sends a body or reads an answer."""
    migrate: bool = True
    """Upgrade an older schema when starting; a fleet may prefer `plevel db upgrade`."""
    tune: bool = True
    """Run the tuner in this process."""
    remeasure_s: float = Field(default=86_400.0, ge=0, le=LONGEST_S)
    """Time after a run's end at which finals of a single device are measured again; 0: never."""
    batch: int = Field(default=8, ge=1, le=1000)
    """Configurations in one search job."""

    @field_validator("webhook_secret")
    @classmethod
    def _check_secret(cls, secret: SecretStr | None) -> SecretStr | None:
        if secret is None:
            return None
        prefix, _, encoded = secret.get_secret_value().partition("_")
        try:
            key = base64.b64decode(encoded, validate=True)
        except ValueError:
            key = b""
        if f"{prefix}_" != WHSEC or not 24 <= len(key) <= 64:
            raise ValueError(
                "expected whsec_ and the base64 form of 24 to 64 random bytes: "
                "make one with: echo whsec_$(openssl rand -base64 24)"
            )
        return secret

    @field_validator("proxies")
    @classmethod
    def _check_proxies(cls, proxies: str) -> str:
        for name in filter(None, map(str.strip, proxies.split(","))):
            try:
                ipaddress.ip_network(name)
            except ValueError as error:
                raise ValueError(f"{name!r:.80} is no address or network: write 127.0.0.1, 10.1.0.0/16") from error
        return proxies

    @property
    def grace_s(self) -> float:
        """Seconds for which a lease whose time is over may still be renewed: workers renew three times in a term."""
        return self.lease_s / 3

    @property
    def alive_s(self) -> float:
        """Seconds after its last heartbeat for which a worker counts as alive."""
        return 3 * self.heartbeat_s


def misspelled(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield each variable of an environment that is no setting, with the setting whose name is nearly the same."""
    known = {f"PLEVEL_{name.upper()}" for name in Settings.model_fields}
    for name in names:
        upper = name.upper()  # as settings are read in either case
        if upper.startswith("PLEVEL_") and upper not in known:
            for near in get_close_matches(upper, known, n=1, cutoff=0.9):
                yield name, near
