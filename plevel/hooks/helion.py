"""Helion's remote cache: `HELION_REMOTE_CACHE_BACKEND=plevel.hooks.helion.Backend`, with `PLEVEL_URL`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

from helion._compat import get_device_name
from helion.autotuner.remote_cache import RemoteCacheBackend

from plevel.hooks.reporter import Reporter
from plevel.hooks.settings import is_off
from strategy.workload import Workload

NEWEST = 100
_ENVIRONMENT = ("runtime_name", "backend", "helion_key", "torch_key", "triton_key")
_reporters: list[Reporter] = []


class Backend(RemoteCacheBackend):  # type: ignore[misc]
    """Winners of Helion's tuning, kept by a plevel service."""

    def __init__(self) -> None:
        # One connection for all kernels: Helion makes a backend for each.
        if not _reporters and not is_off():
            _reporters.append(Reporter())

    def get(self, key: str) -> str | None:
        """The entry under a key, as Helion wrote it; None if there is none or the service is away."""
        for reporter in _reporters:
            with reporter.spared():
                found = reporter.best("helion", Workload("helion.kernel", (), {"cache_key": key}), limit=1)
                return next((text for a in (found or {}).get("answers", ()) for text in _entry(a)), None)
        return None

    def put(self, key: str, data: str) -> None:
        """Send an entry in the background."""
        for reporter in _reporters:
            with reporter.spared():
                entry = json.loads(data)
                fields = entry["key"]["fields"]
                reporter.report({
                    "tool": "helion", "kernel": "kernel", "attrs": {"cache_key": key},
                    "version": fields.get("kernel_source_hash", "")[:16] or "unknown",
                    "device_model": fields.get("hardware", "")[:200], "measured_at": time.time(),
                    "environment": {k: fields[k] for k in _ENVIRONMENT if k in fields},
                    "candidates": [{"config": json.loads(entry["config"]), "extra": entry}],
                })

    def list(self, max_results: int | None = None) -> Iterator[str]:
        """Yield the newest entries of this device model, with which Helion warms its search."""
        for reporter in _reporters:
            with reporter.spared():
                count = NEWEST if max_results is None else max_results
                model = get_device_name()
                wanted = {} if model is None else {"device_model": model}
                for kernel in reporter.kernels("helion", count, **wanted):
                    yield from _entry(kernel["best"])


def _entry(answer: dict[str, Any] | None) -> Iterator[str]:
    """The entry of an answer as Helion wrote it, if it is one."""
    extra = answer["extra"] if answer else None
    if isinstance(extra, dict) and isinstance(extra.get("config"), str) and "key" in extra:
        yield json.dumps(extra)
